//! Changes of stored pets: those of several requests in one transaction, of which one is the simplest case.
//!
//! Invariants:
//! - Rows are locked in the order of their identifiers, so that two batches cannot deadlock.
//! - A pet is made available only if it is locked and no order holds it, or if it is available already: then no order
//!   holds it.
//! - A change that was applied to a pet without its lock is stored only if the pet still has the version that was read.
//! - The changes of a batch are applied one after the other, so that each sees the result of the one before.
//! - A change that alters nothing keeps the version and is not recorded.

use std::{collections::HashMap, iter, slice};

use sqlx::{FromRow, postgres::PgRow, types::Json};

use crate::{
    db::{
        batch::{BatchResult, BatchedStatement},
        codec::{PetRows, pet_columns, pet_of},
        connect::Connection,
        database::Database,
        deadline::with_timeout,
        error::Error,
        record::{self, Record, pet_values, recorded, records},
    },
    domain::{
        change::{Action, Initiator, Kind},
        condition::Conditions,
        id::PetId,
        image::ImageId,
        pet::{
            Change, PetDetails, PhotoUrl, Refusal, Status, StoredPet, Version, fold_name, text_size,
        },
    },
};

/// Maximum number of photo URLs and tags of a pet in a batch of changes; a larger pet would delay the rest of the batch.
pub(super) const MAX_BATCHED_ELEMENTS: usize = 20;

pub(super) const fn number_of_elements(pet: &PetDetails) -> usize {
    pet.photo_urls.len() + pet.tags.len()
}

/// Requested change of a pet.
#[derive(Debug, Clone)]
pub struct ChangeRequest {
    /// Pet to change.
    pub id: PetId,
    /// Conditions on the version that it is made to.
    pub conditions: Conditions<Version>,
    /// Change.
    pub change: Change,
    /// Who makes it.
    pub initiator: Initiator,
}

/// Outcome of a change.
#[derive(Debug)]
pub enum ChangeOutcome {
    /// The pet has this state, which it may have had before.
    Changed(StoredPet),
    /// The pet was deleted.
    Deleted,
    /// There is no such pet.
    NotFound,
    /// A condition is false.
    ConditionUnmet,
    /// The pet cannot be changed in this way.
    Refused(Refusal),
}

/// Changes a pet, in one transaction and one commit with the changes of other requests.
pub async fn change(database: &Database, request: ChangeRequest) -> Result<ChangeOutcome, Error> {
    let elements = match &request.change {
        Change::Replace { details, .. } => number_of_elements(details),
        Change::Patch(patch) => {
            patch.photo_urls.as_ref().map_or(0, Vec::len) + patch.tags.as_ref().map_or(0, Vec::len)
        }
        Change::PhotoUrls(urls) => urls.len(),
        Change::Delete => 0,
    };
    if elements > MAX_BATCHED_ELEMENTS {
        let change_separately =
            async |transaction: &mut Connection| change_in(transaction, &request).await;
        return Box::pin(database.transact(change_separately)).await;
    }
    database.batchers().execute::<Changes>(request).await
}

/// Changes a pet in a transaction.
pub async fn change_in(
    transaction: &mut Connection,
    request: &ChangeRequest,
) -> Result<ChangeOutcome, Error> {
    let mut outcomes = change_all(transaction, slice::from_ref(request)).await?;
    let outcome = outcomes.pop();
    outcome.ok_or_else(|| Error::Corrupt("a change has no outcome".into()))
}

/// Replaces the photo URLs of a pet in a transaction that has locked it with [`find_for_update`].
pub async fn replace_photo_urls(
    transaction: &mut Connection,
    id: PetId,
    urls: Vec<PhotoUrl>,
    initiator: Initiator,
) -> Result<(), Error> {
    let request = ChangeRequest {
        id,
        conditions: Conditions::NONE,
        change: Change::PhotoUrls(urls),
        initiator,
    };
    change_in(transaction, &request).await.map(drop)
}

/// Statements that change the pets of several requests.
struct Changes;

impl BatchedStatement for Changes {
    type Input = ChangeRequest;
    type Output = ChangeOutcome;

    const SUMMARY: &'static str = "UPDATE pets";

    fn size(request: &ChangeRequest) -> usize {
        match &request.change {
            Change::Replace { details, .. } => details.text_size(),
            Change::Patch(patch) => patch.photo_urls.as_deref().map_or(0, text_size),
            Change::PhotoUrls(urls) => text_size(urls),
            Change::Delete => 0,
        }
    }

    fn needs_transaction(requests: &[ChangeRequest]) -> bool {
        match requests {
            [only] => only.change == Change::Delete,
            _ => true,
        }
    }

    async fn execute_all(
        connection: &mut Connection,
        inputs: &mut Vec<ChangeRequest>,
    ) -> Result<Vec<BatchResult<Self>>, Error> {
        if !Self::needs_transaction(inputs)
            && let [only] = &inputs[..]
        {
            let mut changed = change_unlocked(connection, only).await?;
            let results = inputs.drain(..).map(|request| match changed.take() {
                Some(outcome) => BatchResult::Done(outcome),
                None => BatchResult::ExecuteSeparately(request),
            });
            return Ok(results.collect());
        }
        let outcomes = change_all(connection, inputs).await?;
        inputs.clear();
        Ok(outcomes.into_iter().map(BatchResult::Done).collect())
    }

    async fn execute_one(
        transaction: &mut Connection,
        request: ChangeRequest,
    ) -> Result<ChangeOutcome, Error> {
        change_in(transaction, &request).await
    }
}

/// Applies changes in their order, in a transaction.
async fn change_all(
    transaction: &mut Connection,
    requests: &[ChangeRequest],
) -> Result<Vec<ChangeOutcome>, Error> {
    let ids = requests.iter().map(|request| request.id.get()).collect();
    let pets = lock(transaction, ids).await?;
    let held = held(transaction, requests, &pets).await?;
    let mut pending = PendingChanges::new(pets, held);
    let applied: Vec<_> = requests.iter().map(|it| pending.apply(it)).collect();
    let changed = pending.write(transaction).await?;
    let outcomes = applied.into_iter().map(|applied| match applied {
        Applied::Ended(outcome) => Ok(outcome),
        Applied::Changed(state) => match changed.get(state) {
            Some(pet) => Ok(ChangeOutcome::Changed(pet.clone())),
            None => Err(Error::Corrupt("a changed pet has no version".into())),
        },
    });
    outcomes.collect()
}

/// Result of a request of a batch.
#[derive(Debug)]
enum Applied {
    /// It has this outcome, and the pet no new state.
    Ended(ChangeOutcome),
    /// The pet has this one of the new states, which get versions when they are stored.
    Changed(usize),
}

/// Changes a pet in two statements, without a lock in between: this takes 0.6 of the time of a transaction. Returns `None`, and changes
/// nothing, if the pet has another version by then, or if an order may hold it.
async fn change_unlocked(
    connection: &mut Connection,
    request: &ChangeRequest,
) -> Result<Option<ChangeOutcome>, Error> {
    let query = sqlx::query_as(concat!(
        "select ",
        pet_columns!(),
        " from pets where id = $1"
    ));
    let query = query.bind(request.id.get());
    let pet: Option<ReadPet> = with_timeout(query.fetch_optional(&mut *connection)).await?;
    let Some(pet) = pet else {
        return Ok(Some(ChangeOutcome::NotFound));
    };
    if pet.details.status != Status::Available && request.change.may_make_available() {
        return Ok(None);
    }
    let read_version = pet.version;
    let mut pending = PendingChanges::new(vec![pet], Vec::new());
    if let Applied::Ended(outcome) = pending.apply(request) {
        return Ok(Some(outcome));
    }
    let Some(State { id, details, .. }) = pending.states.pop() else {
        return Ok(None);
    };
    let json = details.to_json();
    let query = sqlx::query_scalar(concat!(
        "with changed as (
             update pets set version = nextval('pet_versions'), status = $3, details = $4::json, folded_name = $5
             where id = $1 and version = $2
             returning version
         ), ",
        recorded!(concat!(
            "select kind, resource, action, changed.version, owner, actor, request_id, data from changed, ",
            records!("$6")
        )),
        " select version from changed",
    ))
    .bind(id.get())
    .bind(read_version.0)
    .bind(details.status.as_str())
    .bind(&json)
    .bind(fold_name(details.name.as_str()))
    .bind(Json(&pending.records));
    let version = with_timeout(query.fetch_optional(connection)).await?;
    Ok(version.map(|version| {
        ChangeOutcome::Changed(StoredPet::new(id, version, details.status, json.as_bytes()))
    }))
}

/// A pet that was read to be changed.
#[derive(Debug)]
pub struct ReadPet {
    /// Identifier.
    pub id: PetId,
    /// Version.
    pub version: Version,
    /// Fields.
    pub details: PetDetails,
}

impl FromRow<'_, PgRow> for ReadPet {
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        let (id, version, status, details) = pet_of(row)?;
        let details = PetDetails::from_json(details, status).map_err(|error| {
            sqlx::Error::Decode(format!("pets.details of pet {id}: {error}").into())
        })?;
        Ok(Self {
            id,
            version,
            details,
        })
    }
}

/// Returns the pet and locks its row until the transaction ends, so that no other change comes between.
pub async fn find_for_update(
    transaction: &mut Connection,
    id: PetId,
) -> Result<Option<ReadPet>, Error> {
    Ok(lock(transaction, vec![id.get()]).await?.pop())
}

/// Locks pets until the transaction ends, and returns those that exist.
async fn lock(transaction: &mut Connection, ids: Vec<i64>) -> Result<Vec<ReadPet>, Error> {
    let query = sqlx::query_as(concat!(
        "select ",
        pet_columns!(),
        " from pets where id = any ($1) order by id for update"
    ));
    with_timeout(query.bind(ids).fetch_all(transaction)).await
}

/// Returns those of the locked `pets` that an open order holds, if a request may make them available or deletes them. The statement
/// is one of its own, and so sees the orders that were committed before the lock.
async fn held(
    transaction: &mut Connection,
    requests: &[ChangeRequest],
    pets: &[ReadPet],
) -> Result<Vec<PetId>, Error> {
    let pets = pets.iter().filter(|pet| {
        let must_know = |it: &ChangeRequest| {
            it.id == pet.id && (it.change.may_make_available() || it.change == Change::Delete)
        };
        pet.details.status != Status::Available && requests.iter().any(must_know)
    });
    let ids: Vec<i64> = pets.map(|pet| pet.id.get()).collect();
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let query = sqlx::query_scalar("select held_pet from orders where held_pet = any ($1)");
    with_timeout(query.bind(ids).fetch_all(transaction)).await
}

/// Pets that were read, with the changes that were applied to them.
struct PendingChanges<'a> {
    /// States of pets: first the stored ones, then one for each change in order.
    states: Vec<State>,
    /// Number of stored states.
    stored: usize,
    /// Index of the last state of each pet that exists.
    last: HashMap<PetId, usize>,
    /// Pets that an open order holds.
    held: Vec<PetId>,
    deleted: Vec<(PetId, &'a Initiator)>,
    /// Records of the changes, in their order.
    records: Vec<Record<'a>>,
}

struct State {
    id: PetId,
    /// `None` for a new state: no client knows its version yet.
    version: Option<Version>,
    details: PetDetails,
}

impl<'a> PendingChanges<'a> {
    fn new(pets: Vec<ReadPet>, held: Vec<PetId>) -> Self {
        let ids = pets.iter().enumerate().map(|(index, pet)| (pet.id, index));
        let last = ids.collect();
        let stored = pets.len();
        let states = pets.into_iter().map(|pet| State {
            id: pet.id,
            version: Some(pet.version),
            details: pet.details,
        });
        Self {
            stored,
            states: states.collect(),
            last,
            held,
            deleted: Vec::new(),
            records: Vec::new(),
        }
    }

    /// Applies a change.
    fn apply(&mut self, request: &'a ChangeRequest) -> Applied {
        let id = request.id;
        let Some(last) = self.last.get(&id).copied() else {
            return Applied::Ended(ChangeOutcome::NotFound);
        };
        let current = &self.states[last];
        if request.conditions.check(current.version.as_ref()).is_err() {
            return Applied::Ended(ChangeOutcome::ConditionUnmet);
        }
        let held = self.held.contains(&id);
        let details = match request.change.apply(&current.details, held) {
            Ok(Some(details)) => details,
            Ok(None) => {
                self.last.remove(&id);
                self.deleted.push((id, &request.initiator));
                self.records.push(Record::of_deleted_pet(
                    id,
                    &current.details,
                    held,
                    &request.initiator,
                ));
                return Applied::Ended(ChangeOutcome::Deleted);
            }
            Err(refusal) => return Applied::Ended(ChangeOutcome::Refused(refusal)),
        };
        let number = self.states.len() - self.stored;
        if details == current.details {
            return match current.version {
                Some(version) => Applied::Ended(ChangeOutcome::Changed(StoredPet::new(
                    id,
                    version,
                    details.status,
                    details.to_json().as_bytes(),
                ))),
                None => Applied::Changed(last - self.stored),
            };
        }
        let record = Record::new(Kind::Pet, &id, Action::Changed, &request.initiator)
            .with_data(pet_values(Some(&current.details), &details));
        // PostgreSQL counts from 1.
        self.records.push(record.of_state(number + 1));
        self.last.insert(id, self.states.len());
        self.states.push(State {
            id,
            version: None,
            details,
        });
        Applied::Changed(number)
    }

    /// Deletes pets, with their images.
    async fn delete(&mut self, connection: &mut Connection) -> Result<(), Error> {
        let ids: Vec<_> = self.deleted.iter().map(|(id, _)| id.get()).collect();
        let query = sqlx::query_as(
            "with deleted as (delete from pets where id = any ($1))
             select pet_id, id, size from images join image_contents using (sha256) where pet_id = any ($1)",
        );
        let query = query.bind(ids).fetch_all(connection);
        let images: Vec<(PetId, ImageId, i64)> = with_timeout(query).await?;
        for (pet, image, size) in images {
            if let Some((_, initiator)) = self.deleted.iter().find(|(id, _)| *id == pet) {
                let facts = (pet, size.cast_unsigned());
                let record = Record::of_image(image, facts, Action::Deleted, initiator);
                self.records.push(record);
            }
        }
        Ok(())
    }

    /// Deletes pets, stores the last states, and records the changes. Returns the pets after each change, with a version of
    /// their own.
    async fn write(mut self, connection: &mut Connection) -> Result<Vec<StoredPet>, Error> {
        if !self.deleted.is_empty() {
            self.delete(connection).await?;
        }
        let states = self.states.split_off(self.stored);
        if states.is_empty() {
            record::write(connection, &self.records).await?;
            return Ok(Vec::new());
        }
        let (mut last, mut rows) = (Vec::new(), PetRows::default());
        for (index, state) in states.iter().enumerate() {
            last.push(self.last.get(&state.id) == Some(&(self.stored + index)));
            rows.push(Some(state.id), &state.details);
        }
        // The condition on `any ($3)` keeps the plan to the primary key, independent of statistics.
        let query = sqlx::query_scalar(concat!(
            "with given as materialized (
                 select ordinality, id, nextval('pet_versions') as version, status, details, folded_name
                 from unnest($3::bigint[], $1::text[], $5::text[], $6::text[])
                     with ordinality as pet (id, status, details, folded_name, ordinality)
             ), changed as (
                 update pets set version = given.version, status = given.status, details = given.details::json,
                     folded_name = given.folded_name
                 from given
                 where pets.id = any ($3) and pets.id = given.id and ($2::boolean[])[ordinality]
             ), ",
            recorded!(concat!(
                "select kind, resource, action, given.version, owner, actor, request_id, data from ",
                records!("$4"),
                " left join given on ordinality = state order by n"
            )),
            "
             select version from given order by ordinality",
        ));
        let query = query.bind(rows.statuses).bind(last).bind(rows.ids);
        let query = query.bind(Json(self.records));
        let query = query.bind(&rows.details).bind(rows.folded_names);
        let versions: Vec<Version> = with_timeout(query.fetch_all(connection)).await?;
        let states = iter::zip(states, rows.details);
        let pets = iter::zip(states, versions).map(|((state, details), version)| {
            StoredPet::new(state.id, version, state.details.status, details.as_bytes())
        });
        Ok(pets.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{
        condition::Tags,
        pet::{PetPatch, Status},
    };

    #[test]
    fn changes_of_one_pet_see_those_before() {
        let id = |id| PetId::new(id).expect("an id");
        let details = PetDetails::new("Rex".parse().expect("a name"));
        let pet = ReadPet {
            id: id(1),
            version: Version(7),
            details: details.clone(),
        };
        let mut pending = PendingChanges::new(vec![pet], Vec::new());
        let request = |pet, expected: Option<i64>, change| ChangeRequest {
            id: id(pet),
            conditions: Conditions {
                any_of: expected.map(|version| Tags::Listed(vec![Version(version)])),
                none_of: None,
            },
            change,
            initiator: Initiator::default(),
        };
        let patch = PetPatch {
            status: Some(Status::Sold),
            ..PetPatch::default()
        };
        let replace = || Change::Replace {
            details: details.clone(),
            has_status: true,
        };
        let requests = [
            request(1, Some(7), replace()),
            request(1, Some(6), Change::Delete),
            request(1, None, Change::Patch(patch.clone())),
            request(1, None, Change::Patch(patch)),
            request(1, Some(7), Change::Delete),
            request(1, None, Change::Delete),
            request(1, None, replace()),
            request(1, Some(7), replace()),
            request(2, None, replace()),
        ];
        let outcomes: Vec<_> = requests.iter().map(|it| pending.apply(it)).collect();
        assert!(matches!(
            outcomes[..],
            [
                Applied::Ended(ChangeOutcome::Changed(StoredPet {
                    version: Version(7),
                    ..
                })),
                Applied::Ended(ChangeOutcome::ConditionUnmet),
                Applied::Changed(0),
                Applied::Changed(0),
                Applied::Ended(ChangeOutcome::ConditionUnmet),
                Applied::Ended(ChangeOutcome::Deleted),
                Applied::Ended(ChangeOutcome::NotFound),
                Applied::Ended(ChangeOutcome::NotFound),
                Applied::Ended(ChangeOutcome::NotFound),
            ]
        ));
        let statuses: Vec<_> = pending.states.iter().map(|it| it.details.status).collect();
        let expected = [Status::Available, Status::Sold];
        assert_eq!(statuses, expected);
        assert!(pending.last.is_empty());
        assert_eq!(pending.deleted[..], [(id(1), &Initiator::default())]);
    }
}
