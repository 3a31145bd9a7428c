//! What callers have used of their plans.

use std::time::Duration;

use chrono::{DateTime, NaiveDate, Utc};
use sqlx::{FromRow, PgExecutor};

use super::{Error, bounded, patience};

/// What one lease of a day's requests gave.
#[derive(Debug, Clone, Copy)]
pub struct Grant {
    /// Requests that may be admitted.
    pub granted: u32,
    /// Requests charged by now, these included.
    pub charged: u32,
    /// The UTC day they are charged to.
    pub day: NaiveDate,
    /// How long that day still lasts.
    pub day_ends_in: Duration,
}

/// Charges up to `want` requests to a bucket's day, and no more than `limit` in all; first takes back
/// `unused` of a lease on the same day.
pub async fn lease(
    executor: impl PgExecutor<'_>,
    bucket: &str,
    want: u32,
    limit: u32,
    unused: Option<(NaiveDate, u32)>,
) -> Result<Grant, Error> {
    let (unused_day, unused) = unused.unzip();
    let (granted, charged, day, day_ends_in): (i64, i64, NaiveDate, f64) = bounded(
        sqlx::query_as(
            "insert into daily_usage as d (bucket, day, used, granted)
             select $1, (utc.now)::date, least($2, $3), least($2, $3)
             from (select clock_timestamp() at time zone 'utc' as now) utc
             on conflict (bucket, day) do update set
                 granted = greatest(least($2, $3 - d.used + case when d.day = $4 then $5 else 0 end), 0),
                 used = d.used - case when d.day = $4 then $5 else 0 end
                      + greatest(least($2, $3 - d.used + case when d.day = $4 then $5 else 0 end), 0)
             returning granted, used, day,
                 extract(epoch from (day + 1)::timestamp
                         - (clock_timestamp() at time zone 'utc'))::float8",
        )
        .bind(bucket)
        .bind(i64::from(want))
        .bind(i64::from(limit))
        .bind(unused_day)
        .bind(unused.map_or(0, i64::from))
        .fetch_one(executor),
    )
    .await?;
    Ok(Grant {
        granted: count(granted),
        charged: count(charged),
        day,
        day_ends_in: Duration::from_secs_f64(day_ends_in.max(0.0)),
    })
}

/// Takes back what was not used of a lease.
pub async fn give_back(
    executor: impl PgExecutor<'_>,
    bucket: &str,
    (day, unused): (NaiveDate, u32),
) -> Result<(), Error> {
    bounded(
        sqlx::query(
            "update daily_usage set used = greatest(used - $3, 0) where bucket = $1 and day = $2",
        )
        .bind(bucket)
        .bind(day)
        .bind(i64::from(unused))
        .execute(executor),
    )
    .await?;
    Ok(())
}

/// Requests charged to a bucket on the present UTC day.
pub async fn today(executor: impl PgExecutor<'_>, bucket: &str) -> Result<u32, Error> {
    let used: Option<i64> = bounded(
        sqlx::query_scalar(
            "select used from daily_usage
             where bucket = $1 and day = (clock_timestamp() at time zone 'utc')::date",
        )
        .bind(bucket)
        .fetch_optional(executor),
    )
    .await?;
    Ok(count(used.unwrap_or_default()))
}

/// One decision that all replicas share.
#[derive(Debug, Clone, Copy, FromRow)]
pub struct Decision {
    /// Whether the request may go on.
    pub admitted: bool,
    /// When it was decided.
    admitted_at: DateTime<Utc>,
    /// The UTC day it was decided on.
    day: NaiveDate,
    minute_used: i64,
    minute_free_in: f64,
    day_used: i64,
    day_ends_in: f64,
}

impl Decision {
    /// Requests admitted in the 60 s that end then, this one included.
    #[must_use]
    pub fn minute_used(&self) -> u32 {
        count(self.minute_used)
    }

    /// How long until one leaves that window and makes room.
    #[must_use]
    pub fn minute_free_in(&self) -> Duration {
        Duration::from_secs_f64(self.minute_free_in.max(0.0))
    }

    /// Requests admitted on that UTC day, this one included.
    #[must_use]
    pub fn day_used(&self) -> u32 {
        count(self.day_used)
    }

    /// How long the day still lasts.
    #[must_use]
    pub fn day_ends_in(&self) -> Duration {
        Duration::from_secs_f64(self.day_ends_in.max(0.0))
    }
}

/// Admits one request if both windows have room; one call.
pub async fn admit(
    executor: impl PgExecutor<'_>,
    bucket: &str,
    per_minute: Option<u32>,
    per_day: Option<u32>,
) -> Result<Decision, Error> {
    patient(
        sqlx::query_as("select * from admit_request($1, $2, $3)")
            .bind(bucket)
            .bind(per_minute.map(i64::from))
            .bind(per_day.map(i64::from))
            .fetch_one(executor),
    )
    .await
}

/// Takes back the very admission that a decision was: the request failed through our own fault.
pub async fn take_back(
    executor: impl PgExecutor<'_>,
    bucket: &str,
    decision: &Decision,
) -> Result<(), Error> {
    let taking_back = sqlx::query("select take_back_request($1, $2, $3)")
        .bind(bucket)
        .bind(decision.admitted_at)
        .bind(decision.day)
        .execute(executor);
    // Not out of the request's own patience: that it had none left may be why it failed.
    match tokio::time::timeout(PATIENCE, taking_back).await {
        Ok(done) => done.map(|_| ()).map_err(Error::from),
        Err(_) => Err(Error::TimedOut),
    }
}

/// How long a request waits for the counters that all replicas share.
const PATIENCE: Duration = Duration::from_millis(250);

async fn patient<T>(statement: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, Error> {
    patience::wait(PATIENCE, statement).await
}

/// Forgets up to 1,000 minutes that are over; gives how many there were.
pub async fn sweep_minutes(executor: impl PgExecutor<'_>) -> Result<u64, Error> {
    let done = bounded(
        sqlx::query(
            "delete from minute_usage
             where ctid = any (array(
                 select ctid from minute_usage
                 where cardinality(admitted) = 0
                    or admitted[cardinality(admitted)] < clock_timestamp() - interval '60 seconds'
                 limit 1000
                 for update skip locked
             ))",
        )
        .execute(executor),
    )
    .await?;
    Ok(done.rows_affected())
}

/// Forgets up to 1,000 counts of days before yesterday; gives how many there were.
pub async fn sweep_days(executor: impl PgExecutor<'_>) -> Result<u64, Error> {
    let done = bounded(
        sqlx::query(
            "delete from daily_usage
             where ctid = any (array(
                 select ctid from daily_usage
                 where day < (clock_timestamp() at time zone 'utc')::date - 1
                 limit 1000
             ))",
        )
        .execute(executor),
    )
    .await?;
    Ok(done.rows_affected())
}

fn count(count: i64) -> u32 {
    u32::try_from(count.max(0)).unwrap_or(u32::MAX)
}
