//! Finds pets by status or by tags, page by page, in the order of their identifiers.
//!
//! Queries are public for the test that reads their plans.

use crate::{
    db::{database::Database, deadline::with_timeout, error::Error},
    domain::{
        id::PetId,
        pet::{Pet, Status},
    },
};

/// Returns the first `limit` pets after `after`, by identifier, with one of `statuses`.
pub async fn find_by_status(
    database: &Database,
    statuses: &[Status],
    after: Option<PetId>,
    limit: usize,
) -> Result<Vec<Pet>, Error> {
    let names = statuses.iter().map(|status| status.as_str()).collect();
    let is_every_status = Status::ALL.iter().all(|status| statuses.contains(status));
    let statement = if is_every_status {
        FIND_BY_EVERY_STATUS
    } else {
        FIND_BY_STATUS
    };
    find_page(database, statement, names, after, limit).await
}

/// Query that reads the index of each status in order, and no further than the limit. With a single `status = any
/// ($1)`, no index has the order of the result if there are two statuses.
#[doc(hidden)]
pub const FIND_BY_STATUS: &str = "
    select id, version, status, name, category, photo_urls, tags
    from (
        (select * from pets where status = 'available' and 'available' = any ($1) and id > $2
         order by id limit $3)
        union all
        (select * from pets where status = 'pending' and 'pending' = any ($1) and id > $2
         order by id limit $3)
        union all
        (select * from pets where status = 'sold' and 'sold' = any ($1) and id > $2
         order by id limit $3)
    ) pet
    order by id
    limit $3";

/// Query for all statuses. Every pet has one of them (`pets_status_known`), so it reads one index instead of three, for
/// a fifth less of PostgreSQL's time.
#[doc(hidden)]
pub const FIND_BY_EVERY_STATUS: &str =
    "select id, version, status, name, category, photo_urls, tags from pets
     where id > $2
     order by id
     limit $3";

/// Match of a set of tag names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TagMatch {
    /// Pets with any of the tags.
    #[default]
    Any,
    /// Pets with all of the tags.
    All,
}

/// Returns the first `limit` pets after `after`, by identifier, that match `names`.
pub async fn find_by_tags(
    database: &Database,
    names: &[String],
    tag_match: TagMatch,
    after: Option<PetId>,
    limit: usize,
) -> Result<Vec<Pet>, Error> {
    let names = names.iter().map(String::as_str).collect();
    let statement = match tag_match {
        TagMatch::Any => FIND_BY_ANY_TAG,
        TagMatch::All => FIND_BY_ALL_TAGS,
    };
    find_page(database, statement, names, after, limit).await
}

#[doc(hidden)]
pub const FIND_BY_ANY_TAG: &str =
    "select id, version, status, name, category, photo_urls, tags from pets
     where tag_names && $1 and id > $2
     order by id
     limit $3";

const FIND_BY_ALL_TAGS: &str =
    "select id, version, status, name, category, photo_urls, tags from pets
     where tag_names @> $1 and id > $2
     order by id
     limit $3";

async fn find_page(
    database: &Database,
    statement: &'static str,
    names: Vec<&str>,
    after: Option<PetId>,
    limit: usize,
) -> Result<Vec<Pet>, Error> {
    let query = sqlx::query_as(statement)
        .bind(names)
        .bind(after.map_or(0, PetId::get))
        .bind(i64::try_from(limit).unwrap_or(i64::MAX));
    database
        .run(async |connection| with_timeout(query.fetch_all(connection)).await)
        .await
}
