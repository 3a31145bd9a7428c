//! `/admin/callers`: lists, creates, changes and deletes callers.

use axum::{extract::State, http::StatusCode, response::Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    api::{
        error::Error,
        extract::{Json, MergePatch, Path, Query},
        fields::{Field, List, Object, Violations},
        idempotency::Idempotency,
        list_parameters::{MAX_NAMES, Window},
        operations::BASE,
        paging::Lists,
        response::{self, ApiResponse},
        scopes::MAX_SCOPES,
        state::Links,
    },
    auth::Authenticator,
    db::{
        self, Connection, Database,
        callers::{CallerChange, CallerRecord},
        usage::DayUsage,
    },
    domain::{
        caller::{CallerId, CallerName, Scope, Scopes},
        change::Initiator,
        plan::Plan,
    },
};

/// Caller to create. Unknown fields are ignored.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = CallerInput, example = json!({"name": "acme", "plan": "pro", "scopes": ["read:pets", "write:pets"]}))]
pub(super) struct NewCallerBody {
    /// Name: letters, digits and ASCII symbols (UsernameCasePreserved of RFC 8265), of one script. `operator`, `anonymous`, `webhook`,
    /// and names that begin with `user:` or `jwt:`, are reserved in any case.
    #[schema(value_type = String, required = true, min_length = 1, max_length = 64, pattern = r"^[^\x00-\x1f\x7f]*$")]
    name: Field<CallerName>,
    /// Plan.
    #[schema(value_type = Plan, required = true)]
    plan: Field<Plan>,
    /// Scopes; all but `admin` and `read:changes` if absent.
    #[schema(value_type = Vec<Scope>, required = false, nullable, max_items = 16)]
    scopes: Field<List<Scope, MAX_SCOPES>>,
}

impl Object for NewCallerBody {}

impl NewCallerBody {
    /// Checks the caller.
    fn into_parts(self) -> Result<(CallerName, Plan, Scopes), Error> {
        let mut violations = Violations::default();
        let name = violations.required("name", self.name);
        let plan = violations.required("plan", self.plan);
        let scopes = violations.optional("scopes", self.scopes);
        let scopes = scopes.map_or_else(Scopes::of_new_callers, Scopes::from);
        violations.finish(name.zip(plan).map(|(name, plan)| (name, plan, scopes)))
    }
}

/// Changes to a caller, as a JSON Merge Patch: no field can be removed. Other fields are ignored.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = CallerPatch, example = json!({"plan": "enterprise"}))]
pub(super) struct CallerPatchBody {
    /// Plan.
    #[serde(default)]
    #[schema(value_type = Plan, required = false)]
    plan: Field<Plan>,
    /// Scopes, all of them.
    #[serde(default)]
    #[schema(value_type = Vec<Scope>, required = false, max_items = 16)]
    scopes: Field<List<Scope, MAX_SCOPES>>,
    /// True to refuse all of its credentials, false to accept them.
    #[serde(default)]
    #[schema(value_type = bool, required = false)]
    disabled: Field<bool>,
}

impl Object for CallerPatchBody {}

impl CallerPatchBody {
    /// Checks the changes.
    fn into_change(self) -> Result<CallerChange, Error> {
        let mut violations = Violations::default();
        let plan = violations.patched("plan", self.plan);
        let scopes = violations.patched("scopes", self.scopes);
        let is_disabled = violations.patched("disabled", self.disabled);
        violations.finish(Some(CallerChange {
            plan,
            scopes: scopes.map(Scopes::from),
            is_disabled,
        }))
    }
}

/// Name of a caller, or its beginning.
#[derive(ToSchema)]
#[schema(value_type = String, min_length = 1, max_length = 128, pattern = r"^[^\x00]*$")]
#[expect(dead_code, reason = "describes the parameter, which is read as text")]
pub(super) struct ListedName(String);

/// List callers
///
/// Returns a page of callers, 100 without `limit`, in the order of their names, compared by bytes. While more remain, `Link` has the
/// URL of the next page.
#[utoipa::path(
    get, path = "/admin/callers", operation_id = "listCallers", tag = "admin", security(("bearer" = ["admin"])),
    params(
        ("name" = inline(Option<Vec<ListedName>>), Query, description = "Beginning of the name, or of the username of an account in any case. If it is repeated, whole names.", min_items = 1, max_items = 100, example = json!(["ac"])),
        ("limit", Query),
        ("cursor" = Option<String>, Query, description = "Position of the page, from `Link` of the previous page.", min_length = 2, max_length = 344, pattern = "^[A-Za-z0-9_-]+$"),
    ),
    responses((status = 200, description = "The callers; `[]` if none match.", body = Vec<CallerRecord>, headers(("Link")))),
)]
pub(super) async fn list(lists: Lists, Query(query): Query) -> Result<Response, Error> {
    let mut violations = Violations::default();
    let names: Vec<_> = query.all("name").map(str::to_owned).collect();
    let is_valid = |name: &String| matches!(name.chars().count(), 1..=128) && !name.contains('\0');
    if !names.iter().all(is_valid) {
        violations.add("name", "must be 1 to 128 characters, without NUL");
    } else if names.len() > MAX_NAMES {
        violations.add("name", "must be at most 100 names");
    }
    let window = Window::read(violations, &query)?;
    let next = ("/admin/callers", &["name"][..]);
    let read = async |connection: &mut Connection, after: Option<CallerName>, limit| {
        let after = after.as_ref();
        match &names[..] {
            [] => db::callers::list(connection, "", after, limit).await,
            [beginning] => db::callers::list(connection, beginning, after, limit).await,
            _ => db::callers::list_named(connection, &names, after, limit).await,
        }
    };
    let name = |caller: &CallerRecord| caller.name.clone();
    lists.records(next, &query, window, name, read).await
}

/// Create a caller
///
/// It has no credential yet: create a key for it.
#[utoipa::path(
    post, path = "/admin/callers", operation_id = "createCaller", tag = "admin", security(("bearer" = ["admin"])),
    request_body(content = NewCallerBody, description = "The caller to create."),
    responses(
        (status = 201, description = "The created caller.", body = CallerRecord, headers(("Location"))),
        (status = 409, description = "The name is taken, or a request with this `Idempotency-Key` is in progress."),
    ),
)]
pub(super) async fn create(
    State(database): State<Database>,
    State(links): State<Links>,
    idempotency: Idempotency,
    initiator: Initiator,
    Json(body): Json<NewCallerBody>,
) -> Result<Response, Error> {
    let (name, plan, scopes) = body.into_parts()?;
    Box::pin(idempotency.run(&database, async |transaction| {
        let created = db::callers::insert(transaction, &name, plan, scopes, &initiator).await?;
        let id =
            created.ok_or_else(|| Error::Conflict(format!("the caller {name} already exists")))?;
        let caller = db::callers::find_by_id(transaction, id).await?;
        let caller = caller.ok_or_else(|| no_such_caller(id))?;
        let location = links.url(&format!("{BASE}/admin/callers/{}", id.0));
        response::created(location, &caller)
    }))
    .await
}

/// Get a caller
///
/// Also one that is disabled.
#[utoipa::path(
    get, path = "/admin/callers/{callerId}", operation_id = "getCaller", tag = "admin", security(("bearer" = ["admin"])),
    responses((status = 200, description = "The caller.", body = CallerRecord)),
)]
pub(super) async fn get(
    State(database): State<Database>,
    Path(id): Path<CallerId>,
) -> Result<Response, Error> {
    let caller = find_caller(&database, id).await?;
    response::json(StatusCode::OK, &caller)
}

/// Requests on each of the last days.
#[derive(Serialize, ToSchema)]
#[schema(max_items = 30)]
pub(super) struct Days(Vec<DayUsage>);

/// Get the requests of a caller by day
///
/// On each of the last 30 UTC days, the current one last, up to a second ago. Requests to `GET /limits` are not counted.
#[utoipa::path(
    get, path = "/admin/callers/{callerId}/usage", operation_id = "getUsage", tag = "admin",
    security(("bearer" = ["admin"])),
    responses((status = 200, description = "The days.", body = Days)),
)]
pub(super) async fn usage(
    State(database): State<Database>,
    Path(id): Path<CallerId>,
) -> Result<Response, Error> {
    let caller = find_caller(&database, id).await?;
    let days = database.run(async |it| db::usage::of_caller(it, caller.id).await);
    response::json(StatusCode::OK, &Days(days.await?))
}

/// Change a caller
///
/// JSON Merge Patch (RFC 7396) of `plan`, `scopes` and `disabled`. Takes effect within a second on every replica.
#[utoipa::path(
    patch, path = "/admin/callers/{callerId}", operation_id = "patchCaller", tag = "admin", security(("bearer" = ["admin"])),
    request_body(
        content = CallerPatchBody, content_type = "application/merge-patch+json",
        description = "Fields of the caller to change. The media type may also be `application/json`."),
    responses(
        (status = 200, description = "The changed caller.", body = CallerRecord),
        (status = 409, description = "No administrator would be left."),
    ),
)]
pub(super) async fn patch(
    State(database): State<Database>,
    Path(id): Path<CallerId>,
    initiator: Initiator,
    MergePatch(body): MergePatch<CallerPatchBody>,
) -> Result<Response, Error> {
    let change = body.into_change()?;
    let caller = database.transact(async |transaction| {
        let changed = db::callers::change(transaction, id, change, &initiator).await?;
        Error::keep_administrator(changed.ok_or_else(|| no_such_caller(id))?)?;
        let caller = db::callers::find_by_id(transaction, id).await?;
        caller.ok_or_else(|| no_such_caller(id))
    });
    let caller = caller.await?;
    response::json(StatusCode::OK, &caller)
}

/// Delete a caller
///
/// Deletes all of its credentials too and, if it is the caller of a user, the account. Orders are kept.
#[utoipa::path(
    delete, path = "/admin/callers/{callerId}", operation_id = "deleteCaller", tag = "admin",
    security(("bearer" = ["admin"])),
    responses(
        (status = 200, description = "Deleted.", body = ApiResponse),
        (status = 409, description = "No administrator would be left, or the next token of an issuer would create the caller again: disable it."),
    ),
)]
pub(super) async fn delete(
    State(database): State<Database>,
    State(authenticator): State<Authenticator>,
    Path(id): Path<CallerId>,
    initiator: Initiator,
) -> Result<Response, Error> {
    if find_caller(&database, id).await?.name.is_of_an_issuer() {
        return Err(Error::Conflict(format!(
            "the next token of its issuer would create caller {} again; disable it instead",
            id.0
        )));
    }
    let hashes = database.transact(async |transaction| {
        let deleted = db::callers::delete(transaction, id, &initiator).await?;
        let deleted = deleted.ok_or_else(|| no_such_caller(id))?;
        Error::keep_administrator(deleted.administration)?;
        Ok::<_, Error>(deleted.hashes)
    });
    authenticator.invalidate(&hashes.await?);
    ApiResponse::deleted(&id.0)
}

/// Returns the caller with this identifier.
pub(super) async fn find_caller(database: &Database, id: CallerId) -> Result<CallerRecord, Error> {
    let found = database
        .run(async |connection| db::callers::find_by_id(connection, id).await)
        .await?;
    found.ok_or_else(|| no_such_caller(id))
}

pub(super) fn no_such_caller(CallerId(id): CallerId) -> Error {
    Error::NotFound(format!("caller {id}"))
}
