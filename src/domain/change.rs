//! Changes of resources, as the record of changes has them.

use std::{fmt, str::FromStr};

use chrono::{DateTime, Utc};
use serde_json::Value;

use super::{
    Invalid,
    caller::{CallerId, CallerName},
    id::PetId,
    parse_digits,
};

/// Place of a change in the record: an integer below 2^53, in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Position(pub i64);

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Position {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        parse_digits(text)
            .filter(|position| (0..=PetId::MAX).contains(position))
            .map(Self)
            .ok_or(Invalid::because(
                "must be an integer from 0 to 9007199254740991",
            ))
    }
}

/// Change in the record.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// Position.
    pub position: Position,
    /// Time of the change.
    pub at: DateTime<Utc>,
    /// Kind of the resource.
    pub kind: String,
    /// Identifier of the resource.
    pub resource: String,
    /// What was done.
    pub action: String,
    /// Version of a pet after the change.
    pub version: Option<i64>,
    /// Caller that an order or an account belongs to.
    pub owner: Option<CallerId>,
    /// Name of the caller.
    pub actor: Option<String>,
    /// Request id.
    pub request_id: Option<String>,
    /// Small facts.
    pub data: Option<Value>,
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

    /// Returns the name of the caller.
    pub fn actor(&self) -> Option<&str> {
        Some(self.actor.as_ref()?.as_str())
    }
}

/// Kind of the resource that was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
}

impl_names!(
    Kind,
    "must be pet, image, order, user, caller, key, client, session, webhook or import",
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
    "must be created, changed or deleted",
    Created = "created",
    Changed = "changed",
    Deleted = "deleted",
);
