//! Counts pets by status: sums up the differences that each change of pets records (`0205_orders_and_inventory.sql`).

use serde::Serialize;
use sqlx::FromRow;
use utoipa::ToSchema;

use super::{connect::Connection, deadline::with_timeout, error::Error};

/// Number of pets of each status.
#[derive(Debug, FromRow, Serialize, ToSchema)]
#[schema(example = json!({"available": 2, "pending": 1, "sold": 5}))]
pub struct Inventory {
    /// For sale.
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    pub available: i64,
    /// Ordered, but not handed over yet.
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    pub pending: i64,
    /// Handed over to their new owners.
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    pub sold: i64,
}

/// Returns the number of pets of each status.
pub async fn count(connection: &mut Connection) -> Result<Inventory, Error> {
    let query = sqlx::query_as(
        "select coalesce(sum(pets) filter (where status = 'available'), 0)::bigint as available,
                coalesce(sum(pets) filter (where status = 'pending'), 0)::bigint as pending,
                coalesce(sum(pets) filter (where status = 'sold'), 0)::bigint as sold
         from inventory_changes",
    );
    with_timeout(query.fetch_one(connection)).await
}

/// Merges up to 10,000 differences into one per status and returns their number. Fewer than 50 are left as they are.
///
/// This is one statement, so that no snapshot sees a difference twice or not at all. Concurrent calls merge different
/// rows.
pub async fn fold(connection: &mut Connection) -> Result<u64, Error> {
    let query = sqlx::query_scalar(
        "with folded as (
             delete from inventory_changes
             where ctid = any (array(
                 select ctid from inventory_changes
                 where (select count(*) from (select from inventory_changes limit 50) few) = 50
                 limit 10000
                 for update skip locked
             ))
             returning status, pets
         ), sums as (
             insert into inventory_changes (status, pets)
             select status, sum(pets) from folded group by status having sum(pets) <> 0
         )
         select count(*) from folded",
    );
    let folded: i64 = with_timeout(query.fetch_one(connection)).await?;
    Ok(folded.unsigned_abs())
}
