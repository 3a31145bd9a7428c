//! Receives and stores an image.
//!
//! The bytes are stored first, under a key of their own, then their row and the pet's URL in one transaction. A failure
//! in between leaves bytes without a row. They are deleted at once or, after a crash, by the sweep of orphaned blobs.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use axum::{
    body::Body,
    extract::{FromRequestParts, Request, State},
    http::{StatusCode, request::Parts},
    response::Response,
};
use serde::Serialize;
use sha2::{Digest, Sha256};
use tracing::Instrument;
use utoipa::ToSchema;

use super::{
    receive::{METADATA, Received, receive},
    urls::{Urls, image_url},
};
use crate::{
    api::{
        conditional::Conditions,
        error::Error,
        extract::{Path, Query},
        fields::Violations,
        idempotency::{ClientKey, Idempotency},
        request_context::RequestContext,
        response,
        state::AppState,
    },
    blob_store::BlobStore,
    db::{self, Connection, Database, images::Content},
    domain::{
        change::Initiator,
        id::PetId,
        image::{ImageId, MAX_IMAGES, check_metadata},
        pet::{MAX_ITEMS, PhotoUrl},
    },
};

/// Time that the image store gets to take an upload, in addition to the time limit of the body.
const STALLED: Duration = Duration::from_secs(5);

/// Stored image.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = UploadedImage, example = json!({
    "code": 200,
    "type": "image/jpeg",
    "message": "additionalMetadata: from the left; 183734 bytes stored",
    "imageId": "9f86d081884c7d659a2feaa0c55ad015",
    "url": "https://pets.example.com/api/v3/pet/1/images/9f86d081884c7d659a2feaa0c55ad015",
    "width": 1200,
    "height": 800,
    "size": 183_734
}))]
struct UploadedBody {
    /// HTTP status code.
    #[schema(minimum = 200, maximum = 200)]
    code: u16,
    /// Media type of the image, detected from the content.
    #[serde(rename = "type")]
    #[schema(max_length = 10, pattern = "^image/(png|jpeg|gif|webp)$")]
    kind: &'static str,
    /// Description of the result.
    #[schema(max_length = 2_048, pattern = r"^[^\x00]*$")]
    message: String,
    /// Identifier of the image.
    #[schema(min_length = 32, max_length = 32, pattern = "^[0-9a-f]{32}$")]
    image_id: String,
    /// URL of the image, which works without a credential; appended to the pet's `photoUrls`.
    #[schema(format = "uri", max_length = 2_048)]
    url: String,
    /// Width in pixels.
    #[schema(minimum = 1, maximum = 8_192)]
    width: u32,
    /// Height in pixels.
    #[schema(minimum = 1, maximum = 8_192)]
    height: u32,
    /// Size in bytes.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    size: u64,
}

/// Bytes of an image.
#[derive(ToSchema)]
#[schema(as = ImageBytes, value_type = String, format = Binary)]
pub(super) struct ImageBytes(#[expect(dead_code, reason = "describes a streamed body")] Vec<u8>);

/// Upload as a form.
#[derive(ToSchema)]
#[schema(as = ImageForm, rename_all = "camelCase")]
#[expect(dead_code, reason = "describes the form, which is read as it comes")]
struct FormBody {
    /// The image: the form's first file that is not empty.
    #[schema(value_type = String, format = Binary)]
    file: Vec<u8>,
    /// Any text; repeated in the response.
    #[schema(
        nullable = false,
        example = "from the left",
        max_length = 1_000,
        pattern = r"^[^\x00]*$"
    )]
    additional_metadata: Option<String>,
}

/// Upload an image of a pet
///
/// PNG, JPEG, GIF or WebP, detected from the content, of at most 10 MiB (unless configured otherwise) and 8,192 pixels
/// in either direction. Appends the URL of the image to the pet's `photoUrls`, which creates a new version of the pet.
/// `If-Match` and `If-None-Match` have the ETag of the pet. With an `Idempotency-Key`, only a successful response is stored.
#[utoipa::path(
    post, path = "/pet/{petId}/uploadImage", operation_id = "uploadFile", tag = "pet",
    security(("bearer" = ["write:pets"])),
    params(("If-Match", Header), ("If-None-Match", Header), ("additionalMetadata" = Option<String>, Query, description = "Any text; repeated in the response.", max_length = 1_000, pattern = r"^[^\x00]*$")),
    request_body(
        content((FormBody = "multipart/form-data"), (ImageBytes = "application/octet-stream")),
        description = "The image. As bytes, its media type may also be that of the image."),
    responses(
        (status = 200, description = "The stored image.", body = UploadedBody),
        (status = 409, description = "The pet has the maximum number of images or `photoUrls`, or no room for another URL, or a request with this `Idempotency-Key` is in progress."),
        (status = 507, description = "The image store is full."),
    ),
)]
pub(super) async fn upload(
    State(state): State<AppState>,
    Path(pet): Path<PetId>,
    urls: Urls,
    conditions: Conditions,
    request: Request,
) -> Result<Response, Error> {
    let address = RequestContext::of(&request).client_address();
    let share = state.uploads.in_progress.take(address, 1)?;
    let (mut parts, body) = request.into_parts();
    // A late body fails before this timeout, so the image store must be what is slow.
    let limit = state.uploads.body.timeout + STALLED;
    let receiving =
        tokio::time::timeout(limit, take(&mut parts, body, pet, &conditions, &state)).await;
    let (received, key) = receiving.unwrap_or(Err(Error::TimedOut))?;
    let idempotency = key.map_or_else(Idempotency::default, |key| {
        // Excludes the rest of the body, since a form has a new boundary each time.
        let metadata = received.metadata.as_deref().unwrap_or_default();
        let path = parts.uri.path();
        let request = [path.as_bytes(), metadata.as_bytes(), &received.sha256].join(&0);
        key.with_fingerprint(Sha256::digest(request).to_vec(), &state.stored_bytes)
    });
    let initiator = Initiator::from_request_parts(&mut parts, &()).await?;
    if let Some(response) = idempotency.stored_response(&state.database).await? {
        return Ok(response);
    }
    // In a task of its own, so that no upload is left half-stored if the client disconnects.
    let task_state = state.clone();
    let storing = async move {
        let _share = share;
        let response = store(
            &task_state,
            idempotency,
            pet,
            &conditions,
            &urls,
            received,
            &initiator,
        );
        tokio::time::timeout(task_state.request_timeout, response).await
    };
    match tokio::spawn(storing.in_current_span()).await {
        Ok(response) => response.map_err(|_| Error::TimedOut)?,
        Err(panic) => Err(Error::internal(panic)),
    }
}

/// Receives the image of a request and reads its idempotency key.
async fn take(
    parts: &mut Parts,
    body: Body,
    pet: PetId,
    conditions: &Conditions,
    state: &AppState,
) -> Result<(Received, Option<ClientKey>), Error> {
    let Query(query) = Query::from_request_parts(parts, &()).await?;
    let mut violations = Violations::default();
    let metadata = query.optional(&mut violations, METADATA, |text| {
        check_metadata(text).map(|()| text.to_owned())
    });
    violations.finish(Some(()))?;
    let context = RequestContext::from_request_parts(parts, &()).await?;
    let key = ClientKey::of(&parts.headers, || context.caller_key())?;
    // Fails before the body is read if there is no such pet or version, unless a stored response may have to be replayed.
    if key.is_none() {
        let stored = db::pets::find(&state.database, pet).await?;
        conditions.check_version(stored.ok_or_else(|| no_such_pet(pet))?.version)?;
    }
    let mut received = receive(&parts.headers, body, &state.blobs, &state.uploads).await?;
    received.metadata = received.metadata.or(metadata);
    Ok((received, key))
}

async fn store(
    state: &AppState,
    idempotency: Idempotency,
    pet: PetId,
    conditions: &Conditions,
    urls: &Urls,
    received: Received,
    initiator: &Initiator,
) -> Result<Response, Error> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(Error::internal)?;
    let image = ImageId(random);
    let url = image_url(urls, pet, image)
        .parse::<PhotoUrl>()
        .map_err(|_| Error::one_violation("Host", "must be a host name"))?;
    let size = received.upload.size();
    let content = Content {
        sha256: received.sha256,
        facts: received.facts,
        size,
        key: received.upload.finish().await?,
    };
    let body = UploadedBody {
        code: 200,
        kind: content.facts.kind.as_str(),
        message: match &received.metadata {
            Some(metadata) => format!("{METADATA}: {metadata}; {size} bytes stored"),
            None => format!("{size} bytes stored"),
        },
        image_id: image.to_string(),
        url: url.as_str().to_owned(),
        width: content.facts.width,
        height: content.facts.height,
        size,
    };
    // Set by the last attempt of the transaction.
    let is_needed = AtomicBool::new(false);
    let stored = idempotency.run(&state.database, async |transaction| {
        let transaction = &mut *transaction;
        let key = add(
            transaction,
            pet,
            conditions,
            image,
            &content,
            url,
            initiator,
        )
        .await?;
        is_needed.store(key == content.key, Ordering::Relaxed);
        response::json(StatusCode::OK, &body)
    });
    let done = stored.await;
    if done.is_ok() {
        metrics::counter!("images_uploaded_total").increment(1);
        metrics::counter!("images_uploaded_bytes_total").increment(size);
        mark(&state.database, &state.blobs).await;
    }
    // After a database error the commit may have succeeded, so the decision is left to the sweep.
    let is_unknown = matches!(done, Err(Error::Database(_)));
    if !is_unknown && (!is_needed.into_inner() || done.is_err()) {
        discard(&state.blobs, content.key).await;
    }
    done
}

/// Marks the image store as belonging to the database. Without the mark, orphaned blobs are merely not deleted.
async fn mark(database: &Database, blobs: &BlobStore) {
    let name = async { Ok::<_, Error>(database.run(db::images::begin_sweep).await?.database) };
    if let Err(error) = blobs.mark(name).await {
        let error = &error as &dyn std::error::Error;
        tracing::warn!(
            error,
            "failed to mark the image store; retrying after the next upload"
        );
    }
}

/// Adds an image to a pet. Returns the key of its bytes, which is another one if the same bytes were stored before.
async fn add(
    transaction: &mut Connection,
    pet: PetId,
    conditions: &Conditions,
    image: ImageId,
    content: &Content,
    url: PhotoUrl,
    initiator: &Initiator,
) -> Result<String, Error> {
    let stored = db::pets::find_for_update(&mut *transaction, pet).await?;
    let stored = stored.ok_or_else(|| no_such_pet(pet))?;
    conditions.check_version(stored.version)?;
    if db::images::count(&mut *transaction, pet).await? >= MAX_IMAGES {
        let reason = format!("pet {pet} already has {MAX_IMAGES} images, the maximum");
        return Err(Error::Conflict(reason));
    }
    let mut details = stored.details;
    details.photo_urls.push(url);
    if details.photo_urls.len() > MAX_ITEMS {
        let reason = format!("pet {pet} already has the maximum number of photoUrls");
        return Err(Error::Conflict(reason));
    }
    details.check_size().map_err(|reason| {
        Error::Conflict(format!(
            "pet {pet} has no room for the URL of another image: it {reason}"
        ))
    })?;
    let urls = details.photo_urls;
    let key = db::images::insert(&mut *transaction, pet, image, content, initiator).await?;
    db::pets::replace_photo_urls(transaction, pet, urls, initiator.clone()).await?;
    Ok(key)
}

/// Deletes bytes that no row refers to. If that fails, the sweep deletes them later.
pub(super) async fn discard(blobs: &BlobStore, key: String) {
    if let Err(error) = blobs.delete(&[key]).await {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "failed to delete an orphaned blob; the next sweep deletes it"
        );
    }
}

pub(super) fn no_such_pet(id: PetId) -> Error {
    Error::NotFound(format!("pet {id}"))
}
