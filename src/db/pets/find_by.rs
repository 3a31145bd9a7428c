//! Finds pets by status or by tags, page by page, in the order of their identifiers.
//!
//! Invariants:
//! - The form of each query fixes the indexes that it uses, so that its speed depends neither on statistics nor on the
//!   number of matches: ranges of one index each, no longer than the page, and one lookup by key per pet.
//! - Small parts share a statement; larger ones would delay the others, and have a statement of their own, of which few are
//!   executed at a time.
//!
//! Triggers on `pets` keep `pet_tags` (migration 0303). Queries are public for the test that reads their plans.

use std::{iter, sync::Arc};

use futures_util::TryStreamExt as _;
use sqlx::Row as _;
use tokio::task::coop::consume_budget;

use crate::{
    db::{
        batch::{BatchResult, BatchedStatement},
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

/// Maximum number of tag names of a page that shares a statement.
pub(super) const MAX_SHARED_NAMES: usize = 8;
/// Maximum number of index entries that a page of pets with all of several tags reads, which takes some 15 ms.
const MAX_STEPS: i32 = 2_000;
/// Maximum number of tags that it looks for in the pets: to look for 100 among 100 takes up to 0.1 ms.
const MAX_COMPARISONS: i32 = 50_000;

/// Returns the pets of `part` with one of `statuses`.
pub async fn find_by_status(
    database: &Database,
    statuses: &[Status],
    part: Part,
) -> Result<Found<StoredPet>, Error> {
    let is_every_status = Status::ALL.iter().all(|status| statuses.contains(status));
    let names = statuses.iter().filter(|_| !is_every_status);
    let names = names.map(|status| status.as_str().to_owned()).collect();
    find_part::<PagesByStatus>(database, Search { names, part }).await
}

/// Returns the pets of `part` with any of the tags `names`.
pub async fn find_by_any_tag(
    database: &Database,
    names: Arc<[String]>,
    part: Part,
) -> Result<Found<StoredPet>, Error> {
    find_part::<PagesByTag>(database, Search { names, part }).await
}

async fn find_part<B: BatchedStatement<Input = Search, Output = Found<StoredPet>>>(
    database: &Database,
    search: Search,
) -> Result<Found<StoredPet>, Error> {
    if search.part.is_small && search.names.len() <= MAX_SHARED_NAMES {
        return database.batchers().execute::<B>(search).await;
    }
    let caller = search.part.caller;
    let find = async |it: &mut Connection| B::execute_one(it, search).await;
    database.read_large(Cost::Rows, caller, find).await
}

/// Search for the pets of a part that have any of several names.
#[derive(Debug, Clone)]
pub(super) struct Search {
    /// Names of statuses or tags, without duplicates. No name of a status stands for all of them.
    names: Arc<[String]>,
    part: Part,
}

/// Statement that reads the pages by status of several requests.
pub(super) struct PagesByStatus;

impl BatchedStatement for PagesByStatus {
    type Input = Search;
    type Output = Found<StoredPet>;

    const SUMMARY: &'static str = "SELECT pets by status";
    const IS_READ_ONLY: bool = true;

    async fn execute_all(
        connection: &mut Connection,
        inputs: &mut Vec<Search>,
    ) -> Result<Vec<BatchResult<Self>>, Error> {
        find_pages(connection, FIND_BY_STATUS, inputs).await
    }
}

/// Statement that reads the pages by tags of several requests.
pub(super) struct PagesByTag;

impl BatchedStatement for PagesByTag {
    type Input = Search;
    type Output = Found<StoredPet>;

    const SUMMARY: &'static str = "SELECT pets by tag";
    const IS_READ_ONLY: bool = true;

    async fn execute_all(
        connection: &mut Connection,
        inputs: &mut Vec<Search>,
    ) -> Result<Vec<BatchResult<Self>>, Error> {
        find_pages(connection, FIND_BY_ANY_TAG, inputs).await
    }
}

/// Query for the pages of searches whose matches, sorted by identifier, are the rows `pet` of the given `from` clause.
macro_rules! pages {
    ($matches:literal) => {
        concat!(
            "select ",
            sized_pet_columns!("max_size"),
            ", page
    from unnest($2::int[], $3::int[], $4::bigint[], $5::bigint[], $6::int[]) with ordinality
         as search (first_name, last_name, after, size, max_size, page)
    cross join lateral (select pet.* from ",
            $matches,
            ") pet"
        )
    };
}

/// Query that merges one range of `pets_by_status` per status, or reads the primary key if no status is given. Its
/// conditions and its order include the status, so that no other index can be used.
#[doc(hidden)]
pub const FIND_BY_STATUS: &str = pages!(
    "(
            (select * from pets where last_name < first_name and id > after order by id limit size)
            union all
            (select of_status.*
             from unnest(($1::text[])[first_name:last_name]) as wanted
             cross join lateral (
                 select * from pets where (status, id) > (wanted, after) and status <= wanted
                 order by status, id
                 limit size
             ) of_status
             order by of_status.id
             limit size)
        ) pet"
);

/// Query that merges one range of the primary key of `pet_tags` per tag. `offset 0` keeps the lookup of each pet from being
/// planned as another kind of join, and `distinct on` is always planned as a sort: `group by` is hashed with some statistics.
#[doc(hidden)]
pub const FIND_BY_ANY_TAG: &str = pages!(
    "(
            select distinct on (pet_id) pet_id
            from unnest(($1::text[])[first_name:last_name]) as wanted
            cross join lateral (
                select pet_id from pet_tags where tag = wanted and pet_id > after
                order by pet_id
                limit size
            ) tagged
            order by pet_id
            limit size
        ) match
        cross join lateral (select * from pets where id = pet_id offset 0) pet"
);

/// Returns the page of each search. Drains `searches`, unless the statement fails.
async fn find_pages<B: BatchedStatement<Input = Search, Output = Found<StoredPet>>>(
    connection: &mut Connection,
    statement: &'static str,
    searches: &mut Vec<Search>,
) -> Result<Vec<BatchResult<B>>, Error> {
    // The names of all searches form one array, in which each has those from `first` to `last`, counted from 1.
    let mut names = Vec::new();
    let (mut first, mut last) = (Vec::new(), Vec::new());
    for search in &*searches {
        first.push(i32::try_from(names.len()).unwrap_or(i32::MAX) + 1);
        names.extend(search.names.iter().map(String::as_str));
        last.push(i32::try_from(names.len()).unwrap_or(i32::MAX));
    }
    let parts = || searches.iter().map(|search| search.part);
    let mut pages: Vec<_> = parts().map(|part| Vec::with_capacity(part.limit)).collect();
    let mut rows = sqlx::query(statement)
        .bind(names)
        .bind(first)
        .bind(last)
        .bind(parts().map(|part| part.after()).collect::<Vec<_>>())
        .bind(parts().map(|part| part.limit()).collect::<Vec<_>>())
        .bind(parts().map(|part| part.max_size()).collect::<Vec<_>>())
        .fetch(connection);
    let read = async {
        while let Some(row) = rows.try_next().await? {
            let page: i64 = row.try_get("page")?;
            let page = usize::try_from(page - 1).unwrap_or(usize::MAX);
            if let Some(page) = pages.get_mut(page) {
                page.push((row.try_get::<PetId, _>("id")?, sized_pet(&row)?));
            }
            // A part of large pets takes milliseconds: other requests get their turn.
            consume_budget().await;
        }
        Ok(())
    };
    with_timeout(read).await?;
    drop(rows);
    let found = iter::zip(searches.drain(..), pages).map(|(search, mut page)| {
        // A join promises no order. These are sorted already, which costs one comparison per pet.
        page.sort_by_key(|(id, _)| *id);
        BatchResult::Done(Found::new(&search.part, page, None))
    });
    Ok(found.collect())
}

/// Returns pets of `part` with all of the tags `names`, which are distinct. The search ends early when it has cost much.
pub async fn find_by_all_tags(
    database: &Database,
    names: &[String],
    part: Part,
) -> Result<Found<StoredPet>, Error> {
    let read =
        async |connection: &mut Connection| read_with_all_tags(connection, names, part).await;
    database.read_large(Cost::Cpu, part.caller, read).await
}

async fn read_with_all_tags(
    connection: &mut Connection,
    names: &[String],
    part: Part,
) -> Result<Found<StoredPet>, Error> {
    let steps =
        MAX_STEPS.min(MAX_COMPARISONS / i32::try_from(names.len()).unwrap_or(i32::MAX).max(1));
    let mut rows = sqlx::query(FIND_BY_ALL_TAGS)
        .bind(names)
        .bind(part.after())
        .bind(part.limit())
        .bind(steps)
        .bind(part.max_size())
        .fetch(connection);
    let read = async {
        let (mut found, mut ended_after) = (Vec::new(), None);
        while let Some(row) = rows.try_next().await? {
            if row.try_get("is_match")? {
                found.push((row.try_get("id")?, sized_pet(&row)?));
            }
            ended_after = row.try_get("continue_after")?;
        }
        Ok(Found::new(&part, found, ended_after))
    };
    with_timeout(read).await
}

/// Leapfrog join: each step looks up, for the next tag in turn, the first pet behind the candidate, which becomes the
/// candidate. It is a match if it has all tags, which its own row tells: to look for it in the index of each tag took 25 times
/// as long for 25 tags. The steps end with the pets of a tag, with the page, or with the budget ($4).
#[doc(hidden)]
pub const FIND_BY_ALL_TAGS: &str = concat!(
    "with recursive step (number, candidate, has_all, matches) as (
        select 0, $2::bigint, false, 0::bigint
        union all
        select number + 1, pet_id, has_all_now, matches + has_all_now::int
        from step
        cross join lateral (
            select pet_id from pet_tags
            where tag = ($1::text[])[number % cardinality($1::text[]) + 1] and pet_id > candidate
            order by pet_id
            limit 1
        ) found
        cross join lateral (
            select coalesce((select tag_names @> $1::text[] from pets where id = pet_id), false)
                as has_all_now
            offset 0
        ) compared
        where number < $4 and matches < $3
    )
    select ",
    sized_pet_columns!("$5"),
    ",
           id is not null as is_match,
           case when number = $4 then candidate end as continue_after
    from step
    left join lateral (select * from pets where id = candidate offset 0) pet on has_all
    where number = $4 or has_all
    order by number"
);
