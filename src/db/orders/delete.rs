//! Deletes orders: those of several requests in one transaction.
//!
//! Invariant: the pets that the orders hold are locked first, in the order of their identifiers.

use std::cmp::Ordering;

use super::place::{Owner, owner_column};
use crate::{
    db::{
        batch::{BatchResult, BatchedStatement},
        connect::Connection,
        database::Database,
        error::Error,
    },
    domain::{
        id::{OrderId, PetId},
        order::Standing,
        pet::Status,
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

/// Deletes an order, in one transaction and one commit with the deletions of other requests. An open order releases
/// its pet. An order that is not open is deleted only without a `filter`.
pub async fn delete(
    database: &Database,
    id: OrderId,
    filter: OwnerFilter,
) -> Result<DeletionOutcome, Error> {
    database.batchers().execute::<Deletions>((id, filter)).await
}

/// Statements that delete the orders of several requests.
pub(in crate::db) struct Deletions;

impl BatchedStatement for Deletions {
    type Input = (OrderId, OwnerFilter);
    type Output = DeletionOutcome;

    const SUMMARY: &'static str = "DELETE orders";

    /// By identifier, so that two batches lock orders in the same order.
    fn compare((one, _): &Self::Input, (other, _): &Self::Input) -> Ordering {
        one.cmp(other)
    }

    fn needs_transaction(_: &[Self::Input]) -> bool {
        true
    }

    async fn execute_all(
        connection: &mut Connection,
        inputs: &mut Vec<Self::Input>,
    ) -> Result<Vec<BatchResult<Self>>, Error> {
        let ids: Vec<i64> = inputs.iter().map(|(id, _)| id.get()).collect();
        let owners: Vec<_> = inputs
            .iter()
            .map(|(_, owner)| owner.map(owner_column))
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
             returning orders.id, orders.owner, held_pet, status <> 'delivered' and not complete",
        );
        let locked: Vec<i64> = pets.iter().map(|(id, _)| id.get()).collect();
        let query = query.bind(&ids).bind(&owners).bind(locked);
        let mut deleted: Vec<(OrderId, i64, Option<PetId>, bool)> =
            query.fetch_all(&mut *connection).await?;
        let closed = if deleted.len() < ids.len() {
            closed(&mut *connection, &ids).await?
        } else {
            Vec::new()
        };
        let is_held = |pet| deleted.iter().any(|(_, _, held, _)| *held == Some(pet));
        let held = pets.into_iter().filter(|(pet, _)| is_held(*pet));
        release(connection, held.collect()).await?;
        // Each deletion is the result of one request.
        let mut outcome = |(id, owner): (OrderId, Option<i64>)| {
            let matches = |(deleted, of, _, is_open): &(OrderId, i64, _, bool)| {
                *deleted == id && owner.is_none_or(|owner| owner == *of && *is_open)
            };
            let index = deleted.iter().position(matches);
            match index.map(|index| deleted.swap_remove(index)) {
                Some(_) => DeletionOutcome::Deleted,
                None if owner.is_some_and(|owner| closed.contains(&(id, owner))) => {
                    DeletionOutcome::Closed
                }
                None => DeletionOutcome::NotFound,
            }
        };
        let requests = inputs.drain(..).map(|(id, _)| id).zip(owners);
        let outcomes = requests.map(&mut outcome);
        Ok(outcomes.map(BatchResult::Done).collect())
    }
}

/// Returns those of these orders that are delivered or complete, with their owners.
async fn closed(connection: &mut Connection, ids: &[i64]) -> Result<Vec<(OrderId, i64)>, Error> {
    let query = sqlx::query_as(
        "select id, owner from orders where id = any ($1) and (status = 'delivered' or complete)",
    );
    Ok(query.bind(ids).fetch_all(connection).await?)
}

/// Sets the status of locked pets after their orders were deleted.
async fn release(connection: &mut Connection, pets: Vec<(PetId, Status)>) -> Result<(), Error> {
    let released = |(id, status): (PetId, Status)| {
        let held = true;
        let released = Standing { status, held }.released().status;
        (released != status).then(|| (id.get(), released.as_str()))
    };
    let (ids, statuses): (Vec<i64>, Vec<&str>) = pets.into_iter().filter_map(released).unzip();
    if ids.is_empty() {
        return Ok(());
    }
    let query = sqlx::query(
        "update pets set version = nextval('pet_versions'), status = given.status
         from unnest($1::bigint[], $2::text[]) as given (id, status)
         where pets.id = any ($1) and pets.id = given.id",
    );
    query.bind(ids).bind(statuses).execute(connection).await?;
    Ok(())
}
