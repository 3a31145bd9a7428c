//! Changes of resources, as the record of changes has them.

use std::{fmt, str::FromStr};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::{
    Invalid,
    caller::{CallerId, CallerName},
    id::PetId,
    parse_digits,
};

/// Place of a change in the record: an integer below 2^53, in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Position(pub i64);

impl Position {
    /// Largest position.
    pub const MAX: Self = Self(PetId::MAX);
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Position {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        parse_digits(text)
            // The largest has 16 digits.
            .filter(|position| (0..=PetId::MAX).contains(position) && text.len() <= 16)
            .map(Self)
            .ok_or(Invalid::because(
                "must be an integer from 0 to 9007199254740991",
            ))
    }
}

/// Facts about a change, as JSON.
pub type Data = Box<RawValue>;

/// Value of a field before and after a change; `None` is an absent one.
pub type Values<T> = (Option<T>, Option<T>);

/// Returns both values of a field, or `None` if they are equal.
pub fn changed<T: PartialEq>(old: Option<T>, new: Option<T>) -> Option<Values<T>> {
    (old != new).then_some((old, new))
}

/// A change of a resource.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(example = json!({
    "position": 1_769_860_800_000_000_i64, "at": "2026-01-31T12:00:00Z", "kind": "pet", "resource": "7",
    "action": "changed", "version": 12, "actor": "acme", "requestId": "9f86d081884c7d659a2feaa0c55ad015",
    "data": {"status": ["available", "pending"]}
}))]
pub struct Change {
    /// Position in the record. Positions ascend, with gaps.
    #[schema(value_type = i64, minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    pub position: Position,
    /// Time of the change.
    #[schema(value_type = String, format = DateTime, max_length = 64)]
    pub at: DateTime<Utc>,
    /// Kind of the resource: `pet`, `image`, `order`, `user`, `caller`, `key`, `client`, `session`, `webhook`, `import` or `restore`. There may
    /// be further ones.
    #[schema(max_length = 16, pattern = "^[a-z]+$")]
    pub kind: String,
    /// Identifier of the resource.
    #[schema(max_length = 64, pattern = r"^[^\x00]*$")]
    pub resource: String,
    /// What was done: `created`, `changed` or `deleted`.
    #[schema(max_length = 16, pattern = "^[a-z]+$")]
    pub action: String,
    /// Version of a pet after the change, as in its `ETag`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    pub version: Option<i64>,
    /// Caller that an order or an account belongs to.
    #[serde(skip)]
    pub owner: Option<CallerId>,
    /// Name of the caller; `operator` for a command, `webhook` for a webhook that was disabled by a 410. Absent if the request had
    /// none. Callers without the scope `admin` do not see those of the accounts of others.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, max_length = 64, pattern = r"^[^\x00]*$")]
    pub actor: Option<String>,
    /// Request id; absent where the actor is hidden.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, max_length = 64, pattern = "^[A-Za-z0-9._-]+$")]
    pub request_id: Option<String>,
    /// Facts. `[old, new]` of each field of a pet that changed, of `status`, `complete` and `shipDate` of an order, of `plan`,
    /// `scopes` and `disabled` of a caller, and of `kinds` and `enabled` of a webhook, with `null` for what is absent: for all of a
    /// new resource. A pet that is deleted as it `was`, and `order` (`true`) if it had an open one. In place of values that would make
    /// the change larger than 40 KiB, the names of the fields that have `changed`. Further, the `scopes` of a new caller, key or client; `expiresAt` of a key that has
    /// one, if it is new or was replaced; `password` (`true`) if one was set; `secret` (`true`) of a webhook with a new one; the position of the
    /// delivery of a `retry`, the number of deliveries of `retries`; `pet` of an image or an order; `size` of an image in bytes; `caller` of a key, a client or a session; number
    /// of `pets` of an import, with the first and the last of their `ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Object, nullable = false)]
    pub data: Option<Data>,
}

impl Change {
    /// Returns the change without its actor and its request.
    #[must_use]
    pub fn without_actor(self) -> Self {
        Self {
            actor: None,
            request_id: None,
            ..self
        }
    }
}

/// Who makes a change, and in which request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Initiator {
    /// Name of the caller; `None` for a request without a caller.
    pub actor: Option<CallerName>,
    /// Request id.
    pub request_id: Option<String>,
}

impl Initiator {
    /// Returns the initiator of changes by a command.
    #[must_use]
    pub fn operator() -> Self {
        Self {
            actor: Some(CallerName::operator()),
            request_id: None,
        }
    }

    /// Returns the initiator of what the receiver of a webhook causes.
    #[must_use]
    pub fn webhook() -> Self {
        Self {
            actor: Some(CallerName::webhook()),
            request_id: None,
        }
    }

    /// Returns the name of the caller.
    pub fn actor(&self) -> Option<&str> {
        Some(self.actor.as_ref()?.as_str())
    }
}

/// Kind of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
#[schema(as = ChangeKind, rename_all = "lowercase", example = "pet")]
pub enum Kind {
    /// Pet.
    Pet,
    /// Image of a pet.
    Image,
    /// Store order.
    Order,
    /// User account.
    User,
    /// Caller.
    Caller,
    /// API key.
    Key,
    /// OAuth 2.0 client.
    Client,
    /// Session of a user, if another caller ended it.
    Session,
    /// Webhook.
    Webhook,
    /// Pets that were imported together.
    Import,
    /// Restore of a backup.
    Restore,
}

impl_names!(
    Kind,
    Pet = "pet",
    Image = "image",
    Order = "order",
    User = "user",
    Caller = "caller",
    Key = "key",
    Client = "client",
    Session = "session",
    Webhook = "webhook",
    Import = "import",
    Restore = "restore",
);

/// What was done to a resource.
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
    Created = "created",
    Changed = "changed",
    Deleted = "deleted",
);
