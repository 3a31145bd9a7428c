//! Adds pets: one in a transaction, or those of several requests in one statement.
//!
//! Invariants:
//! - Rows are inserted in the order of their identifiers, so that two batches cannot deadlock.
//! - Versions of a pet ascend, also if it is deleted and created again.

use std::{collections::HashMap, iter, slice};

use sqlx::types::Json;

use super::change::{MAX_BATCHED_ELEMENTS, number_of_elements};
use crate::{
    db::{
        batch::{BatchResult, BatchedStatement},
        codec::PetRows,
        connect::Connection,
        database::Database,
        deadline::with_timeout,
        error::Error,
        record::{pet_values, recorded},
        sequences::skip_chosen_ids,
    },
    domain::{
        change::Initiator,
        id::PetId,
        pet::{NewPet, StoredPet, Version},
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
pub async fn add(database: &Database, addition: Addition) -> Result<Option<StoredPet>, Error> {
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
) -> Result<Option<StoredPet>, Error> {
    loop {
        let mut stored = insert_all(transaction, slice::from_ref(&addition)).await?;
        match stored.pop().flatten() {
            Some(stored) => return Ok(Some(stored)),
            None if addition.pet.id.is_some() => return Ok(None),
            // Each iteration moves the sequence on, so there is progress.
            None => {
                skip_chosen_ids(transaction, "pets", "pet_ids").await?;
            }
        }
    }
}

/// Statement that adds the pets of several requests.
struct Inserts;

impl BatchedStatement for Inserts {
    type Input = Addition;
    type Output = Option<StoredPet>;

    const SUMMARY: &'static str = "INSERT pets";

    fn size(addition: &Addition) -> usize {
        addition.pet.details.text_size()
    }

    fn needs_transaction(additions: &[Addition]) -> bool {
        additions.iter().any(|addition| addition.pet.id.is_some())
    }

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
            Some(stored) => BatchResult::Done(Some(stored)),
            None if addition.pet.id.is_some() => BatchResult::Done(None),
            // The sequence reached an identifier that a client chose.
            None => BatchResult::ExecuteSeparately(addition),
        });
        Ok(results.collect())
    }
}

/// Inserts pets. Returns each, or `None` if its identifier is taken; if several have one identifier, the first gets it.
async fn insert_all(
    connection: &mut Connection,
    additions: &[Addition],
) -> Result<Vec<Option<StoredPet>>, Error> {
    let mut rows = PetRows::default();
    let (mut actors, mut request_ids, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for Addition { pet, initiator } in additions {
        rows.push(pet.id, &pet.details);
        actors.push(initiator.actor());
        request_ids.push(initiator.request_id.as_deref());
        values.push(pet_values(None, &pet.details).map(Json));
    }
    // Position and identifier of each row are returned with the result, to assign it to its request.
    let query = sqlx::query_as(concat!(
        "with given as materialized (
             select ordinality, id is not null as is_chosen, coalesce(id, nextval('pet_ids')) as id, status, details, folded_name
             from unnest($1::bigint[], $2::text[], $3::text[], $4::text[])
                 with ordinality as pet (id, status, details, folded_name, ordinality)
         ), stored as (
             insert into pets (id, status, details, folded_name)
             select id, status, details::json, folded_name from given order by id, ordinality
             on conflict (id) do nothing
             returning id, version
         ), ",
        recorded!(
            "select 'pet', id::text, 'created', version, null::bigint,
                    ($5::text[])[ordinality], ($6::text[])[ordinality], ($7::jsonb[])[ordinality]
             from (select distinct on (id) id, ordinality, is_chosen, stored.version
                   from stored join given using (id) order by id, ordinality) first
             where not is_chosen order by first.id"
        ),
        "
         select ordinality, id, stored.version from given left join stored using (id)
         order by id, ordinality",
    ));
    let query = query
        .bind(rows.ids)
        .bind(rows.statuses)
        .bind(&rows.details)
        .bind(rows.folded_names)
        .bind(actors)
        .bind(request_ids)
        .bind(values);
    let query = query.fetch_all(&mut *connection);
    let inserted: Vec<(i64, PetId, Option<Version>)> = with_timeout(query).await?;
    let mut stored = vec![None; additions.len()];
    let mut last_id = None;
    for (ordinality, id, version) in inserted {
        let is_first = last_id.replace(id) != Some(id);
        let index = usize::try_from(ordinality - 1).unwrap_or(usize::MAX);
        if let Some(slot) = stored.get_mut(index) {
            *slot = version.filter(|_| is_first).map(|version| (id, version));
        }
    }
    let chosen = iter::zip(additions, &mut stored)
        .filter(|(addition, _)| addition.pet.id.is_some())
        .filter_map(|(addition, stored)| Some((addition, stored.as_mut()?)));
    renew_versions(connection, chosen.collect()).await?;
    let stored = iter::zip(stored, iter::zip(additions, rows.details));
    let stored = stored.map(|(stored, (addition, details))| {
        let (id, version) = stored?;
        let status = addition.pet.details.status;
        Some(StoredPet::new(id, version, status, details.as_bytes()))
    });
    Ok(stored.collect())
}

/// Gives pets that were just inserted with chosen identifiers another version, and records them: the first one may have been drawn
/// before a wait for the deletion of a pet with the same identifier, which had got a higher one.
async fn renew_versions(
    connection: &mut Connection,
    chosen: Vec<(&Addition, &mut (PetId, Version))>,
) -> Result<(), Error> {
    if chosen.is_empty() {
        return Ok(());
    }
    let (mut ids, mut actors, mut request_ids, mut values) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (Addition { pet, initiator }, (id, _)) in &chosen {
        ids.push(id.get());
        actors.push(initiator.actor());
        request_ids.push(initiator.request_id.as_deref());
        values.push(pet_values(None, &pet.details).map(Json));
    }
    let query = sqlx::query_as(concat!(
        "with changed as (
             update pets set version = nextval('pet_versions')
             from unnest($1::bigint[], $2::text[], $3::text[], $4::jsonb[]) as given (id, actor, request_id, data)
             where pets.id = given.id
             returning pets.id, version, actor, request_id, data
         ), ",
        recorded!(
            "select 'pet', id::text, 'created', version, null::bigint, actor, request_id, data from changed order by id"
        ),
        " select id, version from changed"
    ));
    let query = query.bind(ids).bind(actors).bind(request_ids).bind(values);
    let versions: Vec<(PetId, Version)> = with_timeout(query.fetch_all(connection)).await?;
    let versions: HashMap<PetId, Version> = versions.into_iter().collect();
    for (_, (id, version)) in chosen {
        if let Some(renewed) = versions.get(id) {
            *version = *renewed;
        }
    }
    Ok(())
}
