//! `GET /changes`: the record of changes.
//!
//! - A caller without `admin` sees changes of pets, images and imports with `read:pets`, of its own orders with
//!   `read:orders`, and of its own account.
//! - A page has every change that was committed before the request.

use axum::{extract::State, http::StatusCode, response::Response};
use chrono::SecondsFormat;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use utoipa_axum::routes;

use super::{
    error::Error,
    extract::Query,
    fields::Violations,
    operations::Operations,
    paging::{parse_distinct, parse_limit},
    request_context::CurrentCaller,
    response,
};
use crate::{
    db::{
        self, Connection, Database,
        changes::{Filter, Page},
    },
    domain::{
        Text,
        caller::{Caller, Scope},
        change::{Change, Kind},
    },
};

/// Default of `limit`.
const DEFAULT_LIMIT: usize = 100;

/// Returns the operation.
pub fn lists() -> Operations {
    Operations::new().routes(routes!(list))
}

/// Part of the record of changes.
#[derive(Serialize, ToSchema)]
#[schema(as = ChangePage, example = json!({
    "changes": [{
        "position": 1_769_860_800_000_000_i64, "at": "2026-01-31T12:00:00Z", "kind": "pet", "resource": "7",
        "action": "changed", "version": 12, "actor": "acme", "requestId": "9f86d081884c7d659a2feaa0c55ad015",
        "data": {"status": ["available", "pending"]}
    }],
    "next": 1_769_860_800_000_000_i64
}))]
struct PageBody {
    /// The changes, in the order of their positions.
    #[schema(max_items = 1_000)]
    changes: Vec<ChangeBody>,
    /// Last position that was looked at: the `after` of the next request. While it is greater than `after`, more changes
    /// may remain.
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    next: i64,
}

/// A change of a resource.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Change, example = json!({
    "position": 1_769_860_800_000_000_i64, "at": "2026-01-31T12:00:00Z", "kind": "pet", "resource": "7",
    "action": "changed", "version": 12, "actor": "acme", "requestId": "9f86d081884c7d659a2feaa0c55ad015",
    "data": {"status": ["available", "pending"]}
}))]
pub struct ChangeBody {
    /// Position in the record. Positions ascend, with gaps.
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    position: i64,
    /// Time of the change.
    #[schema(format = DateTime, max_length = 64)]
    at: String,
    /// Kind of the resource: `pet`, `image`, `order`, `user`, `caller`, `key`, `client`, `session` or `import`. There may be
    /// further ones.
    #[schema(max_length = 16, pattern = "^[a-z]+$")]
    kind: String,
    /// Identifier of the resource.
    #[schema(max_length = 64, pattern = r"^[^\x00]*$")]
    resource: String,
    /// What was done: `created`, `changed` or `deleted`.
    #[schema(max_length = 16, pattern = "^[a-z]+$")]
    action: String,
    /// Version of a pet after the change, as in its `ETag`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    version: Option<i64>,
    /// Name of the caller; `operator` for a command. Absent if the request had none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, max_length = 64, pattern = r"^[^\x00]*$")]
    actor: Option<String>,
    /// Request id.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, max_length = 64, pattern = "^[A-Za-z0-9._-]+$")]
    request_id: Option<String>,
    /// Facts: `status`, `plan`, `scopes` and `disabled` with the old value (`null` for a new resource) and the new one, if
    /// they have changed; `pet` of an image or an order; `caller` of a key, a client or a session; number of `pets` of an
    /// import, with the first and the last of their `ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Object, nullable = false)]
    data: Option<Value>,
}

impl From<Change> for ChangeBody {
    fn from(change: Change) -> Self {
        Self {
            position: change.position.0,
            at: change.at.to_rfc3339_opts(SecondsFormat::AutoSi, true),
            kind: change.kind,
            resource: change.resource,
            action: change.action,
            version: change.version,
            actor: change.actor,
            request_id: change.request_id,
            data: change.data,
        }
    }
}

/// Read the record of changes
///
/// Returns changes after the position `after`; without it, from the oldest one. A request looks at 10,000 changes at most, so a
/// page may have fewer than `limit`, or none, while more remain: go on with `next` as `after` until both are equal. Changes
/// are kept for 30 days, unless configured otherwise. A caller without the scope `admin` sees changes of pets, images and
/// imports with `read:pets`, of its own orders with `read:orders`, and of its own account.
#[utoipa::path(
    get, path = "/changes", operation_id = "listChanges", tag = "changes", security(("bearer" = ["read:changes"])),
    params(
        ("after" = Option<i64>, Query, description = "Position after which the changes begin.", minimum = 0, maximum = 9_007_199_254_740_991_i64, example = 0),
        ("kind" = inline(Option<Vec<KindBody>>), Query, description = "Kinds of resources, repeated or separated by commas.", min_items = 1, max_items = 100, example = json!(["pet"])),
        ("resource" = Option<String>, Query, description = "Identifier of the only resource; with one `kind`.", min_length = 1, max_length = 64, pattern = r"^[^\x00]*$", example = "7"),
        ("limit" = Option<i64>, Query, description = "Maximum number of changes; 100 if absent.", minimum = 1, maximum = 1_000),
    ),
    responses(
        (status = 200, description = "The changes.", body = PageBody),
        (status = 410, description = "`after` is not in the record, or is past its retention. `oldest` is the oldest position."),
    ),
)]
async fn list(
    State(database): State<Database>,
    CurrentCaller(caller): CurrentCaller,
    Query(query): Query,
) -> Result<Response, Error> {
    let mut violations = Violations::default();
    let after = query.optional(&mut violations, "after", str::parse);
    let limit = query.optional(&mut violations, "limit", parse_limit);
    let mut kinds: Vec<Kind> = parse_distinct(&mut violations, &query, "kind");
    let resource = query.optional(&mut violations, "resource", |id| Text::new(id.into()));
    if resource.is_some() && kinds.len() != 1 {
        violations.add("resource", "needs one kind");
    }
    violations.finish(Some(()))?;
    if query.list("kind").is_empty() {
        kinds = Kind::ALL.to_vec();
    }
    let resource = kinds.first().copied().zip(resource);
    let filter = Filter {
        resource: resource.map(|(kind, id)| (kind, id.as_str().to_owned())),
        ..visible(&caller, &kinds)
    };
    let read = async |connection: &mut Connection| {
        db::changes::publish_all(connection).await?;
        let limit = limit.unwrap_or(DEFAULT_LIMIT);
        db::changes::page(connection, after.unwrap_or_default(), &filter, limit).await
    };
    let page: Result<Page, _> = database.run(read).await?;
    let Page { changes, next } = page.map_err(Error::UnknownPosition)?;
    let body = PageBody {
        changes: changes.into_iter().map(ChangeBody::from).collect(),
        next: next.0,
    };
    response::json(StatusCode::OK, &body)
}

/// Returns the changes of `kinds` that a caller sees.
fn visible(caller: &Caller, kinds: &[Kind]) -> Filter {
    let has = |scope| caller.scopes.contains(scope);
    let mut filter = Filter {
        owner: caller.id,
        ..Filter::default()
    };
    for kind in kinds {
        match kind {
            _ if has(Scope::Admin) => filter.kinds.push(*kind),
            Kind::Pet | Kind::Image | Kind::Import if has(Scope::ReadPets) => {
                filter.kinds.push(*kind);
            }
            Kind::Order if has(Scope::ReadOrders) => filter.own_kinds.push(*kind),
            Kind::User => filter.own_kinds.push(*kind),
            _ => {}
        }
    }
    filter
}

/// Kind of a resource.
#[derive(ToSchema)]
#[schema(as = ChangeKind, rename_all = "lowercase", example = "pet")]
#[expect(dead_code, reason = "describes what is read as text")]
enum KindBody {
    Pet,
    Image,
    Order,
    User,
    Caller,
    Key,
    Client,
    Session,
    Import,
}
