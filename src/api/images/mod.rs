//! Images of pets: upload, list, serve, delete.
//!
//! Invariants:
//! - Bytes are stored before their row and deleted after it, so every row has its bytes.
//! - A change of a pet's images changes its `photoUrls`, and so its version, in the same transaction.

pub mod multipart;
pub mod range;
mod receive;
mod serve;
mod upload;
mod urls;

use axum::{extract::State, response::Response};
use chrono::SecondsFormat;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::routes;

use self::{
    serve::{entity_tag, no_such_image},
    upload::no_such_pet,
    urls::{Urls, image_path, image_url},
};
use super::{
    conditional::Conditions,
    error::Error,
    extract::{Path, PathPair},
    operations::{Facts, Keys, Operations},
    paging::Lists,
    response::ApiResponse,
};
use crate::{
    blob_store::OrphanedBlobs,
    db::{self, Database},
    domain::{change::Initiator, id::PetId, image::ImageId},
};

/// Returns the operations on images. The upload limits the time of the parts of its body.
pub fn router() -> Operations {
    let upload = Facts {
        keys: Keys::StoredByHandler,
        timeout_factor: 0,
        ..Facts::OPERATION
    };
    Operations::new()
        .routes(routes!(serve::get, delete))
        .list(routes!(list))
        .routes_with(upload, routes!(upload::upload))
}

/// An image of a pet.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Image, example = json!({
    "id": "9f86d081884c7d659a2feaa0c55ad015",
    "type": "image/jpeg",
    "size": 183_734,
    "width": 1200,
    "height": 800,
    "url": "https://pets.example.com/api/v3/pet/1/images/9f86d081884c7d659a2feaa0c55ad015",
    "createdAt": "2026-05-01T12:00:00.000Z"
}))]
struct ImageBody {
    /// Identifier.
    #[schema(min_length = 32, max_length = 32, pattern = "^[0-9a-f]{32}$")]
    id: String,
    /// Media type, detected from the content.
    #[serde(rename = "type")]
    #[schema(max_length = 10, pattern = "^image/(png|jpeg|gif|webp)$")]
    kind: &'static str,
    /// Size in bytes.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    size: u64,
    /// Width in pixels.
    #[schema(minimum = 1, maximum = 8_192)]
    width: u32,
    /// Height in pixels.
    #[schema(minimum = 1, maximum = 8_192)]
    height: u32,
    /// URL of the image, which works without a credential.
    #[schema(format = "uri", max_length = 2_048)]
    url: String,
    /// Time of the upload.
    #[schema(format = DateTime, max_length = 40)]
    created_at: String,
}

/// The images of a pet.
#[derive(Serialize, ToSchema)]
#[schema(max_items = 100)]
struct Images(Vec<ImageBody>);

/// List a pet's images
///
/// Oldest first. Removing an image's URL from `photoUrls` does not delete the image.
#[utoipa::path(
    get, path = "/pet/{petId}/images", operation_id = "listImages", tag = "pet", security(("bearer" = ["read:pets"])),
    responses((status = 200, description = "The images.", body = inline(Images))),
)]
async fn list(
    State(database): State<Database>,
    lists: Lists,
    Path(pet): Path<PetId>,
    urls: Urls,
) -> Result<Response, Error> {
    let found = database.run(async |connection| {
        let images = db::images::list(connection, pet).await?;
        let exists = !images.is_empty() || db::pets::exists(connection, pet).await?;
        Ok::<_, db::Error>((images, exists))
    });
    let (images, exists) = found.await?;
    if !exists {
        return Err(no_such_pet(pet));
    }
    let bodies = images.into_iter().map(|image| ImageBody {
        id: image.id.to_string(),
        kind: image.content.facts.kind.as_str(),
        size: image.content.size,
        width: image.content.facts.width,
        height: image.content.facts.height,
        url: image_url(&urls, pet, image.id),
        created_at: (image.created_at).to_rfc3339_opts(SecondsFormat::Millis, true),
    });
    lists.whole(&Images(bodies.collect()))
}

/// Delete an image
///
/// Its URL is removed from the pet's `photoUrls`, too. `If-Match` and `If-None-Match` have the image's own ETag, not the pet's.
#[utoipa::path(
    delete, path = "/pet/{petId}/images/{imageId}", operation_id = "deleteImage", tag = "pet",
    security(("bearer" = ["write:pets"])),
    params(("If-Match", Header), ("If-None-Match", Header)),
    responses(
        (status = 200, description = "Deleted.", body = ApiResponse),
        (status = 404, description = "There is no such pet, or it has no such image."),
    ),
)]
async fn delete(
    State(database): State<Database>,
    State(orphaned_blobs): State<OrphanedBlobs>,
    PathPair(pet, image): PathPair<PetId, ImageId>,
    conditions: Conditions,
    initiator: Initiator,
) -> Result<Response, Error> {
    let deleted = database.transact(async |transaction| {
        let stored = db::pets::find_for_update(&mut *transaction, pet).await?;
        let stored = stored.ok_or_else(|| no_such_pet(pet))?;
        let found = db::images::find(&mut *transaction, pet, image).await?;
        let found = found.ok_or_else(|| no_such_image(image))?;
        conditions.check(&entity_tag(&found.content))?;
        db::images::delete(&mut *transaction, pet, &found, &initiator).await?;
        // The URL may have been stored with another host.
        let end = image_path(pet, image);
        let mut urls = stored.details.photo_urls;
        urls.retain(|url| !url.as_str().ends_with(&end));
        Ok::<_, Error>(db::pets::replace_photo_urls(transaction, pet, urls, initiator).await?)
    });
    deleted.await?;
    orphaned_blobs.notify();
    ApiResponse::deleted(&image)
}
