//! Places orders: those of several requests in one transaction.
//!
//! Invariants:
//! - Pets are locked before orders are read or written, in the order of their identifiers, so that two batches cannot
//!   deadlock.
//! - An order that is not stored does not change its pet.

use std::{collections::HashMap, iter, slice};

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value;
use sqlx::{FromRow, types::Json};

use crate::{
    db::{
        batch::{BatchResult, BatchedStatement},
        connect::Connection,
        database::Database,
        deadline::with_timeout,
        error::Error,
        record::{recorded, status_change},
        sequences::skip_chosen_ids,
    },
    domain::{
        caller::CallerId,
        change::Initiator,
        id::{OrderId, PetId},
        order::{NewOrder, Order, OrderValues, Refusal, ShipDate, Standing},
        pet,
        user::Username,
    },
};

/// Owner of orders: a caller, or `None` for all anonymous callers.
pub type Owner = Option<CallerId>;

pub(super) fn owner_column(owner: Owner) -> i64 {
    owner.map_or(0, |caller| caller.0)
}

/// Requested order.
#[derive(Debug, Clone)]
pub struct Placement {
    /// Owner of the order.
    pub owner: Owner,
    /// Order to place.
    pub order: NewOrder,
    /// Who places it.
    pub initiator: Initiator,
}

/// Outcome of a placement.
#[derive(Debug)]
pub enum PlacementOutcome {
    /// The order was placed; it has no name of the caller, but its username.
    Placed(Order),
    /// There is no such pet.
    PetNotFound,
    /// The pet cannot be ordered.
    Refused(Refusal),
    /// The identifier that the client chose is taken.
    IdTaken,
}

/// Places an order, which holds its pet while it is open, in one transaction and one commit with the orders of other
/// requests. Without a chosen identifier, the sequence provides one and skips those that are taken.
pub async fn place(database: &Database, placement: Placement) -> Result<PlacementOutcome, Error> {
    database.batchers().execute::<Placements>(placement).await
}

/// Places an order in a transaction, like [`place`].
pub async fn place_in(
    transaction: &mut Connection,
    placement: Placement,
) -> Result<PlacementOutcome, Error> {
    loop {
        let mut outcomes = place_all(transaction, slice::from_ref(&placement)).await?;
        match outcomes.pop().flatten() {
            Some(outcome) => return Ok(outcome),
            None if placement.order.id.is_some() => return Ok(PlacementOutcome::IdTaken),
            // Each iteration moves the sequence on, so there is progress.
            None => {
                skip_chosen_ids(transaction, "orders", "order_ids").await?;
            }
        }
    }
}

/// Statements that place the orders of several requests.
pub(in crate::db) struct Placements;

impl BatchedStatement for Placements {
    type Input = Placement;
    type Output = PlacementOutcome;

    const SUMMARY: &'static str = "INSERT orders";

    fn needs_transaction(_: &[Placement]) -> bool {
        true
    }

    async fn execute_all(
        connection: &mut Connection,
        inputs: &mut Vec<Placement>,
    ) -> Result<Vec<BatchResult<Self>>, Error> {
        let outcomes = match &inputs[..] {
            [only] => vec![Some(place_in(connection, only.clone()).await?)],
            _ => place_all(connection, inputs).await?,
        };
        let results =
            iter::zip(inputs.drain(..), outcomes).map(|(placement, outcome)| match outcome {
                Some(outcome) => BatchResult::Done(outcome),
                None => BatchResult::ExecuteSeparately(placement),
            });
        Ok(results.collect())
    }
}

/// Places orders in the order of `placements`. The outcome is `None` for each order of a pet if the accepted order was
/// not stored because its identifier is taken: whether the others can be placed depends on that one.
async fn place_all(
    connection: &mut Connection,
    placements: &[Placement],
) -> Result<Vec<Option<PlacementOutcome>>, Error> {
    let pets = placements.iter().map(|it| it.order.details.pet_id);
    let mut standings = lock_pets(connection, pets.collect()).await?;
    let (mut accepted, mut decisions) = (Vec::new(), Vec::new());
    for placement in placements {
        let Some(standing) = standings.get_mut(&placement.order.details.pet_id) else {
            decisions.push(Err(PlacementOutcome::PetNotFound));
            continue;
        };
        match standing.ordered(&placement.order.details) {
            Ok(ordered) => {
                accepted.push(OrderRow::new(placement, standing.status, ordered.status));
                *standing = ordered;
                decisions.push(Ok(()));
            }
            Err(refusal) => decisions.push(Err(PlacementOutcome::Refused(refusal))),
        }
    }
    let stored = insert(connection, &accepted).await?;
    let outcomes = iter::zip(placements, decisions).map(|(placement, decision)| {
        let details = placement.order.details;
        match (stored.get(&details.pet_id), decision) {
            (Some(None), _) => None,
            (Some(Some((id, created_at, username))), Ok(())) => {
                Some(PlacementOutcome::Placed(Order {
                    id: *id,
                    details,
                    created_at: *created_at,
                    caller: None,
                    username: username.clone(),
                }))
            }
            (None, Ok(())) => None,
            (_, Err(outcome)) => Some(outcome),
        }
    });
    Ok(outcomes.collect())
}

/// Locks pets until the transaction ends, and returns those that exist.
async fn lock_pets(
    transaction: &mut Connection,
    pets: Vec<PetId>,
) -> Result<HashMap<PetId, Standing>, Error> {
    let ids: Vec<i64> = pets.into_iter().map(PetId::get).collect();
    let query =
        sqlx::query_as("select id, status from pets where id = any ($1) order by id for update");
    let query = query.bind(&ids).fetch_all(&mut *transaction);
    let locked: Vec<(PetId, pet::Status)> = with_timeout(query).await?;
    // A statement of its own: only now does each see the orders that were committed before the lock.
    let query = sqlx::query_scalar("select held_pet from orders where held_pet = any ($1)");
    let held: Vec<PetId> = with_timeout(query.bind(&ids).fetch_all(transaction)).await?;
    let standings = locked.into_iter().map(|(id, status)| {
        let held = held.contains(&id);
        (id, Standing { status, held })
    });
    Ok(standings.collect())
}

/// Row of a new order, in the JSON that `jsonb_to_recordset` reads, with the change of its pet's status and the facts that
/// are recorded of both.
#[derive(Serialize)]
struct OrderRow<'a> {
    id: Option<i64>,
    owner: Option<i64>,
    pet_id: i64,
    is_open: bool,
    quantity: i32,
    ship_date: Option<ShipDate>,
    status: &'static str,
    complete: bool,
    pet_status: &'static str,
    data: OrderValues,
    pet_data: Option<Value>,
    actor: Option<&'a str>,
    request_id: Option<&'a str>,
}

impl<'a> OrderRow<'a> {
    fn new(placement: &'a Placement, old: pet::Status, new: pet::Status) -> Self {
        let NewOrder { id, details } = placement.order;
        Self {
            id: id.map(OrderId::get),
            owner: placement.owner.map(|caller| caller.0),
            pet_id: details.pet_id.get(),
            is_open: details.is_open(),
            quantity: details.quantity.get(),
            ship_date: details.ship_date,
            status: details.status.as_str(),
            complete: details.complete,
            pet_status: new.as_str(),
            data: OrderValues::new(None, &details),
            pet_data: status_change(old, new),
            actor: placement.initiator.actor(),
            request_id: placement.initiator.request_id.as_deref(),
        }
    }
}

/// Stored order: its identifier, its time, and the username of its account, if a user placed it.
type StoredOrder = (OrderId, DateTime<Utc>, Option<Username>);

/// Row of an order; `None` if its identifier is taken.
#[derive(FromRow)]
struct InsertedRow {
    pet_id: PetId,
    id: Option<OrderId>,
    created_at: Option<DateTime<Utc>>,
    username: Option<Username>,
}

/// Inserts orders, at most one for each pet, and sets the status of the pet of each inserted order. Returns them by pet, `None` if the
/// identifier is taken.
async fn insert(
    transaction: &mut Connection,
    orders: &[OrderRow<'_>],
) -> Result<HashMap<PetId, Option<StoredOrder>>, Error> {
    if orders.is_empty() {
        return Ok(HashMap::new());
    }
    let pets: Vec<_> = orders.iter().map(|order| order.pet_id).collect();
    // The condition on `any ($2)` keeps the plan to the primary key, independent of statistics.
    let query = sqlx::query_as(concat!(
        "with given as materialized (
             select coalesce(id, nextval('order_ids')) as id, owner, pet_id, is_open, quantity,
                    ship_date, status, complete, pet_status, data, pet_data, actor, request_id
             from jsonb_to_recordset($1) as given (
                 id bigint, owner bigint, pet_id bigint, is_open boolean, quantity integer, ship_date timestamptz, status text,
                 complete boolean, pet_status text, data jsonb, pet_data jsonb, actor text, request_id text)
         ), stored as (
             insert into orders (id, owner, pet_id, held_pet, quantity, ship_date, status, complete)
             select id, coalesce(owner, 0), pet_id, case when is_open then pet_id end, quantity, ship_date,
                    status, complete
             from given order by id
             on conflict (id) do nothing
             returning id, pet_id, created_at
         ), changed as (
             update pets set version = nextval('pet_versions'), status = given.pet_status
             from given join stored using (id, pet_id)
             where pets.id = any ($2) and pets.id = pet_id
             returning given.id, pet_id, version
         ), ",
        recorded!(
            "select kind, resource, action, record.version, record.owner, actor, request_id, record.data
             from changed join given using (id, pet_id)
             cross join lateral (values
                 ('order', id::text, 'created', null::bigint, given.owner, given.data),
                 ('pet', pet_id::text, 'changed', changed.version, null, pet_data)
             ) as record (kind, resource, action, version, owner, data)"
        ),
        "
         select pet_id, stored.id, created_at, (select username from users where caller_id = owner) as username
         from given left join stored using (id, pet_id)",
    ))
    .bind(Json(orders))
    .bind(pets);
    let rows: Vec<InsertedRow> = with_timeout(query.fetch_all(transaction)).await?;
    let stored = rows.into_iter().map(|row| {
        let stored = row.id.zip(row.created_at);
        let stored = stored.map(|(id, created_at)| (id, created_at, row.username));
        (row.pet_id, stored)
    });
    Ok(stored.collect())
}
