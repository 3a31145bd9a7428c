//! Published record of changes.
//!
//! Invariants:
//! - A position appears only after all lower ones, and each change gets one position.
//! - The changes of a resource have positions in their order.
//! - The newest position always has a row, so that a reader can tell if its position is known.

use std::time::Duration;

use super::{connect::Connection, deadline::with_timeout, error::Error};

/// Maximum number of changes that a statement publishes or deletes.
const MAX_BATCH: u64 = 10_000;

/// Publishes up to 10,000 recorded changes, unless another process is doing so. Returns their number.
pub async fn publish(connection: &mut Connection) -> Result<u64, Error> {
    // Without anything to publish, the clock is not locked, and nothing is written.
    let query = sqlx::query_scalar(
        "with held as materialized (
             select position from changes_clock where exists (select from new_changes) for update skip locked
         ), taken as (
             delete from new_changes
             where ctid = any (array(
                 select ctid from new_changes where exists (select from held) order by seq limit $1
             ))
             returning *
         ), numbered as (
             select greatest((select position from held), (extract(epoch from now()) * 1000000)::bigint)
                        + row_number() over (order by seq) as position,
                    at, kind, resource, action, version, owner, actor, request_id, data
             from taken
         ), stored as (
             insert into changes (position, at, kind, resource, action, version, owner, actor, request_id, data)
             select * from numbered order by position
         ), advanced as (
             update changes_clock set position = (select max(position) from numbered)
             where exists (select from numbered)
         )
         select count(*) from numbered",
    );
    let query = query.bind(MAX_BATCH.cast_signed());
    let published: i64 = with_timeout(query.fetch_one(connection)).await?;
    Ok(published.unsigned_abs())
}

/// Deletes up to 10,000 changes older than `retention`, the oldest first, except the newest of them. Returns their number.
pub async fn purge_expired(connection: &mut Connection, retention: Duration) -> Result<u64, Error> {
    let query = sqlx::query(
        "delete from changes
         where position < (select max(position) from changes
                           where position < (extract(epoch from now()) * 1000000)::bigint - $1)
           and position <= (select max(position) from (select position from changes order by position limit $2) batch)",
    )
    .bind(i64::try_from(retention.as_micros()).unwrap_or(i64::MAX))
    .bind(MAX_BATCH.cast_signed());
    let deleted = with_timeout(query.execute(connection)).await?;
    Ok(deleted.rows_affected())
}
