//! Scopes in bodies.

use super::fields::List;
use crate::domain::caller::{Scope, Scopes};

/// Maximum number of scopes in a body, with duplicates.
pub(super) const MAX_SCOPES: usize = 16;

impl From<List<Scope, MAX_SCOPES>> for Scopes {
    fn from(List(scopes): List<Scope, MAX_SCOPES>) -> Self {
        scopes.into_iter().collect()
    }
}
