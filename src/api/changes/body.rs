//! Response bodies of the record of changes.

use serde::Serialize;
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
    /// The changes, in the order of the request.
    #[schema(max_items = 1_000)]
    pub changes: Vec<Change>,
    /// Last position that was looked at: the `after` of the next request or, with `order=desc`, its `before`. Until it equals that
    /// of the request, more changes may remain.
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    pub next: i64,
}
