//! Serves the bytes of an image, and of smaller renderings of it, without a credential.
//!
//! Invariant: browsers treat the bytes as an image only. Their type is the one that was detected at the upload,
//! sniffing is disabled, and a page in them could do nothing.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderName, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::TryStreamExt as _;
use sha2::{Digest as _, Sha256};

use super::{
    range::requested_range,
    upload::{ImageBytes, discard},
};
use crate::{
    api::{
        conditional::{Conditions, admits_range},
        error::Error,
        extract::{PathPair, Query},
        fields::Violations,
        request_context::RequestContext,
        response::counted,
        state::AppState,
    },
    blob_store::{self, BlobStore},
    db::{
        self, Connection, Database,
        images::{Content, ContentHash, Rendering},
    },
    domain::{
        address::AddressKey,
        id::PetId,
        image::{ImageId, RenderingWidth},
    },
};

const CROSS_ORIGIN_RESOURCE_POLICY: HeaderName =
    HeaderName::from_static("cross-origin-resource-policy");

/// Get an image
///
/// Needs no credential: the identifier is 128 random bits, and pages show images with `<img>`. With `width`, returns a
/// rendering of at most that width and never wider than the image, upright and without metadata: a JPEG for a JPEG or
/// for a WebP without transparency, else a PNG. A rendering of an animation is its first frame. Renderings are 16, 32, 48,
/// 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536 or 2048 pixels wide; a width between two of these is rounded down. An
/// image that cannot be made smaller is returned as it is, as without `width`: one with invalid pixels, and a WebP with
/// lossless pixels or transparency. Bytes never change, so they can be cached forever.
#[utoipa::path(
    get, path = "/pet/{petId}/images/{imageId}", operation_id = "getImage", tag = "pet", security(()),
    params(
        ("width" = Option<i32>, Query, description = "Maximum width in pixels.", minimum = 16, maximum = 2_048),
        ("Range" = Option<String>, Header, description = "Range of bytes to return, as in `bytes=0-1023`. More than one range gets the whole image."),
        ("If-Range" = Option<String>, Header, description = "Return the range only if the image has this ETag, else the whole image."),
        ("If-Match", Header), ("If-None-Match", Header),
    ),
    responses(
        (status = 200, description = "The image.",
            content((ImageBytes = "image/png"), (ImageBytes = "image/jpeg"), (ImageBytes = "image/gif"), (ImageBytes = "image/webp")),
            headers(("ETag"), ("Accept-Ranges"), ("Content-Disposition"), ("Content-Security-Policy"),
                ("Cross-Origin-Resource-Policy"), ("X-Content-Type-Options"))),
        (status = 206, description = "The requested range of the image.",
            content((ImageBytes = "image/png"), (ImageBytes = "image/jpeg"), (ImageBytes = "image/gif"), (ImageBytes = "image/webp")),
            headers(("ETag"), ("Accept-Ranges"), ("Content-Range"), ("Content-Disposition"), ("Content-Security-Policy"),
                ("Cross-Origin-Resource-Policy"), ("X-Content-Type-Options"))),
        (status = 304, description = "The client already has the image.", headers(("ETag"))),
        (status = 404, description = "There is no such pet, or it has no such image."),
        (status = 416, description = "The range begins after the end of the image.", headers(("Content-Range"))),
    ),
)]
pub(super) async fn get(
    State(state): State<AppState>,
    PathPair(pet, id): PathPair<PetId, ImageId>,
    Query(query): Query,
    request: RequestContext,
    conditions: Conditions,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let mut violations = Violations::default();
    let width = query.optional(&mut violations, "width", str::parse::<RenderingWidth>);
    violations.finish(Some(()))?;
    let requested = Requested {
        name: format!("pet-{pet}-{id}"),
        client: request.client_address(),
        conditions,
        method,
        headers,
    };
    let content = async || {
        let _share = (state.concurrency.renderings).take(requested.client, 1)?;
        let find = async |connection: &mut Connection| db::images::find(connection, pet, id).await;
        let image = state.database.run(find).await?;
        let image = image.ok_or_else(|| no_such_image(id))?;
        Ok::<_, Error>(image.content)
    };
    let attempt = async |content: Content| {
        let made = match width {
            Some(width) => rendering(&state, requested.client, &content, width).await?,
            None => None,
        };
        let Some((made, unstored)) = made else {
            let tag = entity_tag(&content);
            let original = Rendering {
                key: content.key,
                kind: content.facts.kind,
                size: content.size,
            };
            return respond(&state, &requested, (&original, None), &tag).await;
        };
        // A rendering that is created again may have other bytes (of a later release), but also has another key.
        let tag = made.key.rsplit('/').next().unwrap_or_default();
        let sent = respond(&state, &requested, (&made, unstored), tag).await;
        if is_missing(&sent) {
            state
                .database
                .run(async |connection| db::images::delete_rendering(connection, &made.key).await)
                .await?;
        }
        sent
    };
    let mut sent = attempt(content().await?).await;
    if is_missing(&sent) {
        // If the image was deleted after its row was read, this responds 404. A rendering is created again.
        sent = attempt(content().await?).await;
    }
    match sent {
        Err(Error::BlobStore(error)) if error.is_of_object() => {
            metrics::counter!("images_missing_total").increment(1);
            tracing::error!(%error, "an image is lost");
            Err(no_such_image(id))
        }
        sent => sent,
    }
}

/// What a request of an image asks for.
struct Requested {
    /// Name for a copy of the image, without the extension.
    name: String,
    /// Address of the client.
    client: Option<AddressKey>,
    conditions: Conditions,
    method: Method,
    headers: HeaderMap,
}

/// Returns the entity tag of an image, without its quotes.
pub(super) fn entity_tag(content: &Content) -> String {
    hexadecimal(&content.sha256)
}

fn hexadecimal(bytes: &[u8]) -> String {
    format!("{:x}", Bytes::copy_from_slice(bytes))
}

fn is_missing<T>(outcome: &Result<T, Error>) -> bool {
    matches!(outcome, Err(Error::BlobStore(error)) if error.is_of_object())
}

pub(super) fn no_such_image(id: ImageId) -> Error {
    Error::NotFound(format!("image {id} of this pet"))
}

/// Rendering of an image, and its bytes if they could not be stored. Then, its key is their SHA-256.
type Made = (Rendering, Option<Bytes>);

/// Returns the rendering of an image, and creates it if it does not exist yet. Returns `None` if the image cannot be decoded.
async fn rendering(
    state: &AppState,
    address: Option<AddressKey>,
    content: &Content,
    width: RenderingWidth,
) -> Result<Option<Made>, Error> {
    // Anyone can request images: the look-ups of an address must not fill the queue for connections.
    let share = state.concurrency.renderings.take(address, 1)?;
    let found = find_rendering(&state.database, content.sha256, width).await?;
    if found.is_some()
        || state
            .renderer
            .is_undecodable(&content.key, content.facts, width)
    {
        return Ok(found.map(|found| (found, None)));
    }
    let (state, content) = (state.clone(), content.clone());
    // In a task of its own, so that the work is not lost if the client disconnects.
    let making = tokio::spawn(async move {
        let _share = share;
        let _lock = state.renderer.lock((content.sha256, width)).await;
        match find_rendering(&state.database, content.sha256, width).await? {
            Some(rendering) => Ok(Some((rendering, None))),
            None => make(&state, &content, width).await,
        }
    });
    making.await.map_err(Error::internal)?
}

async fn find_rendering(
    database: &Database,
    sha256: ContentHash,
    width: RenderingWidth,
) -> Result<Option<Rendering>, db::Error> {
    let find = async |connection: &mut Connection| {
        db::images::find_rendering(connection, &sha256, width).await
    };
    database.run(find).await
}

async fn make(
    state: &AppState,
    content: &Content,
    width: RenderingWidth,
) -> Result<Option<Made>, Error> {
    let original = async { Ok::<_, Error>(state.blobs.read_all(&content.key).await?) };
    let renderer = &state.renderer;
    let made = renderer.render(&content.key, content.facts, width, original);
    let Some(made) = made.await? else {
        return Ok(None);
    };
    let mut rendering = Rendering {
        key: hexadecimal(&Sha256::digest(&made.bytes)),
        kind: made.kind,
        size: made.bytes.len() as u64,
    };
    match store(&state.blobs, made.bytes.clone()).await {
        Ok(key) => rendering.key = key,
        Err(error) => {
            tracing::warn!(%error, "failed to store a rendering; sending it all the same");
            return Ok(Some((rendering, Some(made.bytes))));
        }
    }
    let stored = state.database.transact(async |transaction| {
        db::images::insert_rendering(transaction, &content.sha256, width, &rendering).await
    });
    if stored.await? {
        return Ok(Some((rendering, None)));
    }
    // Another replica was faster, or the image has been deleted.
    discard(&state.blobs, rendering.key).await;
    let found = find_rendering(&state.database, content.sha256, width).await?;
    let found = found.ok_or_else(|| Error::NotFound("this image".into()))?;
    Ok(Some((found, None)))
}

/// Stores a rendering. Returns its key.
async fn store(blobs: &BlobStore, bytes: Bytes) -> Result<String, blob_store::Error> {
    let mut upload = blobs.upload().await?;
    upload.write(bytes).await?;
    upload.finish().await
}

/// Responds with the bytes of an image or a rendering, stored or not, which have the entity tag `tag`.
async fn respond(
    state: &AppState,
    requested: &Requested,
    (image, unstored): (&Rendering, Option<Bytes>),
    tag: &str,
) -> Result<Response, Error> {
    let Requested {
        name,
        client,
        conditions,
        method,
        headers,
    } = requested;
    let etag = [(header::ETAG, format!("\"{tag}\""))];
    let caching = [(header::CACHE_CONTROL, "public, max-age=31536000, immutable")];
    if conditions.is_known(tag)? {
        return Ok((StatusCode::NOT_MODIFIED, etag, caching).into_response());
    }
    let size = image.size;
    // Ranges are defined for GET only (RFC 9110 §14.2).
    let part = if *method == Method::GET && admits_range(headers, tag) {
        requested_range(headers, size)?
    } else {
        None
    };
    let (status, range, content_range) = match part {
        None => (StatusCode::OK, 0..size, None),
        Some(part) => {
            let last = part.end.saturating_sub(1);
            let value = format!("bytes {}-{last}/{size}", part.start);
            let content_range = [(header::CONTENT_RANGE, value)];
            (StatusCode::PARTIAL_CONTENT, part, Some(content_range))
        }
    };
    let policy = "default-src 'none'; sandbox";
    let name = format!("inline; filename=\"{name}.{}\"", image.kind.extension());
    let disposition = [(header::CONTENT_DISPOSITION, name)];
    let content = [
        (header::CONTENT_TYPE, image.kind.as_str()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_SECURITY_POLICY, policy),
        (CROSS_ORIGIN_RESOURCE_POLICY, "cross-origin"),
        (header::ACCEPT_RANGES, "bytes"),
    ];
    let length = range.end - range.start;
    let body = match *method {
        Method::HEAD => Body::empty(),
        _ => {
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            // Before anything is read, so that a client that reads no responses causes no work.
            let share = state.concurrency.image(*client, length)?;
            let share = Arc::new(share);
            match unstored {
                Some(bytes) => {
                    let start = usize::try_from(range.start).unwrap_or(usize::MAX);
                    Body::from(counted(bytes.slice(start..start + length), &share))
                }
                None => {
                    let read = state.blobs.read(&image.key, range).await?;
                    Body::from_stream(read.map_ok(move |bytes| counted(bytes, &share)))
                }
            }
        }
    };
    let length = [(header::CONTENT_LENGTH, length)];
    let headers = (etag, caching, content, disposition, content_range, length);
    Ok((status, headers, body).into_response())
}
