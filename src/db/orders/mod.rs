//! Queries on store orders.
//!
//! Invariant: a transaction that locks a pet and an order locks the pet first, to avoid deadlocks. So does the deletion
//! of a pet, which clears `held_pet` of its order.

mod change;
mod delete;
mod place;

use sqlx::{FromRow, Row as _, postgres::PgRow};

use self::place::owner_column;
pub use self::{
    change::{ChangeOutcome, change_in},
    delete::{Deletion, DeletionOutcome, OwnerFilter, delete},
    place::{Owner, Placement, PlacementOutcome, place, place_in},
};
use super::{connect::Connection, deadline::with_timeout, error::Error};
use crate::domain::{
    id::{OrderId, PetId},
    order::{Order, OrderDetails, Status},
};

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

/// Returns the first `limit` orders after `after`, by identifier, with one of `statuses`, and for `pet` if it is given.
pub async fn list(
    connection: &mut Connection,
    filter: OwnerFilter,
    statuses: &[Status],
    pet: Option<PetId>,
    after: Option<OrderId>,
    limit: usize,
) -> Result<Vec<Order>, Error> {
    let statuses: Vec<_> = statuses.iter().map(|status| status.as_str()).collect();
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let query = match (pet, filter) {
        (Some(_), _) => LIST_OF_PET,
        (None, Some(_)) => LIST_OF_OWNER,
        (None, None) => LIST_ALL,
    };
    let query = sqlx::query_as(query)
        .bind(statuses)
        .bind(after.map_or(0, OrderId::get))
        .bind(limit)
        .bind(filter.map(owner_column))
        .bind(pet.map(PetId::get));
    with_timeout(query.fetch_all(connection)).await
}

/// Query that merges one range of `orders_by_owner` per status. Its conditions and its order have all columns of the index,
/// so that no other index can be used. Like the others, public for the test that reads its plan.
#[doc(hidden)]
pub const LIST_OF_OWNER: &str = "
    select id, pet_id, quantity, ship_date, listed.status, complete
    from unnest($1::text[]) as wanted (status)
    cross join lateral (
        select * from orders
        where (owner, status, id) > ($4, wanted.status, $2) and (owner, status) <= ($4, wanted.status)
        order by owner, status, id
        limit $3
    ) listed
    order by id
    limit $3";

/// Query that merges one range of `orders_by_status` per status.
#[doc(hidden)]
pub const LIST_ALL: &str = "
    select id, pet_id, quantity, ship_date, listed.status, complete
    from unnest($1::text[]) as wanted (status)
    cross join lateral (
        select * from orders where (status, id) > (wanted.status, $2) and status <= wanted.status
        order by status, id
        limit $3
    ) listed
    order by id
    limit $3";

/// Query that reads `orders_by_pet`.
#[doc(hidden)]
pub const LIST_OF_PET: &str = "
    select id, pet_id, quantity, ship_date, status, complete from orders
    where pet_id = $5 and status = any ($1) and id > $2 and ($4::bigint is null or owner = $4)
    order by id
    limit $3";
