//! Serves the bytes of an image, and of smaller renderings of it, without a credential.
//!
//! Invariant: browsers treat the bytes as an image only. Their type is the one that was detected at the upload,
//! sniffing is disabled, and a page in them could do nothing.

use axum::{
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
};

use super::{
    body::ImageBytes,
    error::no_such_image,
    range::{RequestedRange, requested_range},
    upload::discard,
};
use crate::{
    api::{
        conditional::{IfNoneMatch, admits_range},
        error::Error,
        extract::{PathPair, Query},
        fields::Violations,
    },
    blob_store::{self, BlobStore},
    db::{
        self, Connection, Database,
        images::{Content, Rendering},
    },
    domain::{
        id::PetId,
        image::{ImageId, ImageType, RenderingWidth},
    },
    images::renderings::Renderer,
};

const CROSS_ORIGIN_RESOURCE_POLICY: HeaderName =
    HeaderName::from_static("cross-origin-resource-policy");

/// Get an image
///
/// Needs no credential: the identifier is 128 random bits, and pages show images with `<img>`. With `width`, returns a
/// rendering of at most that width and never wider than the image, upright and without metadata: a JPEG for a JPEG or
/// for a WebP without transparency, else a PNG. Renderings are 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
/// 1536 or 2048 pixels wide; a width between two of these is rounded down. Bytes never change, so they can be cached
/// forever.
#[utoipa::path(
    get, path = "/pet/{petId}/images/{imageId}", operation_id = "getImage", tag = "pet",
    security(()),
    params(
        ("petId", Path), ("imageId", Path),
        ("width" = Option<i32>, Query, description = "Maximum width in pixels.", minimum = 16, maximum = 2_048),
        ("Range" = Option<String>, Header, description = "Range of bytes to return, as in `bytes=0-1023`. More than one range gets the whole image."),
        ("If-Range" = Option<String>, Header, description = "Return the range only if the image has this ETag, else the whole image."),
        ("If-None-Match", Header),
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
        (status = 404, description = "There is no such pet, it has no such image, or the image cannot be decoded for a rendering."),
        (status = 416, description = "The range begins after the end of the image.", headers(("Content-Range"))),
    ),
)]
pub(super) async fn get(
    State(database): State<Database>,
    State(blobs): State<BlobStore>,
    State(renderer): State<Renderer>,
    PathPair(pet, id): PathPair<PetId, ImageId>,
    Query(query): Query,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let mut violations = Violations::default();
    let width = query.optional(&mut violations, "width", str::parse::<RenderingWidth>);
    violations.finish(Some(()))?;
    let content = async || {
        let image = db::images::find(database.pool(), pet, id).await?;
        let image = image.ok_or_else(|| no_such_image(id))?;
        Ok::<_, Error>(image.content)
    };
    let attempt = async |content| {
        let Some(width) = width else {
            return respond(&blobs, Stored::from(content), &method, &headers).await;
        };
        let made = rendering(&database, &blobs, &renderer, content, width).await?;
        let key = made.key.clone();
        let sent = respond(&blobs, made.into(), &method, &headers).await;
        if is_missing(&sent) {
            db::images::delete_rendering(database.pool(), &key).await?;
        }
        sent
    };
    let sent = attempt(content().await?).await;
    if is_missing(&sent) {
        // If the image was deleted after its row was read, this responds 404. A rendering is created again.
        return attempt(content().await?).await;
    }
    sent
}

fn is_missing<T>(outcome: &Result<T, Error>) -> bool {
    matches!(
        outcome,
        Err(Error::BlobStore(blob_store::Error::Missing(_)))
    )
}

struct Stored {
    key: String,
    kind: ImageType,
    size: u64,
    /// Entity tag, unique to these bytes.
    tag: String,
}

impl From<Content> for Stored {
    fn from(content: Content) -> Self {
        use std::fmt::Write as _;
        let mut tag = String::new();
        for byte in content.sha256 {
            // Writing to a string cannot fail.
            let _ = write!(tag, "{byte:02x}");
        }
        Self {
            key: content.key,
            kind: content.facts.kind,
            size: content.size,
            tag,
        }
    }
}

impl From<Rendering> for Stored {
    fn from(Rendering { key, kind, size }: Rendering) -> Self {
        // A rendering that is created again may have other bytes (of a later release), but also has another key.
        let tag = key.rsplit('/').next().unwrap_or_default().to_owned();
        Self {
            key,
            kind,
            size,
            tag,
        }
    }
}

/// Returns the rendering of an image, and creates it if it does not exist yet.
async fn rendering(
    database: &Database,
    blobs: &BlobStore,
    renderer: &Renderer,
    content: Content,
    width: RenderingWidth,
) -> Result<Rendering, Error> {
    let pool = database.pool();
    if let Some(rendering) = db::images::find_rendering(pool, &content.sha256, width).await? {
        return Ok(rendering);
    }
    let permit = renderer.waiting_permit()?;
    let (database, blobs, renderer) = (database.clone(), blobs.clone(), renderer.clone());
    // In a task of its own, so that the work is not lost if the client disconnects.
    let making = tokio::spawn(async move {
        let _permit = permit;
        let _lock = renderer.lock((content.sha256, width)).await;
        let rendering = db::images::find_rendering(database.pool(), &content.sha256, width).await?;
        match rendering {
            Some(rendering) => Ok(rendering),
            None => make(&database, &blobs, &renderer, &content, width).await,
        }
    });
    making
        .await
        .map_err(|panic| Error::Internal(panic.into()))?
}

async fn make(
    database: &Database,
    blobs: &BlobStore,
    renderer: &Renderer,
    content: &Content,
    width: RenderingWidth,
) -> Result<Rendering, Error> {
    let original = async { Ok::<_, Error>(blobs.read_all(&content.key).await?) };
    let (key, facts) = (&content.key, content.facts);
    let made = renderer.render(key, facts, width, original).await?;
    let size = made.bytes.len() as u64;
    let mut upload = blobs.upload().await?;
    upload.write(made.bytes).await?;
    let rendering = Rendering {
        key: upload.finish().await?,
        kind: made.kind,
        size,
    };
    let work = async |transaction: &mut Connection| {
        db::images::insert_rendering(transaction, &content.sha256, width, &rendering).await
    };
    if database.transact(work).await? {
        return Ok(rendering);
    }
    // Another replica was faster, or the image has been deleted.
    discard(blobs, rendering.key).await;
    db::images::find_rendering(database.pool(), &content.sha256, width)
        .await?
        .ok_or_else(|| Error::NotFound("this image".into()))
}

async fn respond(
    blobs: &BlobStore,
    Stored {
        key,
        kind,
        size,
        tag,
    }: Stored,
    method: &Method,
    headers: &HeaderMap,
) -> Result<Response, Error> {
    let etag = value(format!("\"{tag}\""))?;
    let validators = [
        (header::ETAG, etag),
        (
            header::CACHE_CONTROL,
            HeaderValue::from_static("public, max-age=31536000, immutable"),
        ),
    ];
    if IfNoneMatch::from_headers(headers).matches(&tag) {
        return Ok((StatusCode::NOT_MODIFIED, validators).into_response());
    }
    // Ranges are defined for GET only (RFC 9110 §14.2).
    let range = if *method == Method::GET && admits_range(headers, &tag) {
        requested_range(headers, size)
    } else {
        RequestedRange::Whole
    };
    let (status, range) = match range {
        RequestedRange::Whole => (StatusCode::OK, 0..size),
        RequestedRange::Part(range) => (StatusCode::PARTIAL_CONTENT, range),
        RequestedRange::Unsatisfiable => return Err(Error::RangeNotSatisfiable(size)),
    };
    let content = [
        (header::CONTENT_TYPE, kind.as_str()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; sandbox",
        ),
        (header::CONTENT_DISPOSITION, "inline"),
        (CROSS_ORIGIN_RESOURCE_POLICY, "cross-origin"),
        (header::ACCEPT_RANGES, "bytes"),
    ];
    let mut response = (status, validators, content).into_response();
    let length = range.end - range.start;
    let fields = response.headers_mut();
    fields.insert(header::CONTENT_LENGTH, length.into());
    if status == StatusCode::PARTIAL_CONTENT {
        let last = range.end.saturating_sub(1);
        let range = value(format!("bytes {}-{last}/{size}", range.start))?;
        fields.insert(header::CONTENT_RANGE, range);
    }
    if *method != Method::HEAD {
        *response.body_mut() = Body::from_stream(blobs.read(&key, range).await?);
    }
    Ok(response)
}

/// Converts text to a header value. Never fails for ASCII letters, digits and punctuation.
fn value(text: String) -> Result<HeaderValue, Error> {
    HeaderValue::try_from(text).map_err(|error| Error::Internal(error.into()))
}
