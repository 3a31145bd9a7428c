//! Leases on the limits of callers: one row per caller counts its requests by slice.
//!
//! A slice is one second of the database's clock. `.github/decisions/0001-leased-slices.md` states the algorithm.
//! Invariants:
//! - The grants of any 61 consecutive slices add up to at most the per-minute limit, those of a day to the per-day limit.
//! - Rows are locked in the order of their keys, so that two replicas never deadlock; the clock is read behind the lock.
//! - The commit does not wait for the disk: a crash of PostgreSQL may forget the leases of its last second.

use std::cmp::Ordering;

use sqlx::FromRow;

use super::{
    batch::{BatchResult, BatchedStatement},
    connect::Connection,
    database::Database,
    deadline::with_timeout,
    error::Error,
};
use crate::domain::plan::PlanLimits;

/// Second of the database's clock, since 1970.
pub type Slice = i64;

/// Request for a lease on the limits of one caller.
#[derive(Debug, Clone, Default)]
pub struct LeaseRequest {
    /// Key of the caller's row: `caller:7` or `address:192.0.2.1`.
    pub key: String,
    /// Limits of the caller.
    pub limits: PlanLimits,
    /// Number of requests that wait for this lease.
    pub waiting: usize,
    /// Number of requests to lease, at least `waiting`. Beyond `waiting`, at most half of what the limits leave is granted.
    pub wanted: usize,
    /// Unused requests of an earlier slice.
    pub returned: Option<(Slice, u32)>,
}

/// Response to a [`LeaseRequest`], with the state of the caller's row after it.
#[derive(Debug, Clone, Default, FromRow)]
pub struct Lease {
    /// Number of requests that may be admitted.
    #[sqlx(try_from = "i64")]
    pub granted: u32,
    /// The current slice.
    pub slice: Slice,
    /// Seconds until the slice ends.
    pub slice_ends_in: f64,
    /// Use of the slice.
    #[sqlx(try_from = "i64")]
    pub slice_used: u32,
    /// Use of the slice before.
    #[sqlx(try_from = "i64")]
    pub last_slice_used: u32,
    /// Use of the current slice and the 60 before it, which the per-minute limit counts.
    #[sqlx(try_from = "i64")]
    pub minute_used: u32,
    /// Seconds until the per-minute limit has capacity for more than now.
    pub minute_frees_in: f64,
    /// Use of the UTC day.
    #[sqlx(try_from = "i64")]
    pub day_used: u32,
    /// Seconds until the day ends.
    pub day_ends_in: f64,
}

/// Leases requests of one caller, in one statement with the leases of others. After any error, the statement may have
/// been executed, or be executed later.
pub async fn lease(database: &Database, request: LeaseRequest) -> Result<Lease, Error> {
    database.batchers().execute::<Leases>(request).await
}

/// Statement that leases requests of several callers.
pub(super) struct Leases;

impl BatchedStatement for Leases {
    type Input = LeaseRequest;
    type Output = Lease;

    const SUMMARY: &'static str = "UPDATE limit_usage";

    fn compare(one: &LeaseRequest, other: &LeaseRequest) -> Ordering {
        one.key.cmp(&other.key)
    }

    async fn execute_all(
        connection: &mut Connection,
        inputs: &mut Vec<LeaseRequest>,
    ) -> Result<Vec<BatchResult<Self>>, Error> {
        let keys: Vec<_> = inputs.iter().map(|request| &*request.key).collect();
        let column = |field: fn(&LeaseRequest) -> Option<i64>| -> Vec<_> {
            inputs.iter().map(field).collect()
        };
        // `set_config` lasts until the end of the transaction.
        let query = sqlx::query_as(
            "select *, set_config('synchronous_commit', 'off', true)
             from lease_requests($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(keys)
        .bind(column(|request| request.limits.per_minute.map(i64::from)))
        .bind(column(|request| request.limits.per_day.map(i64::from)))
        .bind(column(|request| i64::try_from(request.waiting).ok()))
        .bind(column(|request| i64::try_from(request.wanted).ok()))
        .bind(column(|request| Some(request.returned?.0)))
        .bind(column(|request| Some(request.returned?.1.into())));
        let leases = query.fetch_all(connection).await?;
        inputs.clear();
        Ok(leases.into_iter().map(BatchResult::Done).collect())
    }
}

/// Returns the use of a caller on the current UTC day.
pub async fn used_today(connection: &mut Connection, key: &str) -> Result<u32, Error> {
    let query = sqlx::query_scalar(
        "select day_used from limit_usage
         where key = $1 and day = (clock_timestamp() at time zone 'utc')::date",
    );
    let used: Option<i64> = with_timeout(query.bind(key).fetch_optional(connection)).await?;
    Ok(u32::try_from(used.unwrap_or_default()).unwrap_or(u32::MAX))
}

/// Deletes up to 1,000 rows that have not been used since yesterday began; returns their number.
pub async fn purge_expired(connection: &mut Connection) -> Result<u64, Error> {
    let query = sqlx::query(
        "delete from limit_usage
         where ctid = any (array(
             select ctid from limit_usage
             where day < (clock_timestamp() at time zone 'utc')::date - 1
             limit 1000
             for update skip locked
         ))",
    );
    let deleted = with_timeout(query.execute(connection)).await?;
    Ok(deleted.rows_affected())
}
