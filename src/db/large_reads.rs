//! Bounds the reads of large rows, or of many, so that other statements do not wait for the connections of the pool.

use std::sync::Arc;

use tokio::sync::{Semaphore, SemaphorePermit};

use super::{deadline::with_timeout, error::Error};

/// Part of the connections that such reads use at most.
const PART: u32 = 4;

/// Limit of such reads. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct LargeReads(Arc<Semaphore>);

impl LargeReads {
    /// Creates the limit for a pool with this many connections.
    pub fn new(connections: u32) -> Self {
        let at_once = connections.div_ceil(PART) as usize;
        Self(Arc::new(Semaphore::new(at_once)))
    }

    /// Waits until a large read may begin, in order of arrival and for at most the timeout of a statement. Another
    /// statement does not wait.
    pub async fn turn_if(&self, is_large: bool) -> Result<Option<SemaphorePermit<'_>>, Error> {
        if !is_large {
            return Ok(None);
        }
        // The semaphore is never closed.
        with_timeout(async { Ok(self.0.acquire().await.ok()) }).await
    }
}
