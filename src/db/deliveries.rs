//! Deliveries of webhooks: the turns of the replicas, and what has failed.
//!
//! Invariants:
//! - Each wanted change up to the position of a webhook is delivered, or has a row.
//! - One turn of a webhook is in progress at a time, unless its lease has expired. Then it writes nothing.
//! - A webhook without failures, with a receiver that takes a page within a turn, writes two rows a page, not one a change.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::json;
use sqlx::{FromRow, types::Json};
use utoipa::ToSchema;

use super::{
    connect::Connection,
    deadline::with_timeout,
    error::Error,
    record::{self, Record},
};
use crate::domain::{
    change::{Action, Initiator, Kind, Position},
    clock::serialize_time,
    id::WebhookId,
    webhook::{Attempt, Receiver},
};

/// Columns of a receiver, with the secrets that are valid now.
macro_rules! receiver {
    () => {
        "id, url, secret, case when old_secret_until > now() then old_secret end as old_secret"
    };
}

/// The last 20 of some attempts, the newest first.
macro_rules! last_attempts {
    ($attempts:literal) => {
        concat!(
            "(select jsonb_agg(attempt order by (attempt ->> 'at')::timestamptz desc)
              from (select attempt from jsonb_array_elements(",
            $attempts,
            ") attempt
                    order by (attempt ->> 'at')::timestamptz desc limit 20) last)"
        )
    };
    () => {
        last_attempts!("excluded.attempts || webhook_attempts.attempts")
    };
}

/// Webhook, leased for a turn.
#[derive(Debug, Clone, FromRow)]
pub struct Claimed {
    /// Receiver.
    #[sqlx(flatten)]
    pub receiver: Receiver,
    /// Number of the lease, which is random: no other turn has it.
    pub lease: i64,
    /// Wanted kinds of changes; empty for all.
    pub kinds: Vec<String>,
    /// Position.
    pub position: Position,
    /// Position of the newest published change.
    pub head: Position,
}

/// Leases a webhook that has something to deliver, the one that has waited longest.
pub async fn claim(
    connection: &mut Connection,
    length: Duration,
) -> Result<Option<Claimed>, Error> {
    let query = sqlx::query_as(concat!(
        "update webhooks set lease = (random() * 9e15)::bigint, leased_until = clock_timestamp() + make_interval(secs => $1)
         where id = (
             select id from webhooks w
             where enabled and next_at <= now() and (leased_until is null or leased_until < now())
               and (position < (select position from changes_clock)
                    or exists (select from (select distinct on (kind, resource) next_at from webhook_retries
                                            where webhook_id = w.id and parked_at is null
                                            order by kind, resource, position) first
                               where first.next_at <= now()))
             order by next_at, id limit 1 for update skip locked
         )
         returning ", receiver!(), ", lease, kinds, position, greatest(position, (select position from changes_clock)) as head"
    ));
    let query = query.bind(length.as_secs_f64());
    with_timeout(query.fetch_optional(connection)).await
}

/// Returns the receiver of a webhook. Returns `None` if the webhook is disabled or does not exist, or its lease has passed to another.
pub async fn receiver(
    connection: &mut Connection,
    webhook: WebhookId,
    lease: i64,
) -> Result<Option<Receiver>, Error> {
    let query = sqlx::query_as(concat!(
        "select ",
        receiver!(),
        " from webhooks where id = $1 and lease = $2 and enabled"
    ));
    let query = query.bind(webhook.get()).bind(lease);
    with_timeout(query.fetch_optional(connection)).await
}

/// Delivery that waits.
#[derive(Debug, Clone, FromRow)]
pub struct Waiting {
    /// Position.
    pub position: Position,
    /// Kind of the resource.
    pub kind: String,
    /// Identifier of the resource.
    pub resource: String,
    /// Number of failed attempts.
    #[sqlx(try_from = "i32")]
    pub attempts: u32,
    /// True if the time of its next attempt has come, unless another of its resource is before it.
    pub is_due: bool,
    /// True if it is parked when it fails once more.
    pub is_old: bool,
}

impl Waiting {
    /// Returns the kind and the identifier of the resource.
    pub fn resource(&self) -> (&str, &str) {
        (&self.kind, &self.resource)
    }

    /// Returns true if the other one is of the same resource.
    pub fn is_of_same_resource(&self, other: &Self) -> bool {
        self.resource() == other.resource()
    }
}

/// Returns the first `limit` deliveries that wait: by the time at which their resource is due, by resource, then by position. Old
/// ones have waited for `give_up_after`.
pub async fn waiting(
    connection: &mut Connection,
    webhook: WebhookId,
    give_up_after: Duration,
    limit: usize,
) -> Result<Vec<Waiting>, Error> {
    let query = sqlx::query_as(
        "select position, kind, resource, attempts, next_at <= now() as is_due,
                attempts > 0 and created_at < now() - make_interval(secs => $2) as is_old
         from (
             select *, first_value(next_at) over (partition by kind, resource order by position) as due_at
             from webhook_retries where webhook_id = $1 and parked_at is null
         ) waiting
         order by due_at, kind, resource, position limit $3",
    )
    .bind(webhook.get())
    .bind(give_up_after.as_secs_f64())
    .bind(i64::try_from(limit).unwrap_or(i64::MAX));
    with_timeout(query.fetch_all(connection)).await
}

/// Delivery that a turn has not made.
#[derive(Debug, Clone, Serialize)]
pub struct Undelivered {
    /// Position.
    pub position: i64,
    /// Kind of the resource.
    pub kind: String,
    /// Identifier of the resource.
    pub resource: String,
    /// Number of failed attempts.
    pub attempts: u32,
    /// Time until the next attempt, in seconds.
    pub wait: f64,
    /// Reason of the last failure.
    pub error: Option<String>,
    /// True if it is given up.
    pub is_parked: bool,
}

/// Result of a turn.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Position up to which changes are delivered, or are in `undelivered`; that of the webhook if it is greater.
    pub position: Position,
    /// Time until the next turn at the earliest.
    pub pause: Duration,
    /// Positions of the waiting deliveries that are done.
    pub done: Vec<i64>,
    /// Others.
    pub undelivered: Vec<Undelivered>,
    /// URL of the receiver if it wants no further messages.
    pub gone: Option<String>,
    /// Attempts, in no order.
    pub attempts: Vec<Attempt>,
}

/// Ends a turn, and returns true. Returns false, and writes nothing, if its lease has passed to another. A delivery that was
/// requested again meanwhile stays so. Needs a transaction if the receiver is gone.
pub async fn settle(
    connection: &mut Connection,
    webhook: WebhookId,
    lease: i64,
    outcome: &Outcome,
) -> Result<bool, Error> {
    let query = sqlx::query_scalar(concat!(
        "with mine as (
             update webhooks
             set position = greatest(position, $3), next_at = now() + make_interval(secs => $4), lease = null, leased_until = null,
                 old_secret = case when old_secret_until > now() then old_secret end
             where id = $1 and lease = $2 returning id
         ), tried as (
             insert into webhook_attempts (webhook_id, attempts) select id, ", last_attempts!("$7"), " from mine where $7 <> '[]'
             on conflict (webhook_id) do update set attempts = ", last_attempts!(), "
         ), done as (
             delete from webhook_retries r using mine where webhook_id = mine.id and r.position = any ($5)
         ), failed as (
             insert into webhook_retries
                 (webhook_id, position, kind, resource, attempts, next_at, last_error, parked_at)
             select mine.id, f.position, kind, resource, attempts, now() + make_interval(secs => wait), error,
                    case when is_parked then now() end
             from mine, jsonb_to_recordset($6) as f (position bigint, kind text, resource text, attempts integer,
                                                     wait float8, error text, is_parked boolean)
             on conflict (webhook_id, position) do update
             set attempts = excluded.attempts, next_at = excluded.next_at, last_error = excluded.last_error,
                 parked_at = excluded.parked_at
             where webhook_retries.attempts = excluded.attempts - 1
         )
         select exists (select from mine) or not exists (select from webhooks where id = $1)"
    ))
    .bind(webhook.get())
    .bind(lease)
    .bind(outcome.position.0)
    .bind(outcome.pause.as_secs_f64())
    .bind(&outcome.done)
    .bind(Json(&outcome.undelivered))
    .bind(Json(&outcome.attempts));
    let is_mine = with_timeout(query.fetch_one(&mut *connection)).await?;
    if let Some(url) = outcome.gone.as_ref().filter(|_| is_mine) {
        disable(connection, webhook, url).await?;
    }
    Ok(is_mine)
}

/// Disables a webhook after a 410 from this URL, unless it has another one meanwhile.
async fn disable(transaction: &mut Connection, webhook: WebhookId, url: &str) -> Result<(), Error> {
    let query =
        sqlx::query("update webhooks set enabled = false where id = $1 and url = $2 and enabled");
    let query = query.bind(webhook.get()).bind(url);
    let disabled = with_timeout(query.execute(&mut *transaction)).await?;
    if disabled.rows_affected() == 0 {
        return Ok(());
    }
    let initiator = Initiator::webhook();
    let record = Record::new(Kind::Webhook, &webhook, Action::Changed, &initiator)
        .with_data(Some(json!({"enabled": [true, false]})));
    record::write(transaction, &[record]).await
}

/// Begins a test, which ends after `timeout` at the latest. Returns its receiver, or `None` if there is no such webhook, it is
/// disabled, or a test is in progress.
pub async fn begin_test(
    connection: &mut Connection,
    id: WebhookId,
    timeout: Duration,
) -> Result<Option<Receiver>, Error> {
    let query = sqlx::query_as(concat!(
        "update webhooks set test_until = now() + make_interval(secs => $2)
         where id = $1 and enabled and (test_until is null or test_until < now())
         returning ",
        receiver!()
    ));
    let query = query.bind(id.get()).bind(timeout.as_secs_f64());
    with_timeout(query.fetch_optional(connection)).await
}

/// Ends a test, and keeps its attempt.
pub async fn end_test(
    connection: &mut Connection,
    id: WebhookId,
    attempt: &Attempt,
) -> Result<(), Error> {
    let query = sqlx::query(concat!(
        "with mine as (update webhooks set test_until = null where id = $1 returning id)
         insert into webhook_attempts (webhook_id, attempts) select id, jsonb_build_array($2::jsonb) from mine
         on conflict (webhook_id) do update set attempts = ",
        last_attempts!()
    ));
    let query = query.bind(id.get()).bind(Json(attempt));
    with_timeout(query.execute(connection)).await.map(drop)
}

/// Returns the last attempts of a webhook, the newest first.
pub async fn attempts(connection: &mut Connection, id: WebhookId) -> Result<Vec<Attempt>, Error> {
    let query = sqlx::query_scalar("select attempts from webhook_attempts where webhook_id = $1");
    let query = query.bind(id.get()).fetch_optional(connection);
    let attempts: Option<Json<Vec<Attempt>>> = with_timeout(query).await?;
    Ok(attempts.map(|Json(attempts)| attempts).unwrap_or_default())
}

/// Delivery that has failed, waits behind one that has, or was given up.
#[derive(Debug, Clone, FromRow, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Delivery, example = json!({
    "position": 1_769_860_800_000_000_i64,
    "type": "pet.changed",
    "resource": "7",
    "attempts": 3,
    "createdAt": "2026-01-31T12:00:00Z",
    "nextAt": "2026-01-31T12:00:08Z",
    "lastError": "the response has status 503 Service Unavailable"
}))]
pub struct DeliveryRecord {
    /// Position of the change.
    #[schema(value_type = i64, minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    pub position: Position,
    /// Type of the message: the kind of the resource and what was done.
    // Without the latter if the change is no longer recorded.
    #[sqlx(rename = "type")]
    #[serde(rename = "type")]
    #[schema(max_length = 32, pattern = "^[a-z.]+$")]
    pub message_type: String,
    /// Identifier of the resource.
    #[schema(max_length = 64, pattern = r"^[^\x00]*$")]
    pub resource: String,
    /// Number of failed attempts.
    #[schema(minimum = 0, maximum = 2_147_483_647)]
    pub attempts: i32,
    /// Time of the first failure, or since when it waits for another one, in UTC.
    #[serde(serialize_with = "serialize_time")]
    #[schema(value_type = String, format = "date-time", max_length = 64)]
    pub created_at: DateTime<Utc>,
    /// Time of the next attempt; absent if it was given up.
    #[serde(
        serialize_with = "serialize_time",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<String>, nullable = false, format = "date-time", max_length = 64)]
    pub next_at: Option<DateTime<Utc>>,
    /// Time at which it was given up.
    #[serde(
        serialize_with = "serialize_time",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<String>, nullable = false, format = "date-time", max_length = 64)]
    pub parked_at: Option<DateTime<Utc>>,
    /// Reason of the last failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, max_length = 512, pattern = r"^[^\x00]*$")]
    pub last_error: Option<String>,
}

/// Returns the delivery with this position.
pub async fn find(
    connection: &mut Connection,
    webhook: WebhookId,
    position: Position,
) -> Result<Option<DeliveryRecord>, Error> {
    let next = list(connection, webhook, Some(Position(position.0 - 1)), 1).await?;
    Ok(next.into_iter().find(|it| it.position == position))
}

/// Returns the first `limit` deliveries of a webhook after `after`, by their positions.
pub async fn list(
    connection: &mut Connection,
    webhook: WebhookId,
    after: Option<Position>,
    limit: usize,
) -> Result<Vec<DeliveryRecord>, Error> {
    let query = sqlx::query_as(
        "select r.position, concat_ws('.', r.kind, c.action) as type, r.resource, attempts, last_error, created_at, parked_at,
                case when parked_at is null then next_at end as next_at
         from webhook_retries r left join changes c on c.position = r.position and c.kind = r.kind
         where webhook_id = $1 and r.position > $2 order by r.position limit $3",
    )
    .bind(webhook.get())
    .bind(after.unwrap_or_default().0)
    .bind(i64::try_from(limit).unwrap_or(i64::MAX));
    with_timeout(query.fetch_all(connection)).await
}

/// Deletes up to 1,000 deliveries that were parked longer ago than `retention`. Returns their number.
pub async fn purge_expired(connection: &mut Connection, retention: Duration) -> Result<u64, Error> {
    let query = sqlx::query(
        "delete from webhook_retries
         where (webhook_id, position) in (
             select webhook_id, position from webhook_retries
             where parked_at < now() - make_interval(secs => $1) limit 1000
         )",
    );
    let query = query.bind(retention.as_secs_f64());
    let deleted = with_timeout(query.execute(connection)).await?;
    Ok(deleted.rows_affected())
}
