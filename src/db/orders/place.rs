//! Places orders: those of several requests in one transaction.
//!
//! Invariants:
//! - Pets are locked before orders are read or written, in the order of their identifiers, so that two batches cannot
//!   deadlock.
//! - An order that is not stored does not change its pet.

use std::{collections::HashMap, slice};

use crate::{
    db::{
        batch::{BatchResult, BatchedStatement},
        connect::Connection,
        database::Database,
        deadline::with_timeout,
        error::Error,
        sequences::skip_chosen_ids,
    },
    domain::{
        caller::CallerId,
        id::{OrderId, PetId},
        order::{NewOrder, Order, OrderDetails, Refusal, ShipDate, Standing},
        pet,
    },
};

/// Owner of orders: a caller, or `None` for all anonymous callers.
pub type Owner = Option<CallerId>;

pub(super) fn owner_column(owner: Owner) -> i64 {
    owner.map_or(0, |caller| caller.0)
}

/// Requested order.
#[derive(Debug, Clone, Copy)]
pub struct Placement {
    /// Owner of the order.
    pub owner: Owner,
    /// Order to place.
    pub order: NewOrder,
}

/// Outcome of a placement.
#[derive(Debug)]
pub enum PlacementOutcome {
    /// The order was placed.
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
            // Every further iteration means that another insert took the identifier meanwhile, so there is progress.
            None => skip_chosen_ids(transaction, "orders", "order_ids").await?,
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
        let outcomes = match inputs[..] {
            [only] => vec![Some(place_in(connection, only).await?)],
            _ => place_all(connection, inputs).await?,
        };
        let result = |(placement, outcome): (Placement, Option<_>)| match outcome {
            Some(outcome) => BatchResult::Done(outcome),
            None => BatchResult::ExecuteSeparately(placement),
        };
        Ok(inputs.drain(..).zip(outcomes).map(result).collect())
    }
}

/// Places orders in the order of `placements`. The outcome is `None` for each order of a pet if the accepted order was
/// not stored because its identifier is taken: whether the others can be placed depends on that one.
async fn place_all(
    connection: &mut Connection,
    placements: &[Placement],
) -> Result<Vec<Option<PlacementOutcome>>, Error> {
    let pet = |placement: &Placement| placement.order.details.pet_id;
    let mut standings = lock_pets(connection, placements.iter().map(pet).collect()).await?;
    let mut accepted = Vec::new();
    let mut decide = |placement: &Placement| {
        let standing = standings.get_mut(&pet(placement));
        let standing = standing.ok_or(PlacementOutcome::PetNotFound)?;
        let ordered = standing.ordered(&placement.order.details);
        *standing = ordered.map_err(PlacementOutcome::Refused)?;
        accepted.push((*placement, standing.status));
        Ok(())
    };
    let decisions: Vec<Result<(), _>> = placements.iter().map(&mut decide).collect();
    let stored = insert(connection, &accepted).await?;
    let outcome = |(placement, decision): (&Placement, _)| {
        let details = placement.order.details;
        let placed = |id| PlacementOutcome::Placed(Order { id, details });
        match (stored.get(&details.pet_id), decision) {
            (Some(None), _) => None,
            (Some(Some(id)), Ok(())) => Some(placed(*id)),
            (None, Ok(())) => None,
            (_, Err(outcome)) => Some(outcome),
        }
    };
    Ok(placements.iter().zip(decisions).map(outcome).collect())
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
    let standing = |(id, status)| {
        let held = held.contains(&id);
        (id, Standing { status, held })
    };
    Ok(locked.into_iter().map(standing).collect())
}

/// Inserts orders, at most one for each pet, and sets the status of the pet of each inserted order. Returns their
/// identifiers by pet, `None` if the identifier is taken.
async fn insert(
    transaction: &mut Connection,
    orders: &[(Placement, pet::Status)],
) -> Result<HashMap<PetId, Option<OrderId>>, Error> {
    if orders.is_empty() {
        return Ok(HashMap::new());
    }
    let details = || orders.iter().map(|(placement, _)| placement.order.details);
    let id = |(placement, _): &(Placement, _)| placement.order.id.map(OrderId::get);
    let ids: Vec<_> = orders.iter().map(id).collect();
    let owner = |(placement, _): &(Placement, _)| owner_column(placement.owner);
    let owners: Vec<_> = orders.iter().map(owner).collect();
    let pets: Vec<_> = details().map(|order| order.pet_id.get()).collect();
    let are_open: Vec<_> = details().map(|order| order.is_open()).collect();
    let quantities: Vec<_> = details().map(|order| order.quantity.get()).collect();
    let ship_date = |order: OrderDetails| order.ship_date.map(ShipDate::get);
    let dates: Vec<_> = details().map(ship_date).collect();
    let statuses: Vec<_> = details().map(|order| order.status.as_str()).collect();
    let are_complete: Vec<_> = details().map(|order| order.complete).collect();
    let pet_statuses: Vec<_> = orders.iter().map(|(_, pet)| pet.as_str()).collect();
    // The condition on `any ($3)` keeps the plan to the primary key, independent of statistics.
    let query = sqlx::query_as(
        "with given as materialized (
             select coalesce(id, nextval('order_ids')) as id, owner, pet_id, is_open, quantity,
                    ship_date, status, complete, pet_status
             from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::boolean[], $5::integer[],
                         $6::timestamptz[], $7::text[], $8::boolean[], $9::text[])
                  as given (id, owner, pet_id, is_open, quantity, ship_date, status, complete,
                            pet_status)
         ), stored as (
             insert into orders (id, owner, pet_id, held_pet, quantity, ship_date, status, complete)
             select id, owner, pet_id, case when is_open then pet_id end, quantity, ship_date,
                    status, complete
             from given order by id
             on conflict (id) do nothing
             returning id, pet_id
         ), changed as (
             update pets set version = nextval('pet_versions'), status = given.pet_status
             from given join stored using (id, pet_id)
             where pets.id = any ($3) and pets.id = pet_id
         )
         select pet_id, stored.id from given left join stored using (id, pet_id)",
    )
    .bind(ids)
    .bind(owners)
    .bind(pets)
    .bind(are_open)
    .bind(quantities)
    .bind(dates)
    .bind(statuses)
    .bind(are_complete)
    .bind(pet_statuses);
    let stored: Vec<(PetId, Option<OrderId>)> = with_timeout(query.fetch_all(transaction)).await?;
    Ok(stored.into_iter().collect())
}
