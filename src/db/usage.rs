//! Queries on the requests of callers by UTC day.

use chrono::NaiveDate;
use serde::Serialize;
use sqlx::FromRow;
use utoipa::ToSchema;

use super::{connect::Connection, deadline::with_timeout, error::Error};
use crate::domain::{caller::CallerId, limit::RequestCounts};

/// Number of days that are kept, with the current one.
const DAYS: i32 = 30;

/// Requests on a UTC day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromRow, Serialize, ToSchema)]
#[schema(example = json!({"day": "2026-01-31", "admitted": 812, "refused": 3}))]
pub struct DayUsage {
    /// Day, as in RFC 3339.
    // Without `format`: aiopenapi3 would measure the length of a date.
    #[schema(value_type = String, min_length = 10, max_length = 10, pattern = r"^\d{4}-\d\d-\d\d$")]
    pub day: NaiveDate,
    /// Number of admitted requests.
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    pub admitted: i64,
    /// Number of requests that a limit of the plan refused.
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    pub refused: i64,
}

/// Adds requests of callers to the current day.
pub async fn add(
    connection: &mut Connection,
    counts: &[(CallerId, RequestCounts)],
) -> Result<(), Error> {
    let column = |value: fn(&RequestCounts) -> u64| -> Vec<i64> {
        counts
            .iter()
            .map(|(_, count)| i64::try_from(value(count)).unwrap_or(i64::MAX))
            .collect()
    };
    let callers: Vec<i64> = counts.iter().map(|(caller, _)| caller.0).collect();
    // In the order of callers, so that two replicas cannot deadlock.
    let query = sqlx::query(
        "insert into caller_usage as known (caller_id, day, admitted, refused)
         select caller_id, (clock_timestamp() at time zone 'utc')::date, admitted, refused
         from unnest($1::bigint[], $2::bigint[], $3::bigint[]) as given (caller_id, admitted, refused)
         order by caller_id
         on conflict (caller_id, day) do update
         set admitted = known.admitted + excluded.admitted, refused = known.refused + excluded.refused",
    )
    .bind(callers)
    .bind(column(|count| count.admitted))
    .bind(column(|count| count.refused));
    with_timeout(query.execute(connection)).await.map(drop)
}

/// Returns the requests of a caller on each of the last 30 days, the current one last.
pub async fn of_caller(
    connection: &mut Connection,
    caller: CallerId,
) -> Result<Vec<DayUsage>, Error> {
    let query = sqlx::query_as(
        "select today - ago as day, coalesce(admitted, 0) as admitted, coalesce(refused, 0) as refused
         from (select (clock_timestamp() at time zone 'utc')::date as today) clock
         cross join generate_series($2 - 1, 0, -1) as ago
         left join caller_usage on caller_id = $1 and day = today - ago
         order by ago desc",
    );
    let query = query.bind(caller.0).bind(DAYS);
    with_timeout(query.fetch_all(connection)).await
}

/// Deletes up to 1,000 rows of earlier days; returns their number.
pub async fn purge_expired(connection: &mut Connection) -> Result<u64, Error> {
    let query = sqlx::query(
        "delete from caller_usage
         where ctid = any (array(
             select ctid from caller_usage
             where day <= (clock_timestamp() at time zone 'utc')::date - $1
             limit 1000
             for update skip locked
         ))",
    );
    let deleted = with_timeout(query.bind(DAYS).execute(connection)).await?;
    Ok(deleted.rows_affected())
}
