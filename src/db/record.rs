//! Record of changes, as the statements that make changes write it.
//!
//! Invariants:
//! - A change and its record are in one transaction. The record is inserted behind the lock of the changed row, so that the
//!   numbers of the changes of a resource are in their order.
//! - No secret, and no document of a resource, is recorded.

use serde::Serialize;
use serde_json::{Value, json};

use super::{codec, connect::Connection, deadline::with_timeout, error::Error};
use crate::domain::{
    caller::{CallerId, Scopes},
    change::{Action, Initiator, Kind},
    id::PetId,
    pet::{self, Version},
    plan::Plan,
};

/// Part of a statement that records the changes which a query returns.
macro_rules! recorded {
    ($query:expr) => {
        concat!(
            "recorded as (
                 insert into new_changes (kind, resource, action, version, owner, actor, request_id, data) ",
            $query,
            "
             )"
        )
    };
}

/// Rows of the parameter `$parameter`, [`Record`]s in JSON, as the table `record`; `n` is their order.
macro_rules! records {
    ($parameter:literal) => {
        concat!(
            "rows from (jsonb_to_recordset(",
            $parameter,
            ") as (kind text, resource text, action text, version bigint, state bigint, owner bigint, actor text, request_id text, data jsonb))
             with ordinality as record (kind, resource, action, version, state, owner, actor, request_id, data, n)"
        )
    };
}

pub(super) use {recorded, records};

/// Record of a change.
#[derive(Debug, Serialize)]
pub(super) struct Record<'a> {
    kind: &'static str,
    resource: String,
    action: &'static str,
    version: Option<i64>,
    /// New state of a pet in the same statement, which gives the record its version.
    state: Option<usize>,
    owner: Option<i64>,
    actor: Option<&'a str>,
    request_id: Option<&'a str>,
    data: Option<Value>,
}

impl<'a> Record<'a> {
    /// Creates the record of a change of a resource, by its kind and identifier.
    pub fn new(
        kind: Kind,
        resource: &impl ToString,
        action: Action,
        initiator: &'a Initiator,
    ) -> Self {
        Self {
            kind: kind.as_str(),
            resource: resource.to_string(),
            action: action.as_str(),
            version: None,
            state: None,
            owner: None,
            actor: initiator.actor(),
            request_id: initiator.request_id.as_deref(),
            data: None,
        }
    }

    /// Creates the record of a change of a pet's status.
    pub fn of_pet_status(
        id: PetId,
        version: Version,
        (old, new): (pet::Status, pet::Status),
        initiator: &'a Initiator,
    ) -> Self {
        Self {
            version: Some(version.0),
            data: status_change(old, new),
            ..Self::new(Kind::Pet, &id, Action::Changed, initiator)
        }
    }

    /// Creates the record of a new caller.
    pub fn of_new_caller(
        id: CallerId,
        plan: Plan,
        scopes: Scopes,
        initiator: &'a Initiator,
    ) -> Self {
        let data = json!({"plan": [null, plan.as_str()], "scopes": codec::scope_names(scopes)});
        Self::new(Kind::Caller, &id.0, Action::Created, initiator).with_data(Some(data))
    }

    /// Sets the state that gives the record its version: its ordinal number in the statement, from 1.
    pub fn of_state(self, number: usize) -> Self {
        Self {
            state: Some(number),
            ..self
        }
    }

    /// Sets the caller that the resource belongs to.
    pub fn owned_by(self, owner: Option<CallerId>) -> Self {
        Self {
            owner: owner.map(|caller| caller.0),
            ..self
        }
    }

    /// Sets the pet that an image or an order belongs to.
    pub fn of_pet(self, pet: PetId) -> Self {
        self.with_data(Some(json!({"pet": pet.get()})))
    }

    /// Sets the caller that a credential belongs to.
    pub fn of_caller(self, caller: CallerId) -> Self {
        self.with_data(Some(json!({"caller": caller.0})))
    }

    /// Sets small facts about the change.
    pub fn with_data(self, data: Option<Value>) -> Self {
        Self { data, ..self }
    }
}

/// Returns the fact that a pet's status changed, or `None` if it did not.
pub(super) fn status_change(old: pet::Status, new: pet::Status) -> Option<Value> {
    (old != new).then(|| json!({"status": [old.as_str(), new.as_str()]}))
}

/// Records changes that earlier statements of the transaction have made, in their order.
pub(super) async fn write(
    transaction: &mut Connection,
    records: &[Record<'_>],
) -> Result<(), Error> {
    if records.is_empty() {
        return Ok(());
    }
    let query = sqlx::query(concat!(
        "insert into new_changes (kind, resource, action, version, owner, actor, request_id, data)
         select kind, resource, action, version, owner, actor, request_id, data from ",
        records!("$1"),
        " order by n"
    ));
    let query = query.bind(sqlx::types::Json(records));
    with_timeout(query.execute(transaction)).await.map(drop)
}
