//! Kinds of changes, in parameters and bodies.

use crate::{
    api::fields::{Array, Field, Violations},
    domain::{Invalid, change::Kind},
};

/// Maximum number of kinds in a body, with duplicates.
pub(super) const MAX_KINDS: usize = 16;

/// Reads distinct kinds; an absent field has none.
pub(super) fn read_kinds(
    violations: &mut Violations,
    field: Field<Array<String, MAX_KINDS>>,
) -> Vec<Kind> {
    let read = violations.array("kinds", field, check_count, |violations, name, kind| {
        violations.required(name, kind, |kind| kind.parse::<Kind>())
    });
    Kind::ALL
        .into_iter()
        .filter(|kind| read.contains(kind))
        .collect()
}

fn check_count(count: usize) -> Result<(), Invalid> {
    match count {
        ..=MAX_KINDS => Ok(()),
        _ => Err(Invalid::because("must have at most 16 elements")),
    }
}
