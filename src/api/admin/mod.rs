//! `/admin`: callers, their keys and clients, and login sessions, for callers with the scope `admin`.
//!
//! Invariants:
//! - Changes are made by the functions that the commands call, and are recorded in the same transaction.
//! - A secret is in one response, which is not stored.
//! - No operation takes away the last administrator, whatever runs at the same time.

mod callers;
mod credentials;

use chrono::{DateTime, SecondsFormat, Utc};
use utoipa::ToSchema;
use utoipa_axum::routes;

use super::{
    error::Error,
    fields::{Array, Field, Violations},
    operations::Operations,
};
use crate::{
    db::{self, Database, callers::CallerRecord},
    domain::{
        Invalid,
        caller::{CallerId, Scope, Scopes},
    },
};

/// Maximum number of scopes in a body, with duplicates.
const MAX_SCOPES: usize = 16;

/// Returns the operations, except lists.
pub fn router() -> Operations {
    Operations::new()
        .routes(routes!(callers::create))
        .routes(routes!(callers::get, callers::patch, callers::delete))
        .routes(routes!(callers::usage))
        .routes(routes!(credentials::create_key))
        .routes(routes!(credentials::rotate_key))
        .routes(routes!(credentials::revoke_key))
        .routes(routes!(credentials::create_client))
        .routes(routes!(credentials::revoke_client))
        .routes(routes!(credentials::revoke_session))
}

/// Returns the lists.
pub fn lists() -> Operations {
    Operations::new()
        .routes(routes!(callers::list))
        .routes(routes!(credentials::list_keys))
        .routes(routes!(credentials::list_clients))
        .routes(routes!(credentials::list_sessions))
}

/// Right of a caller.
#[derive(ToSchema)]
#[schema(as = Scope, example = "read:pets")]
#[expect(dead_code, reason = "describes what is read and written as text")]
enum ScopeBody {
    #[schema(rename = "read:pets")]
    ReadPets,
    #[schema(rename = "write:pets")]
    WritePets,
    #[schema(rename = "read:orders")]
    ReadOrders,
    #[schema(rename = "write:orders")]
    WriteOrders,
    #[schema(rename = "read:changes")]
    ReadChanges,
    #[schema(rename = "admin")]
    Admin,
}

/// Reads scopes, or `None` if the field is absent.
fn read_scopes(
    violations: &mut Violations,
    field: Field<Array<String, MAX_SCOPES>>,
) -> Option<Scopes> {
    if matches!(field, Field::Absent) {
        return None;
    }
    let check_count = |count| match count {
        ..=MAX_SCOPES => Ok(()),
        _ => Err(Invalid::because("must have at most 16 elements")),
    };
    let scopes = violations.array("scopes", field, check_count, |violations, name, scope| {
        violations.required(name, scope, |scope| scope.parse::<Scope>())
    });
    Some(scopes.into_iter().collect())
}

fn scope_names(scopes: Scopes) -> Vec<&'static str> {
    scopes.iter().map(Scope::as_str).collect()
}

/// Formats a time as RFC 3339, to the second.
fn time(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// Returns the caller with this identifier.
async fn find_caller(database: &Database, id: CallerId) -> Result<CallerRecord, Error> {
    let found = database
        .run(async |connection| db::callers::find_by_id(connection, id).await)
        .await?;
    found.ok_or_else(|| no_such_caller(id))
}

fn no_such_caller(CallerId(id): CallerId) -> Error {
    Error::NotFound(format!("caller {id}"))
}
