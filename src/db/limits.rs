//! Leases on the limits of callers: one row per caller counts its requests by slice.
//!
//! A slice is one second of the database's clock. The contract, "Plans and limits", states the algorithm. Invariants:
//!
//! - The grants of any 61 consecutive slices add up to at most the per-minute limit, those of a day to the per-day limit.
//! - Rows are locked in the order of their keys, so that two replicas never deadlock; the clock is read behind the lock.
//! - The commit does not wait for the disk: a crash of PostgreSQL may forget the leases of its last second.

use std::{collections::HashMap, slice, time::Duration};

use sqlx::{FromRow, PgExecutor};

use super::{
    Connection, Database, Error, bounded,
    coalesce::{Batch, Verdict},
};

/// Second of the database's clock, since 1970.
pub type Slice = i64;

/// Request for a lease on the limits of one caller. A batch must not hold two of one caller.
#[derive(Debug, Clone, Default)]
pub struct LeaseRequest {
    /// Key of the caller's row: `caller:7` or `address:192.0.2.1`.
    pub key: String,
    /// Limit of any 60 s; `None` is unlimited.
    pub per_minute: Option<u32>,
    /// Limit of a UTC day; `None` is unlimited.
    pub per_day: Option<u32>,
    /// Number of requests that wait for this lease.
    pub waiting: usize,
    /// Number of requests to lease, at least `waiting`. Beyond `waiting`, at most half of what the limits leave is granted.
    pub wanted: usize,
    /// Unused requests of an earlier slice.
    pub returned: Option<(Slice, u32)>,
    /// Identifier of this lease.
    pub id: i64,
    /// Identifier of a lease whose response was lost. It is undone if it is the row's last one.
    pub lost: Option<i64>,
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
/// [`Error::Overloaded`] and [`Error::is_not_executed`] when nothing was leased. After any other error the lease may exist.
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
        let mut leases = lease_all(connection, asks).await?;
        let leases = asks
            .drain(..)
            .map(|ask| Verdict::Answered(take(&mut leases, &ask)));
        Ok(leases.collect())
    }

    async fn one(connection: &mut Connection, ask: LeaseRequest) -> Result<Lease, Error> {
        let mut leases = lease_all(connection, slice::from_ref(&ask)).await?;
        take(&mut leases, &ask)
    }
}

fn take(leases: &mut HashMap<String, Lease>, ask: &LeaseRequest) -> Result<Lease, Error> {
    let missing = || Error::Corrupt(format!("lease_requests returned nothing for {}", ask.key));
    leases.remove(&ask.key).ok_or_else(missing)
}

#[derive(FromRow)]
struct LeaseRow {
    key: String,
    granted: i64,
    slice: Slice,
    slice_ends_in: f64,
    slice_used: i64,
    last_slice_used: i64,
    minute_used: i64,
    minute_frees_in: f64,
    day_used: i64,
    day_ends_in: f64,
}

impl From<LeaseRow> for Lease {
    fn from(row: LeaseRow) -> Self {
        let time = |seconds: f64| Duration::from_secs_f64(seconds.max(0.0));
        Self {
            granted: count(row.granted),
            slice: row.slice,
            slice_ends_in: time(row.slice_ends_in),
            slice_used: count(row.slice_used),
            last_slice_used: count(row.last_slice_used),
            minute_used: count(row.minute_used),
            minute_frees_in: time(row.minute_frees_in),
            day_used: count(row.day_used),
            day_ends_in: time(row.day_ends_in),
        }
    }
}

async fn lease_all(
    connection: &mut Connection,
    requests: &[LeaseRequest],
) -> Result<HashMap<String, Lease>, Error> {
    type Column = fn(&LeaseRequest) -> Option<i64>;
    const COLUMNS: [Column; 8] = [
        |request| request.per_minute.map(i64::from),
        |request| request.per_day.map(i64::from),
        |request| i64::try_from(request.waiting).ok(),
        |request| i64::try_from(request.wanted).ok(),
        |request| request.returned.map(|(slice, _)| slice),
        |request| request.returned.map(|(_, unused)| unused.into()),
        |request| Some(request.id),
        |request| request.lost,
    ];
    let keys: Vec<_> = requests.iter().map(|request| &*request.key).collect();
    let statement = "select * from lease_requests($1, $2, $3, $4, $5, $6, $7, $8, $9)";
    let mut query = sqlx::query_as::<_, LeaseRow>(statement).bind(keys);
    for column in COLUMNS {
        query = query.bind(requests.iter().map(column).collect::<Vec<_>>());
    }
    let rows = query.fetch_all(connection).await?;
    Ok(rows
        .into_iter()
        .map(|row| (row.key.clone(), row.into()))
        .collect())
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
