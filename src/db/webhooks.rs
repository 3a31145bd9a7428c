//! Queries on webhooks, as operators manage them.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::{Map, Value, json};
use sqlx::{AssertSqlSafe, FromRow};
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
    webhook::{MAX_WEBHOOKS, NewWebhook, WebhookChange, WebhookSecret, WebhookUrl},
};

/// Webhook: a URL that is told of changes.
// Without `Debug`: it may hold the secret.
#[derive(Clone, FromRow, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Webhook, example = json!({
    "id": 3,
    "url": "https://example.com/pets",
    "kinds": ["pet", "order"],
    "enabled": true,
    "createdAt": "2026-01-31T12:00:00Z",
    "waiting": 0,
    "parked": 0,
    "lagSeconds": 0.2
}))]
pub struct WebhookRecord {
    /// Identifier.
    #[schema(value_type = i64, minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub id: WebhookId,
    /// URL.
    #[schema(format = "uri", max_length = 2_048)]
    pub url: String,
    /// Kinds of changes that it gets; all if empty.
    #[schema(value_type = Vec<Kind>, max_items = 16)]
    pub kinds: Vec<String>,
    /// False if nothing is delivered.
    pub enabled: bool,
    /// Time of creation, in UTC.
    #[serde(serialize_with = "serialize_time")]
    #[schema(value_type = String, format = "date-time", max_length = 64)]
    pub created_at: DateTime<Utc>,
    /// Number of changes that it has not got, up to 10,000: those that wait for another attempt, and those not tried yet, as far as
    /// they are among the next 10,000 of all kinds.
    #[schema(minimum = 0, maximum = 10_000)]
    pub waiting: i64,
    /// Number of deliveries that were given up.
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    pub parked: i64,
    /// Age in seconds of the oldest change that waits; 0 if there is none.
    #[schema(minimum = 0)]
    pub lag_seconds: f64,
    /// Key of the signatures, in the form of Standard Webhooks. Only in the response to its creation or rotation.
    #[sqlx(skip)]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, max_length = 64, pattern = "^whsec_[A-Za-z0-9+/=]+$")]
    pub secret: Option<String>,
}

/// Query for webhooks, without its condition and order. Positions are microseconds since 1970. Of the changes behind the position,
/// those wanted are counted of the first 10,000.
const RECORDS: &str = "
    select id, url, kinds, created_at, enabled, parked, least(waiting.number + unread.number, 10000) as waiting,
           greatest(extract(epoch from now()) - coalesce(
               least(waiting.oldest, unread.oldest) / 1000000.0, extract(epoch from now())
           ), 0)::float8 as lag_seconds
    from webhooks,
         lateral (select count(*) as number, min(position) as oldest
                  from webhook_retries where webhook_id = webhooks.id and parked_at is null) waiting,
         lateral (select count(*) as parked
                  from webhook_retries where webhook_id = webhooks.id and parked_at is not null) parked,
         lateral (select count(*) as number, min(changes.position) as oldest
                  from (select position, kind from changes where changes.position > webhooks.position
                        order by position limit 10000) changes
                  where kind <> 'feed' and (kind = any (kinds) or kinds = '{}')) unread";

/// Inserts a webhook, which begins behind the newest published change. Returns `None` if there are [`MAX_WEBHOOKS`].
pub async fn insert(
    transaction: &mut Connection,
    webhook: &NewWebhook,
    initiator: &Initiator,
) -> Result<Option<WebhookId>, Error> {
    // So that their number is exact, without a lock that turns wait for.
    let lock = sqlx::query("select pg_advisory_xact_lock('webhooks'::regclass::oid::bigint)");
    with_timeout(lock.execute(&mut *transaction)).await?;
    let query = sqlx::query_scalar(
        "insert into webhooks (url, secret, kinds, position)
         select $1, $2, $3, position from changes_clock where (select count(*) from webhooks) < $4
         returning id",
    )
    .bind(webhook.url.as_str())
    .bind(webhook.secret.0)
    .bind(names(&webhook.kinds))
    .bind(i64::try_from(MAX_WEBHOOKS).unwrap_or(i64::MAX));
    let id: Option<WebhookId> = with_timeout(query.fetch_optional(&mut *transaction)).await?;
    if let Some(id) = id {
        let record = Record::new(Kind::Webhook, &id, Action::Created, initiator)
            .with_data(Some(json!({"kinds": [null, names(&webhook.kinds)]})));
        record::write(transaction, &[record]).await?;
    }
    Ok(id)
}

/// Returns the webhook with this identifier.
pub async fn find(
    connection: &mut Connection,
    id: WebhookId,
) -> Result<Option<WebhookRecord>, Error> {
    let query = sqlx::query_as(AssertSqlSafe(format!("{RECORDS} where id = $1")));
    with_timeout(query.bind(id.get()).fetch_optional(connection)).await
}

/// Returns the first `limit` webhooks after `after`, by their identifiers.
pub async fn list(
    connection: &mut Connection,
    after: Option<WebhookId>,
    limit: usize,
) -> Result<Vec<WebhookRecord>, Error> {
    let query = sqlx::query_as(AssertSqlSafe(format!(
        "{RECORDS} where id > $1 order by id limit $2"
    )))
    .bind(after.map_or(0, WebhookId::get))
    .bind(i64::try_from(limit).unwrap_or(i64::MAX));
    with_timeout(query.fetch_all(connection)).await
}

/// Changes a webhook. Returns `None` if there is no such webhook. The record does not have the URL, which may have a secret.
pub async fn change(
    transaction: &mut Connection,
    id: WebhookId,
    change: &WebhookChange,
    initiator: &Initiator,
) -> Result<Option<()>, Error> {
    let query = sqlx::query_as(
        "update webhooks
         set url = coalesce($2, webhooks.url), kinds = coalesce($3, webhooks.kinds),
             enabled = coalesce($4, webhooks.enabled)
         from (select * from webhooks where id = $1 for update) old
         where webhooks.id = old.id
         returning old.url, old.kinds, old.enabled",
    )
    .bind(id.get())
    .bind(change.url.as_ref().map(WebhookUrl::as_str))
    .bind(change.kinds.as_deref().map(names))
    .bind(change.is_enabled);
    let old: Option<(String, Vec<String>, bool)> =
        with_timeout(query.fetch_optional(&mut *transaction)).await?;
    let Some((url, kinds, is_enabled)) = old else {
        return Ok(None);
    };
    let mut data = Map::new();
    if let Some(new) = change
        .kinds
        .as_deref()
        .map(names)
        .filter(|new| *new != kinds)
    {
        data.insert("kinds".to_owned(), json!([kinds, new]));
    }
    if let Some(new) = change.is_enabled.filter(|new| *new != is_enabled) {
        data.insert("enabled".to_owned(), json!([is_enabled, new]));
        if new {
            // What waits has another day, since none of it was tried meanwhile.
            let query = sqlx::query(
                "update webhook_retries set created_at = now() where webhook_id = $1 and parked_at is null",
            );
            let query = query.bind(id.get()).execute(&mut *transaction);
            with_timeout(query).await?;
        }
    }
    let has_new_url = change.url.as_ref().is_some_and(|new| new.as_str() != url);
    if has_new_url || !data.is_empty() {
        let data = (!data.is_empty()).then_some(Value::Object(data));
        let record = Record::new(Kind::Webhook, &id, Action::Changed, initiator);
        record::write(transaction, &[record.with_data(data)]).await?;
    }
    Ok(Some(()))
}

/// Deletes a webhook with its deliveries. Returns `None` if there is no such webhook.
pub async fn delete(
    transaction: &mut Connection,
    id: WebhookId,
    initiator: &Initiator,
) -> Result<Option<()>, Error> {
    let query = sqlx::query("delete from webhooks where id = $1").bind(id.get());
    let deleted = with_timeout(query.execute(&mut *transaction)).await?;
    if deleted.rows_affected() == 0 {
        return Ok(None);
    }
    let record = Record::new(Kind::Webhook, &id, Action::Deleted, initiator);
    record::write(transaction, &[record]).await?;
    Ok(Some(()))
}

/// Gives a webhook a new secret. The old one stays valid for `overlap`, and the one before it ends. Returns `None` if there is no
/// such webhook.
pub async fn rotate(
    transaction: &mut Connection,
    id: WebhookId,
    secret: &WebhookSecret,
    overlap: Duration,
    initiator: &Initiator,
) -> Result<Option<()>, Error> {
    let query = sqlx::query(
        "update webhooks set secret = $2, old_secret = secret, old_secret_until = now() + make_interval(secs => $3) where id = $1",
    );
    let query = query
        .bind(id.get())
        .bind(secret.0)
        .bind(overlap.as_secs_f64());
    let rotated = with_timeout(query.execute(&mut *transaction)).await?;
    if rotated.rows_affected() == 0 {
        return Ok(None);
    }
    let data = json!({"secret": true});
    record_request(transaction, id, data, initiator).await?;
    Ok(Some(()))
}

/// Makes a delivery due now, even if it was parked, and counts its attempts anew. Returns `None` if there is no such delivery, or
/// its change is no longer recorded.
pub async fn send_again(
    transaction: &mut Connection,
    id: WebhookId,
    position: Position,
    initiator: &Initiator,
) -> Result<Option<()>, Error> {
    lock(transaction, id).await?;
    let query = sqlx::query(
        "update webhook_retries r set parked_at = null, attempts = 0, next_at = now(), created_at = now()
         where webhook_id = $1 and position = $2
           and exists (select from changes where changes.position = r.position)",
    );
    let query = query.bind(id.get()).bind(position.0);
    let changed = with_timeout(query.execute(&mut *transaction)).await?;
    if changed.rows_affected() == 0 {
        return Ok(None);
    }
    let data = json!({"retry": position.0});
    record_request(transaction, id, data, initiator).await?;
    Ok(Some(()))
}

/// Makes up to 10,000 deliveries that were parked due now, as [`send_again`] does one, except those of changes that are no longer
/// recorded. Returns their number.
pub async fn send_parked_again(
    transaction: &mut Connection,
    id: WebhookId,
    initiator: &Initiator,
) -> Result<u64, Error> {
    lock(transaction, id).await?;
    let mut number = 0;
    // In parts, each of which takes little of the time of a statement.
    for _ in 0..10 {
        let query = sqlx::query(
            "update webhook_retries set parked_at = null, attempts = 0, next_at = now(), created_at = now()
             where webhook_id = $1 and position in (
                 select position from webhook_retries r
                 where webhook_id = $1 and parked_at is not null
                   and exists (select from changes where changes.position = r.position)
                 limit 1000
             )",
        );
        let query = query.bind(id.get()).execute(&mut *transaction);
        let changed = with_timeout(query).await?.rows_affected();
        number += changed;
        if changed < 1_000 {
            break;
        }
    }
    if number > 0 {
        let data = json!({"retries": number});
        record_request(transaction, id, data, initiator).await?;
    }
    Ok(number)
}

/// Locks a webhook, as the end of a turn does first: otherwise both could deadlock.
async fn lock(transaction: &mut Connection, id: WebhookId) -> Result<(), Error> {
    let lock = sqlx::query("select from webhooks where id = $1 for update").bind(id.get());
    with_timeout(lock.execute(transaction)).await.map(drop)
}

/// Records what was requested of a webhook.
async fn record_request(
    transaction: &mut Connection,
    id: WebhookId,
    data: Value,
    initiator: &Initiator,
) -> Result<(), Error> {
    let record = Record::new(Kind::Webhook, &id, Action::Changed, initiator);
    record::write(transaction, &[record.with_data(Some(data))]).await
}

fn names(kinds: &[Kind]) -> Vec<&'static str> {
    kinds.iter().map(|kind| kind.as_str()).collect()
}
