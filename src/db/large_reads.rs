//! Limits the concurrent reads of many rows to an eighth of the pool's connections, so that other statements do not wait for
//! these, and searches that cost much CPU to one at a time, for a third of the time.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{sleep, timeout},
};

use super::error::Error;

/// Divisor of the number of connections. On two cores, beside four clients that read whole lists, a page of 20 takes three times as
/// long as alone with an eighth of 16 connections, and five times with a quarter.
const FRACTION: u32 = 8;
/// Longest wait for a permit. It is longer than that for a statement: a list that is being sent is cut off if one of its parts
/// cannot be read.
const MAX_WAIT: Duration = Duration::from_secs(10);
/// A search of this duration occupies PostgreSQL.
const SHORT: Duration = Duration::from_millis(5);
/// A search of a longer duration has waited for something else.
const LONG: Duration = Duration::from_millis(100);

/// Cost of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cost {
    /// Returns many rows.
    Rows,
    /// Occupies a core of PostgreSQL for tens of milliseconds.
    Cpu,
}

/// Permits of large reads, in order of arrival. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct LargeReads {
    of_rows: Arc<Semaphore>,
    of_cpu: Arc<Semaphore>,
}

impl LargeReads {
    /// Creates the permits for a pool with this many connections.
    pub fn new(connections: u32) -> Self {
        Self {
            of_rows: Arc::new(Semaphore::new(connections.div_ceil(FRACTION) as usize)),
            of_cpu: Arc::new(Semaphore::new(1)),
        }
    }

    /// Waits for a permit, for up to [`MAX_WAIT`], which is not part of the time of the read's statements.
    pub async fn acquire(&self, cost: Cost) -> Result<OwnedSemaphorePermit, Error> {
        let permits = match cost {
            Cost::Rows => &self.of_rows,
            Cost::Cpu => &self.of_cpu,
        };
        match timeout(MAX_WAIT, Arc::clone(permits).acquire_owned()).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(Error::Overloaded),
        }
    }
}

/// Returns the permit of a search that took this long; later, if it occupied PostgreSQL: searches have a third of a core, so that
/// they do not delay the statements of others. A task waits, which a client does not end.
pub(super) fn rest(permit: OwnedSemaphorePermit, took: Duration) {
    if took >= SHORT {
        tokio::spawn(async move {
            sleep(took.min(LONG) * 2).await;
            drop(permit);
        });
    }
}
