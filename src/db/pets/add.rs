//! Adds pets: one in a transaction, or those of several requests in one statement.
//!
//! Invariant: rows are inserted in the order of their identifiers, so that two batches cannot deadlock.

use std::{iter, slice};

use sqlx::types::Json;

use super::change::{MAX_BATCHED_ELEMENTS, number_of_elements};
use crate::{
    db::{
        batch::{BatchResult, BatchedStatement},
        codec::{PetRow, client_columns},
        connect::Connection,
        database::Database,
        deadline::with_timeout,
        error::Error,
        record::recorded,
        sequences::skip_chosen_ids,
    },
    domain::{
        change::Initiator,
        id::PetId,
        pet::{NewPet, Pet, Version},
    },
};

/// Requested addition of a pet.
#[derive(Debug, Clone)]
pub struct Addition {
    /// Pet to add.
    pub pet: NewPet,
    /// Who adds it.
    pub initiator: Initiator,
}

/// Adds a pet, in one statement and one commit with the pets of other requests. Returns `None` if the identifier that the
/// client chose is taken. Without a chosen identifier, the sequence provides one and skips those that are taken.
pub async fn add(database: &Database, addition: Addition) -> Result<Option<Pet>, Error> {
    if number_of_elements(&addition.pet.details) > MAX_BATCHED_ELEMENTS {
        let insert_separately =
            async |transaction: &mut Connection| insert(transaction, addition).await;
        return Box::pin(database.transact(insert_separately)).await;
    }
    database.batchers().execute::<Inserts>(addition).await
}

/// Adds a pet like [`add`], in a transaction.
pub async fn insert(
    transaction: &mut Connection,
    addition: Addition,
) -> Result<Option<Pet>, Error> {
    loop {
        let mut stored = insert_all(transaction, slice::from_ref(&addition)).await?;
        match stored.pop().flatten() {
            Some(stored) => return Ok(Some(pet_of(addition.pet, stored))),
            None if addition.pet.id.is_some() => return Ok(None),
            // Each iteration moves the sequence on, so there is progress.
            None => {
                skip_chosen_ids(transaction, "pets", "pet_ids").await?;
            }
        }
    }
}

fn pet_of(pet: NewPet, (id, version): (PetId, Version)) -> Pet {
    Pet {
        id,
        version,
        details: pet.details,
    }
}

/// Statement that adds the pets of several requests.
struct Inserts;

impl BatchedStatement for Inserts {
    type Input = Addition;
    type Output = Option<Pet>;

    const SUMMARY: &'static str = "INSERT pets";

    async fn execute_all(
        connection: &mut Connection,
        inputs: &mut Vec<Addition>,
    ) -> Result<Vec<BatchResult<Self>>, Error> {
        if let [only] = &inputs[..] {
            let inserted = insert(connection, only.clone()).await?;
            inputs.clear();
            return Ok(vec![BatchResult::Done(inserted)]);
        }
        let stored = insert_all(connection, inputs).await?;
        let results = iter::zip(inputs.drain(..), stored).map(|(addition, stored)| match stored {
            Some(stored) => BatchResult::Done(Some(pet_of(addition.pet, stored))),
            None if addition.pet.id.is_some() => BatchResult::Done(None),
            // The sequence reached an identifier that a client chose.
            None => BatchResult::ExecuteSeparately(addition),
        });
        Ok(results.collect())
    }
}

/// Inserts pets. Returns the identifier and version of each, or `None` if its identifier is taken; if several have one
/// identifier, the first gets it.
async fn insert_all(
    connection: &mut Connection,
    additions: &[Addition],
) -> Result<Vec<Option<(PetId, Version)>>, Error> {
    let (mut rows, mut actors, mut request_ids) = (Vec::new(), Vec::new(), Vec::new());
    for Addition { pet, initiator } in additions {
        rows.push(PetRow::new(pet.id, &pet.details));
        actors.push(initiator.actor());
        request_ids.push(initiator.request_id.as_deref());
    }
    // Position and identifier of each row are returned with the result, to assign it to its request.
    let query = sqlx::query_as(concat!(
        "with given as materialized (
             select ordinality, coalesce(id, nextval('pet_ids')) as id, ",
        client_columns!(""),
        "
             from jsonb_populate_recordset(null::pets, $1) with ordinality
         ), stored as (
             insert into pets (id, ",
        client_columns!(""),
        ")
             select id, ",
        client_columns!(""),
        " from given order by id, ordinality
             on conflict (id) do nothing
             returning id, version
         ), ",
        recorded!(
            "select distinct on (id) 'pet', id::text, 'created', stored.version, null::bigint,
                    ($2::text[])[ordinality], ($3::text[])[ordinality],
                    jsonb_build_object('status', jsonb_build_array(null, status))
             from stored join given using (id) order by id, ordinality"
        ),
        "
         select ordinality, id, stored.version from given left join stored using (id)
         order by id, ordinality",
    ));
    let query = query.bind(Json(rows)).bind(actors).bind(request_ids);
    let query = query.fetch_all(connection);
    let rows: Vec<(i64, PetId, Option<Version>)> = with_timeout(query).await?;
    let mut stored = vec![None; additions.len()];
    let mut last_id = None;
    for (ordinality, id, version) in rows {
        let is_first = last_id.replace(id) != Some(id);
        let index = usize::try_from(ordinality - 1).unwrap_or(usize::MAX);
        if let Some(slot) = stored.get_mut(index) {
            *slot = version.filter(|_| is_first).map(|version| (id, version));
        }
    }
    Ok(stored)
}
