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
use super::{codec::order_columns, connect::Connection, deadline::with_timeout, error::Error};
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
            created_at: row.try_get("created_at")?,
            caller: row.try_get("caller")?,
            username: row.try_get("username")?,
        })
    }
}

/// Returns the order, if it exists and `filter` includes its owner.
pub async fn find(
    connection: &mut Connection,
    id: OrderId,
    filter: OwnerFilter,
) -> Result<Option<Order>, Error> {
    let query = sqlx::query_as(concat!(
        "select ",
        order_columns!("orders", "$2::bigint is null"),
        " from orders where id = $1 and ($2::bigint is null or owner = $2)",
    ));
    let query = query.bind(id.get()).bind(filter.map(owner_column));
    with_timeout(query.fetch_optional(connection)).await
}

/// Which orders are listed, and in which order.
#[derive(Debug)]
pub struct OrderListing {
    /// Owners of the orders that are listed.
    pub filter: OwnerFilter,
    /// True if the orders have the names of their callers.
    pub names_callers: bool,
    /// Statuses, any of which an order has.
    pub statuses: Vec<Status>,
    /// Pet of the orders, if it is given.
    pub pet: Option<PetId>,
    /// True if the largest identifier comes first.
    pub is_descending: bool,
}

/// Returns the first `limit` orders of a listing after `after`.
pub async fn list(
    connection: &mut Connection,
    listing: &OrderListing,
    after: Option<OrderId>,
    limit: usize,
) -> Result<Vec<Order>, Error> {
    let statuses = listing.statuses.iter().map(|status| status.as_str());
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let queries = match (listing.pet, listing.filter) {
        (Some(_), _) => LISTS_OF_PET,
        (None, Some(_)) => LISTS_OF_OWNER,
        (None, None) => LISTS_OF_ALL,
    };
    let first = if listing.is_descending { i64::MAX } else { 0 };
    let query = sqlx::query_as(queries[usize::from(listing.is_descending)])
        .bind(statuses.collect::<Vec<_>>())
        .bind(after.map_or(first, OrderId::get))
        .bind(limit)
        .bind(listing.filter.map(owner_column))
        .bind(listing.pet.map(PetId::get))
        .bind(listing.names_callers);
    with_timeout(query.fetch_all(connection)).await
}

/// Query that merges one range of an index per status: of `orders_by_owner` with a condition and an order of the owner, of
/// `orders_by_status` without.
macro_rules! list_by_status {
    ($of_owner:literal, $by_owner:literal, $behind:literal, $up_to:literal, $direction:literal) => {
        concat!(
            "select ",
            order_columns!("listed", "$6"),
            " from unnest($1::text[]) as wanted (status)
    cross join lateral (
        select * from orders
        where ",
            $of_owner,
            "(status, id) ",
            $behind,
            " (wanted.status, $2) and status ",
            $up_to,
            " wanted.status
        order by ",
            $by_owner,
            "status ",
            $direction,
            ", id ",
            $direction,
            "
        limit $3
    ) listed
    order by id ",
            $direction,
            "
    limit $3"
        )
    };
}

/// The owner is an element of an array, so that only `orders_by_owner` has the order: an order by what is equal to one value
/// would be that of any index. A comparison of rows with the owner would not end the scan at the status.
macro_rules! list_of_owner {
    ($by_owner:literal, $behind:literal, $up_to:literal, $direction:literal) => {
        list_by_status!(
            "owner = any (array[$4]) and ",
            $by_owner,
            $behind,
            $up_to,
            $direction
        )
    };
}

/// Query that reads `orders_by_pet`.
macro_rules! list_of_pet {
    ($behind:literal, $direction:literal) => {
        concat!(
            "select ",
            order_columns!("orders", "$6"),
            " from orders
    where pet_id = $5 and status = any ($1) and id ",
            $behind,
            " $2 and ($4::bigint is null or owner = $4)
    order by id ",
            $direction,
            "
    limit $3"
        )
    };
}

/// Queries for the orders of a caller, ascending and descending. Like the others, public for the test that reads their plans.
#[doc(hidden)]
pub const LISTS_OF_OWNER: [&str; 2] = [
    list_of_owner!("owner asc, ", ">", "<=", "asc"),
    list_of_owner!("owner desc, ", "<", ">=", "desc"),
];

/// Queries for all orders.
#[doc(hidden)]
pub const LISTS_OF_ALL: [&str; 2] = [
    list_by_status!("", "", ">", "<=", "asc"),
    list_by_status!("", "", "<", ">=", "desc"),
];

/// Queries for the orders of a pet.
#[doc(hidden)]
pub const LISTS_OF_PET: [&str; 2] = [list_of_pet!(">", "asc"), list_of_pet!("<", "desc")];
