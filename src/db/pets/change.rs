//! Changes of stored pets: of one in a transaction, or of several requests in one.
//!
//! Invariants:
//! - Rows are locked in the order of their identifiers, so that two batches cannot deadlock.
//! - A pet is made available only if it is locked and no order holds it, or if it is available already: then no order
//!   holds it.
//! - The changes of a batch are applied in order of arrival, so that each sees the result of the one before.

use std::collections::HashMap;

use super::row::{delete, find_for_update, held, replace, replace_if};
use crate::{
    db::{
        batch::{BatchResult, BatchedStatement},
        codec::PetArrays,
        connect::Connection,
        database::Database,
        error::Error,
    },
    domain::{
        id::PetId,
        pet::{Change, Held, Pet, PetDetails, Status, Version},
    },
};

/// Requested change of a pet.
#[derive(Debug, Clone)]
pub struct ChangeRequest {
    /// Pet to change.
    pub id: PetId,
    /// Versions that the change may be made to; `None` for any version.
    pub expected: Option<Vec<Version>>,
    /// Change.
    pub change: Change,
}

impl ChangeRequest {
    /// Returns true if the change may be made to `version`, which is `None` if no client knows it yet.
    fn admits(&self, version: Option<Version>) -> bool {
        let expected = self.expected.as_ref();
        expected.is_none_or(|versions| version.is_some_and(|it| versions.contains(&it)))
    }
}

/// Outcome of a change.
#[derive(Debug)]
pub enum ChangeOutcome {
    /// The pet was changed to this state.
    Changed(Pet),
    /// The pet was deleted.
    Deleted,
    /// There is no such pet.
    NotFound,
    /// The pet has none of the expected versions.
    VersionMismatch,
    /// The pet cannot be made available.
    Held(Held),
}

/// Maximum number of photo URLs and tags of a pet in a batch; a larger pet would delay the rest of the batch.
pub(super) const MAX_BATCHED_ELEMENTS: usize = 20;

/// Changes a pet, in one transaction and one commit with the changes of other requests.
pub async fn change(database: &Database, request: ChangeRequest) -> Result<ChangeOutcome, Error> {
    let elements = match &request.change {
        Change::Replace { details, .. } => number_of_elements(details),
        Change::Patch(patch) => {
            patch.photo_urls.as_ref().map_or(0, Vec::len) + patch.tags.as_ref().map_or(0, Vec::len)
        }
        Change::Delete => 0,
    };
    if elements > MAX_BATCHED_ELEMENTS {
        let change_separately =
            async |transaction: &mut Connection| change_in(transaction, &request).await;
        return Box::pin(database.transact(change_separately)).await;
    }
    database.batchers().execute::<Changes>(request).await
}

pub(super) const fn number_of_elements(pet: &PetDetails) -> usize {
    pet.photo_urls.len() + pet.tags.len()
}

/// Changes a pet in a transaction.
pub async fn change_in(
    transaction: &mut Connection,
    request: &ChangeRequest,
) -> Result<ChangeOutcome, Error> {
    let id = request.id;
    let Some(pet) = find_for_update(&mut *transaction, id).await? else {
        return Ok(ChangeOutcome::NotFound);
    };
    if !request.admits(Some(pet.version)) {
        return Ok(ChangeOutcome::VersionMismatch);
    }
    let change = &request.change;
    let held = change.may_make_available() && !held(transaction, &[id]).await?.is_empty();
    match change.apply(&pet.details, held) {
        Err(held) => Ok(ChangeOutcome::Held(held)),
        Ok(None) => {
            delete(transaction, id, None).await?;
            Ok(ChangeOutcome::Deleted)
        }
        Ok(Some(details)) => {
            let changed = replace(transaction, id, details).await?;
            Ok(changed.map_or(ChangeOutcome::NotFound, ChangeOutcome::Changed))
        }
    }
}

/// Replaces or deletes a pet in one statement; patches it in a transaction. Returns `None` if nothing was changed: there is
/// no such pet, it has another version, or an order may hold it.
async fn change_one(
    connection: &mut Connection,
    request: &ChangeRequest,
) -> Result<Option<ChangeOutcome>, Error> {
    let (id, expected) = (request.id, request.expected.as_deref());
    Ok(match &request.change {
        Change::Replace { details, .. } => {
            let in_any_status = !request.change.may_make_available();
            let details = details.clone();
            let pet = replace_if(connection, id, details, expected, in_any_status).await?;
            pet.map(ChangeOutcome::Changed)
        }
        Change::Delete => {
            let is_deleted = delete(connection, id, expected).await?;
            is_deleted.then_some(ChangeOutcome::Deleted)
        }
        Change::Patch(_) => Some(change_in(connection, request).await?),
    })
}

/// Statements that change the pets of several requests.
pub(in crate::db) struct Changes;

impl BatchedStatement for Changes {
    type Input = ChangeRequest;
    type Output = ChangeOutcome;

    const SUMMARY: &'static str = "UPDATE pets";

    fn needs_transaction(requests: &[ChangeRequest]) -> bool {
        match requests {
            [only] => matches!(only.change, Change::Patch(_)),
            _ => true,
        }
    }

    async fn execute_all(
        connection: &mut Connection,
        inputs: &mut Vec<ChangeRequest>,
    ) -> Result<Vec<BatchResult<Self>>, Error> {
        if let [only] = &inputs[..] {
            let outcome = change_one(connection, only).await?;
            let separately = || BatchResult::ExecuteSeparately(only.clone());
            let result = outcome.map_or_else(separately, BatchResult::Done);
            inputs.clear();
            return Ok(vec![result]);
        }
        let ids: Vec<i64> = inputs.iter().map(|request| request.id.get()).collect();
        let query = sqlx::query_as(
            "select id, version, status, name, category, photo_urls, tags from pets
             where id = any ($1) order by id for update",
        );
        let pets: Vec<Pet> = query.bind(ids).fetch_all(&mut *connection).await?;
        let (large, pets): (Vec<_>, Vec<_>) = pets
            .into_iter()
            .partition(|pet| number_of_elements(&pet.details) > MAX_BATCHED_ELEMENTS);
        let may_need_order = |pet: &&Pet| {
            let may_make_available =
                |it: &ChangeRequest| it.id == pet.id && it.change.may_make_available();
            pet.details.status != Status::Available && inputs.iter().any(may_make_available)
        };
        let may_be_ordered: Vec<PetId> = pets
            .iter()
            .filter(may_need_order)
            .map(|pet| pet.id)
            .collect();
        let held = match &may_be_ordered[..] {
            [] => Vec::new(),
            ids => held(connection, ids).await?,
        };
        let mut pending = PendingChanges::new(pets, held);
        let outcomes: Vec<_> = inputs
            .iter()
            .map(|request| {
                if large.iter().any(|pet| pet.id == request.id) {
                    return Some(BatchResult::ExecuteSeparately(request.clone()));
                }
                pending.apply(request).map(BatchResult::Done)
            })
            .collect();
        let mut changed = pending.write(connection).await?.into_iter();
        let result = |outcome: Option<_>| {
            let done = |pet| BatchResult::Done(ChangeOutcome::Changed(pet));
            outcome.or_else(|| changed.next().map(done))
        };
        let results: Option<Vec<_>> = outcomes.into_iter().map(result).collect();
        let missing = || Error::Corrupt("a changed pet has no version".into());
        let results = results.ok_or_else(missing)?;
        inputs.clear();
        Ok(results)
    }

    async fn execute_one(
        transaction: &mut Connection,
        request: ChangeRequest,
    ) -> Result<ChangeOutcome, Error> {
        change_in(transaction, &request).await
    }
}

/// Locked pets, with the changes that a batch has applied to them.
struct PendingChanges {
    /// States of pets: first the stored ones, then one for each change in order.
    states: Vec<State>,
    /// Number of stored states.
    stored: usize,
    /// Index of the last state of each pet that exists.
    last: HashMap<PetId, usize>,
    /// Pets that an open order holds.
    held: Vec<PetId>,
    deleted: Vec<i64>,
}

struct State {
    id: PetId,
    /// `None` for a new state: no client knows its version yet.
    version: Option<Version>,
    details: PetDetails,
}

impl PendingChanges {
    fn new(pets: Vec<Pet>, held: Vec<PetId>) -> Self {
        let ids = pets.iter().enumerate().map(|(index, pet)| (pet.id, index));
        let last = ids.collect();
        let state = |pet: Pet| State {
            id: pet.id,
            version: Some(pet.version),
            details: pet.details,
        };
        Self {
            stored: pets.len(),
            states: pets.into_iter().map(state).collect(),
            last,
            held,
            deleted: Vec::new(),
        }
    }

    /// Applies a change. Returns its outcome, or `None` if the pet has a new state.
    fn apply(&mut self, request: &ChangeRequest) -> Option<ChangeOutcome> {
        let id = request.id;
        let last = self.last.get(&id);
        let Some(current) = last.and_then(|last| self.states.get(*last)) else {
            return Some(ChangeOutcome::NotFound);
        };
        if !request.admits(current.version) {
            return Some(ChangeOutcome::VersionMismatch);
        }
        let held = self.held.contains(&id);
        let details = match request.change.apply(&current.details, held) {
            Ok(Some(details)) => details,
            Ok(None) => {
                self.last.remove(&id);
                self.deleted.push(id.get());
                return Some(ChangeOutcome::Deleted);
            }
            Err(held) => return Some(ChangeOutcome::Held(held)),
        };
        self.last.insert(id, self.states.len());
        self.states.push(State {
            id,
            version: None,
            details,
        });
        None
    }

    /// Stores the last states. Returns the pets after each change, with a version of their own.
    async fn write(mut self, connection: &mut Connection) -> Result<Vec<Pet>, Error> {
        if !self.deleted.is_empty() {
            let query = sqlx::query("delete from pets where id = any ($1)");
            query.bind(self.deleted).execute(&mut *connection).await?;
        }
        let states = self.states.split_off(self.stored);
        if states.is_empty() {
            return Ok(Vec::new());
        }
        let indices = self.stored..;
        let is_last = |(state, index): (&State, _)| self.last.get(&state.id) == Some(&index);
        let are_last: Vec<bool> = states.iter().zip(indices).map(is_last).collect();
        let pets = states.iter().map(|state| (Some(state.id), &state.details));
        let columns = pets.collect::<PetArrays<'_>>();
        // The condition on `any ($1)` keeps the plan to the primary key, independent of statistics.
        let versions: Vec<Version> = sqlx::query_scalar(
            "with given as materialized (
                 select ordinal, nextval('pet_versions') as version, id, is_last, status, name,
                        category, ($9::text[])[first_url:last_url] as photo_urls, tags
                 from unnest($1::bigint[], $2::boolean[], $3::text[], $4::text[], $5::jsonb[],
                             $6::int[], $7::int[], $8::jsonb[])
                      with ordinality
                      as given (id, is_last, status, name, category, first_url, last_url, tags,
                                ordinal)
             ), changed as (
                 update pets
                 set version = given.version, status = given.status, name = given.name,
                     category = given.category, photo_urls = given.photo_urls, tags = given.tags
                 from given
                 where pets.id = any ($1) and pets.id = given.id and given.is_last
             )
             select version from given order by ordinal",
        )
        .bind(columns.ids)
        .bind(are_last)
        .bind(columns.statuses)
        .bind(columns.names)
        .bind(columns.categories)
        .bind(columns.first_urls)
        .bind(columns.last_urls)
        .bind(columns.tags)
        .bind(columns.urls)
        .fetch_all(connection)
        .await?;
        let pet = |(state, version): (State, _)| Pet {
            id: state.id,
            version,
            details: state.details,
        };
        Ok(states.into_iter().zip(versions).map(pet).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::pet::{PetName, PetPatch, Status};

    #[test]
    fn changes_of_one_pet_see_those_before() {
        let id = |id| PetId::new(id).expect("an id");
        let details = PetDetails {
            name: PetName::new("Rex".to_owned()).expect("a name"),
            category: None,
            photo_urls: Vec::new(),
            tags: Vec::new(),
            status: Status::Available,
        };
        let pet = Pet {
            id: id(1),
            version: Version(7),
            details: details.clone(),
        };
        let mut pending = PendingChanges::new(vec![pet], Vec::new());
        let mut apply = |pet, expected: Option<i64>, change| {
            pending.apply(&ChangeRequest {
                id: id(pet),
                expected: expected.map(|version| vec![Version(version)]),
                change,
            })
        };
        let patch = PetPatch {
            status: Some(Status::Sold),
            ..PetPatch::default()
        };
        let replace = || Change::Replace {
            details: details.clone(),
            has_status: true,
        };
        assert!(apply(1, Some(7), replace()).is_none());
        let mismatch = apply(1, Some(7), Change::Delete);
        assert!(matches!(mismatch, Some(ChangeOutcome::VersionMismatch)));
        assert!(apply(1, None, Change::Patch(patch)).is_none());
        let deleted = apply(1, None, Change::Delete);
        assert!(matches!(deleted, Some(ChangeOutcome::Deleted)));
        for (pet, expected) in [(1, None), (1, Some(7)), (2, None)] {
            let outcome = apply(pet, expected, replace());
            assert!(matches!(outcome, Some(ChangeOutcome::NotFound)), "{pet}");
        }
        let statuses: Vec<_> = pending.states.iter().map(|it| it.details.status).collect();
        let expected = [Status::Available, Status::Available, Status::Sold];
        assert_eq!(statuses, expected);
        assert!(pending.last.is_empty());
        assert_eq!(pending.deleted, [1]);
    }
}
