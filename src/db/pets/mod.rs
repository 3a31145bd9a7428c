//! Queries on pets: one row each, or those of several requests.

mod add;
mod change;
mod find_by;
mod find_by_name;
mod list;
mod list_newest;
mod tag_names;

use std::sync::Arc;

use futures_util::TryStreamExt as _;

pub use self::{
    add::{Addition, add, insert},
    change::{
        ChangeOutcome, ChangeRequest, change, change_in, find_for_update, replace_photo_urls,
    },
    find_by::{
        FIND_BY_ALL_TAGS, FIND_BY_ANY_TAG, FIND_BY_STATUS, find_by_all_tags, find_by_any_tag,
        find_by_status,
    },
    find_by_name::{
        FIND_BY_NAME, FIND_BY_NAME_AND_TAG, FoundByName, NamePosition, NameSearch, find_by_name,
        fold_names,
    },
    list::{LIST_BY_ID, LIST_BY_TAG, LIST_BY_TAG_DESCENDING, LIST_DESCENDING, PetListing, list},
    list_newest::{
        CreationPosition, FoundByCreation, LIST_NEWEST, LIST_NEWEST_BY_TAG, NewestPets, list_newest,
    },
    tag_names::{SUGGEST_TAGS, add_used_tag_names, remove_unused_tag_names, suggest_tags},
};
use super::{
    batch::{BatchResult, BatchedStatement},
    codec::pet_columns,
    connect::Connection,
    database::Database,
    deadline::with_timeout,
    error::Error,
};
use crate::domain::{id::PetId, pet::StoredPet};

/// Returns true if the pet exists.
pub async fn exists(connection: &mut Connection, id: PetId) -> Result<bool, Error> {
    let query = sqlx::query_scalar("select exists (select from pets where id = $1)");
    with_timeout(query.bind(id.get()).fetch_one(connection)).await
}

/// Returns the pet, if it exists, in a batch with the reads of other requests.
pub async fn find(database: &Database, id: PetId) -> Result<Option<Arc<StoredPet>>, Error> {
    database.batchers().execute::<Reads>(id).await
}

/// Statement that reads the pets of several requests.
pub(super) struct Reads;

impl BatchedStatement for Reads {
    type Input = PetId;
    type Output = Option<Arc<StoredPet>>;

    const SUMMARY: &'static str = "SELECT pets";
    const IS_READ_ONLY: bool = true;

    async fn execute_all(
        connection: &mut Connection,
        inputs: &mut Vec<PetId>,
    ) -> Result<Vec<BatchResult<Self>>, Error> {
        if let [only] = inputs[..] {
            let query = concat!("select ", pet_columns!(), " from pets where id = $1");
            let query = sqlx::query_as(query);
            let found: Option<StoredPet> =
                query.bind(only.get()).fetch_optional(connection).await?;
            inputs.clear();
            return Ok(vec![BatchResult::Done(found.map(Arc::new))]);
        }
        let mut ids: Vec<i64> = inputs.iter().map(|id| id.get()).collect();
        ids.sort_unstable();
        ids.dedup();
        let mut found: Vec<Arc<StoredPet>> = Vec::with_capacity(ids.len());
        let query = concat!("select ", pet_columns!(), " from pets where id = any ($1)");
        let mut pets = sqlx::query_as(query).bind(ids).fetch(connection);
        while let Some(pet) = pets.try_next().await? {
            found.push(Arc::new(pet));
        }
        // For so few pets, a linear search is faster than hashing.
        let results = inputs.drain(..).map(|id| {
            let pet = found.iter().find(|pet| pet.id == id);
            BatchResult::Done(pet.map(Arc::clone))
        });
        Ok(results.collect())
    }
}
