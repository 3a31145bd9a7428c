//! API keys, OAuth clients and login sessions: lists, creates, rotates and revokes them.

use std::time::Duration;

use axum::{extract::State, http::StatusCode, response::Response};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::callers::{find_caller, no_such_caller};
use crate::{
    api::{
        error::Error,
        extract::{Json, Parameters, Path, Query},
        fields::{Field, List, Object, Seconds, Violations},
        list_parameters::Window,
        paging::Lists,
        response::{self, ApiResponse},
        scopes::MAX_SCOPES,
        state::AppState,
    },
    auth::secret::NewSecret,
    db::{
        self, Connection, Database,
        credentials::{
            CredentialKind, CredentialRecord, NewCredential, ReplacedKey, RotateOutcome,
        },
    },
    domain::{
        caller::{CallerId, KeyName, Scope, Scopes},
        change::Initiator,
        clock::rfc3339,
        id::CredentialId,
    },
};

const KEY: CredentialKind = CredentialKind::ApiKey;
const CLIENT: CredentialKind = CredentialKind::ClientSecret;
const SESSION: CredentialKind = CredentialKind::Session;
/// Maximum lifetime of a key: ten years.
const MAX_LIFETIME: u64 = 315_360_000;
/// Maximum overlap of two keys: a year.
const MAX_OVERLAP: u64 = 31_536_000;
const DEFAULT_OVERLAP: Duration = Duration::from_hours(24);

/// Created API key. The key is shown this once.
// Without `Debug`: it holds the secret.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = CreatedKey, example = json!({"id": 12, "key": "pik_1a2B3c4D5e6F7g8H9i0J1k2L3m4N5o6P7q8R9s", "expiresAt": "2026-01-31T12:00:00Z"}))]
struct CreatedKeyBody<'a> {
    /// Identifier.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    id: i64,
    /// The key, for the header `api_key` or `Authorization: Bearer`.
    #[schema(max_length = 64, pattern = "^[ -~]+$")]
    key: &'a str,
    /// Expiry; absent for never.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = "date-time", max_length = 64)]
    expires_at: Option<String>,
    /// The key that it replaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    replaced: Option<ReplacedKeyBody>,
}

/// API key that another one replaces.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ReplacedKey, example = json!({"id": 11, "expiresAt": "2026-01-31T12:00:00Z"}))]
struct ReplacedKeyBody {
    /// Identifier.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    id: i64,
    /// Expiry.
    #[schema(format = "date-time", max_length = 64)]
    expires_at: String,
}

/// API key to create. Unknown fields are ignored.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = KeyInput, example = json!({"name": "till 3", "scopes": ["read:pets"], "expiresIn": 7_776_000}))]
pub(super) struct NewKeyBody {
    /// Name, for people.
    #[schema(value_type = String, required = false, nullable, min_length = 1, max_length = 100, pattern = r"^[^\x00-\x1f\x7f]*$")]
    name: Field<KeyName>,
    /// Scopes, which the caller must have; all of its scopes if absent.
    #[schema(value_type = Vec<Scope>, required = false, nullable, max_items = 16)]
    scopes: Field<List<Scope, MAX_SCOPES>>,
    /// Lifetime in seconds. If absent, that of the setting `auth.api_key_lifetime`, which is unlimited by default.
    #[schema(value_type = i64, required = false, nullable, minimum = 1, maximum = 315_360_000)]
    expires_in: Field<Seconds<1, MAX_LIFETIME>>,
}

impl Object for NewKeyBody {}

/// Rotation of a key. Unknown fields are ignored.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Rotation, example = json!({"overlap": 86_400}))]
pub(super) struct RotationBody {
    /// Seconds for which the old key stays valid, unless it expires earlier; a day if absent.
    #[schema(value_type = i64, required = false, nullable, minimum = 0, maximum = 31_536_000)]
    overlap: Field<Seconds<0, MAX_OVERLAP>>,
    /// Lifetime of the new key in seconds; that of the old one if absent.
    #[schema(value_type = i64, required = false, nullable, minimum = 1, maximum = 315_360_000)]
    expires_in: Field<Seconds<1, MAX_LIFETIME>>,
}

impl Object for RotationBody {}

/// OAuth client to create. Unknown fields are ignored.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = ClientInput, example = json!({"scopes": ["read:pets"]}))]
pub(super) struct NewClientBody {
    /// Scopes, which the caller must have; all of its scopes if absent.
    #[schema(value_type = Vec<Scope>, required = false, nullable, max_items = 16)]
    scopes: Field<List<Scope, MAX_SCOPES>>,
}

impl Object for NewClientBody {}

/// Created OAuth client. The secret is shown this once.
// Without `Debug`: it holds the secret.
#[derive(Serialize, ToSchema)]
#[schema(as = CreatedClient, example = json!({"id": 13, "client_id": "pic_1a2B3c4D5e6F7g8H9i0J", "client_secret": "pcs_1a2B3c4D5e6F7g8H9i0J1k2L3m4N5o6P7q8R9s"}))]
struct CreatedClientBody<'a> {
    /// Identifier.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    id: i64,
    /// Public identifier of the client (RFC 6749 §2.2).
    #[schema(max_length = 64, pattern = "^[ -~]+$")]
    client_id: &'a str,
    /// Its secret, for `POST /oauth/token`.
    #[schema(max_length = 64, pattern = "^[ -~]+$")]
    client_secret: &'a str,
}

/// Responds with a page of the credentials of a kind, of one caller or of all.
async fn respond(
    lists: Lists,
    path: &str,
    query: &Parameters,
    window: Window<CredentialId>,
    (kind, caller): (CredentialKind, Option<CallerId>),
) -> Result<Response, Error> {
    let read = async |connection: &mut Connection, after, limit| {
        db::credentials::list(connection, kind, caller, after, limit).await
    };
    let id = |record: &CredentialRecord| record.id;
    lists.records((path, &[]), query, window, id, read).await
}

/// List the keys of a caller
///
/// Returns a page of the keys, 100 without `limit`, in the order of their identifiers, also revoked and expired ones, without their
/// secrets. While more remain, `Link` has the URL of the next page.
#[utoipa::path(
    get, path = "/admin/callers/{callerId}/keys", operation_id = "listKeys", tag = "admin",
    security(("bearer" = ["admin"])),
    params(("limit", Query), ("cursor", Query)),
    responses((status = 200, description = "The keys; `[]` if there are none.", body = Vec<CredentialRecord>, headers(("Link")))),
)]
pub(super) async fn list_keys(
    lists: Lists,
    State(database): State<Database>,
    Path(id): Path<CallerId>,
    query: Query,
) -> Result<Response, Error> {
    list_of_caller(lists, &database, (id, "keys"), query, KEY).await
}

/// List the OAuth clients of a caller
///
/// Returns the clients as `listKeys` does the keys.
#[utoipa::path(
    get, path = "/admin/callers/{callerId}/clients", operation_id = "listClients", tag = "admin",
    security(("bearer" = ["admin"])),
    params(("limit", Query), ("cursor", Query)),
    responses((status = 200, description = "The clients; `[]` if there are none.", body = Vec<CredentialRecord>, headers(("Link")))),
)]
pub(super) async fn list_clients(
    lists: Lists,
    State(database): State<Database>,
    Path(id): Path<CallerId>,
    query: Query,
) -> Result<Response, Error> {
    list_of_caller(lists, &database, (id, "clients"), query, CLIENT).await
}

async fn list_of_caller(
    lists: Lists,
    database: &Database,
    (id, name): (CallerId, &str),
    Query(query): Query,
    kind: CredentialKind,
) -> Result<Response, Error> {
    let window = Window::read(Violations::default(), &query)?;
    let caller = Some(find_caller(database, id).await?.id);
    let path = format!("/admin/callers/{}/{name}", id.0);
    respond(lists, &path, &query, window, (kind, caller)).await
}

/// List login sessions
///
/// Returns the sessions of all users, as `listKeys` does the keys. An hour after they expire, they are deleted.
#[utoipa::path(
    get, path = "/admin/sessions", operation_id = "listSessions", tag = "admin", security(("bearer" = ["admin"])),
    params(("limit", Query), ("cursor", Query)),
    responses((status = 200, description = "The sessions; `[]` if there are none.", body = Vec<CredentialRecord>, headers(("Link")))),
)]
pub(super) async fn list_sessions(lists: Lists, Query(query): Query) -> Result<Response, Error> {
    let window = Window::read(Violations::default(), &query)?;
    respond(lists, "/admin/sessions", &query, window, (SESSION, None)).await
}

/// Create a key
///
/// The key is shown this once, and the response is not stored: after a lost response, list the keys, and revoke the one whose
/// secret you did not get.
#[utoipa::path(
    post, path = "/admin/callers/{callerId}/keys", operation_id = "createKey", tag = "admin",
    security(("bearer" = ["admin"])),
    request_body(content = NewKeyBody, description = "The key to create."),
    responses((status = 201, description = "The created key.", body = CreatedKeyBody<'static>)),
)]
pub(super) async fn create_key(
    State(state): State<AppState>,
    Path(id): Path<CallerId>,
    initiator: Initiator,
    Json(body): Json<NewKeyBody>,
) -> Result<Response, Error> {
    let mut violations = Violations::default();
    let name = violations.optional("name", body.name);
    let scopes = violations.optional("scopes", body.scopes).map(Scopes::from);
    let lifetime = violations.optional("expiresIn", body.expires_in);
    let lifetime = lifetime.map(|Seconds(lifetime)| lifetime);
    let expires_at = lifetime.or(state.key_lifetime).map(from_now).transpose()?;
    let secret = NewSecret::generate(KEY).map_err(Error::internal)?;
    let id = state.database.transact(async |transaction| {
        keep_caller(transaction, id, scopes, violations.clone()).await?;
        let new = NewCredential {
            name,
            ..secret.credential(id, scopes, expires_at)
        };
        let created = db::credentials::insert(transaction, new, &initiator).await?;
        created.ok_or_else(not_unique)
    });
    let body = CreatedKeyBody {
        id: id.await?.get(),
        key: secret.secret.expose(),
        expires_at: expires_at.map(rfc3339),
        replaced: None,
    };
    response::json(StatusCode::CREATED, &body)
}

/// Rotate a key
///
/// Creates a key with the same caller, name and scopes and, without `expiresIn`, the same lifetime. Both are valid until the overlap
/// ends: give the new one to the clients meanwhile. A key is replaced once. The new one is shown this once, and the response is not
/// stored.
#[utoipa::path(
    post, path = "/admin/keys/{keyId}/rotate", operation_id = "rotateKey", tag = "admin",
    security(("bearer" = ["admin"])),
    request_body(content = RotationBody, description = "The overlap."),
    responses(
        (status = 201, description = "The new key.", body = CreatedKeyBody<'static>),
        (status = 409, description = "The key was replaced before, or no administrator would be left."),
    ),
)]
pub(super) async fn rotate_key(
    State(state): State<AppState>,
    Path(id): Path<CredentialId>,
    initiator: Initiator,
    Json(body): Json<RotationBody>,
) -> Result<Response, Error> {
    let mut violations = Violations::default();
    let overlap = violations.optional("overlap", body.overlap);
    let lifetime = violations.optional("expiresIn", body.expires_in);
    let (overlap, lifetime) = violations.finish(Some((overlap, lifetime)))?;
    let until = from_now(overlap.map_or(DEFAULT_OVERLAP, |Seconds(overlap)| overlap))?;
    let expires_at = lifetime.map(|Seconds(it)| from_now(it)).transpose()?;
    let secret = NewSecret::generate(KEY).map_err(Error::internal)?;
    let rotated = state.database.transact(async |transaction| {
        let new = |old: &ReplacedKey| secret.replacement(old, expires_at);
        match db::credentials::rotate(transaction, id, until, new, &initiator).await? {
            RotateOutcome::Rotated(old, new, administration) => {
                Error::keep_administrator(administration)?;
                Ok((old, new))
            }
            RotateOutcome::NotFound => Err(Error::NotFound(format!("a valid key {id}"))),
            RotateOutcome::AlreadyRotated => Err(Error::Conflict(format!(
                "key {id} has been replaced by another"
            ))),
            RotateOutcome::NotUnique => Err(not_unique()),
        }
    });
    let (replaced, new) = rotated.await?;
    let body = CreatedKeyBody {
        id: new.id.get(),
        key: secret.secret.expose(),
        expires_at: new.expires_at.map(rfc3339),
        replaced: Some(ReplacedKeyBody {
            id: id.get(),
            expires_at: rfc3339(replaced.expires_at),
        }),
    };
    response::json(StatusCode::CREATED, &body)
}

/// Create an OAuth client
///
/// It gets access tokens at `POST /oauth/token`. The secret is shown this once, and the response is not stored.
#[utoipa::path(
    post, path = "/admin/callers/{callerId}/clients", operation_id = "createClient", tag = "admin",
    security(("bearer" = ["admin"])),
    request_body(content = NewClientBody, description = "The client to create."),
    responses((status = 201, description = "The created client.", body = CreatedClientBody<'static>)),
)]
pub(super) async fn create_client(
    State(database): State<Database>,
    Path(id): Path<CallerId>,
    initiator: Initiator,
    Json(body): Json<NewClientBody>,
) -> Result<Response, Error> {
    let mut violations = Violations::default();
    let scopes = violations.optional("scopes", body.scopes).map(Scopes::from);
    let new = NewSecret::generate(CLIENT).map_err(Error::internal)?;
    let id = database.transact(async |transaction| {
        keep_caller(transaction, id, scopes, violations.clone()).await?;
        let credential = new.credential(id, scopes, None);
        let created = db::credentials::insert(transaction, credential, &initiator).await?;
        created.ok_or_else(not_unique)
    });
    let body = CreatedClientBody {
        id: id.await?.get(),
        client_id: new.client_id.as_deref().unwrap_or_default(),
        client_secret: new.secret.expose(),
    };
    response::json(StatusCode::CREATED, &body)
}

/// Revoke a key
///
/// It is refused within a second on every replica, permanently.
#[utoipa::path(
    delete, path = "/admin/keys/{keyId}", operation_id = "revokeKey", tag = "admin", security(("bearer" = ["admin"])),
    responses(
        (status = 200, description = "Revoked.", body = ApiResponse),
        (status = 409, description = "No administrator would be left."),
    ),
)]
pub(super) async fn revoke_key(
    State(database): State<Database>,
    Path(id): Path<CredentialId>,
    initiator: Initiator,
) -> Result<Response, Error> {
    revoke(&database, (KEY, "a valid key"), id, &initiator).await
}

/// Revoke an OAuth client
///
/// The client and all of its tokens are refused within a second on every replica, permanently.
#[utoipa::path(
    delete, path = "/admin/clients/{clientId}", operation_id = "revokeClient", tag = "admin",
    security(("bearer" = ["admin"])),
    responses(
        (status = 200, description = "Revoked.", body = ApiResponse),
        (status = 409, description = "No administrator would be left."),
    ),
)]
pub(super) async fn revoke_client(
    State(database): State<Database>,
    Path(id): Path<CredentialId>,
    initiator: Initiator,
) -> Result<Response, Error> {
    revoke(&database, (CLIENT, "a valid client"), id, &initiator).await
}

/// End a login session
///
/// Its token is refused within a second on every replica.
#[utoipa::path(
    delete, path = "/admin/sessions/{sessionId}", operation_id = "revokeSession", tag = "admin",
    security(("bearer" = ["admin"])),
    responses((status = 200, description = "Ended.", body = ApiResponse)),
)]
pub(super) async fn revoke_session(
    State(database): State<Database>,
    Path(id): Path<CredentialId>,
    initiator: Initiator,
) -> Result<Response, Error> {
    revoke(&database, (SESSION, "a valid session"), id, &initiator).await
}

async fn revoke(
    database: &Database,
    (kind, what): (CredentialKind, &str),
    id: CredentialId,
    initiator: &Initiator,
) -> Result<Response, Error> {
    let revoked = database.transact(async |transaction| {
        let revoked = db::credentials::revoke(transaction, kind, id, initiator).await?;
        let revoked = revoked.ok_or_else(|| Error::NotFound(format!("{what} {id}")))?;
        Error::keep_administrator(revoked)
    });
    revoked.await?;
    ApiResponse::deleted(&id)
}

/// Keeps the caller of a new credential from being deleted before the transaction ends. Fails if there is none, or with the
/// violations of the request, one of which is a scope that the caller does not have.
async fn keep_caller(
    transaction: &mut Connection,
    id: CallerId,
    scopes: Option<Scopes>,
    mut violations: Violations,
) -> Result<(), Error> {
    let caller = db::callers::keep(transaction, id).await?;
    let caller = caller.ok_or_else(|| no_such_caller(id))?;
    if scopes.is_some_and(|scopes| !caller.scopes.contains_all(scopes)) {
        let reason = format!("must be scopes of the caller: {}", caller.scopes);
        violations.add("scopes", reason);
    }
    violations.finish(Some(()))
}

#[expect(
    clippy::disallowed_methods,
    reason = "the lifetime of the key starts now"
)]
fn from_now(duration: Duration) -> Result<DateTime<Utc>, Error> {
    let duration = chrono::Duration::from_std(duration).map_err(Error::internal)?;
    let time = Utc::now().checked_add_signed(duration);
    time.ok_or_else(|| Error::internal("auth.api_key_lifetime is too long"))
}

fn not_unique() -> Error {
    Error::internal("a generated secret is stored already")
}
