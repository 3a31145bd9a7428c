//! Lists pets by status and tags in the order of creation, the newest first.
//!
//! Invariants:
//! - The form of each query fixes its plan, as in [`super::find_by`]. Each status, or pair of a status and a tag, is one range of
//!   the index `pets_by_creation` or `pet_tags_by_creation`.
//! - Pets that were created before the service kept this order come last, the largest identifier first.

use std::{fmt, str::FromStr};

use futures_util::TryStreamExt as _;
use sqlx::Row as _;

use crate::{
    db::{
        connect::Connection,
        database::Database,
        deadline::with_timeout,
        error::Error,
        large_reads::Cost,
        parts::{Found, Part, sized_pet, sized_pet_columns},
    },
    domain::{
        Invalid,
        id::PetId,
        parse_digits,
        pet::{Status, StoredPet},
    },
};

/// Position of a pet in the order of creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CreationPosition {
    /// Number in the order, which is 0 for all pets of before.
    order: i64,
    id: i64,
}

impl CreationPosition {
    /// Position before those of all pets.
    const START: Self = Self {
        order: i64::MAX,
        id: i64::MAX,
    };
}

impl fmt::Display for CreationPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.order, self.id)
    }
}

impl FromStr for CreationPosition {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let parts = text.split_once('-');
        let (order, id) = parts.ok_or(Invalid::because("must have an order and an id"))?;
        Ok(Self {
            order: parse_digits(order).ok_or(Invalid::because("must be a number"))?,
            id: id.parse::<PetId>()?.get(),
        })
    }
}

/// Which pets are listed with the newest first.
#[derive(Debug, Clone)]
pub struct NewestPets {
    /// Statuses, any of which a pet has.
    pub statuses: Vec<Status>,
    /// Names of tags, any of which a pet has; without them, its tags do not matter.
    pub tags: Vec<String>,
}

/// Pets in the order of their positions.
pub type FoundByCreation = Found<(CreationPosition, StoredPet), CreationPosition>;

/// Range of `pets_by_creation`: the first $4 pets of a status behind a position, if it is among the statuses $1.
macro_rules! of_status {
    ($status:literal) => {
        concat!(
            "(select * from pets
              where '",
            $status,
            "' = any ($1) and status = '",
            $status,
            "' and (created_order, id) < ($2, $3)
              order by created_order desc, id desc
              limit $4)"
        )
    };
}

/// Query for the newest pets with one of the statuses $1. PostgreSQL merges the ranges, and reads no more of them than it returns.
#[doc(hidden)]
pub const LIST_NEWEST: &str = concat!(
    "select ",
    sized_pet_columns!("$5"),
    ", created_order from (",
    of_status!("available"),
    " union all ",
    of_status!("pending"),
    " union all ",
    of_status!("sold"),
    ") pet
    order by created_order desc, id desc
    limit $4"
);

/// Query for the newest pets with one of the statuses $1 and any of the tags $6.
#[doc(hidden)]
pub const LIST_NEWEST_BY_TAG: &str = concat!(
    "select ",
    sized_pet_columns!("$5"),
    ", match.created_order
    from (
        select distinct on (created_order, pet_id) created_order, pet_id
        from unnest($1::text[]) as of_status (status)
        cross join unnest($6::text[]) as of_tag (tag)
        cross join lateral (
            select created_order, pet_id from pet_tags
            where ((tag || ':' || status), created_order, pet_id) < (of_tag.tag || ':' || of_status.status, $2, $3)
              and (tag || ':' || status) >= of_tag.tag || ':' || of_status.status
            order by (tag || ':' || status) desc, created_order desc, pet_id desc
            limit $4
        ) tagged
        order by created_order desc, pet_id desc
        limit $4
    ) match
    cross join lateral (select * from pets where id = pet_id offset 0) pet
    order by match.created_order desc, pet_id desc"
);

/// Returns the pets of `part`, the newest first.
pub async fn list_newest(
    database: &Database,
    newest: &NewestPets,
    part: Part<CreationPosition>,
) -> Result<FoundByCreation, Error> {
    let caller = part.caller;
    let find = async |connection: &mut Connection| read(connection, newest, part).await;
    database.read_large(Cost::Rows, caller, find).await
}

async fn read(
    connection: &mut Connection,
    NewestPets { statuses, tags }: &NewestPets,
    part: Part<CreationPosition>,
) -> Result<FoundByCreation, Error> {
    let after = part.after.unwrap_or(CreationPosition::START);
    let statuses: Vec<_> = statuses.iter().map(|status| status.as_str()).collect();
    let mut query = sqlx::query(match tags[..] {
        [] => LIST_NEWEST,
        _ => LIST_NEWEST_BY_TAG,
    })
    .bind(statuses)
    .bind(after.order)
    .bind(after.id)
    .bind(part.limit())
    .bind(part.max_size());
    if !tags.is_empty() {
        query = query.bind(tags);
    }
    let mut rows = query.fetch(connection);
    let read = async {
        let mut found = Vec::new();
        while let Some(row) = rows.try_next().await? {
            let position = CreationPosition {
                order: row.try_get("created_order")?,
                id: row.try_get("id")?,
            };
            found.push((position, sized_pet(&row)?.map(|pet| (position, pet))));
        }
        Ok(Found::new(&part, found, None))
    };
    with_timeout(read).await
}
