//! The body of an upload, on its way from the client to where it is kept, never whole in memory.

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
    blobs::{Blobs, Upload},
    db::images::ContentHash,
    domain::image::{self, Facts, Reader, Refusal},
};

/// What is accepted, in words for those who send something else.
const ACCEPTED: &str = "application/octet-stream or image/* or multipart/form-data";
/// Bytes that the form around an image may have.
const FORM: u64 = 64 << 10;
/// The field of a form's file, where it has no file's name.
const FILE: &str = "file";
/// The field of what a client says beside its image.
pub(super) const METADATA: &str = "additionalMetadata";

/// An image that has come, all of it, and is one.
pub(super) struct Received {
    /// Its bytes, not yet kept.
    pub upload: Upload,
    /// What they are known by.
    pub sha256: ContentHash,
    /// What they are.
    pub facts: Facts,
    /// What the form said beside it.
    pub metadata: Option<String>,
}

/// Takes an image out of a body of any of the accepted types.
pub(super) async fn receive(
    headers: &HeaderMap,
    body: Body,
    blobs: &Blobs,
    uploads: &Uploads,
) -> Result<Received, Error> {
    let content_type = match headers.get(header::CONTENT_TYPE) {
        // Of unknown type (RFC 9110 §8.3): its content tells.
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

/// Takes the first file of a form; the other parts are read, and passed over.
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
                return Err(malformed(Malformed("must be a whole form: it ends early")));
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
                    // As many bytes as so many characters have at most: no more is held.
                    if text.len() > 4 * image::MAX_METADATA {
                        return Err(Error::one_violation(METADATA, "is too long"));
                    }
                }
                (Now::Metadata | Now::Other, _) => {}
            },
            Event::End => break,
        }
    }
    // What follows the form's end is not looked at, but it has to come before the answer.
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

/// A body as it arrives, bounded in size and time.
struct Arriving {
    body: Body,
    limit: u64,
    max_size: u64,
    deadline: Instant,
    pause: Duration,
}

impl Arriving {
    fn new(body: Body, uploads: &Uploads, limit: u64) -> Result<Self, Error> {
        // What says that it is too large need not be read.
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

    /// The next bytes; `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            let until = self.deadline.min(Instant::now() + self.pause);
            let frame = timeout_at(until, self.body.frame()).await;
            let Some(frame) = frame.map_err(|_| Error::BodyTimeout)? else {
                return Ok(None);
            };
            let frame = frame
                .map_err(|_| Error::one_violation("body", "must be as long as the request says"))?;
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

/// Where the bytes of the image go: through the reader that must know them for an image, then on their way to
/// be kept.
struct Sink<'a> {
    blobs: &'a Blobs,
    /// Begun with the first bytes that may be an image's.
    upload: Option<Upload>,
    reader: Reader,
    hasher: Sha256,
    max_size: u64,
    /// What of the request is wrong when these bytes are.
    field: &'static str,
}

impl<'a> Sink<'a> {
    fn new(blobs: &'a Blobs, uploads: &Uploads, field: &'static str) -> Self {
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
            return Err(Error::one_violation(field, "is required: the image"));
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
