//! Lists pets by identifiers, status and tags, in the order of their identifiers or with the newest first.
//!
//! Invariants:
//! - The form of each query fixes its plan, as in [`super::find_by`]. Each pair of a status and a tag is one range of the index
//!   `pet_tags_by_status`, so that a page costs no more than its matches.

use futures_util::TryStreamExt as _;
use sqlx::Row as _;

use super::find_by::find_by_status;
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
        id::PetId,
        pet::{Status, StoredPet},
    },
};

/// Which pets are listed, and in which order.
#[derive(Debug, Clone)]
pub struct PetListing {
    /// Identifiers; those of all pets if there are none.
    pub ids: Vec<PetId>,
    /// Statuses, any of which a pet has; all if there are none.
    pub statuses: Vec<Status>,
    /// Names of tags, any of which a pet has; without them, its tags do not matter.
    pub tags: Vec<String>,
    /// True if the largest identifier comes first.
    pub is_descending: bool,
}

/// Query that merges one range of `pet_tags_by_status` per status and tag, in one direction.
macro_rules! by_tag {
    ($behind:literal, $up_to:literal, $direction:literal) => {
        concat!(
            "select ",
            sized_pet_columns!("$4"),
            " from (
                select distinct on (pet_id) pet_id
                from unnest($1::text[]) as of_status (status)
                cross join unnest($5::text[]) as of_tag (tag)
                cross join lateral (
                    select pet_id from pet_tags
                    where ((status || ':' || tag), pet_id) ",
            $behind,
            " (of_status.status || ':' || of_tag.tag, $2)
                      and (status || ':' || tag) ",
            $up_to,
            " of_status.status || ':' || of_tag.tag
                    order by (status || ':' || tag) ",
            $direction,
            ", pet_id ",
            $direction,
            "
                    limit $3
                ) tagged
                order by pet_id ",
            $direction,
            "
                limit $3
            ) match
            cross join lateral (select * from pets where id = pet_id offset 0) pet
            order by pet_id ",
            $direction
        )
    };
}

/// Query for the pets behind an identifier with any of several statuses and any of several tags.
#[doc(hidden)]
pub const LIST_BY_TAG: &str = by_tag!(">", "<=", "asc");

/// The same, with the newest first.
#[doc(hidden)]
pub const LIST_BY_TAG_DESCENDING: &str = by_tag!("<", ">=", "desc");

/// Query for the newest pets before an identifier with any of several statuses, or of all pets if none is given.
#[doc(hidden)]
pub const LIST_DESCENDING: &str = concat!(
    "select ",
    sized_pet_columns!("$4"),
    " from (
        (select * from pets where cardinality($1::text[]) = 0 and id < $2 order by id desc limit $3)
        union all
        (select of_status.*
         from unnest($1::text[]) as wanted
         cross join lateral (
             select * from pets where (status, id) < (wanted, $2) and status >= wanted
             order by status desc, id desc
             limit $3
         ) of_status
         order by of_status.id desc
         limit $3)
    ) pet
    order by id desc"
);

/// Query for the pets behind an identifier with any of several identifiers, any of several statuses, and any of several tags if there
/// are any. One scan of the primary key takes half of the time of a join with the identifiers.
#[doc(hidden)]
pub const LIST_BY_ID: &str = concat!(
    "select ",
    sized_pet_columns!("$4"),
    " from pets
     where id = any ($6) and id > $2 and (cardinality($1::text[]) = 0 or status = any ($1))
       and (cardinality($5::text[]) = 0 or tag_names && $5)
     order by id limit $3"
);

/// Returns the pets of `part` that a listing has.
pub async fn list(
    database: &Database,
    listing: &PetListing,
    part: Part,
) -> Result<Found<StoredPet>, Error> {
    if listing.ids.is_empty() && listing.tags.is_empty() && !listing.is_descending {
        return find_by_status(database, &listing.statuses, part).await;
    }
    let find = async |connection: &mut Connection| read(connection, listing, part).await;
    database.read_large(Cost::Rows, part.caller, find).await
}

async fn read(
    connection: &mut Connection,
    listing: &PetListing,
    part: Part,
) -> Result<Found<StoredPet>, Error> {
    let PetListing {
        ids,
        statuses,
        tags,
        is_descending,
    } = listing;
    let statuses = match statuses[..] {
        [] if !tags.is_empty() => &Status::ALL,
        _ => &statuses[..],
    };
    let query = match (tags.is_empty(), is_descending) {
        _ if !ids.is_empty() => LIST_BY_ID,
        (true, _) => LIST_DESCENDING,
        (false, true) => LIST_BY_TAG_DESCENDING,
        (false, false) => LIST_BY_TAG,
    };
    let behind = match part.after {
        Some(id) => id.get(),
        None if *is_descending => i64::MAX,
        None => 0,
    };
    let statuses: Vec<_> = statuses.iter().map(|status| status.as_str()).collect();
    let mut query = sqlx::query(query)
        .bind(statuses)
        .bind(behind)
        .bind(part.limit())
        .bind(part.max_size());
    if !tags.is_empty() || !ids.is_empty() {
        query = query.bind(tags);
    }
    if !ids.is_empty() {
        query = query.bind(ids.iter().map(|id| id.get()).collect::<Vec<_>>());
    }
    let mut rows = query.fetch(connection);
    let read = async {
        let mut found = Vec::new();
        while let Some(row) = rows.try_next().await? {
            found.push((row.try_get("id")?, sized_pet(&row)?));
        }
        Ok(Found::new(&part, found, None))
    };
    with_timeout(read).await
}
