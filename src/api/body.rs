//! Body of a request as it arrives, within its limits.

use axum::body::{Body, Bytes, HttpBody};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::time::{Instant, timeout_at};

use super::error::Error;
use crate::limits::resources::BodyLimits;

/// Number of chunks of any size in a body.
const FREE_CHUNKS: u64 = 1_024;

/// Body that is bounded in size, time, and number of chunks: a chunk of one byte costs as much CPU time as one of 4 KiB.
pub struct LimitedBody {
    body: Limited<Body>,
    limits: BodyLimits,
    deadline: Instant,
    /// Number of bytes that have arrived.
    size: u64,
    chunks: u64,
}

impl LimitedBody {
    /// Admits a body of the maximum size and `more` bytes. A larger declared length is rejected without reading.
    pub fn new(body: Body, limits: BodyLimits, more: u64) -> Result<Self, Error> {
        let max_size = limits.max_size.saturating_add(more);
        if body.size_hint().lower() > max_size {
            return Err(Error::BodyTooLarge(limits.max_size));
        }
        let max_size = usize::try_from(max_size).unwrap_or(usize::MAX);
        Ok(Self {
            body: Limited::new(body, max_size),
            limits,
            deadline: Instant::now() + limits.timeout,
            size: 0,
            chunks: 0,
        })
    }

    /// Returns the next bytes, or `None` at the end. Fails with [`Error::BodyTooLarge`], [`Error::BodyTimeout`], or
    /// [`Error::Invalid`] if the body is cut off or has too many small chunks.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            let until = self.deadline.min(Instant::now() + self.limits.pause);
            let next = timeout_at(until, self.body.frame()).await;
            let frame = match next.map_err(|_| Error::BodyTimeout)?.transpose() {
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(None),
                Err(error) if error.is::<LengthLimitError>() => {
                    return Err(Error::BodyTooLarge(self.limits.max_size));
                }
                Err(_) => {
                    let reason = "must be complete; it ends early";
                    return Err(Error::one_violation("body", reason));
                }
            };
            let Ok(bytes) = frame.into_data() else {
                continue;
            };
            self.size += bytes.len() as u64;
            self.chunks += 1;
            let min_chunk = self.limits.min_chunk;
            if self.chunks > FREE_CHUNKS + self.size / min_chunk {
                let reason =
                    format!("must arrive in chunks of at least {min_chunk} bytes on average");
                return Err(Error::one_violation("body", reason));
            }
            if !bytes.is_empty() {
                return Ok(Some(bytes));
            }
        }
    }

    /// Reads the rest into one buffer. Each chunk is copied when it arrives: a list of chunks of one byte takes 45 times
    /// their size. A body of one chunk is not copied.
    pub async fn join(mut self) -> Result<Bytes, Error> {
        let mut joined = Vec::new();
        while let Some(chunk) = self.next().await? {
            if joined.is_empty() && self.body.is_end_stream() {
                return Ok(chunk);
            }
            joined.extend_from_slice(&chunk);
        }
        Ok(joined.into())
    }
}
