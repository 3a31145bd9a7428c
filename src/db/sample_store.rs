//! Queries before the sample store is added.

use super::{connect::Connection, deadline::with_timeout, error::Error};

/// Key of the advisory lock: an arbitrary number that never changes and has no other use.
const LOCK_KEY: i64 = 0x7065_7473_7365_6564;

/// Returns true if there is no pet.
pub async fn is_empty(connection: &mut Connection) -> Result<bool, Error> {
    let query = sqlx::query_scalar("select not exists (select from pets)");
    with_timeout(query.fetch_one(connection)).await
}

/// Excludes other transactions that add the sample store.
pub async fn lock(transaction: &mut Connection) -> Result<(), Error> {
    let query = sqlx::query("select pg_advisory_xact_lock($1)").bind(LOCK_KEY);
    with_timeout(query.execute(transaction)).await.map(drop)
}
