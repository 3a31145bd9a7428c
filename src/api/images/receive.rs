//! Streams the body of an upload to the image store, without holding all of it in memory.

use std::mem;

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, header},
};
use sha2::{Digest, Sha256};

use super::multipart::Multipart;
use crate::{
    api::{body::LimitedBody, error::Error, extract::require_plain, problem::Violation},
    blob_store::{BlobStore, Upload},
    db::images::ContentHash,
    domain::image::{self, Facts},
    images::reader::{Reader, Refusal},
    limits::resources::Uploads,
};

/// Accepted media types, in the words of the error message.
const ACCEPTED: &str = "application/octet-stream or image/* or multipart/form-data";
/// Number of bytes that are hashed and stored at once. A write costs a switch to another thread.
const BLOCK: usize = 64 << 10;
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
        let form = Multipart::new(content_type, body, uploads)?;
        return of_form(form, Sink::new(blobs, uploads, FILE)).await;
    }
    if essence != "application/octet-stream" && !essence.starts_with("image/") {
        return Err(Error::UnsupportedMediaType(ACCEPTED));
    }
    let mut body = LimitedBody::new(body, uploads.body, 0)?;
    let mut sink = Sink::new(blobs, uploads, "body");
    while let Some(bytes) = body.next().await? {
        sink.write(bytes).await?;
    }
    sink.finish(None).await
}

/// Receives the first file of a form that is not empty: pages send an empty one for an input in which none is chosen. Other
/// parts, except the metadata, are skipped.
async fn of_form(mut form: Multipart, mut sink: Sink<'_>) -> Result<Received, Error> {
    let mut has_file = false;
    let mut metadata: Option<Vec<u8>> = None;
    while let Some(part) = form.next_part().await? {
        if !has_file && (part.is_file || part.name == FILE) {
            while let Some(bytes) = form.data().await? {
                has_file = true;
                sink.write(bytes).await?;
            }
        } else if part.name == METADATA && metadata.is_none() {
            let text = metadata.insert(Vec::new());
            while let Some(bytes) = form.data().await? {
                text.extend_from_slice(&bytes);
                // A character has at most 4 bytes in UTF-8. No more is held in memory.
                if text.len() > 4 * image::MAX_METADATA {
                    return Err(Error::one_violation(METADATA, "is too long"));
                }
            }
        }
    }
    let metadata = metadata.map(|text| {
        let text =
            String::from_utf8(text).map_err(|_| Error::one_violation(METADATA, "must be UTF-8"))?;
        image::check_metadata(&text).map_err(|reason| Error::one_violation(METADATA, reason))?;
        Ok::<_, Error>(text)
    });
    sink.finish(metadata.transpose()?).await
}

/// Destination of the image's bytes: the reader, which rejects anything but an image, and then the image store.
struct Sink<'a> {
    blobs: &'a BlobStore,
    /// Started once the reader has accepted the first bytes.
    upload: Option<Upload>,
    reader: Reader,
    /// Accepted bytes that are not stored yet: less than a block.
    block: Vec<u8>,
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
            block: Vec::new(),
            hasher: Sha256::new(),
            max_size: uploads.body.max_size,
            field,
        }
    }

    async fn write(&mut self, bytes: Bytes) -> Result<(), Error> {
        let field = self.field;
        self.reader
            .feed(&bytes)
            .map_err(|refusal| refused(refusal, field))?;
        let upload = match &mut self.upload {
            Some(upload) => upload,
            None => self.upload.insert(self.blobs.upload().await?),
        };
        let size = upload.size() + (self.block.len() + bytes.len()) as u64;
        if size > self.max_size {
            return Err(Error::BodyTooLarge(self.max_size));
        }
        if self.block.is_empty() && bytes.len() >= BLOCK {
            return self.store(bytes).await;
        }
        self.block.extend_from_slice(&bytes);
        if self.block.len() >= BLOCK {
            let block = mem::take(&mut self.block);
            self.store(block.into()).await?;
        }
        Ok(())
    }

    async fn store(&mut self, bytes: Bytes) -> Result<(), Error> {
        self.hasher.update(&bytes);
        if let Some(upload) = &mut self.upload {
            upload.write(bytes).await?;
        }
        Ok(())
    }

    async fn finish(mut self, metadata: Option<String>) -> Result<Received, Error> {
        let field = self.field;
        let mut upload = (self.upload.take())
            .ok_or_else(|| Error::one_violation(field, "is required and must contain an image"))?;
        let facts = self.reader.finish();
        let facts = facts.map_err(|refusal| refused(refusal, field))?;
        self.hasher.update(&self.block);
        upload.write(self.block.into()).await?;
        Ok(Received {
            upload,
            sha256: self.hasher.finalize().into(),
            facts,
            metadata,
        })
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
