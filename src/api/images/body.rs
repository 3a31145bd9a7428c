//! Body of an upload as it arrives.

use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use futures_util::StreamExt;
use http_body_util::{BodyDataStream, BodyExt, LengthLimitError, Limited};
use tokio::time::{Instant, timeout_at};

use crate::api::{error::Error, state::Uploads};

/// Number of chunks of any size in a body.
const FREE_CHUNKS: u64 = 1_024;
/// Minimum average size in bytes of further chunks. A chunk of one byte costs as much CPU time as one of 4 KiB.
const MIN_CHUNK: u64 = 256;

/// Body that is bounded in size, time, and number of chunks.
pub struct UploadBody {
    data: BodyDataStream<Limited<Body>>,
    /// Maximum size of an image, for the error.
    max_size: u64,
    deadline: Instant,
    /// Time limit until more bytes arrive.
    pause: Duration,
    /// Number of bytes and of chunks that have arrived.
    received: (u64, u64),
}

impl UploadBody {
    /// Admits an image and `more` bytes. A larger declared length is rejected without reading.
    pub fn new(body: Body, uploads: &Uploads, more: u64) -> Result<Self, Error> {
        let limit = uploads.max_size.saturating_add(more);
        if body.size_hint().lower() > limit {
            return Err(Error::BodyTooLarge(uploads.max_size));
        }
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Ok(Self {
            data: Limited::new(body, limit).into_data_stream(),
            max_size: uploads.max_size,
            deadline: Instant::now() + uploads.timeout,
            pause: uploads.pause,
            received: (0, 0),
        })
    }

    /// Returns the next bytes, or `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            let until = self.deadline.min(Instant::now() + self.pause);
            let next = timeout_at(until, self.data.next()).await;
            match next.map_err(|_| Error::BodyTimeout)?.transpose() {
                Ok(Some(bytes)) if bytes.is_empty() => {}
                Ok(Some(bytes)) => {
                    let (size, chunks) = &mut self.received;
                    (*size, *chunks) = (*size + bytes.len() as u64, *chunks + 1);
                    if *chunks > FREE_CHUNKS + *size / MIN_CHUNK {
                        let reason = format!(
                            "must arrive in chunks of at least {MIN_CHUNK} bytes on average"
                        );
                        return Err(Error::one_violation("body", reason));
                    }
                    return Ok(Some(bytes));
                }
                Ok(None) => return Ok(None),
                Err(error) if error.is::<LengthLimitError>() => {
                    return Err(Error::BodyTooLarge(self.max_size));
                }
                Err(_) => {
                    let reason = "must be complete; it ends early";
                    return Err(Error::one_violation("body", reason));
                }
            }
        }
    }
}
