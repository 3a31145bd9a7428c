//! Leases on the limits of callers: one row per caller counts its requests by slice.
//!
//! A slice is one second of the database's clock. The contract, "Plans and limits", states the algorithm. Invariants:
//!
//! - The grants of any 61 consecutive slices add up to at most the per-minute limit, those of a day to the per-day limit.
//! - Rows are locked in the order of their keys, so that two replicas never deadlock; the clock is read behind the lock.
//! - The commit does not wait for the disk: a crash of PostgreSQL may forget the leases of its last second.

use std::time::Duration;

use sqlx::{FromRow, PgExecutor, Row as _, postgres::PgRow};

use super::{
    Connection, Database, Error, bounded,
    coalesce::{Batch, Verdict},
};
use crate::config::PlanLimits;

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
    /// Random identifier of the replica.
    pub replica: i64,
    /// Sequence number. The statement has no effect if a later one of the replica has been executed, or if it is 0.
    pub number: i64,
    /// Number of the first of the unanswered statements before. If one of them has been executed, its grant is returned in
    /// place of `returned`, which must be the same in all of them.
    pub unconfirmed: Option<i64>,
}

/// Response to a [`LeaseRequest`], with the state of the caller's row after it.
#[derive(Debug, Clone, Default)]
pub struct Lease {
    /// Number of requests that may be admitted.
    pub granted: u32,
    /// The current slice.
    pub slice: Slice,
    /// Time until the slice ends.
    pub slice_ends_in: Duration,
    /// Use of the slice.
    pub slice_used: u32,
    /// Use of the slice before.
    pub last_slice_used: u32,
    /// Use of the 61 slices up to the current one.
    pub minute_used: u32,
    /// Time until the per-minute limit has capacity for more than now.
    pub minute_frees_in: Duration,
    /// Use of the UTC day.
    pub day_used: u32,
    /// Time until the day ends.
    pub day_ends_in: Duration,
}

/// Leases requests of one caller, in one statement with the leases of others.
///
/// # Errors
/// Any; the statement may have been executed, or be executed later.
pub async fn lease(database: &Database, request: LeaseRequest) -> Result<Lease, Error> {
    database.0.lanes.leases.ask(request).await
}

/// Leases that share a statement.
#[derive(Debug)]
pub(super) struct Leases;

impl Batch for Leases {
    type Ask = LeaseRequest;
    type Answer = Lease;

    const SUMMARY: &'static str = "UPDATE limit_usage";
    const SETTINGS: &'static [&'static str] = &["synchronous_commit = off"];

    async fn many(
        connection: &mut Connection,
        asks: &mut Vec<LeaseRequest>,
    ) -> Result<Vec<Verdict<Self>>, Error> {
        let leases = lease_all(connection, asks).await?;
        asks.clear();
        Ok(leases
            .into_iter()
            .map(|lease| Verdict::Answered(Ok(lease)))
            .collect())
    }

    async fn one(connection: &mut Connection, ask: LeaseRequest) -> Result<Lease, Error> {
        let leases = lease_all(connection, &[ask]).await?;
        let missing = || Error::Corrupt("lease_requests returned no row".into());
        leases.into_iter().next().ok_or_else(missing)
    }
}

impl FromRow<'_, PgRow> for Lease {
    fn from_row(row: &PgRow) -> sqlx::Result<Self> {
        let count = |column| row.try_get(column).map(count);
        let time = |column| {
            row.try_get(column)
                .map(|seconds: f64| Duration::from_secs_f64(seconds.max(0.0)))
        };
        Ok(Self {
            granted: count("granted")?,
            slice: row.try_get("slice")?,
            slice_ends_in: time("slice_ends_in")?,
            slice_used: count("slice_used")?,
            last_slice_used: count("last_slice_used")?,
            minute_used: count("minute_used")?,
            minute_frees_in: time("minute_frees_in")?,
            day_used: count("day_used")?,
            day_ends_in: time("day_ends_in")?,
        })
    }
}

async fn lease_all(
    connection: &mut Connection,
    requests: &[LeaseRequest],
) -> Result<Vec<Lease>, Error> {
    type Column = fn(&LeaseRequest) -> Option<i64>;
    const COLUMNS: [Column; 9] = [
        |request| request.limits.per_minute.map(i64::from),
        |request| request.limits.per_day.map(i64::from),
        |request| i64::try_from(request.waiting).ok(),
        |request| i64::try_from(request.wanted).ok(),
        |request| request.returned.map(|(slice, _)| slice),
        |request| request.returned.map(|(_, unused)| unused.into()),
        |request| Some(request.replica),
        |request| Some(request.number),
        |request| request.unconfirmed,
    ];
    let keys: Vec<_> = requests.iter().map(|request| &*request.key).collect();
    let statement =
        "select * from lease_requests($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) order by request";
    let mut query = sqlx::query_as(statement).bind(keys);
    for column in COLUMNS {
        query = query.bind(requests.iter().map(column).collect::<Vec<_>>());
    }
    Ok(query.fetch_all(connection).await?)
}

fn count(count: i64) -> u32 {
    u32::try_from(count.max(0)).unwrap_or(u32::MAX)
}

/// Returns the use of a caller on the current UTC day.
pub async fn used_today(executor: impl PgExecutor<'_>, key: &str) -> Result<u32, Error> {
    let used: Option<i64> = bounded(
        sqlx::query_scalar(
            "select day_used from limit_usage
             where key = $1 and day = (clock_timestamp() at time zone 'utc')::date",
        )
        .bind(key)
        .fetch_optional(executor),
    )
    .await?;
    Ok(count(used.unwrap_or_default()))
}

/// Deletes up to 1,000 rows that have not been used since yesterday began; returns their number.
pub async fn purge(executor: impl PgExecutor<'_>) -> Result<u64, Error> {
    let done = bounded(
        sqlx::query(
            "delete from limit_usage
             where ctid = any (array(
                 select ctid from limit_usage
                 where day < (clock_timestamp() at time zone 'utc')::date - 1
                 limit 1000
                 for update skip locked
             ))",
        )
        .execute(executor),
    )
    .await?;
    Ok(done.rows_affected())
}
