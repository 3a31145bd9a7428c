//! Queries on pets: one row each, or those of several requests.

mod change;
mod find_by;
mod row;

use std::sync::Arc;

use futures_util::TryStreamExt as _;
use sqlx::{FromRow as _, Row as _};

pub use self::{
    change::{ChangeOutcome, ChangeRequest, change, change_in},
    find_by::{
        FIND_BY_ALL_TAGS, FIND_BY_ANY_TAG, FIND_BY_STATUS, PetPage, Range, find_by_all_tags,
        find_by_any_tag, find_by_status,
    },
    row::{exists, find_for_update, replace},
};
use self::{
    change::{MAX_BATCHED_ELEMENTS, number_of_elements},
    find_by::MAX_SHARED_BYTES,
};
use super::{
    batch::{BatchResult, BatchedStatement},
    codec::{PetArrays, PetColumns, row_size},
    connect::Connection,
    database::Database,
    deadline::with_timeout,
    error::Error,
};
use crate::domain::{
    id::PetId,
    pet::{NewPet, Pet, PetDetails, Version},
};

/// Inserts a pet. Returns `None` if the identifier that the client chose is taken. Without a chosen identifier, the
/// sequence provides one and skips those that are taken.
pub async fn insert(connection: &mut Connection, pet: NewPet) -> Result<Option<Pet>, Error> {
    loop {
        let columns = PetColumns::from(&pet.details);
        let query = sqlx::query_as(
            "insert into pets (id, status, name, category, photo_urls, tags)
             values (coalesce($1, nextval('pet_ids')), $2, $3, $4, $5, $6)
             on conflict (id) do nothing
             returning id, version",
        )
        .bind(pet.id.map(PetId::get))
        .bind(columns.status)
        .bind(columns.name)
        .bind(columns.category)
        .bind(columns.photo_urls)
        .bind(columns.tags);
        match with_timeout(query.fetch_optional(&mut *connection)).await? {
            Some((id, version)) => return Ok(Some(stored(id, version, pet.details))),
            None if pet.id.is_some() => return Ok(None),
            // Every further iteration means that another insert took the identifier meanwhile, so there is progress.
            None => skip_chosen_ids(connection).await?,
        }
    }
}

const fn stored(id: PetId, version: Version, details: PetDetails) -> Pet {
    Pet {
        id,
        version,
        details,
    }
}

/// Inserts a pet like [`insert`], in one statement and one commit with the pets of other requests.
pub async fn add(database: &Database, pet: NewPet) -> Result<Option<Pet>, Error> {
    if number_of_elements(&pet.details) > MAX_BATCHED_ELEMENTS {
        let insert_separately = async |transaction: &mut Connection| insert(transaction, pet).await;
        return Box::pin(database.transact(insert_separately)).await;
    }
    database.batchers().execute::<Inserts>(pet).await
}

/// Statement that inserts the pets of several requests.
pub(super) struct Inserts;

impl BatchedStatement for Inserts {
    type Input = NewPet;
    type Output = Option<Pet>;

    const SUMMARY: &'static str = "INSERT pets";

    async fn execute_all(
        connection: &mut Connection,
        inputs: &mut Vec<NewPet>,
    ) -> Result<Vec<BatchResult<Self>>, Error> {
        if let [only] = &inputs[..] {
            let inserted = insert(connection, only.clone()).await?;
            inputs.clear();
            return Ok(vec![BatchResult::Done(inserted)]);
        }
        let pets = inputs.iter().map(|pet| (pet.id, &pet.details));
        let columns = pets.collect::<PetArrays<'_>>();
        // Position and identifier of each row are returned with the result, to assign it to its request. Rows are
        // inserted in the order of identifiers, so that two such statements cannot deadlock.
        let rows: Vec<(i64, PetId, Option<Version>)> = sqlx::query_as(
            "with given as materialized (
                 select ordinal, coalesce(id, nextval('pet_ids')) as id, status, name, category,
                        ($8::text[])[first_url:last_url] as photo_urls, tags
                 from unnest($1::bigint[], $2::text[], $3::text[], $4::jsonb[], $5::int[], $6::int[],
                             $7::jsonb[])
                      with ordinality
                      as given (id, status, name, category, first_url, last_url, tags, ordinal)
             ), stored as (
                 insert into pets (id, status, name, category, photo_urls, tags)
                 select id, status, name, category, photo_urls, tags from given order by id, ordinal
                 on conflict (id) do nothing
                 returning id, version
             )
             select ordinal, id, version from given left join stored using (id) order by id, ordinal",
        )
        .bind(columns.ids)
        .bind(columns.statuses)
        .bind(columns.names)
        .bind(columns.categories)
        .bind(columns.first_urls)
        .bind(columns.last_urls)
        .bind(columns.tags)
        .bind(columns.urls)
        .fetch_all(&mut *connection)
        .await?;

        let mut inserted = vec![None; inputs.len()];
        let mut last_id = None;
        for (ordinal, id, version) in rows {
            // If several have one identifier, the first was stored.
            let version = version.filter(|_| last_id.replace(id) != Some(id));
            let index = usize::try_from(ordinal - 1).unwrap_or(usize::MAX);
            if let Some(slot) = inserted.get_mut(index) {
                *slot = version.map(|version| (id, version));
            }
        }
        let result = |(pet, inserted): (NewPet, _)| match inserted {
            Some((id, version)) => BatchResult::Done(Some(stored(id, version, pet.details))),
            None if pet.id.is_some() => BatchResult::Done(None),
            // The sequence reached an identifier that a client chose.
            None => BatchResult::ExecuteSeparately(pet),
        };
        Ok(inputs.drain(..).zip(inserted).map(result).collect())
    }
}

/// Moves the sequence past its last value, to the first identifier that no pet has. This is one scan of the primary
/// key, however many identifiers are taken in a row.
async fn skip_chosen_ids(connection: &mut Connection) -> Result<(), Error> {
    let query = sqlx::query(
        "select setval('pet_ids', free.id, false)
         from (
             select taken.id + 1 as id
             from pets taken
             where taken.id >= (select last_value from pet_ids)
               and not exists (select from pets next where next.id = taken.id + 1)
             order by taken.id
             limit 1
         ) free",
    );
    with_timeout(query.execute(connection)).await.map(drop)
}

/// Returns the pet, if it exists, in a batch with the reads of other requests.
pub async fn find(database: &Database, id: PetId) -> Result<Option<Arc<Pet>>, Error> {
    database.batchers().execute::<Reads>(id).await
}

/// Statement that reads the pets of several requests.
pub(super) struct Reads;

impl BatchedStatement for Reads {
    type Input = PetId;
    type Output = Option<Arc<Pet>>;

    const SUMMARY: &'static str = "SELECT pets";
    const IS_READ_ONLY: bool = true;

    async fn execute_all(
        connection: &mut Connection,
        inputs: &mut Vec<PetId>,
    ) -> Result<Vec<BatchResult<Self>>, Error> {
        if let [only] = inputs[..] {
            let query = sqlx::query_as(
                "select id, version, status, name, category, photo_urls, tags from pets where id = $1",
            );
            let found: Option<Pet> = query.bind(only.get()).fetch_optional(connection).await?;
            inputs.clear();
            return Ok(vec![BatchResult::Done(found.map(Arc::new))]);
        }
        let mut ids: Vec<i64> = inputs.iter().map(|id| id.get()).collect();
        ids.sort_unstable();
        ids.dedup();
        let mut found = Vec::with_capacity(ids.len());
        let mut large = Vec::new();
        // Larger pets are read separately.
        let max_bytes = MAX_SHARED_BYTES / ids.len();
        let mut rows = sqlx::query(
            "select id, version, status, name, category,
                    case when bytes <= $2 then photo_urls end as photo_urls,
                    case when bytes <= $2 then tags end as tags
             from pets
             cross join lateral (values (pg_column_size(photo_urls) + pg_column_size(tags))) as size (bytes)
             where id = any ($1)",
        )
        .bind(ids)
        .bind(i64::try_from(max_bytes).unwrap_or(i64::MAX))
        .fetch(connection);
        while let Some(row) = rows.try_next().await? {
            if row_size(&row)?.is_none_or(|size| size > max_bytes) {
                large.push(row.try_get("id")?);
                continue;
            }
            let pet = Pet::from_row(&row)?;
            found.push((pet.id, Arc::new(pet)));
        }
        // For so few pets, a linear search is faster than hashing.
        let find = |id| match found.iter().find(|(found, _)| *found == id) {
            None if large.contains(&id) => BatchResult::ExecuteSeparately(id),
            found => BatchResult::Done(found.map(|(_, pet)| Arc::clone(pet))),
        };
        Ok(inputs.drain(..).map(find).collect())
    }
}
