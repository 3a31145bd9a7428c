//! Queries on store orders.
//!
//! Invariants:
//! - A transaction that locks a pet and an order locks the pet first, to avoid deadlocks. So does the deletion of a
//!   pet, which clears `held_pet` of its order.

use sqlx::{FromRow, Row as _, postgres::PgRow};

use super::{connect::Connection, database::Database, deadline::with_timeout, error::Error};
use crate::domain::{
    caller::CallerId,
    id::{OrderId, PetId},
    order::{NewOrder, Order, OrderDetails, ShipDate, Status},
};

/// Owner of orders: a caller, or `None` for all anonymous callers.
pub type Owner = Option<CallerId>;

/// Owner of the orders that a statement includes; `None` for all owners.
pub type OwnerFilter = Option<Owner>;

fn owner_column(owner: Owner) -> i64 {
    owner.map_or(0, |caller| caller.0)
}

impl FromRow<'_, PgRow> for Order {
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: row.try_get("id")?,
            details: OrderDetails {
                pet_id: row.try_get("pet_id")?,
                quantity: row.try_get("quantity")?,
                ship_date: row.try_get("ship_date")?,
                status: row.try_get("status")?,
                complete: row.try_get("complete")?,
            },
        })
    }
}

/// Inserts an order, which holds its pet while it is open. Returns `None` if the identifier that the client chose is
/// taken. Without a chosen identifier, the sequence provides one and skips those that are taken.
pub async fn insert(
    transaction: &mut Connection,
    owner: Owner,
    NewOrder { id, details }: NewOrder,
) -> Result<Option<Order>, Error> {
    loop {
        let query = sqlx::query_scalar(
            "insert into orders (id, owner, pet_id, held_pet, quantity, ship_date, status, complete)
             values (coalesce($1, nextval('order_ids')), $2, $3, $4, $5, $6, $7, $8)
             on conflict (id) do nothing
             returning id",
        )
        .bind(id.map(OrderId::get))
        .bind(owner_column(owner))
        .bind(details.pet_id.get())
        .bind(details.is_open().then_some(details.pet_id.get()))
        .bind(details.quantity.get())
        .bind(details.ship_date.map(ShipDate::get))
        .bind(details.status.as_str())
        .bind(details.complete);
        match with_timeout(query.fetch_optional(&mut *transaction)).await? {
            Some(id) => return Ok(Some(Order { id, details })),
            None if id.is_some() => return Ok(None),
            // Every further iteration means that another insert took the identifier meanwhile, so there is progress.
            None => skip_chosen_ids(transaction).await?,
        }
    }
}

/// Moves the sequence past its last value, to the first identifier that no order has.
async fn skip_chosen_ids(connection: &mut Connection) -> Result<(), Error> {
    let query = sqlx::query(
        "select setval('order_ids', free.id, false)
         from (
             select taken.id + 1 as id
             from orders taken
             where taken.id >= (select last_value from order_ids)
               and not exists (select from orders next where next.id = taken.id + 1)
             order by taken.id
             limit 1
         ) free",
    );
    with_timeout(query.execute(connection)).await.map(drop)
}

/// Returns true if an open order holds this pet.
pub async fn is_held(connection: &mut Connection, pet: PetId) -> Result<bool, Error> {
    let query = sqlx::query_scalar("select exists (select from orders where held_pet = $1)");
    with_timeout(query.bind(pet.get()).fetch_one(connection)).await
}

/// Returns the order, if it exists and `filter` includes its owner.
pub async fn find(
    connection: &mut Connection,
    id: OrderId,
    filter: OwnerFilter,
) -> Result<Option<Order>, Error> {
    let query = sqlx::query_as(
        "select id, pet_id, quantity, ship_date, status, complete from orders
         where id = $1 and ($2::bigint is null or owner = $2)",
    );
    let query = query.bind(id.get()).bind(filter.map(owner_column));
    with_timeout(query.fetch_optional(connection)).await
}

/// Deletes an order. Returns true if it held its pet, or `None` if there is no such order of an owner that
/// `filter` includes.
pub async fn delete(
    transaction: &mut Connection,
    id: OrderId,
    filter: OwnerFilter,
) -> Result<Option<bool>, Error> {
    let query = sqlx::query_scalar(
        "delete from orders where id = $1 and ($2::bigint is null or owner = $2)
         returning held_pet is not null",
    );
    let query = query.bind(id.get()).bind(filter.map(owner_column));
    with_timeout(query.fetch_optional(transaction)).await
}

/// Returns the first `limit` orders after `after`, by identifier, with one of `statuses`, and for `pet` if it is given.
pub async fn list(
    database: &Database,
    filter: OwnerFilter,
    statuses: &[Status],
    pet: Option<PetId>,
    after: Option<OrderId>,
    limit: usize,
) -> Result<Vec<Order>, Error> {
    let names: Vec<_> = statuses.iter().map(|status| status.as_str()).collect();
    let statement = pet.map_or(LIST_BY_STATUS, |_| LIST_OF_PET);
    let query = sqlx::query_as(statement)
        .bind(names)
        .bind(after.map_or(0, OrderId::get))
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .bind(filter.map(owner_column))
        .bind(pet.map(PetId::get));
    database
        .run(async |connection| with_timeout(query.fetch_all(connection)).await)
        .await
}

/// Query that reads each status in the order of its index, and no further than the limit. Like [`LIST_OF_PET`], public
/// for the test that reads its plan.
#[doc(hidden)]
pub const LIST_BY_STATUS: &str = "
    select id, pet_id, quantity, ship_date, status, complete
    from (
        (select * from orders where status = 'placed' and 'placed' = any ($1)
             and id > $2 and ($4::bigint is null or owner = $4) order by id limit $3)
        union all
        (select * from orders where status = 'approved' and 'approved' = any ($1)
             and id > $2 and ($4::bigint is null or owner = $4) order by id limit $3)
        union all
        (select * from orders where status = 'delivered' and 'delivered' = any ($1)
             and id > $2 and ($4::bigint is null or owner = $4) order by id limit $3)
    ) listed
    order by id
    limit $3";

#[doc(hidden)]
pub const LIST_OF_PET: &str = "
    select id, pet_id, quantity, ship_date, status, complete from orders
    where pet_id = $5 and status = any ($1) and id > $2 and ($4::bigint is null or owner = $4)
    order by id
    limit $3";
