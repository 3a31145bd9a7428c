//! Deletes orders: those of several requests in one transaction.
//!
//! Invariant: the pets that the orders hold are locked first, in the order of their identifiers.

use std::{cmp::Ordering, collections::HashMap};

use serde_json::json;

use super::place::{Owner, owner_column};
use crate::{
    db::{
        batch::{BatchResult, BatchedStatement},
        connect::Connection,
        database::Database,
        error::Error,
        record::{self, Record},
    },
    domain::{
        caller::CallerId,
        change::{Action, Initiator, Kind},
        id::{OrderId, PetId},
        order::Standing,
        pet::{Status, Version},
    },
};

/// Owner of the orders that a statement includes; `None` for all owners.
pub type OwnerFilter = Option<Owner>;

/// Outcome of a deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeletionOutcome {
    /// The order was deleted.
    Deleted,
    /// There is no such order of an owner that the filter includes.
    NotFound,
    /// The order is delivered or complete.
    Closed,
}

/// Requested deletion of an order.
#[derive(Debug, Clone)]
pub struct Deletion {
    /// Order to delete.
    pub id: OrderId,
    /// Owners of the orders that may be deleted.
    pub filter: OwnerFilter,
    /// Who deletes it.
    pub initiator: Initiator,
}

/// Deletes an order, in one transaction and one commit with the deletions of other requests. An open order releases
/// its pet. An order that is not open is deleted only without a `filter`.
pub async fn delete(database: &Database, deletion: Deletion) -> Result<DeletionOutcome, Error> {
    database.batchers().execute::<Deletions>(deletion).await
}

/// Statements that delete the orders of several requests.
pub(in crate::db) struct Deletions;

impl BatchedStatement for Deletions {
    type Input = Deletion;
    type Output = DeletionOutcome;

    const SUMMARY: &'static str = "DELETE orders";

    /// By identifier, so that two batches lock orders in the same order.
    fn compare(one: &Deletion, other: &Deletion) -> Ordering {
        one.id.cmp(&other.id)
    }

    fn needs_transaction(_: &[Deletion]) -> bool {
        true
    }

    async fn execute_all(
        connection: &mut Connection,
        inputs: &mut Vec<Deletion>,
    ) -> Result<Vec<BatchResult<Self>>, Error> {
        let ids: Vec<i64> = inputs.iter().map(|it| it.id.get()).collect();
        let owners: Vec<_> = inputs
            .iter()
            .map(|it| it.filter.map(owner_column))
            .collect();
        // An array, so that the plan uses the primary key, independent of statistics.
        let query = sqlx::query_as(
            "select id, status from pets
             where id = any (array(
                 select held_pet
                 from unnest($1::bigint[], $2::bigint[]) as given (id, owner)
                 join orders on orders.id = given.id
                 where orders.id = any ($1) and (given.owner is null or orders.owner = given.owner)
             ))
             order by id for update",
        );
        let query = query.bind(&ids).bind(&owners);
        let query = query.fetch_all(&mut *connection);
        let pets: Vec<(PetId, Status)> = query.await?;
        // An order that holds another pet was placed since then: there was no order with its identifier in between.
        let query = sqlx::query_as(
            "delete from orders
             using unnest($1::bigint[], $2::bigint[]) as given (id, owner)
             where orders.id = any ($1) and orders.id = given.id
               and (given.owner is null
                    or (orders.owner = given.owner and status <> 'delivered' and not complete))
               and (held_pet is null or held_pet = any ($3))
             returning orders.id, orders.owner, pet_id, held_pet, status <> 'delivered' and not complete",
        );
        let locked: Vec<i64> = pets.iter().map(|(id, _)| id.get()).collect();
        let query = query.bind(&ids).bind(&owners).bind(locked);
        let mut deleted: Vec<(OrderId, i64, PetId, Option<PetId>, bool)> =
            query.fetch_all(&mut *connection).await?;
        let closed = if deleted.len() < ids.len() {
            closed(&mut *connection, &ids).await?
        } else {
            Vec::new()
        };
        let held = (pets.into_iter())
            .filter(|(pet, _)| deleted.iter().any(|(.., held, _)| *held == Some(*pet)));
        let released = release(connection, held.collect()).await?;
        let (mut outcomes, mut records) = (Vec::new(), Vec::new());
        for (Deletion { id, initiator, .. }, owner) in inputs.iter().zip(owners) {
            // Each deletion is the result of one request.
            let index = deleted.iter().position(|(deleted, of, _, _, is_open)| {
                deleted == id && owner.is_none_or(|owner| owner == *of && *is_open)
            });
            outcomes.push(match index.map(|index| deleted.swap_remove(index)) {
                Some((_, of, pet_id, held, _)) => {
                    let record = Record::new(Kind::Order, id, Action::Deleted, initiator)
                        .owned_by((of != 0).then_some(CallerId(of)))
                        .with_data(Some(json!({"pet": pet_id.get()})));
                    records.push(record);
                    let released = released.iter().find(|pet| Some(pet.id) == held);
                    records.extend(released.map(|pet| {
                        Record::of_pet_status(pet.id, pet.version, pet.statuses, initiator)
                    }));
                    DeletionOutcome::Deleted
                }
                None if owner.is_some_and(|owner| closed.contains(&(*id, owner))) => {
                    DeletionOutcome::Closed
                }
                None => DeletionOutcome::NotFound,
            });
        }
        record::write(connection, &records).await?;
        inputs.clear();
        Ok(outcomes.into_iter().map(BatchResult::Done).collect())
    }
}

/// Pet whose status has changed because its order was deleted.
struct Released {
    id: PetId,
    version: Version,
    /// Status before and after.
    statuses: (Status, Status),
}

/// Returns those of these orders that are delivered or complete, with their owners.
async fn closed(connection: &mut Connection, ids: &[i64]) -> Result<Vec<(OrderId, i64)>, Error> {
    let query = sqlx::query_as(
        "select id, owner from orders where id = any ($1) and (status = 'delivered' or complete)",
    );
    Ok(query.bind(ids).fetch_all(connection).await?)
}

/// Sets the status of locked pets after their orders were deleted. Returns those whose status changed.
async fn release(
    connection: &mut Connection,
    pets: Vec<(PetId, Status)>,
) -> Result<Vec<Released>, Error> {
    let (mut ids, mut statuses, mut changes) = (Vec::new(), Vec::new(), HashMap::new());
    for (id, status) in pets {
        let held = true;
        let released = Standing { status, held }.released().status;
        if released != status {
            ids.push(id.get());
            statuses.push(released.as_str());
            changes.insert(id, (status, released));
        }
    }
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let query = sqlx::query_as(
        "update pets set version = nextval('pet_versions'), status = given.status
         from unnest($1::bigint[], $2::text[]) as given (id, status)
         where pets.id = any ($1) and pets.id = given.id
         returning pets.id, pets.version",
    );
    let query = query.bind(ids).bind(statuses);
    let versions: Vec<(PetId, Version)> = query.fetch_all(connection).await?;
    let released = versions.into_iter().filter_map(|(id, version)| {
        Some(Released {
            id,
            version,
            statuses: *changes.get(&id)?,
        })
    });
    Ok(released.collect())
}
