//! Streams the body of an upload to the image store, without holding all of it in memory.

use std::time::Duration;

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, header},
};
use http_body_util::BodyExt;
use sha2::{Digest, Sha256};
use tokio::time::{Instant, timeout_at};

use super::multipart::{Event, Malformed, Multipart, Part};
use crate::{
    api::{error::Error, extract::require_plain, problem::Violation, state::Uploads},
    blob_store::{BlobStore, Upload},
    db::images::ContentHash,
    domain::image::{self, Facts},
    images::reader::{Reader, Refusal},
};

/// Accepted media types, in the words of the error message.
const ACCEPTED: &str = "application/octet-stream or image/* or multipart/form-data";
/// Maximum number of bytes in a form besides the image.
const FORM: u64 = 64 << 10;
/// Form field of the image, for a part without a file name.
const FILE: &str = "file";
/// Parameter or form field of the text that a client adds to its image.
pub(super) const METADATA: &str = "additionalMetadata";

/// Complete and valid image.
pub(super) struct Received {
    /// Bytes, not yet stored for good.
    pub upload: Upload,
    pub sha256: ContentHash,
    pub facts: Facts,
    /// Additional metadata in the form.
    pub metadata: Option<String>,
}

/// Receives an image from a body of any accepted media type.
pub(super) async fn receive(
    headers: &HeaderMap,
    body: Body,
    blobs: &BlobStore,
    uploads: &Uploads,
) -> Result<Received, Error> {
    let content_type = match headers.get(header::CONTENT_TYPE) {
        // A type is optional (RFC 9110 §8.3); the reader detects it.
        None => "application/octet-stream",
        Some(value) => value
            .to_str()
            .map_err(|_| Error::UnsupportedMediaType(ACCEPTED))?,
    };
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    let essence = essence.to_ascii_lowercase();
    require_plain(headers)?;
    if essence == "multipart/form-data" {
        let form = Multipart::new(content_type)
            .map_err(|Malformed(reason)| Error::one_violation("Content-Type", reason))?;
        let body = Arriving::new(body, uploads, uploads.max_size.saturating_add(FORM))?;
        return of_form(form, body, Sink::new(blobs, uploads, FILE)).await;
    }
    if essence != "application/octet-stream" && !essence.starts_with("image/") {
        return Err(Error::UnsupportedMediaType(ACCEPTED));
    }
    let mut body = Arriving::new(body, uploads, uploads.max_size)?;
    let mut sink = Sink::new(blobs, uploads, "body");
    while let Some(bytes) = body.next().await? {
        sink.write(bytes).await?;
    }
    sink.finish(None)
}

/// Receives the first file of a form. Other parts, except the metadata, are skipped.
async fn of_form(
    mut form: Multipart,
    mut body: Arriving,
    mut sink: Sink<'_>,
) -> Result<Received, Error> {
    #[derive(PartialEq)]
    enum Now {
        File,
        Metadata,
        Other,
    }
    let mut now = Now::Other;
    let mut has_file = false;
    let mut metadata: Option<Vec<u8>> = None;
    loop {
        let Some(event) = form.next().map_err(malformed)? else {
            let Some(bytes) = body.next().await? else {
                return Err(malformed(Malformed(
                    "must be a complete form; it ends early",
                )));
            };
            form.push(&bytes);
            continue;
        };
        match event {
            Event::Part(Part { name, is_file }) => {
                now = if !has_file && (is_file || name == FILE) {
                    has_file = true;
                    Now::File
                } else if name == METADATA && metadata.is_none() {
                    metadata = Some(Vec::new());
                    Now::Metadata
                } else {
                    Now::Other
                };
            }
            Event::Data(bytes) => match (&now, &mut metadata) {
                (Now::File, _) => sink.write(bytes).await?,
                (Now::Metadata, Some(text)) => {
                    text.extend_from_slice(&bytes);
                    // A character has at most 4 bytes in UTF-8. No more is held in memory.
                    if text.len() > 4 * image::MAX_METADATA {
                        return Err(Error::one_violation(METADATA, "is too long"));
                    }
                }
                (Now::Metadata | Now::Other, _) => {}
            },
            Event::End => break,
        }
    }
    // Bytes after the end of the form are ignored, but must arrive before the response.
    while body.next().await?.is_some() {}
    let metadata = metadata.map(|text| {
        let text =
            String::from_utf8(text).map_err(|_| Error::one_violation(METADATA, "must be UTF-8"))?;
        image::check_metadata(&text).map_err(|reason| Error::invalid(METADATA, &reason))?;
        Ok::<_, Error>(text)
    });
    sink.finish(metadata.transpose()?)
}

fn malformed(Malformed(reason): Malformed) -> Error {
    Error::one_violation("body", reason)
}

/// Body that is bounded in size and time.
struct Arriving {
    body: Body,
    limit: u64,
    max_size: u64,
    deadline: Instant,
    pause: Duration,
}

impl Arriving {
    fn new(body: Body, uploads: &Uploads, limit: u64) -> Result<Self, Error> {
        // A declared length over the limit is rejected without reading.
        if http_body::Body::size_hint(&body).lower() > limit {
            return Err(Error::BodyTooLarge(uploads.max_size));
        }
        Ok(Self {
            body,
            limit,
            max_size: uploads.max_size,
            deadline: Instant::now() + uploads.timeout,
            pause: uploads.pause,
        })
    }

    /// Returns the next bytes, or `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            let until = self.deadline.min(Instant::now() + self.pause);
            let frame = timeout_at(until, self.body.frame()).await;
            let Some(frame) = frame.map_err(|_| Error::BodyTimeout)? else {
                return Ok(None);
            };
            let frame = frame
                .map_err(|_| Error::one_violation("body", "must be complete; it ends early"))?;
            let Ok(bytes) = frame.into_data() else {
                continue;
            };
            self.limit = self
                .limit
                .checked_sub(bytes.len() as u64)
                .ok_or(Error::BodyTooLarge(self.max_size))?;
            if !bytes.is_empty() {
                return Ok(Some(bytes));
            }
        }
    }
}

/// Destination of the image's bytes: the reader, which rejects anything but an image, and then the image store.
struct Sink<'a> {
    blobs: &'a BlobStore,
    /// Started once the reader has accepted the first bytes.
    upload: Option<Upload>,
    reader: Reader,
    hasher: Sha256,
    max_size: u64,
    /// Field of the request that violations refer to.
    field: &'static str,
}

impl<'a> Sink<'a> {
    fn new(blobs: &'a BlobStore, uploads: &Uploads, field: &'static str) -> Self {
        Self {
            blobs,
            upload: None,
            reader: Reader::default(),
            hasher: Sha256::new(),
            max_size: uploads.max_size,
            field,
        }
    }

    async fn write(&mut self, bytes: Bytes) -> Result<(), Error> {
        self.reader
            .feed(&bytes)
            .map_err(|refusal| self.refused(refusal))?;
        self.hasher.update(&bytes);
        let upload = match &mut self.upload {
            Some(upload) => upload,
            None => self.upload.insert(self.blobs.upload().await?),
        };
        upload.write(bytes).await?;
        if upload.size() > self.max_size {
            return Err(Error::BodyTooLarge(self.max_size));
        }
        Ok(())
    }

    fn finish(self, metadata: Option<String>) -> Result<Received, Error> {
        let field = self.field;
        let Some(upload) = self.upload else {
            return Err(Error::one_violation(
                field,
                "is required and must contain an image",
            ));
        };
        Ok(Received {
            upload,
            sha256: self.hasher.finalize().into(),
            facts: self
                .reader
                .finish()
                .map_err(|refusal| refused(refusal, field))?,
            metadata,
        })
    }

    fn refused(&self, refusal: Refusal) -> Error {
        refused(refusal, self.field)
    }
}

fn refused(refusal: Refusal, field: &str) -> Error {
    match refusal {
        Refusal::NotAnImage => Error::NotAnImage,
        Refusal::EndsEarly | Refusal::Broken(_) | Refusal::TooManyPixels => {
            Error::Invalid(vec![Violation::new(field, refusal)])
        }
    }
}
