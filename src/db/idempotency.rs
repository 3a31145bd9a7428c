//! Stores the first response to each request with an `Idempotency-Key`, to be replayed.

use std::time::Duration;

use serde_json::Value;
use sqlx::{FromRow, types::Json};

use super::{connect::Connection, deadline::with_timeout, error::Error};

/// Bytes that a row takes on disk with its index entries, within a third of the size of the table: `answer` is stored in pieces, and
/// `caller` and `key` are also in an index.
macro_rules! size {
    () => {
        "300 + 2 * (pg_column_size(caller) + pg_column_size(key)) + pg_column_size(answer) * 5 / 4"
    };
}

/// Claims a key until the transaction ends. Returns false if another transaction holds it.
///
/// The claim is an advisory lock, so that the second of two requests is refused at once and does not wait. Two keys
/// with the same hash (64 bits) exclude each other meanwhile.
pub async fn claim(transaction: &mut Connection, caller: &str, key: &str) -> Result<bool, Error> {
    let query = sqlx::query_scalar(
        "select pg_try_advisory_xact_lock(hashtextextended($1 || chr(1) || $2, 0))",
    );
    with_timeout(query.bind(caller).bind(key).fetch_one(transaction)).await
}

/// Stored response.
#[derive(Debug, FromRow)]
pub struct StoredResponse {
    /// SHA-256 of the request.
    pub fingerprint: Vec<u8>,
    /// Response, as serialized by the API layer.
    #[sqlx(rename = "answer")]
    pub response: Value,
}

/// Returns the response that was stored under a key in the last 24 hours.
pub async fn find(
    connection: &mut Connection,
    caller: &str,
    key: &str,
) -> Result<Option<StoredResponse>, Error> {
    let query = sqlx::query_as(
        "select fingerprint, answer from idempotency_keys
         where caller = $1 and key = $2 and created_at > now() - interval '24 hours'",
    );
    with_timeout(query.bind(caller).bind(key).fetch_optional(connection)).await
}

/// Stores a response, unless there is one that is less than 24 hours old. Returns the bytes on disk of what it stored, as if
/// PostgreSQL could not compress it.
pub async fn store(
    connection: &mut Connection,
    caller: &str,
    key: &str,
    response: &StoredResponse,
) -> Result<u64, Error> {
    let query = sqlx::query_scalar(concat!(
        "insert into idempotency_keys (caller, key, fingerprint, answer) values ($1, $2, $3, $4)
         on conflict (caller, key) do update
         set fingerprint = excluded.fingerprint, answer = excluded.answer, created_at = now()
         where idempotency_keys.created_at <= now() - interval '24 hours'
         returning ",
        size!()
    ))
    .bind(caller)
    .bind(key)
    .bind(&response.fingerprint)
    .bind(Json(&response.response));
    let size: Option<i32> = with_timeout(query.fetch_optional(connection)).await?;
    Ok(u64::try_from(size.unwrap_or_default()).unwrap_or_default())
}

/// Returns the bytes on disk of the responses to a caller in the last 24 hours, and the time until the oldest one expires.
pub async fn stored_bytes(
    connection: &mut Connection,
    caller: &str,
) -> Result<(u64, Duration), Error> {
    let query = sqlx::query_as(concat!(
        "select coalesce(sum(",
        size!(),
        "), 0)::bigint,
                coalesce(extract(epoch from min(created_at) + interval '24 hours' - now()), 0)::float8
         from idempotency_keys where caller = $1 and created_at > now() - interval '24 hours'"
    ));
    let (size, seconds): (i64, f64) =
        with_timeout(query.bind(caller).fetch_one(connection)).await?;
    let size = u64::try_from(size).unwrap_or_default();
    Ok((size, Duration::from_secs_f64(seconds.max(0.0))))
}

/// Deletes up to 1,000 responses that are older than 24 hours, and returns their number.
pub async fn purge_expired(connection: &mut Connection) -> Result<u64, Error> {
    let query = sqlx::query(
        "delete from idempotency_keys
         where ctid = any (array(
             select ctid from idempotency_keys
             where created_at <= now() - interval '24 hours'
             limit 1000
         ))",
    );
    let deleted = with_timeout(query.execute(connection)).await?;
    Ok(deleted.rows_affected())
}
