//! Finds pets by status or by tags, page by page, in the order of their identifiers.
//!
//! Invariants:
//! - The form of each query fixes the indexes that it uses, so that its speed depends neither on statistics nor on the
//!   number of matches: ranges of one index each, no longer than the page, and one lookup by key per pet.
//! - Small pages share a statement; larger ones would delay the others, and have a statement of their own, of which a few
//!   are executed at a time.
//! - A page ends early when its pets are large, so that memory is bounded for pets of any size. PostgreSQL leaves out the
//!   large columns of the pets behind its end, whose size it knows without reading them.
//!
//! Triggers on `pets` keep `pet_tags` (migration 0203). Queries are public for the test that reads their plans.

use std::sync::Arc;

use futures_util::TryStreamExt as _;
use sqlx::{FromRow as _, Row as _, postgres::PgRow};

use crate::{
    db::{
        batch::{BatchResult, BatchedStatement},
        codec::{pet_columns, size_of_large_columns},
        connect::Connection,
        database::Database,
        deadline::with_timeout,
        error::Error,
        large_reads::Cost,
    },
    domain::{
        id::PetId,
        pet::{Pet, Status},
    },
};

/// Maximum number of pets of a page that shares a statement, so that a batch of 128 pages is read within milliseconds.
pub(super) const MAX_SHARED_LIMIT: usize = 32;
/// Maximum number of tag names of a page that shares a statement.
const MAX_SHARED_NAMES: usize = 8;
/// Maximum size in bytes of the pages of a shared statement. Each has an equal part and ends behind it, or is read
/// separately if its first pet is larger.
pub(super) const MAX_SHARED_BYTES: usize = 16 << 20;
/// Maximum number of index entries that a page of pets with all of several tags reads, which takes some 15 ms.
const MAX_STEPS: i32 = 2_000;
/// Maximum number of tags that it looks for in the pets: to look for 100 among 100 takes up to 0.1 ms.
const MAX_COMPARISONS: i32 = 50_000;

/// First matches after `after`, by identifier or by name.
#[derive(Debug, Clone, Copy)]
pub struct Range<Id = PetId> {
    /// Identifier that the matches follow; `None` for the first page.
    pub after: Option<Id>,
    /// Maximum number of matches.
    pub limit: usize,
    /// Maximum size of the matches in bytes, of which one may exceed it.
    pub max_bytes: usize,
}

/// Matches of a range, by identifier.
#[derive(Debug, Default)]
pub struct PetPage {
    /// The matches.
    pub pets: Vec<Pet>,
    /// Set if the page ended early, because it was large or has cost much: the identifier after which it continues.
    pub continue_after: Option<PetId>,
}

impl<Id> Range<Id> {
    pub(super) fn limit(&self) -> i64 {
        i64::try_from(self.limit).unwrap_or(i64::MAX)
    }

    pub(super) fn max_bytes(&self) -> i64 {
        i64::try_from(self.max_bytes).unwrap_or(i64::MAX)
    }
}

impl Range {
    fn after(&self) -> i64 {
        self.after.map_or(0, PetId::get)
    }

    fn within(self, max_bytes: usize) -> Self {
        Self {
            max_bytes: self.max_bytes.min(max_bytes),
            ..self
        }
    }
}

/// Returns the pets of `range` with one of `statuses`.
pub async fn find_by_status(
    database: &Database,
    statuses: &[Status],
    range: Range,
) -> Result<PetPage, Error> {
    let is_every_status = Status::ALL.iter().all(|status| statuses.contains(status));
    let names = statuses.iter().filter(|_| !is_every_status);
    let names = names.map(|status| status.as_str().to_owned()).collect();
    find_page::<PagesByStatus>(database, Search { names, range }).await
}

/// Returns the pets of `range` with any of the tags `names`.
pub async fn find_by_any_tag(
    database: &Database,
    names: Arc<[String]>,
    range: Range,
) -> Result<PetPage, Error> {
    find_page::<PagesByTag>(database, Search { names, range }).await
}

async fn find_page<B: BatchedStatement<Input = Search, Output = PetPage>>(
    database: &Database,
    search: Search,
) -> Result<PetPage, Error> {
    if search.range.limit <= MAX_SHARED_LIMIT && search.names.len() <= MAX_SHARED_NAMES {
        return database.batchers().execute::<B>(search).await;
    }
    let found = database.read_large(Cost::Bytes, async |it| B::execute_one(it, search).await);
    found.await
}

/// Search for the pets of a range that have any of several names.
#[derive(Debug, Clone)]
pub(super) struct Search {
    /// Names of statuses or tags, without duplicates. No name of a status stands for all of them.
    names: Arc<[String]>,
    range: Range,
}

/// Statement that reads the pages by status of several requests.
pub(super) struct PagesByStatus;

impl BatchedStatement for PagesByStatus {
    type Input = Search;
    type Output = PetPage;

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
    type Output = PetPage;

    const SUMMARY: &'static str = "SELECT pets by tag";
    const IS_READ_ONLY: bool = true;

    async fn execute_all(
        connection: &mut Connection,
        inputs: &mut Vec<Search>,
    ) -> Result<Vec<BatchResult<Self>>, Error> {
        find_pages(connection, FIND_BY_ANY_TAG, inputs).await
    }
}

/// Query for the pages of searches whose matches, sorted by identifier, are the rows `pet` of the given `from` clause. If
/// $7 is true, the first pet of a page has its large columns, of any size. The window has no order of its own, which would
/// cost a sort.
macro_rules! pages {
    ($matches:literal) => {
        concat!(
            "select ",
            pet_columns!("bytes <= max_bytes or (number = 1 and $7)"),
            ", page
    from unnest($2::int[], $3::int[], $4::bigint[], $5::bigint[], $6::bigint[]) with ordinality
         as search (first_name, last_name, after, size, max_bytes, page)
    cross join lateral (
        select pet.*, sum(pg_column_size(photo_urls) + pg_column_size(tags)) over until_here as bytes,
               row_number() over until_here as number
        from ",
            $matches,
            "
        window until_here as (rows unbounded preceding)
    ) pet"
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
/// planned as another kind of join.
#[doc(hidden)]
pub const FIND_BY_ANY_TAG: &str = pages!(
    "(
            select pet_id
            from unnest(($1::text[])[first_name:last_name]) as wanted
            cross join lateral (
                select pet_id from pet_tags where tag = wanted and pet_id > after
                order by pet_id
                limit size
            ) tagged
            group by pet_id
            order by pet_id
            limit size
        ) match
        cross join lateral (select * from pets where id = pet_id offset 0) pet"
);

/// Returns the page of each search. Drains `searches`, unless the statement fails.
async fn find_pages<B: BatchedStatement<Input = Search, Output = PetPage>>(
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
    let is_shared = searches.len() > 1;
    let max_bytes = if is_shared {
        MAX_SHARED_BYTES / searches.len()
    } else {
        usize::MAX
    };
    let ranges = || searches.iter().map(|search| search.range.within(max_bytes));
    let mut pages: Vec<_> = ranges().map(Matches::of).collect();
    let mut rows = sqlx::query(statement)
        .bind(names)
        .bind(first)
        .bind(last)
        .bind(ranges().map(|range| range.after()).collect::<Vec<_>>())
        .bind(ranges().map(|range| range.limit()).collect::<Vec<_>>())
        .bind(ranges().map(|range| range.max_bytes()).collect::<Vec<_>>())
        .bind(!is_shared)
        .fetch(connection);
    let read = async {
        while let Some(row) = rows.try_next().await? {
            let page: i64 = row.try_get("page")?;
            let page = usize::try_from(page - 1).unwrap_or(usize::MAX);
            if let Some(page) = pages.get_mut(page) {
                page.add(&row)?;
            }
        }
        Ok(())
    };
    with_timeout(read).await?;
    drop(rows);
    let results = searches.drain(..).zip(pages).map(|(search, matches)| {
        let is_large = matches.pets.is_empty() && matches.end.is_some();
        if is_large {
            BatchResult::ExecuteSeparately(search)
        } else {
            BatchResult::Done(matches.into_page())
        }
    });
    Ok(results.collect())
}

/// Matches of a search, as they are read.
struct Matches {
    pets: Vec<Pet>,
    bytes: usize,
    max_bytes: usize,
    /// Identifier of the first match that is too much.
    end: Option<PetId>,
}

impl Matches {
    fn of(range: Range) -> Self {
        Self {
            pets: Vec::with_capacity(range.limit),
            bytes: 0,
            max_bytes: range.max_bytes,
            end: None,
        }
    }

    /// Adds a match, or drops it if it is too much.
    fn add(&mut self, row: &PgRow) -> Result<(), sqlx::Error> {
        let bytes = size_of_large_columns(row)?;
        self.bytes += bytes.unwrap_or_default();
        if bytes.is_none() || (self.bytes > self.max_bytes && !self.pets.is_empty()) {
            let id = row.try_get("id")?;
            self.end = Some(self.end.map_or(id, |end| end.min(id)));
        } else {
            self.pets.push(Pet::from_row(row)?);
        }
        Ok(())
    }

    fn into_page(mut self) -> PetPage {
        // A join promises no order. These are sorted already, which costs one comparison per pet.
        self.pets.sort_by_key(|pet| pet.id);
        if let Some(end) = self.end {
            self.pets.retain(|pet| pet.id < end);
        }
        let last = self.pets.last().filter(|_| self.end.is_some());
        PetPage {
            continue_after: last.map(|pet| pet.id),
            pets: self.pets,
        }
    }
}

/// Returns pets of `range` with all of the tags `names`, which are distinct.
pub async fn find_by_all_tags(
    connection: &mut Connection,
    names: &[String],
    range: Range,
) -> Result<PetPage, Error> {
    let steps =
        MAX_STEPS.min(MAX_COMPARISONS / i32::try_from(names.len()).unwrap_or(i32::MAX).max(1));
    let mut rows = sqlx::query(FIND_BY_ALL_TAGS)
        .bind(names)
        .bind(range.after())
        .bind(range.limit())
        .bind(steps)
        .bind(range.max_bytes())
        .fetch(connection);
    let read = async {
        let mut matches = Matches::of(range);
        let mut continue_after = None;
        while let Some(row) = rows.try_next().await? {
            if row.try_get("is_match")? {
                matches.add(&row)?;
            }
            continue_after = row.try_get("continue_after")?;
        }
        let page = matches.into_page();
        Ok(PetPage {
            continue_after: page.continue_after.or(continue_after),
            ..page
        })
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
    pet_columns!("bytes <= $5 or bytes = size"),
    ",
           id is not null as is_match,
           case when number = $4 then candidate end as continue_after
    from (
        select *, sum(size) over (order by number rows unbounded preceding) as bytes
        from step
        left join lateral (
            select *, pg_column_size(photo_urls) + pg_column_size(tags) as size
            from pets where id = candidate offset 0
        ) pet on has_all
        where number = $4 or has_all
    ) match
    order by number"
);
