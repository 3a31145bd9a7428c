//! The bytes of an image, and of smaller renderings of it, for anybody who knows its URL.
//!
//! Invariant: whatever the bytes are beside an image, a browser takes them for nothing else: their type is
//! the one they were accepted as, and no page that they might be can do anything.

use axum::{
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
};

use super::{
    ImageBytes, no_such_image,
    range::{Asked, asked},
    upload::discard,
};
use crate::{
    api::{
        conditional::{admits_range, is_had},
        error::Error,
        extract::{PathPair, Query},
        fields::Violations,
    },
    blobs::{self, Blobs},
    db::{
        self, Connection, Database,
        images::{Content, Rendering},
    },
    domain::{
        id::PetId,
        image::{ImageId, ImageType, RenderingWidth},
    },
    renderings::Renderer,
};

const CROSS_ORIGIN_RESOURCE_POLICY: HeaderName =
    HeaderName::from_static("cross-origin-resource-policy");

/// Get an image
///
/// Without a credential: its identifier is 128 random bits, and a page shows it with `<img>`. With `width` a
/// rendering that is at most so wide, and never wider than the image, upright and without metadata: a JPEG of a JPEG
/// or of a WebP without transparency, else a PNG. Renderings are 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768,
/// 1024, 1536 or 2048 pixels wide; for a width between two of these it is the smaller one. Bytes never change, so they may be kept for ever.
#[utoipa::path(
    get, path = "/pet/{petId}/images/{imageId}", operation_id = "getImage", tag = "pet",
    security(()),
    params(
        ("petId" = i64, Path, description = "Identifier of the pet.", minimum = 1, maximum = 9_007_199_254_740_991_i64, example = 1),
        ("imageId" = String, Path, description = "Identifier of the image.", min_length = 32, max_length = 32, pattern = "^[0-9a-f]{32}$"),
        ("width" = Option<i32>, Query, description = "How many pixels wide it shall be at most.", minimum = 16, maximum = 2_048),
        ("Range" = Option<String>, Header, description = "The bytes to send, as in `bytes=0-1023`; more than one range gets all of them."),
        ("If-Range" = Option<String>, Header, description = "Send the range only if the image has this ETag, else all of it."),
        ("If-None-Match" = Option<String>, Header, description = "ETags that the client has: with one of them the image is not sent again."),
    ),
    responses(
        (status = 200, description = "The image.",
            content((ImageBytes = "image/png"), (ImageBytes = "image/jpeg"), (ImageBytes = "image/gif"), (ImageBytes = "image/webp")),
            headers(("ETag" = String, description = "Of the bytes, for If-None-Match and If-Range."),
                    ("Accept-Ranges" = String, description = "`bytes`."),
                    ("Content-Disposition" = String, description = "`inline`."),
                    ("Content-Security-Policy" = String, description = "Lets the bytes do nothing, were they taken for a page."),
                    ("Cross-Origin-Resource-Policy" = String, description = "`cross-origin`: any page may show it."),
                    ("X-Content-Type-Options" = String, description = "`nosniff`."))),
        (status = 206, description = "The range of the image.",
            content((ImageBytes = "image/png"), (ImageBytes = "image/jpeg"), (ImageBytes = "image/gif"), (ImageBytes = "image/webp")),
            headers(("ETag" = String, description = "Of the bytes, for If-None-Match and If-Range."),
                    ("Accept-Ranges" = String, description = "`bytes`."),
                    ("Content-Range" = String, description = "Which bytes these are, and of how many."),
                    ("Content-Disposition" = String, description = "`inline`."),
                    ("Content-Security-Policy" = String, description = "Lets the bytes do nothing, were they taken for a page."),
                    ("Cross-Origin-Resource-Policy" = String, description = "`cross-origin`: any page may show it."),
                    ("X-Content-Type-Options" = String, description = "`nosniff`."))),
        (status = 304, description = "The client has it already.",
            headers(("ETag" = String, description = "Of the bytes, for If-None-Match and If-Range."))),
        (status = 404, description = "There is no such pet, it has no such image, or no smaller one can be made of it."),
        (status = 416, description = "There are no such bytes.",
            headers(("Content-Range" = String, description = "How many bytes there are."))),
    ),
)]
pub(super) async fn get(
    State(database): State<Database>,
    State(blobs): State<Blobs>,
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
            db::images::forget_rendering(database.pool(), &key).await?;
        }
        sent
    };
    let sent = attempt(content().await?).await;
    if is_missing(&sent) {
        // Deleted since its row was read, most likely, and then that is gone; a rendering is made anew.
        return attempt(content().await?).await;
    }
    sent
}

fn is_missing<T>(outcome: &Result<T, Error>) -> bool {
    matches!(outcome, Err(Error::Blobs(blobs::Error::Missing(_))))
}

/// Bytes to be sent.
struct Stored {
    key: String,
    kind: ImageType,
    size: u64,
    /// Stands for these bytes and no others.
    tag: String,
}

impl From<Content> for Stored {
    fn from(content: Content) -> Self {
        use std::fmt::Write as _;
        let mut tag = String::new();
        for byte in content.sha256 {
            // Writing to a text cannot fail.
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
        // Made anew, by a later release perhaps, it may be of other bytes, and is of another key.
        let tag = key.rsplit('/').next().unwrap_or_default().to_owned();
        Self {
            key,
            kind,
            size,
            tag,
        }
    }
}

/// The rendering of a content, made now if nobody has asked for it before.
async fn rendering(
    database: &Database,
    blobs: &Blobs,
    renderer: &Renderer,
    content: Content,
    width: RenderingWidth,
) -> Result<Rendering, Error> {
    let pool = database.pool();
    if let Some(rendering) = db::images::find_rendering(pool, &content.sha256, width).await? {
        return Ok(rendering);
    }
    let place = renderer.place()?;
    let (database, blobs, renderer) = (database.clone(), blobs.clone(), renderer.clone());
    // On its own: a client that does not wait for it must not make the next one begin anew.
    let making = tokio::spawn(async move {
        let _place = place;
        let _turn = renderer.turn((content.sha256, width)).await;
        let made = db::images::find_rendering(database.pool(), &content.sha256, width).await?;
        match made {
            Some(rendering) => Ok(rendering),
            None => make(&database, &blobs, &renderer, &content, width).await,
        }
    });
    making
        .await
        .map_err(|panic| Error::Internal(panic.into()))?
}

/// Makes a rendering and keeps it, for whoever asks next.
async fn make(
    database: &Database,
    blobs: &Blobs,
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
    // Another replica was faster, or the image is gone meanwhile.
    discard(blobs, rendering.key).await;
    db::images::find_rendering(database.pool(), &content.sha256, width)
        .await?
        .ok_or_else(|| Error::NotFound("this image".into()))
}

async fn respond(
    blobs: &Blobs,
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
    let kept = [
        (header::ETAG, etag),
        (
            header::CACHE_CONTROL,
            HeaderValue::from_static("public, max-age=31536000, immutable"),
        ),
    ];
    if is_had(headers, &tag) {
        return Ok((StatusCode::NOT_MODIFIED, kept).into_response());
    }
    // A range is of what GET would send (RFC 9110 §14.2).
    let asked = if *method == Method::GET && admits_range(headers, &tag) {
        asked(headers, size)
    } else {
        Asked::Whole
    };
    let (status, range) = match asked {
        Asked::Whole => (StatusCode::OK, 0..size),
        Asked::Part(range) => (StatusCode::PARTIAL_CONTENT, range),
        Asked::Unsatisfiable => return Err(Error::RangeNotSatisfiable(size)),
    };
    let is = [
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
    let mut response = (status, kept, is).into_response();
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

/// Letters, digits and punctuation are always a valid value.
fn value(text: String) -> Result<HeaderValue, Error> {
    HeaderValue::try_from(text).map_err(|error| Error::Internal(error.into()))
}
