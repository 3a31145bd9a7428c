//! Counts pets by status: sums up the differences that each change of pets records (`0205_orders_and_inventory.sql`).

use super::{connect::Connection, deadline::with_timeout, error::Error};
use crate::domain::pet::Status;

/// Returns the number of pets by status. A status without pets may be missing.
pub async fn count(connection: &mut Connection) -> Result<Vec<(Status, i64)>, Error> {
    let query =
        sqlx::query_as("select status, sum(pets)::bigint from inventory_changes group by status");
    with_timeout(query.fetch_all(connection)).await
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
