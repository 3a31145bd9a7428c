//! `/pet`: add, get, change and delete pets.

mod body;
mod find;

use axum::{
    body::Body,
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use utoipa_axum::routes;

use self::body::ReplacementBody;
pub use self::body::{NewPetBody, PatchBody};
use super::{
    conditional::{Conditions, etag},
    error::Error,
    extract::{Form, Json, MergePatch, Path, Query, json_from_slice},
    fields::Violations,
    idempotency::Idempotency,
    operations::{BASE, Operations},
    response::{self, ApiResponse},
    state::Links,
};
use crate::{
    blob_store::OrphanedBlobs,
    db::{
        self, Connection, Database,
        pets::{Addition, ChangeOutcome, ChangeRequest},
    },
    domain::{
        change::Initiator,
        id::PetId,
        pet::{Change, NewPet, Pet, PetName, PetPatch, Refusal, Status, StoredPet},
    },
};

/// Returns the operations on pets, except those on images.
pub fn router() -> Operations {
    Operations::new()
        .routes(routes!(add, replace))
        .routes(routes!(get, patch, update_with_form, delete))
        .list(routes!(find::list))
        .list(routes!(find::by_status))
        .list(routes!(find::by_tags))
        .routes(routes!(find::tags))
}

/// Reads a new pet from the body that `POST /pet` takes, without a byte order mark.
pub fn read_new_pet(json: &[u8]) -> Result<NewPet, Error> {
    json_from_slice::<NewPetBody>(json)?.into_new_pet()
}

/// Add a pet
///
/// Without an `id` (or with 0) the server assigns an unused one. If the `id` is in use, nothing changes.
#[utoipa::path(
    post, path = "/pet", operation_id = "addPet", tag = "pet", security(("bearer" = ["write:pets"])),
    request_body(content = NewPetBody, description = "The pet to add."),
    responses(
        (status = 201, description = "The added pet.", body = Pet,
            headers(("ETag"), ("Location"))),
        (status = 409, description = "The `id` is in use, or a request with this `Idempotency-Key` is in progress."),
    ),
)]
async fn add(
    State(database): State<Database>,
    State(links): State<Links>,
    idempotency: Idempotency,
    initiator: Initiator,
    Json(body): Json<NewPetBody>,
) -> Result<Response, Error> {
    let pet = body.into_new_pet()?;
    let chosen = pet.id;
    let addition = Addition { pet, initiator };
    let added = |pet: Option<StoredPet>| {
        let pet = pet.ok_or_else(|| {
            let id = chosen.map_or(0, PetId::get);
            Error::Conflict(format!("pet {id} already exists"))
        })?;
        let location = links.url(&format!("{BASE}/pet/{}", pet.id));
        response::located(location, pet_response(StatusCode::CREATED, &pet))
    };
    if !idempotency.has_key() {
        return added(db::pets::add(&database, addition).await?);
    }
    let work =
        async |transaction: &mut Connection| added(db::pets::insert(transaction, addition).await?);
    Box::pin(idempotency.run(&database, work)).await
}

/// Replace a pet
///
/// The whole pet is replaced: fields that the body omits get their defaults. Only the status stays if an open order holds
/// the pet.
#[utoipa::path(
    put, path = "/pet", operation_id = "updatePet", tag = "pet", security(("bearer" = ["write:pets"])),
    params(("If-Match", Header), ("If-None-Match", Header)),
    request_body(content = ReplacementBody, description = "The new state of the pet."),
    responses(
        (status = 200, description = "The pet after the replacement.", body = Pet, headers(("ETag"))),
        (status = 409, description = "The pet has an open order, and cannot be made available."),
    ),
)]
async fn replace(
    State(database): State<Database>,
    conditions: Conditions,
    initiator: Initiator,
    Json(body): Json<NewPetBody>,
) -> Result<Response, Error> {
    let (id, replacement) = body.into_replacement()?;
    let request = change_request(id, conditions, replacement, initiator);
    changed(id, db::pets::change(&database, request).await?)
}

/// Get a pet
///
/// With `If-None-Match`, the pet is returned only if it has changed.
#[utoipa::path(
    get, path = "/pet/{petId}", operation_id = "getPetById", tag = "pet", security(("bearer" = ["read:pets"])),
    params(("If-Match", Header), ("If-None-Match", Header)),
    responses(
        (status = 200, description = "The pet.", body = Pet, headers(("ETag"))),
        (status = 304, description = "The client already has this version.", headers(("ETag"))),
    ),
)]
async fn get(
    State(database): State<Database>,
    Path(id): Path<PetId>,
    conditions: Conditions,
) -> Result<Response, Error> {
    let pet = db::pets::find(&database, id).await?;
    let pet = pet.ok_or_else(|| no_such_pet(id))?;
    if conditions.is_version_known(pet.version)? {
        let etag = [(header::ETAG, etag(pet.version))];
        return Ok((StatusCode::NOT_MODIFIED, etag).into_response());
    }
    Ok(pet_response(StatusCode::OK, &pet))
}

/// Change parts of a pet
///
/// JSON Merge Patch (RFC 7396): fields in the body are changed, `null` removes a field, the others stay.
#[utoipa::path(
    patch, path = "/pet/{petId}", operation_id = "patchPet", tag = "pet", security(("bearer" = ["write:pets"])),
    params(("If-Match", Header), ("If-None-Match", Header)),
    request_body(
        content((PatchBody = "application/merge-patch+json"), (PatchBody = "application/json")),
        description = "Fields of the pet to change."),
    responses(
        (status = 200, description = "The changed pet.", body = Pet, headers(("ETag"))),
        (status = 409, description = "The pet has an open order, and cannot be made available."),
    ),
)]
async fn patch(
    State(database): State<Database>,
    Path(id): Path<PetId>,
    conditions: Conditions,
    initiator: Initiator,
    MergePatch(body): MergePatch<PatchBody>,
) -> Result<Response, Error> {
    let patch = body.into_patch(id)?;
    let request = change_request(id, conditions, Change::Patch(patch), initiator);
    changed(id, db::pets::change(&database, request).await?)
}

/// Change a pet's name or status
///
/// Petstore's form update: `name` and `status` as query parameters, as form fields, or one of each.
#[utoipa::path(
    post, path = "/pet/{petId}", operation_id = "updatePetWithForm", tag = "pet", security(("bearer" = ["write:pets"])),
    params(
        ("name" = Option<String>, Query, description = "New name.", min_length = 1, max_length = 255, pattern = r"^[^\x00]*$"),
        ("status" = Option<Status>, Query, description = "New status."),
        ("If-Match", Header), ("If-None-Match", Header),
    ),
    request_body(content = inline(Option<FormUpdate>), content_type = "application/x-www-form-urlencoded"),
    responses(
        (status = 200, description = "The changed pet.", body = Pet, headers(("ETag"))),
        (status = 409, description = "The pet has an open order, and cannot be made available; or a request with this `Idempotency-Key` is in progress."),
    ),
)]
async fn update_with_form(
    State(database): State<Database>,
    Path(id): Path<PetId>,
    conditions: Conditions,
    idempotency: Idempotency,
    initiator: Initiator,
    Query(query): Query,
    Form(form): Form,
) -> Result<Response, Error> {
    let mut violations = Violations::default();
    let given = form.and(query);
    let name = given.optional(&mut violations, "name", str::parse::<PetName>);
    let status = given.optional(&mut violations, "status", str::parse::<Status>);
    if given
        .all("name")
        .chain(given.all("status"))
        .next()
        .is_none()
    {
        violations.add("name", "or status is required");
    }
    violations.finish(Some(()))?;
    let patch = PetPatch {
        name,
        status,
        ..PetPatch::default()
    };
    let request = change_request(id, conditions, Change::Patch(patch), initiator);
    if !idempotency.has_key() {
        return changed(id, db::pets::change(&database, request).await?);
    }
    Box::pin(idempotency.run(&database, async |transaction| {
        changed(id, db::pets::change_in(transaction, &request).await?)
    }))
    .await
}

/// Form fields of a pet update.
#[derive(utoipa::ToSchema)]
#[schema(example = json!({"name": "Rex", "status": "sold"}))]
#[expect(dead_code, reason = "describes the form, which is read as parameters")]
struct FormUpdate {
    /// New name.
    #[schema(nullable = false)]
    #[schema(min_length = 1, max_length = 255, pattern = r"^[^\x00]*$")]
    name: Option<String>,
    /// New status.
    #[schema(value_type = String, required = false, nullable = false, max_length = 9, pattern = "^(available|pending|sold)$")]
    status: Option<Status>,
}

/// Delete a pet
///
/// Its images are deleted, too.
#[utoipa::path(
    delete, path = "/pet/{petId}", operation_id = "deletePet", tag = "pet", security(("bearer" = ["write:pets"])),
    params(("If-Match", Header), ("If-None-Match", Header)),
    responses((status = 200, description = "Deleted.", body = ApiResponse)),
)]
async fn delete(
    State(database): State<Database>,
    State(orphaned_blobs): State<OrphanedBlobs>,
    Path(id): Path<PetId>,
    conditions: Conditions,
    initiator: Initiator,
) -> Result<Response, Error> {
    let request = change_request(id, conditions, Change::Delete, initiator);
    let response = changed(id, db::pets::change(&database, request).await?)?;
    orphaned_blobs.notify();
    Ok(response)
}

fn change_request(
    id: PetId,
    conditions: Conditions,
    change: Change,
    initiator: Initiator,
) -> ChangeRequest {
    ChangeRequest {
        id,
        conditions: conditions.into_versions(),
        change,
        initiator,
    }
}

/// Returns the response to a change.
fn changed(id: PetId, outcome: ChangeOutcome) -> Result<Response, Error> {
    match outcome {
        ChangeOutcome::Changed(pet) => Ok(pet_response(StatusCode::OK, &pet)),
        ChangeOutcome::Deleted => ApiResponse::deleted(&id),
        ChangeOutcome::NotFound => Err(no_such_pet(id)),
        ChangeOutcome::ConditionUnmet => Err(Error::PreconditionFailed),
        ChangeOutcome::Refused(refusal @ Refusal::Held) => {
            Err(Error::Conflict(format!("pet {id} {refusal}")))
        }
        ChangeOutcome::Refused(Refusal::TooLarge(reason)) => {
            Err(Error::one_violation("body", reason))
        }
    }
}

fn no_such_pet(id: PetId) -> Error {
    Error::NotFound(format!("pet {id}"))
}

fn pet_response(status: StatusCode, pet: &StoredPet) -> Response {
    const JSON: HeaderValue = HeaderValue::from_static("application/json");
    let headers = [
        (header::CONTENT_TYPE, JSON),
        (header::ETAG, etag(pet.version)),
    ];
    (status, headers, Body::from(pet.json.clone())).into_response()
}
