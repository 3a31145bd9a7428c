//! Limits the concurrent reads of large rows, or of many rows, to a quarter of the pool's connections, so that other
//! statements do not wait for these.

use std::sync::Arc;

use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::timeout,
};

use super::{breaker::Breaker, deadline::QUERY_TIMEOUT, error::Error};

/// Divisor of the number of connections.
const FRACTION: u32 = 4;

/// Permits of large reads. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct LargeReads(Arc<Semaphore>);

impl LargeReads {
    /// Creates the permits for a pool with this many connections.
    pub fn new(connections: u32) -> Self {
        let permits = connections.div_ceil(FRACTION) as usize;
        Self(Arc::new(Semaphore::new(permits)))
    }

    /// Waits for a permit, in order of arrival. Fails with [`Error::Overloaded`] after [`QUERY_TIMEOUT`], and at once while
    /// PostgreSQL is known to be unavailable. The wait is not part of the time of the request's statements.
    pub async fn acquire(&self, breaker: &Breaker) -> Result<SemaphorePermit<'_>, Error> {
        tokio::select! {
            biased;
            () = breaker.opened() => {
                breaker.admit()?;
                Err(Error::Overloaded)
            }
            // The semaphore is never closed.
            permit = timeout(QUERY_TIMEOUT, self.0.acquire()) => {
                permit.ok().and_then(Result::ok).ok_or(Error::Overloaded)
            }
        }
    }
}
