//! Record of changes, as the statements that make changes write it.
//!
//! Invariants:
//! - A change and its record are in one transaction. The record is inserted behind the lock of the changed row, so that the
//!   numbers of the changes of a resource are in their order.
//! - No secret and no personal data is recorded. A change has at most 40 KiB as JSON.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{
    Value, json,
    value::{RawValue, to_raw_value},
};

use super::{codec, connect::Connection, deadline::with_timeout, error::Error};
use crate::domain::{
    caller::{CallerId, Scopes},
    change::{Action, Data, Initiator, Kind},
    id::PetId,
    image::ImageId,
    pet::{self, PetDetails, PetValues, Version},
    plan::Plan,
};

/// Maximum size in bytes of the values of a pet, as compact JSON. PostgreSQL adds spaces, and the change its other fields.
const MAX_VALUES: usize = 38 << 10;

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
    data: Option<Data>,
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
            ..Self::new(Kind::Pet, &id, Action::Changed, initiator)
                .with_data(status_change(old, new))
        }
    }

    /// Creates the record of the deletion of a pet.
    pub fn of_deleted_pet(
        id: PetId,
        details: &PetDetails,
        has_open_order: bool,
        initiator: &'a Initiator,
    ) -> Self {
        #[derive(Serialize)]
        struct Pet<'a> {
            id: PetId,
            #[serde(flatten)]
            details: &'a PetDetails,
            status: pet::Status,
        }
        let pet = Pet {
            id,
            details,
            status: details.status,
        };
        let mut data = BTreeMap::new();
        if let Ok(pet) = to_raw_value(&pet) {
            match names_if_too_large(&pet) {
                Some(names) => data.insert("changed", names),
                None => data.insert("was", pet),
            };
        }
        if has_open_order {
            data.extend(to_raw_value(&true).map(|order| ("order", order)));
        }
        Self::new(Kind::Pet, &id, Action::Deleted, initiator).with_data(Some(data))
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

    /// Creates the record of a new or deleted image of a pet.
    pub fn of_image(
        id: ImageId,
        (pet, size): (PetId, u64),
        action: Action,
        initiator: &'a Initiator,
    ) -> Self {
        let data = json!({"pet": pet.get(), "size": size});
        Self::new(Kind::Image, &id, action, initiator).with_data(Some(data))
    }

    /// Sets the caller that a credential belongs to.
    pub fn of_caller(self, caller: CallerId) -> Self {
        self.with_data(Some(json!({"caller": caller.0})))
    }

    /// Sets facts about the change.
    pub fn with_data(self, data: Option<impl Serialize>) -> Self {
        // It cannot fail: all keys are texts.
        let data = data.and_then(|data| to_raw_value(&data).ok());
        Self { data, ..self }
    }
}

/// Returns the values of a pet that differ before and after a change, or their names if the values are too large.
pub(super) fn pet_values(old: Option<&PetDetails>, new: &PetDetails) -> Option<Data> {
    let values = to_raw_value(&PetValues::new(old, new)).ok()?;
    let names = names_if_too_large(&values)
        .and_then(|changed| to_raw_value(&BTreeMap::from([("changed", changed)])).ok());
    Some(names.unwrap_or(values))
}

/// Returns the names of the members of an object that is too large for a record.
fn names_if_too_large(object: &RawValue) -> Option<Data> {
    if object.get().len() <= MAX_VALUES {
        return None;
    }
    let members: BTreeMap<String, &RawValue> = serde_json::from_str(object.get()).ok()?;
    to_raw_value(&members.into_keys().collect::<Vec<_>>()).ok()
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
