//! Changes of resources, as the record of changes has them.

use super::caller::CallerName;

/// Who makes a change, and in which request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Initiator {
    /// Name of the caller; `None` for a request without a caller.
    pub actor: Option<CallerName>,
    /// Request id.
    pub request_id: Option<String>,
}

impl Initiator {
    /// Returns the name of the caller.
    pub fn actor(&self) -> Option<&str> {
        Some(self.actor.as_ref()?.as_str())
    }
}

/// Kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The resource was created.
    Created,
    /// The resource was changed.
    Changed,
    /// The resource was deleted.
    Deleted,
}

impl_names!(
    Action,
    "must be created, changed or deleted",
    Created = "created",
    Changed = "changed",
    Deleted = "deleted",
);
