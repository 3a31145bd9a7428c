//! Kinds of changes in bodies.

use super::fields::List;
use crate::domain::change::Kind;

/// Maximum number of kinds in a body, with duplicates.
pub(super) const MAX_KINDS: usize = 16;

/// Returns each of the kinds once, in their order.
pub(super) fn distinct(List(kinds): List<Kind, MAX_KINDS>) -> Vec<Kind> {
    Kind::ALL
        .into_iter()
        .filter(|kind| kinds.contains(kind))
        .collect()
}
