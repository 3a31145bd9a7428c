//! Scopes in bodies.

use crate::{
    api::fields::{Array, Field, Violations},
    domain::{
        Invalid,
        caller::{Scope, Scopes},
    },
};

/// Maximum number of scopes in a body, with duplicates.
pub(super) const MAX_SCOPES: usize = 16;

/// Reads scopes, or `None` if the field is absent.
pub(super) fn read_scopes(
    violations: &mut Violations,
    field: Field<Array<String, MAX_SCOPES>>,
) -> Option<Scopes> {
    if matches!(field, Field::Absent) {
        return None;
    }
    let scopes = violations.array("scopes", field, check_count, |violations, name, scope| {
        violations.required(name, scope, |scope| scope.parse::<Scope>())
    });
    Some(scopes.into_iter().collect())
}

fn check_count(count: usize) -> Result<(), Invalid> {
    match count {
        ..=MAX_SCOPES => Ok(()),
        _ => Err(Invalid::because("must have at most 16 elements")),
    }
}
