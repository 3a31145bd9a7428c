//! Upload: the bytes are stored first, under a key of their own, then their row and the pet's URL in one
//! transaction. What a failure leaves in between is bytes without a row, which are deleted at once, or, if
//! we ended there, by the sweep.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use axum::{
    body::Body,
    extract::{FromRequestParts, Request, State},
    http::{HeaderValue, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use sha2::{Digest, Sha256};
use tracing::Instrument;
use utoipa::ToSchema;

use super::{
    ImageBytes, Urls, no_such_pet,
    receive::{METADATA, Received, receive},
};
use crate::{
    api::{
        answer,
        error::Error,
        extract::{Path, Query},
        fields::Violations,
        idempotency::{ClientKey, Idempotency},
        state::{RequestTimeout, Uploads},
    },
    blobs::Blobs,
    db::{self, Connection, Database, images::Content},
    domain::{
        id::PetId,
        image::{ImageId, MAX_IMAGES, check_metadata},
        pet::PhotoUrl,
    },
};

/// How much longer than its body an upload may take, for what is written to be taken.
const STALLED: Duration = Duration::from_secs(5);

/// What was stored.
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
    /// The HTTP status.
    #[schema(minimum = 200, maximum = 200)]
    code: u16,
    /// Media type of the image, as its content tells it.
    #[serde(rename = "type")]
    #[schema(max_length = 10, pattern = "^image/(png|jpeg|gif|webp)$")]
    kind: &'static str,
    /// What was done.
    #[schema(max_length = 2_048, pattern = r"^[^\x00]*$")]
    message: String,
    /// Identifier of the image.
    #[schema(min_length = 32, max_length = 32, pattern = "^[0-9a-f]{32}$")]
    image_id: String,
    /// Where anybody who knows it can get the image; the pet's `photoUrls` end with it now.
    #[schema(format = "uri", max_length = 2_048)]
    url: String,
    /// In pixels.
    #[schema(minimum = 1, maximum = 8_192)]
    width: u32,
    /// In pixels.
    #[schema(minimum = 1, maximum = 8_192)]
    height: u32,
    /// In bytes.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    size: u64,
}

/// An upload as a form.
#[derive(ToSchema)]
#[schema(as = ImageForm, rename_all = "camelCase")]
#[expect(dead_code, reason = "describes the form, which is read as it comes")]
struct FormBody {
    /// The image: the form's first file.
    #[schema(value_type = String, format = Binary, min_length = 1)]
    file: Vec<u8>,
    /// Anything; it is repeated in the answer.
    #[schema(nullable = false, max_length = 1_000, pattern = r"^[^\x00]*$")]
    additional_metadata: Option<String>,
}

/// Upload an image of a pet
///
/// PNG, JPEG, GIF or WebP, as its content tells, of at most 10 MiB (unless the operator says otherwise) and
/// 8,192 pixels in either direction. Its URL is appended to the pet's `photoUrls`; that makes a new version of
/// the pet. Of an upload with an `Idempotency-Key` the success is kept; a refusal is not.
#[utoipa::path(
    post, path = "/pet/{petId}/uploadImage", operation_id = "uploadFile", tag = "pet",
    security(("api_key" = ["write:pets"]), ("bearer" = ["write:pets"])),
    params(
        ("petId" = i64, Path, description = "Identifier of the pet.", minimum = 1, maximum = 9_007_199_254_740_991_i64, example = 1),
        ("additionalMetadata" = Option<String>, Query, description = "Anything; it is repeated in the answer.", max_length = 1_000, pattern = r"^[^\x00]*$"),
    ),
    request_body(
        content((FormBody = "multipart/form-data"), (ImageBytes = "application/octet-stream"), (ImageBytes = "image/*")),
        description = "The image."),
    responses(
        (status = 200, description = "Stored.", body = UploadedBody),
        (status = 404, description = "There is no such pet."),
        (status = 409, description = "The pet has as many images or `photoUrls` as it can have, or a request with this `Idempotency-Key` is being worked on."),
        (status = 507, description = "There is no room left for images."),
    ),
)]
pub(super) async fn upload(
    State(database): State<Database>,
    State(blobs): State<Blobs>,
    State(uploads): State<Uploads>,
    State(RequestTimeout(timeout)): State<RequestTimeout>,
    Path(pet): Path<PetId>,
    urls: Urls,
    request: Request,
) -> Result<Response, Error> {
    let _place = uploads
        .places
        .try_acquire()
        .map_err(|_| Error::Overloaded)?;
    let (mut parts, body) = request.into_parts();
    let receiving = take(&mut parts, body, pet, &database, &blobs, &uploads);
    // A body that is late is known sooner: by now it is the place that does not take it.
    let receiving = tokio::time::timeout(uploads.timeout + STALLED, receiving).await;
    let (received, key) = match receiving.unwrap_or(Err(Error::TimedOut)) {
        Ok(taken) => taken,
        Err(refusal) => return Ok(hang_up(refusal)),
    };
    let idempotency = key.map_or_else(Idempotency::default, |key| {
        // Not of the body: a form has another boundary each time.
        let said = received.metadata.as_deref().unwrap_or_default();
        let fingerprint = Sha256::new()
            .chain_update(parts.uri.path())
            .chain_update([0])
            .chain_update(said)
            .chain_update([0])
            .chain_update(received.sha256);
        key.with_fingerprint(fingerprint.finalize().to_vec())
    });
    if let Some(answer) = idempotency.answered(&database).await? {
        return Ok(answer);
    }
    // On its own from here: a client that goes now does not leave the half of it.
    let keeping = async move {
        let keeping = keep(&database, &blobs, idempotency, pet, &urls, received);
        tokio::time::timeout(timeout, keeping).await
    };
    match tokio::spawn(keeping.in_current_span()).await {
        Ok(kept) => kept.map_err(|_| Error::TimedOut)?,
        Err(panic) => Err(Error::Internal(panic.into())),
    }
}

/// A refusal of a body that may not have come yet, all of it: hyper gives its connection up then, and a
/// client that is not told so sends its next request into the void.
fn hang_up(refusal: Error) -> Response {
    let mut response = refusal.into_response();
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(header::CONNECTION, close);
    response
}

/// Takes the image out of a request, with the key under which its answer is kept.
async fn take(
    parts: &mut Parts,
    body: Body,
    pet: PetId,
    database: &Database,
    blobs: &Blobs,
    uploads: &Uploads,
) -> Result<(Received, Option<ClientKey>), Error> {
    let Query(query) = Query::from_request_parts(parts, &()).await?;
    let mut violations = Violations::default();
    let metadata = query.optional(&mut violations, METADATA, |text| {
        check_metadata(text).map(|()| text.to_owned())
    });
    violations.finish(Some(()))?;
    let key = ClientKey::of(&parts.headers, &parts.extensions)?;
    // Nobody need send an image of a pet that there is not; but an answer that was given is given again.
    if key.is_none() && !db::pets::exists(database.pool(), pet).await? {
        return Err(no_such_pet(pet));
    }

    let mut received = receive(&parts.headers, body, blobs, uploads).await?;
    received.metadata = received.metadata.or(metadata);
    Ok((received, key))
}

/// Stores an image that has come.
async fn keep(
    database: &Database,
    blobs: &Blobs,
    idempotency: Idempotency,
    pet: PetId,
    urls: &Urls,
    received: Received,
) -> Result<Response, Error> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|error| Error::Internal(error.into()))?;
    let image = ImageId::from_bytes(random);
    let url = PhotoUrl::new(urls.of(pet, image))
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
            Some(said) => format!("{METADATA}: {said}; {size} bytes stored"),
            None => format!("{size} bytes stored"),
        },
        image_id: image.to_string(),
        url: url.as_str().to_owned(),
        width: content.facts.width,
        height: content.facts.height,
        size,
    };
    // Told by the last of however many tries.
    let is_needed = AtomicBool::new(false);
    let work = async |transaction: &mut Connection| {
        let key = add(&mut *transaction, pet, image, &content, url).await?;
        is_needed.store(key == content.key, Ordering::Relaxed);
        answer::json(StatusCode::OK, &body)
    };
    let done = idempotency.run(database, work).await;
    if done.is_ok() {
        metrics::counter!("images_uploaded_total").increment(1);
        metrics::counter!("images_uploaded_bytes_total").increment(size);
        mark(database, blobs).await;
    }
    // Whether a commit that failed was one nobody knows: then the sweep will.
    let is_unknown = matches!(done, Err(Error::Database(_)));
    if !is_unknown && (!is_needed.into_inner() || done.is_err()) {
        discard(blobs, content.key).await;
    }
    done
}

/// Makes the place belong to the database. Until that is done, nothing there is swept, and that is all.
async fn mark(database: &Database, blobs: &Blobs) {
    let name = async { Ok::<_, Error>(db::images::database_name(database.pool()).await?) };
    if let Err(error) = blobs.mark(name).await {
        let error = &error as &dyn std::error::Error;
        tracing::warn!(error, "could not say in the place of images whose it is");
    }
}

/// Adds an image to a pet, and gives the key that its bytes have.
async fn add(
    transaction: &mut Connection,
    pet: PetId,
    image: ImageId,
    content: &Content,
    url: PhotoUrl,
) -> Result<String, Error> {
    let stored = db::pets::find_for_update(&mut *transaction, pet)
        .await?
        .ok_or_else(|| no_such_pet(pet))?;
    if db::images::count(&mut *transaction, pet).await? >= MAX_IMAGES {
        return Err(Error::Conflict(format!(
            "pet {pet} has {MAX_IMAGES} images, as many as it can have"
        )));
    }
    let details = stored
        .details
        .with_photo_url(url)
        .map_err(|_| Error::Conflict(format!("pet {pet} has as many photoUrls as it can have")))?;
    let key = db::images::insert(&mut *transaction, pet, image, content).await?;
    db::pets::replace(transaction, pet, details, None).await?;
    Ok(key)
}

/// Deletes bytes that no row came to need. Should that fail, the sweep finds them.
pub(super) async fn discard(blobs: &Blobs, key: String) {
    if let Err(error) = blobs.delete(&[key]).await {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "could not delete bytes that nobody needs"
        );
    }
}
