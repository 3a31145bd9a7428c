//! `/admin/webhooks`: lists, creates, changes, rotates, tests and deletes webhooks, and repeats their deliveries.

use std::time::Duration;

use axum::{extract::State, http::StatusCode, response::Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    api::{
        error::Error,
        extract::{Json, MergePatch, Path, PathPair, Query},
        fields::{Array, Field, FieldType, Member, Violations, present},
        idempotency::Idempotency,
        kinds::{KindBody, MAX_KINDS, read_kinds},
        operations::BASE,
        paging::{Find, Lists, Page, Window},
        response::{self, ApiResponse, time},
        state::{AppState, Links},
    },
    auth::secret::generate_webhook_secret,
    db::{self, Database, deliveries::DeliveryRecord, webhooks::WebhookRecord},
    domain::{
        Invalid,
        change::{Initiator, Position},
        id::WebhookId,
        webhook::{
            Attempt, DEFAULT_OVERLAP, MAX_OVERLAP, MAX_WEBHOOKS, NewWebhook, WebhookChange,
            WebhookSecret, WebhookUrl,
        },
    },
    webhooks,
};

/// Webhook: a URL that is told of changes.
#[derive(Serialize, ToSchema)]
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
pub(super) struct WebhookBody {
    /// Identifier.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    id: i64,
    /// URL.
    #[schema(format = "uri", max_length = 2_048)]
    url: String,
    /// Kinds of changes that it gets; all if empty.
    #[schema(value_type = Vec<KindBody>, max_items = 16)]
    kinds: Vec<String>,
    /// False if nothing is delivered.
    enabled: bool,
    /// Time of creation, in UTC.
    #[schema(format = "date-time", max_length = 64)]
    created_at: String,
    /// Number of deliveries that wait for another attempt, or behind one of the same resource.
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    waiting: i64,
    /// Number of deliveries that were given up.
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    parked: i64,
    /// Age of the oldest change that was not sent yet.
    #[schema(minimum = 0)]
    lag_seconds: f64,
    /// Key of the signatures, in the form of Standard Webhooks. Only in the response to its creation or rotation.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, max_length = 64, pattern = "^whsec_[A-Za-z0-9+/=]+$")]
    secret: Option<String>,
}

impl From<WebhookRecord> for WebhookBody {
    fn from(webhook: WebhookRecord) -> Self {
        Self {
            id: webhook.id.get(),
            url: webhook.url,
            kinds: webhook.kinds,
            enabled: webhook.is_enabled,
            created_at: time(webhook.created_at),
            waiting: webhook.waiting,
            parked: webhook.parked,
            lag_seconds: webhook.lag,
            secret: None,
        }
    }
}

/// Webhook to create. Unknown fields are ignored.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = WebhookInput, example = json!({"url": "https://example.com/pets", "kinds": ["pet", "order"]}))]
pub(super) struct NewWebhookBody {
    /// URL: `https`, without user, password and fragment.
    #[schema(value_type = String, required = true, format = "uri", min_length = 1, max_length = 2_000)]
    url: Field<String>,
    /// Kinds of changes that it gets; all if absent or empty.
    #[schema(value_type = Vec<KindBody>, required = false, nullable, max_items = 16)]
    kinds: Field<Array<String, MAX_KINDS>>,
}

impl FieldType for NewWebhookBody {}

/// Changes to a webhook, as a JSON Merge Patch: no field can be removed. Other fields are ignored.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = WebhookPatch, example = json!({"enabled": false}))]
pub(super) struct WebhookPatchBody {
    /// URL.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = String, required = false, format = "uri", min_length = 1, max_length = 2_000)]
    url: Member<String>,
    /// Kinds of changes that it gets; all if empty.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Vec<KindBody>, required = false, max_items = 16)]
    kinds: Member<Array<String, MAX_KINDS>>,
    /// False to deliver nothing, true to go on with the changes that follow those that were delivered.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = bool, required = false)]
    enabled: Member<bool>,
}

impl FieldType for WebhookPatchBody {}

impl WebhookPatchBody {
    /// Checks the changes.
    fn into_change(self, allow_private: bool) -> Result<WebhookChange, Error> {
        let mut violations = Violations::default();
        let url = self.url.and_then(|url| {
            violations.required("url", url, |url| WebhookUrl::new(&url, allow_private))
        });
        let kinds = self.kinds.map(|kinds| {
            if matches!(kinds, Field::Absent) {
                violations.add("kinds", "is required");
            }
            read_kinds(&mut violations, kinds)
        });
        let is_enabled = self
            .enabled
            .and_then(|enabled| violations.required("enabled", enabled, Ok));
        violations.finish(Some(WebhookChange {
            url,
            kinds,
            is_enabled,
        }))
    }
}

/// The last attempts of a webhook.
#[derive(Serialize, ToSchema)]
#[schema(max_items = 20)]
struct Attempts(Vec<Attempt>);

/// Rotation of the secret of a webhook. Unknown fields are ignored.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = WebhookRotation, example = json!({"overlap": 86_400}))]
pub(super) struct RotationBody {
    /// Seconds for which requests are signed with the old secret, too; a day if absent.
    #[schema(value_type = i64, required = false, nullable, minimum = 0, maximum = 604_800)]
    overlap: Field<i64>,
}

impl FieldType for RotationBody {}

/// Deliveries that are sent again.
#[derive(Serialize, ToSchema)]
#[schema(as = Retries, example = json!({"deliveries": 12}))]
struct RetriesBody {
    /// Their number.
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    deliveries: u64,
}

/// Delivery that has failed, waits behind one that has, or was given up.
#[derive(Serialize, ToSchema)]
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
pub(super) struct DeliveryBody {
    /// Position of the change.
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    position: i64,
    /// Type of the message: the kind of the resource and what was done.
    #[serde(rename = "type")]
    #[schema(max_length = 32, pattern = "^[a-z.]+$")]
    kind: String,
    /// Identifier of the resource.
    #[schema(max_length = 64, pattern = r"^[^\x00]*$")]
    resource: String,
    /// Number of failed attempts.
    #[schema(minimum = 0, maximum = 2_147_483_647)]
    attempts: i32,
    /// Time of the first failure, or since when it waits for another one, in UTC.
    #[schema(format = "date-time", max_length = 64)]
    created_at: String,
    /// Time of the next attempt; absent if it was given up.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = "date-time", max_length = 64)]
    next_at: Option<String>,
    /// Time at which it was given up.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = "date-time", max_length = 64)]
    parked_at: Option<String>,
    /// Reason of the last failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, max_length = 512, pattern = r"^[^\x00]*$")]
    last_error: Option<String>,
}

impl From<&DeliveryRecord> for DeliveryBody {
    fn from(delivery: &DeliveryRecord) -> Self {
        let is_parked = delivery.parked_at.is_some();
        Self {
            position: delivery.position.0,
            kind: delivery.message_type(),
            resource: delivery.resource.clone(),
            attempts: delivery.attempts,
            created_at: time(delivery.created_at),
            next_at: (!is_parked).then(|| time(delivery.next_at)),
            parked_at: delivery.parked_at.map(time),
            last_error: delivery.last_error.clone(),
        }
    }
}

struct Webhooks;

impl Find for Webhooks {
    type Item = WebhookRecord;
    type Id = WebhookId;

    async fn page(
        &self,
        database: &Database,
        after: Option<WebhookId>,
        limit: usize,
    ) -> Result<Page<Self>, db::Error> {
        let page =
            database.run(async |connection| db::webhooks::list(connection, after, limit).await);
        page.await.map(Page::from)
    }

    fn id(webhook: &WebhookRecord) -> WebhookId {
        webhook.id
    }

    fn write(webhook: &WebhookRecord, json: &mut Vec<u8>) -> serde_json::Result<()> {
        serde_json::to_writer(json, &WebhookBody::from(webhook.clone()))
    }
}

/// Deliveries of a webhook.
struct Deliveries(WebhookId);

impl Find for Deliveries {
    type Item = DeliveryRecord;
    type Id = Position;

    async fn page(
        &self,
        database: &Database,
        after: Option<Position>,
        limit: usize,
    ) -> Result<Page<Self>, db::Error> {
        let page = database
            .run(async |connection| db::deliveries::list(connection, self.0, after, limit).await);
        page.await.map(Page::from)
    }

    fn id(delivery: &DeliveryRecord) -> Position {
        delivery.position
    }

    fn write(delivery: &DeliveryRecord, json: &mut Vec<u8>) -> serde_json::Result<()> {
        serde_json::to_writer(json, &DeliveryBody::from(delivery))
    }
}

/// List webhooks
///
/// Returns the webhooks in the order of their identifiers, without their secrets: all of them or, with `limit`, one page. While
/// more remain, `Link` has the URL of the next page.
#[utoipa::path(
    get, path = "/admin/webhooks", operation_id = "listWebhooks", tag = "admin", security(("bearer" = ["admin"])),
    params(("limit", Query), ("cursor", Query)),
    responses((status = 200, description = "The webhooks; `[]` if there are none.", body = Vec<WebhookBody>, headers(("Link")))),
)]
pub(super) async fn list(lists: Lists, Query(query): Query) -> Result<Response, Error> {
    let window = Window::read(Violations::default(), &query)?;
    let next = ("/admin/webhooks", &[][..]);
    lists.respond(next, &query, window, Webhooks).await
}

/// Create a webhook
///
/// It gets the changes that are made from now on, each as a POST request that is signed as Standard Webhooks has it
/// (<https://www.standardwebhooks.com>), at least once, and in order for each resource. A delivery succeeds with a response of
/// status 2xx within 10 s. Otherwise it is repeated with growing delay for a day, then given up. The secret is shown this once,
/// and the response is not stored.
#[utoipa::path(
    post, path = "/admin/webhooks", operation_id = "createWebhook", tag = "admin", security(("bearer" = ["admin"])),
    request_body(content = NewWebhookBody, description = "The webhook to create."),
    responses(
        (status = 201, description = "The created webhook.", body = WebhookBody, headers(("Location"))),
        (status = 409, description = "There are 100 webhooks."),
    ),
)]
pub(super) async fn create(
    State(state): State<AppState>,
    State(links): State<Links>,
    initiator: Initiator,
    Json(body): Json<NewWebhookBody>,
) -> Result<Response, Error> {
    let mut violations = Violations::default();
    let url = violations.required("url", body.url, |url| {
        WebhookUrl::new(&url, state.allow_private_webhooks)
    });
    let kinds = read_kinds(&mut violations, body.kinds);
    let secret: WebhookSecret = generate_webhook_secret().map_err(Error::internal)?;
    let new = violations.finish(url.map(|url| NewWebhook { url, secret, kinds }))?;
    // The webhook begins behind the changes before it.
    state.database.run(db::changes::publish_all).await?;
    let webhook = state.database.transact(async |transaction| {
        let id = db::webhooks::insert(transaction, &new, &initiator).await?;
        let id = id.ok_or_else(|| Error::Conflict(format!("there are {MAX_WEBHOOKS} webhooks")))?;
        find(transaction, id).await
    });
    let body = WebhookBody {
        secret: Some(new.secret.expose()),
        ..webhook.await?.into()
    };
    let location = links.url(&format!("{BASE}/admin/webhooks/{}", body.id));
    response::created(location, &body)
}

/// Get a webhook
///
/// Without its secret.
#[utoipa::path(
    get, path = "/admin/webhooks/{webhookId}", operation_id = "getWebhook", tag = "admin", security(("bearer" = ["admin"])),
    responses((status = 200, description = "The webhook.", body = WebhookBody)),
)]
pub(super) async fn get(
    State(database): State<Database>,
    Path(id): Path<WebhookId>,
) -> Result<Response, Error> {
    let webhook = database
        .run(async |connection| find(connection, id).await)
        .await?;
    response::json(StatusCode::OK, &WebhookBody::from(webhook))
}

/// Change a webhook
///
/// JSON Merge Patch (RFC 7396) of `url`, `kinds` and `enabled`. For up to 15 s, requests as before may still begin.
#[utoipa::path(
    patch, path = "/admin/webhooks/{webhookId}", operation_id = "patchWebhook", tag = "admin",
    security(("bearer" = ["admin"])),
    request_body(
        content = WebhookPatchBody, content_type = "application/merge-patch+json",
        description = "Fields of the webhook to change. The media type may also be `application/json`."),
    responses((status = 200, description = "The changed webhook.", body = WebhookBody)),
)]
pub(super) async fn patch(
    State(state): State<AppState>,
    Path(id): Path<WebhookId>,
    initiator: Initiator,
    MergePatch(body): MergePatch<WebhookPatchBody>,
) -> Result<Response, Error> {
    let change = body.into_change(state.allow_private_webhooks)?;
    let webhook = state.database.transact(async |transaction| {
        db::webhooks::change(transaction, id, &change, &initiator).await?;
        find(transaction, id).await
    });
    response::json(StatusCode::OK, &WebhookBody::from(webhook.await?))
}

/// Delete a webhook
///
/// Deletes its deliveries too. For up to 15 s, requests may still begin.
#[utoipa::path(
    delete, path = "/admin/webhooks/{webhookId}", operation_id = "deleteWebhook", tag = "admin",
    security(("bearer" = ["admin"])),
    responses((status = 200, description = "Deleted.", body = ApiResponse)),
)]
pub(super) async fn delete(
    State(database): State<Database>,
    Path(id): Path<WebhookId>,
    initiator: Initiator,
) -> Result<Response, Error> {
    let deleted = database.transact(async |transaction| {
        let deleted = db::webhooks::delete(transaction, id, &initiator).await?;
        deleted.ok_or_else(|| no_such_webhook(id))
    });
    deleted.await?;
    ApiResponse::deleted(&id)
}

/// List the deliveries of a webhook
///
/// Returns those that have failed, wait behind one of the same resource that has, or were given up, in the order of their
/// positions: all of them or, with `limit`, one page. Those that succeed are not kept.
#[utoipa::path(
    get, path = "/admin/webhooks/{webhookId}/deliveries", operation_id = "listDeliveries", tag = "admin",
    security(("bearer" = ["admin"])),
    params(("limit", Query), ("cursor", Query)),
    responses((status = 200, description = "The deliveries; `[]` if there are none.", body = Vec<DeliveryBody>, headers(("Link")))),
)]
pub(super) async fn deliveries(
    lists: Lists,
    State(database): State<Database>,
    Path(id): Path<WebhookId>,
    Query(query): Query,
) -> Result<Response, Error> {
    let window = Window::read(Violations::default(), &query)?;
    database
        .run(async |connection| find(connection, id).await)
        .await?;
    let path = format!("/admin/webhooks/{id}/deliveries");
    let find = Deliveries(id);
    lists.respond((&path, &[]), &query, window, find).await
}

/// Send a delivery again
///
/// At once, and for another day if it fails, also if it was given up. The webhook may have got later changes of the same
/// resource meanwhile.
#[utoipa::path(
    post, path = "/admin/webhooks/{webhookId}/deliveries/{position}/retry", operation_id = "retryDelivery", tag = "admin",
    security(("bearer" = ["admin"])),
    responses(
        (status = 202, description = "The delivery, which is due.", body = DeliveryBody),
        (status = 409, description = "Its change is no longer recorded, the webhook is disabled, or a request with this `Idempotency-Key` is in progress."),
    ),
)]
pub(super) async fn retry(
    State(database): State<Database>,
    PathPair(id, position): PathPair<WebhookId, Position>,
    idempotency: Idempotency,
    initiator: Initiator,
) -> Result<Response, Error> {
    Box::pin(idempotency.run(&database, async |transaction| {
        let sent = db::webhooks::send_again(transaction, id, position, &initiator).await?;
        // Behind the lock: it may have been disabled meanwhile.
        let webhook = find(transaction, id).await?;
        let delivery = db::deliveries::find(transaction, id, position).await?;
        let delivery = delivery
            .ok_or_else(|| Error::NotFound(format!("delivery {position} of webhook {id}")))?;
        require_enabled(&webhook)?;
        sent.ok_or_else(|| Error::Conflict(format!("change {position} is no longer recorded")))?;
        response::json(StatusCode::ACCEPTED, &DeliveryBody::from(&delivery))
    }))
    .await
}

/// Send all deliveries again that were given up
///
/// At once, and for another day if they fail, except deliveries of changes that are no longer recorded. The webhook may have got later
/// changes of the same resources meanwhile. Of more than 10,000, the others are left: repeat the request until it finds none.
#[utoipa::path(
    post, path = "/admin/webhooks/{webhookId}/deliveries/retry", operation_id = "retryDeliveries", tag = "admin",
    security(("bearer" = ["admin"])),
    responses(
        (status = 202, description = "The number of deliveries that are due.", body = RetriesBody),
        (status = 409, description = "The webhook is disabled, or a request with this `Idempotency-Key` is in progress."),
    ),
)]
pub(super) async fn retry_all(
    State(database): State<Database>,
    Path(id): Path<WebhookId>,
    idempotency: Idempotency,
    initiator: Initiator,
) -> Result<Response, Error> {
    Box::pin(idempotency.run(&database, async |transaction| {
        let deliveries = db::webhooks::send_parked_again(transaction, id, &initiator).await?;
        require_enabled(&find(transaction, id).await?)?;
        response::json(StatusCode::ACCEPTED, &RetriesBody { deliveries })
    }))
    .await
}

/// List the last attempts of a webhook
///
/// Returns the last 20 requests to its receiver, the newest first: of deliveries, successes too, as their page ends, and of tests.
#[utoipa::path(
    get, path = "/admin/webhooks/{webhookId}/attempts", operation_id = "listAttempts", tag = "admin",
    security(("bearer" = ["admin"])),
    responses((status = 200, description = "The attempts; `[]` if there are none.", body = inline(Attempts))),
)]
pub(super) async fn attempts(
    State(database): State<Database>,
    lists: Lists,
    Path(id): Path<WebhookId>,
) -> Result<Response, Error> {
    let attempts = database.run(async |connection| {
        find(connection, id).await?;
        Ok::<_, Error>(db::deliveries::attempts(connection, id).await?)
    });
    lists.whole(&Attempts(attempts.await?))
}

/// Send a test
///
/// Sends a message of the type `test`, once, and returns its outcome, within 12 s. It is no delivery, and is kept among the attempts
/// of the webhook. An `Idempotency-Key` is ignored.
#[utoipa::path(
    post, path = "/admin/webhooks/{webhookId}/test", operation_id = "testWebhook", tag = "admin",
    security(("bearer" = ["admin"])),
    responses(
        (status = 200, description = "The attempt, successful or not.", body = Attempt),
        (status = 409, description = "The webhook is disabled, or a test of it is in progress."),
    ),
)]
pub(super) async fn test(
    State(state): State<AppState>,
    Path(id): Path<WebhookId>,
) -> Result<Response, Error> {
    let database = state.database.clone();
    let webhook = database.run(async |connection| find(connection, id).await);
    require_enabled(&webhook.await?)?;
    let attempt = webhooks::test(database, state.webhook_sender.clone(), id).await?;
    let attempt =
        attempt.ok_or_else(|| Error::Conflict(format!("a test of webhook {id} is in progress")))?;
    response::json(StatusCode::OK, &attempt)
}

/// Rotate the secret of a webhook
///
/// Until the overlap ends, each request is signed with both secrets, as Standard Webhooks has it: give the new one to the receiver
/// meanwhile. A second rotation ends the oldest secret at once. The secret is shown this once, and the response is not stored.
#[utoipa::path(
    post, path = "/admin/webhooks/{webhookId}/rotate", operation_id = "rotateWebhook", tag = "admin",
    security(("bearer" = ["admin"])),
    request_body(content = RotationBody, description = "The overlap."),
    responses((status = 201, description = "The webhook, with its new secret.", body = WebhookBody)),
)]
pub(super) async fn rotate(
    State(database): State<Database>,
    Path(id): Path<WebhookId>,
    initiator: Initiator,
    Json(body): Json<RotationBody>,
) -> Result<Response, Error> {
    let mut violations = Violations::default();
    let overlap = violations.optional("overlap", body.overlap, |seconds| {
        let seconds = u64::try_from(seconds).unwrap_or(u64::MAX);
        let overlap = Some(Duration::from_secs(seconds)).filter(|it| *it <= MAX_OVERLAP);
        overlap.ok_or(Invalid::because("must be an integer from 0 to 604800"))
    });
    let overlap: Option<Duration> = violations.finish(Some(overlap))?;
    let secret = generate_webhook_secret().map_err(Error::internal)?;
    let webhook = database.transact(async |transaction| {
        let overlap = overlap.unwrap_or(DEFAULT_OVERLAP);
        db::webhooks::rotate(transaction, id, &secret, overlap, &initiator).await?;
        find(transaction, id).await
    });
    let body = WebhookBody {
        secret: Some(secret.expose()),
        ..webhook.await?.into()
    };
    response::json(StatusCode::CREATED, &body)
}

async fn find(connection: &mut db::Connection, id: WebhookId) -> Result<WebhookRecord, Error> {
    let webhook = db::webhooks::find(connection, id).await?;
    webhook.ok_or_else(|| no_such_webhook(id))
}

fn require_enabled(webhook: &WebhookRecord) -> Result<(), Error> {
    if webhook.is_enabled {
        Ok(())
    } else {
        Err(Error::Conflict(format!(
            "webhook {} is disabled",
            webhook.id
        )))
    }
}

fn no_such_webhook(id: WebhookId) -> Error {
    Error::NotFound(format!("webhook {id}"))
}
