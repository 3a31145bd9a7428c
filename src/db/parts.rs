//! Parts of lists: which matches are read at once, and how a statement bounds their bytes.
//!
//! A statement returns a pet that is larger than its part admits without its details, and the part ends before it: so a part has at
//! most as many bytes as its limit times that size. PostgreSQL knows the size without reading the details, because they are stored as they
//! are, not compressed (migration 0303).

use sqlx::{FromRow as _, Row as _, ValueRef as _, postgres::PgRow};

use crate::domain::{caller::CallerKey, id::PetId, pet::StoredPet};

/// Maximum number of matches of a part that shares a statement with those of others, so that a batch of 128 parts is read within
/// milliseconds: 32, and one more that shows if there is another page.
pub const MAX_SMALL: usize = 33;

/// First matches after `after`, by identifier or by name, that are read at once.
#[derive(Debug, Clone, Copy)]
pub struct Part<Id = PetId> {
    /// Identifier that the matches follow; `None` for the first part.
    pub after: Option<Id>,
    /// Maximum number of matches.
    pub limit: usize,
    /// Maximum size of a match in bytes, as it is stored; `None` for any.
    pub max_size: Option<usize>,
    /// True if the part may share a statement.
    pub is_small: bool,
    /// Caller in whose turn it is read if it has a statement of its own.
    pub caller: CallerKey,
}

impl<Id> Part<Id> {
    pub(super) fn limit(&self) -> i64 {
        i64::try_from(self.limit).unwrap_or(i64::MAX)
    }

    pub(super) fn max_size(&self) -> i32 {
        let size = self.max_size.and_then(|size| i32::try_from(size).ok());
        size.unwrap_or(i32::MAX)
    }
}

impl Part {
    pub(super) fn after(&self) -> i64 {
        self.after.map_or(0, PetId::get)
    }
}

/// Matches of a part, in order.
#[derive(Debug)]
pub struct Found<T, Id = PetId> {
    /// The matches.
    pub matches: Vec<T>,
    /// What follows them.
    pub rest: Rest<Id>,
}

/// What follows the matches of a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rest<Id> {
    /// Nothing.
    None,
    /// Further matches may follow the last one, which has this identifier.
    After(Id),
    /// A match that is larger than the part admits follows the last one, if there is any.
    Larger(Option<Id>),
    /// The search ended early, because it has cost much: further matches may follow this identifier.
    Later(Id),
}

impl<T, Id> Found<T, Id> {
    /// Creates the result of a search that ended early after an identifier, if given. Matches that are too large are `None`.
    pub(super) fn new<After>(
        part: &Part<After>,
        rows: Vec<(Id, Option<T>)>,
        ended_after: Option<Id>,
    ) -> Self {
        let is_full = rows.len() >= part.limit;
        let (mut matches, mut last) = (Vec::with_capacity(rows.len()), None);
        for (id, found) in rows {
            let Some(found) = found else {
                let rest = Rest::Larger(last);
                return Self { matches, rest };
            };
            matches.push(found);
            last = Some(id);
        }
        let rest = match (last.filter(|_| is_full), ended_after) {
            (_, Some(id)) => Rest::Later(id),
            (Some(id), None) => Rest::After(id),
            (None, None) => Rest::None,
        };
        Self { matches, rest }
    }
}

/// Decodes a pet, or `None` if it is larger than its part admits.
pub(super) fn sized_pet(row: &PgRow) -> Result<Option<StoredPet>, sqlx::Error> {
    let is_larger = row.try_get_raw("details")?.is_null();
    (!is_larger).then(|| StoredPet::from_row(row)).transpose()
}

/// Columns from which [`sized_pet`] decodes a pet of at most this size.
macro_rules! sized_pet_columns {
    ($max_size:literal) => {
        concat!(
            "id, version, status, case when pg_column_size(details) <= ",
            $max_size,
            " then details end as details"
        )
    };
}

pub(super) use sized_pet_columns;
