//! Parts of lists: which matches are read at once, and how a statement bounds their bytes.
//!
//! A part ends with the match that exceeds its bytes. PostgreSQL knows the sizes of the large columns without reading them: they are
//! stored as they are, not compressed (migration 0203).

use sqlx::{Row as _, postgres::PgRow};

use crate::domain::{caller::CallerKey, id::PetId};

/// Maximum number of matches of a part that shares a statement with those of others, so that a batch of 128 parts is read within
/// milliseconds: 32, and one more that shows if there is another page.
pub const MAX_SMALL: usize = 33;
/// Bytes after which a part ends that shares a statement.
pub const SMALL_BYTES: usize = 64 << 10;
/// Bytes after which a part ends that has a statement of its own.
pub const LARGE_BYTES: usize = 256 << 10;

/// First matches after `after`, by identifier or by name, that are read at once.
#[derive(Debug, Clone, Copy)]
pub struct Part<Id = PetId> {
    /// Identifier that the matches follow; `None` for the first part.
    pub after: Option<Id>,
    /// Maximum number of matches.
    pub limit: usize,
    /// True if the part ends after [`SMALL_BYTES`], and may share a statement.
    pub is_small: bool,
    /// Caller in whose turn it is read if it has a statement of its own.
    pub caller: CallerKey,
}

impl<Id> Part<Id> {
    pub(super) fn limit(&self) -> i64 {
        i64::try_from(self.limit).unwrap_or(i64::MAX)
    }

    /// Returns the bytes after which the part ends.
    pub fn bytes(&self) -> i64 {
        let bytes = if self.is_small {
            SMALL_BYTES
        } else {
            LARGE_BYTES
        };
        i64::try_from(bytes).unwrap_or(i64::MAX)
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
    /// Further matches may follow this identifier.
    After(Id),
    /// The search ended early, because it has cost much: further matches may follow this identifier.
    Later(Id),
}

/// Reads the matches of a part from the rows of its statement.
pub(super) struct Reader<T, Id> {
    limit: usize,
    max_bytes: i64,
    matches: Vec<T>,
    /// Bytes of the matches so far.
    bytes: i64,
    last: Option<Id>,
}

impl<T, Id> Reader<T, Id> {
    pub fn new<After>(part: &Part<After>) -> Self {
        Self {
            limit: part.limit,
            max_bytes: part.bytes(),
            matches: Vec::with_capacity(part.limit.min(MAX_SMALL)),
            bytes: 0,
            last: None,
        }
    }

    /// Adds the match of a row.
    pub fn add(&mut self, row: &PgRow, found: T, id: Id) -> Result<(), sqlx::Error> {
        self.bytes = row.try_get("bytes")?;
        self.matches.push(found);
        self.last = Some(id);
        Ok(())
    }

    /// Returns the matches, of a search that ended early after an identifier, if given.
    pub fn finish(self, ended_after: Option<Id>) -> Found<T, Id> {
        let is_full = self.matches.len() >= self.limit || self.bytes >= self.max_bytes;
        let rest = match (self.last.filter(|_| is_full), ended_after) {
            (_, Some(id)) => Rest::Later(id),
            (Some(id), None) => Rest::After(id),
            (None, None) => Rest::None,
        };
        Found {
            matches: self.matches,
            rest,
        }
    }
}

/// SQL of the size of a pet's large columns in bytes, as they are stored.
macro_rules! pet_bytes {
    () => {
        "(pg_column_size(photo_urls) + pg_column_size(tags))"
    };
}

/// SQL of the rows of a `from` item in this order, up to and with the one that exceeds a number of bytes.
macro_rules! within_bytes {
    ($rows:expr, $order:literal, $max:literal) => {
        concat!(
            "(select pet.*, sum(",
            pet_bytes!(),
            ") over (order by ",
            $order,
            " rows unbounded preceding) as bytes from ",
            $rows,
            " pet) pet where coalesce(bytes - ",
            pet_bytes!(),
            " < ",
            $max,
            ", true)"
        )
    };
}

pub(super) use {pet_bytes, within_bytes};
