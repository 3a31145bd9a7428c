//! What callers have used of their plans.

use std::time::Duration;

use chrono::{DateTime, NaiveDate, Utc};
use sqlx::PgExecutor;

use super::{Error, bounded};

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
///
/// `clock` is what time it is, for a test; `None` asks PostgreSQL's clock.
pub async fn lease(
    executor: impl PgExecutor<'_>,
    bucket: &str,
    want: u32,
    limit: u32,
    unused: Option<(NaiveDate, u32)>,
    clock: Option<DateTime<Utc>>,
) -> Result<Grant, Error> {
    let (unused_day, unused) = unused.unzip();
    let (granted, charged, day, day_ends_in): (i64, i64, NaiveDate, f64) = bounded(
        sqlx::query_as(
            "insert into daily_usage as d (bucket, day, used, granted)
             select $1, (utc.now)::date, least($2, $3), least($2, $3)
             from (select coalesce($6, clock_timestamp()) at time zone 'utc' as now) utc
             on conflict (bucket, day) do update set
                 granted = greatest(least($2, $3 - d.used + case when d.day = $4 then $5 else 0 end), 0),
                 used = d.used - case when d.day = $4 then $5 else 0 end
                      + greatest(least($2, $3 - d.used + case when d.day = $4 then $5 else 0 end), 0)
             returning granted, used, day,
                 extract(epoch from (day + 1)::timestamp
                         - (coalesce($6, clock_timestamp()) at time zone 'utc'))::float8",
        )
        .bind(bucket)
        .bind(i64::from(want))
        .bind(i64::from(limit))
        .bind(unused_day)
        .bind(unused.map_or(0, i64::from))
        .bind(clock)
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
#[derive(Debug, Clone, Copy)]
pub struct Decision {
    /// Whether the request may go on.
    pub admitted: bool,
    /// Requests admitted in the 60 s that end now, this one included.
    pub minute_used: u32,
    /// How long until the oldest of them leaves the window.
    pub minute_free_in: Duration,
    /// Requests admitted on this UTC day, this one included.
    pub day_used: u32,
    /// How long the day still lasts.
    pub day_ends_in: Duration,
}

/// Admits one request if both windows have room; one call.
pub async fn admit(
    executor: impl PgExecutor<'_>,
    bucket: &str,
    per_minute: Option<u32>,
    per_day: Option<u32>,
) -> Result<Decision, Error> {
    let (admitted, minute_used, minute_free_in, day_used, day_ends_in): (bool, i64, f64, i64, f64) =
        bounded(
            sqlx::query_as(
                "select admitted, minute_used, minute_free_in, day_used, day_ends_in
                 from admit_request($1, $2, $3)",
            )
            .bind(bucket)
            .bind(per_minute.map(i64::from))
            .bind(per_day.map(i64::from))
            .fetch_one(executor),
        )
        .await?;
    Ok(Decision {
        admitted,
        minute_used: count(minute_used),
        minute_free_in: Duration::from_secs_f64(minute_free_in.max(0.0)),
        day_used: count(day_used),
        day_ends_in: Duration::from_secs_f64(day_ends_in.max(0.0)),
    })
}

/// Takes back the newest admission of a bucket: the request failed through our own fault.
pub async fn take_back(executor: impl PgExecutor<'_>, bucket: &str) -> Result<(), Error> {
    bounded(
        sqlx::query(
            "with minute as (
                 update minute_usage set admitted = admitted[:cardinality(admitted) - 1]
                 where bucket = $1
             )
             update daily_usage set used = greatest(used - 1, 0)
             where bucket = $1 and day = (clock_timestamp() at time zone 'utc')::date",
        )
        .bind(bucket)
        .execute(executor),
    )
    .await?;
    Ok(())
}

/// Forgets the minutes that are over and the days before yesterday.
pub async fn sweep(executor: impl PgExecutor<'_>) -> Result<(), Error> {
    bounded(
        sqlx::query(
            "with minutes as (
                 delete from minute_usage
                 where admitted[cardinality(admitted)] < clock_timestamp() - interval '60 seconds'
                    or cardinality(admitted) = 0
             )
             delete from daily_usage where day < (clock_timestamp() at time zone 'utc')::date - 1",
        )
        .execute(executor),
    )
    .await?;
    Ok(())
}

fn count(count: i64) -> u32 {
    u32::try_from(count.max(0)).unwrap_or(u32::MAX)
}
