//! `/admin/webhooks`: lists, creates, changes, rotates, tests and deletes webhooks, and repeats their deliveries.

use axum::{extract::State, http::StatusCode, response::Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    api::{
        error::Error,
        extract::{Json, MergePatch, Path, PathPair, Query},
        fields::{Field, List, Object, Seconds, Violations},
        idempotency::Idempotency,
        kinds::{MAX_KINDS, distinct},
        list_parameters::Window,
        operations::BASE,
        paging::Lists,
        response::{self, ApiResponse},
        state::{AppState, Links},
    },
    auth::secret::generate_webhook_secret,
    db::{self, Connection, Database, deliveries::DeliveryRecord, webhooks::WebhookRecord},
    domain::{
        change::{Initiator, Kind, Position},
        id::WebhookId,
        webhook::{
            Attempt, DEFAULT_OVERLAP, MAX_OVERLAP, MAX_WEBHOOKS, NewWebhook, WebhookChange,
            WebhookSecret, WebhookUrl,
        },
    },
    webhooks,
};

/// Webhook to create. Unknown fields are ignored.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = WebhookInput, example = json!({"url": "https://example.com/pets", "kinds": ["pet", "order"]}))]
pub(super) struct NewWebhookBody {
    /// URL: `https`, without user, password and fragment.
    #[schema(value_type = String, required = true, format = "uri", min_length = 1, max_length = 2_000)]
    url: Field<String>,
    /// Kinds of changes that it gets; all if absent or empty.
    #[schema(value_type = Vec<Kind>, required = false, nullable, max_items = 16)]
    kinds: Field<List<Kind, MAX_KINDS>>,
}

impl Object for NewWebhookBody {}

/// Changes to a webhook, as a JSON Merge Patch: no field can be removed. Other fields are ignored.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = WebhookPatch, example = json!({"enabled": false}))]
pub(super) struct WebhookPatchBody {
    /// URL.
    #[serde(default)]
    #[schema(value_type = String, required = false, format = "uri", min_length = 1, max_length = 2_000)]
    url: Field<String>,
    /// Kinds of changes that it gets; all if empty.
    #[serde(default)]
    #[schema(value_type = Vec<Kind>, required = false, max_items = 16)]
    kinds: Field<List<Kind, MAX_KINDS>>,
    /// False to deliver nothing, true to go on with the changes that follow those that were delivered.
    #[serde(default)]
    #[schema(value_type = bool, required = false)]
    enabled: Field<bool>,
}

impl Object for WebhookPatchBody {}

impl WebhookPatchBody {
    /// Checks the changes.
    fn into_change(self, allow_private: bool) -> Result<WebhookChange, Error> {
        let mut violations = Violations::default();
        let url = violations.patched("url", self.url);
        let url = url.and_then(|url| violations.check("url", WebhookUrl::new(&url, allow_private)));
        let kinds = violations.patched("kinds", self.kinds);
        let is_enabled = violations.patched("enabled", self.enabled);
        violations.finish(Some(WebhookChange {
            url,
            kinds: kinds.map(distinct),
            is_enabled,
        }))
    }
}

/// The last attempts of a webhook.
#[derive(Serialize, ToSchema)]
#[schema(max_items = 20)]
struct Attempts(Vec<Attempt>);

/// Rotation of the secret of a webhook. Unknown fields are ignored.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = WebhookRotation, example = json!({"overlap": 86_400}))]
pub(super) struct RotationBody {
    /// Seconds for which requests are signed with the old secret, too; a day if absent.
    #[schema(value_type = i64, required = false, nullable, minimum = 0, maximum = 604_800)]
    overlap: Field<Seconds<0, { MAX_OVERLAP.as_secs() }>>,
}

impl Object for RotationBody {}

/// Deliveries that are sent again.
#[derive(Serialize, ToSchema)]
#[schema(as = Retries, example = json!({"deliveries": 12}))]
struct RetriesBody {
    /// Their number.
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    deliveries: u64,
}

/// List webhooks
///
/// Returns a page of webhooks, 100 without `limit`, in the order of their identifiers, without their secrets. While more remain,
/// `Link` has the URL of the next page.
#[utoipa::path(
    get, path = "/admin/webhooks", operation_id = "listWebhooks", tag = "admin", security(("bearer" = ["admin"])),
    params(("limit", Query), ("cursor", Query)),
    responses((status = 200, description = "The webhooks; `[]` if there are none.", body = Vec<WebhookRecord>, headers(("Link")))),
)]
pub(super) async fn list(lists: Lists, Query(query): Query) -> Result<Response, Error> {
    let window = Window::read(Violations::default(), &query)?;
    let next = ("/admin/webhooks", &[][..]);
    let id = |webhook: &WebhookRecord| webhook.id;
    lists
        .records(next, &query, window, id, db::webhooks::list)
        .await
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
        (status = 201, description = "The created webhook.", body = WebhookRecord, headers(("Location"))),
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
    let url = violations.required("url", body.url);
    let url = url.and_then(|url| {
        violations.check("url", WebhookUrl::new(&url, state.allow_private_webhooks))
    });
    let kinds = violations.optional("kinds", body.kinds);
    let kinds = kinds.map(distinct).unwrap_or_default();
    let secret: WebhookSecret = generate_webhook_secret().map_err(Error::internal)?;
    let new = violations.finish(url.map(|url| NewWebhook { url, secret, kinds }))?;
    // The webhook begins behind the changes before it.
    state.database.run(db::changes::publish_all).await?;
    let webhook = state.database.transact(async |transaction| {
        let id = db::webhooks::insert(transaction, &new, &initiator).await?;
        let id = id.ok_or_else(|| Error::Conflict(format!("there are {MAX_WEBHOOKS} webhooks")))?;
        find(transaction, id).await
    });
    let body = WebhookRecord {
        secret: Some(new.secret.expose()),
        ..webhook.await?
    };
    let location = links.url(&format!("{BASE}/admin/webhooks/{}", body.id));
    response::created(location, &body)
}

/// Get a webhook
///
/// Without its secret.
#[utoipa::path(
    get, path = "/admin/webhooks/{webhookId}", operation_id = "getWebhook", tag = "admin", security(("bearer" = ["admin"])),
    responses((status = 200, description = "The webhook.", body = WebhookRecord)),
)]
pub(super) async fn get(
    State(database): State<Database>,
    Path(id): Path<WebhookId>,
) -> Result<Response, Error> {
    let webhook = database
        .run(async |connection| find(connection, id).await)
        .await?;
    response::json(StatusCode::OK, &webhook)
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
    responses((status = 200, description = "The changed webhook.", body = WebhookRecord)),
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
    response::json(StatusCode::OK, &webhook.await?)
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
/// Returns a page of those that have failed, wait behind one of the same resource that has, or were given up, 100 without `limit`,
/// in the order of their positions. Those that succeed are not kept. While more remain, `Link` has the URL of the next page.
#[utoipa::path(
    get, path = "/admin/webhooks/{webhookId}/deliveries", operation_id = "listDeliveries", tag = "admin",
    security(("bearer" = ["admin"])),
    params(("limit", Query), ("cursor", Query)),
    responses((status = 200, description = "The deliveries; `[]` if there are none.", body = Vec<DeliveryRecord>, headers(("Link")))),
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
    let read = async |connection: &mut Connection, after, limit| {
        db::deliveries::list(connection, id, after, limit).await
    };
    let position = |delivery: &DeliveryRecord| delivery.position;
    let next = (&*path, &[][..]);
    lists.records(next, &query, window, position, read).await
}

/// Send a delivery again
///
/// At once, and for another day if it fails, also if it was given up. The webhook may have got later changes of the same
/// resource meanwhile.
#[utoipa::path(
    post, path = "/admin/webhooks/{webhookId}/deliveries/{position}/retry", operation_id = "retryDelivery", tag = "admin",
    security(("bearer" = ["admin"])),
    responses(
        (status = 202, description = "The delivery, which is due.", body = DeliveryRecord),
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
        response::json(StatusCode::ACCEPTED, &delivery)
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
    responses((status = 201, description = "The webhook, with its new secret.", body = WebhookRecord)),
)]
pub(super) async fn rotate(
    State(database): State<Database>,
    Path(id): Path<WebhookId>,
    initiator: Initiator,
    Json(body): Json<RotationBody>,
) -> Result<Response, Error> {
    let mut violations = Violations::default();
    let overlap = violations.optional("overlap", body.overlap);
    let overlap = violations.finish(Some(overlap))?;
    let overlap = overlap.map_or(DEFAULT_OVERLAP, |Seconds(overlap)| overlap);
    let secret = generate_webhook_secret().map_err(Error::internal)?;
    let webhook = database.transact(async |transaction| {
        db::webhooks::rotate(transaction, id, &secret, overlap, &initiator).await?;
        find(transaction, id).await
    });
    let body = WebhookRecord {
        secret: Some(secret.expose()),
        ..webhook.await?
    };
    response::json(StatusCode::CREATED, &body)
}

async fn find(connection: &mut Connection, id: WebhookId) -> Result<WebhookRecord, Error> {
    let webhook = db::webhooks::find(connection, id).await?;
    webhook.ok_or_else(|| no_such_webhook(id))
}

fn require_enabled(webhook: &WebhookRecord) -> Result<(), Error> {
    if webhook.enabled {
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
