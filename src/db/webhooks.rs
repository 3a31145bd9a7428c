//! Queries on webhooks, as operators manage them.

use chrono::{DateTime, Utc};
use serde_json::{Map, Value, json};
use sqlx::{AssertSqlSafe, FromRow};

use super::{
    connect::Connection,
    deadline::with_timeout,
    error::Error,
    record::{self, Record},
};
use crate::domain::{
    change::{Action, Initiator, Kind, Position},
    id::WebhookId,
    webhook::{MAX_WEBHOOKS, NewWebhook, WebhookChange, WebhookUrl},
};

/// Webhook, as listed for the operator.
#[derive(Debug, Clone, FromRow)]
pub struct WebhookRecord {
    /// Identifier.
    pub id: WebhookId,
    /// URL.
    pub url: String,
    /// Wanted kinds of changes; empty for all.
    pub kinds: Vec<String>,
    /// Time of creation.
    pub created_at: DateTime<Utc>,
    /// False if nothing is delivered.
    pub is_enabled: bool,
    /// Number of deliveries that wait for another attempt, or behind one of the same resource.
    pub waiting: i64,
    /// Number of deliveries that were given up.
    pub parked: i64,
    /// Age in seconds of the oldest change that it has not passed.
    pub lag: f64,
}

/// Query for webhooks, without its condition and order. Positions are microseconds since 1970.
const RECORDS: &str = "
    select id, url, kinds, created_at, enabled as is_enabled,
           (select count(*) from webhook_retries where webhook_id = webhooks.id and parked_at is null) as waiting,
           (select count(*) from webhook_retries where webhook_id = webhooks.id and parked_at is not null) as parked,
           greatest(extract(epoch from now()) - coalesce(
               (select min(position) / 1000000.0 from changes where changes.position > webhooks.position),
               extract(epoch from now())
           ), 0)::float8 as lag
    from webhooks";

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
    .bind(MAX_WEBHOOKS);
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

/// Adds a delivery of the type `test`. Returns its position, or `None` if there is no such webhook, or it is disabled.
pub async fn send_test(
    transaction: &mut Connection,
    id: WebhookId,
    initiator: &Initiator,
) -> Result<Option<Position>, Error> {
    // Each is a resource of its own, so that none waits for another. The position is in milliseconds, which those of changes, in
    // microseconds, do not meet.
    let query = sqlx::query_scalar(
        "with given as (
             select id, greatest((extract(epoch from clock_timestamp()) * 1000)::bigint,
                                 (select max(position) + 1 from webhook_retries
                                  where webhook_id = $1 and kind = 'test')) as position
             from webhooks where id = $1 and enabled for update
         )
         insert into webhook_retries (webhook_id, position, kind, resource, attempts, next_at)
         select id, position, 'test', position::text, 0, now() from given
         returning position",
    );
    let query = query.bind(id.get()).fetch_optional(&mut *transaction);
    let position: Option<i64> = with_timeout(query).await?;
    if let Some(position) = position {
        record_request(transaction, id, ("test", position), initiator).await?;
    }
    Ok(position.map(Position))
}

/// Makes a delivery due now, even if it was parked, and counts its attempts anew. Returns `None` if there is no such delivery, or
/// its change is no longer recorded.
pub async fn send_again(
    transaction: &mut Connection,
    id: WebhookId,
    position: Position,
    initiator: &Initiator,
) -> Result<Option<()>, Error> {
    // First, as the end of a turn does: otherwise both could deadlock.
    let lock = sqlx::query("select from webhooks where id = $1 for update").bind(id.get());
    with_timeout(lock.execute(&mut *transaction)).await?;
    let query = sqlx::query(
        "update webhook_retries r set parked_at = null, attempts = 0, next_at = now(), created_at = now()
         where webhook_id = $1 and position = $2
           and (kind = 'test' or exists (select from changes where changes.position = r.position))",
    );
    let query = query.bind(id.get()).bind(position.0);
    let changed = with_timeout(query.execute(&mut *transaction)).await?;
    if changed.rows_affected() == 0 {
        return Ok(None);
    }
    record_request(transaction, id, ("retry", position.0), initiator).await?;
    Ok(Some(()))
}

/// Records that a delivery was requested, by its position.
async fn record_request(
    transaction: &mut Connection,
    id: WebhookId,
    (what, position): (&str, i64),
    initiator: &Initiator,
) -> Result<(), Error> {
    let record = Record::new(Kind::Webhook, &id, Action::Changed, initiator)
        .with_data(Some(json!({what: position})));
    record::write(transaction, &[record]).await
}

fn names(kinds: &[Kind]) -> Vec<&'static str> {
    kinds.iter().map(|kind| kind.as_str()).collect()
}
