//! Response bodies of the record of changes.

use chrono::SecondsFormat;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::domain::change::Change;

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
pub struct PageBody {
    /// The changes, in the order of their positions.
    #[schema(max_items = 1_000)]
    pub changes: Vec<ChangeBody>,
    /// Last position that was looked at: the `after` of the next request. While it is greater than `after`, more changes
    /// may remain.
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    pub next: i64,
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
    /// Kind of the resource: `pet`, `image`, `order`, `user`, `caller`, `key`, `client`, `session`, `webhook` or `import`. There may be
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
    /// Facts: `status`, `plan`, `scopes`, `disabled`, and `kinds` and `enabled` of a webhook, with the old value (`null` for a new
    /// resource) and the new one, if they have changed; the position of a `test` or `retry` of a webhook; `pet` of an image or an order; `caller` of a key, a client or a session; number of `pets` of an
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
