//! Limits reads of many rows to one for each two cores at a time, so that other statements do not wait for these, and searches that
//! cost much CPU to one at a time, for a third of the time. Of pages that take several reads, few are built at a time: all at once
//! would use up the memory of lists before any is complete. Callers get their turns ([`Turns`]).

use std::{num::NonZeroUsize, thread::available_parallelism, time::Duration};

use tokio::time::{sleep, timeout};

use super::error::Error;
use crate::{
    domain::caller::CallerKey,
    turns::{Permit, Turns},
};

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
    /// Takes several reads of rows, whose results are kept in memory.
    Page,
}

/// Permits of large reads. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct LargeReads {
    rows: Turns,
    cpu: Turns,
    pages: Turns,
}

impl LargeReads {
    /// Creates the permits for the cores of this machine, which PostgreSQL often shares, of which reads take at most half of the
    /// connections. On two cores, with two permits in place of one, a page of 20 beside clients that read pages of large pets takes
    /// three times as long.
    pub fn new(connections: u32) -> Self {
        let cores = available_parallelism().map_or(1, NonZeroUsize::get);
        let reads = (cores / 2).min(connections as usize / 2).max(1);
        Self {
            rows: Turns::new(reads),
            // While a part of one is read, another one is serialized.
            pages: Turns::new(2 * reads),
            cpu: Turns::new(1),
        }
    }

    /// Waits for a permit, for up to [`MAX_WAIT`], which is not part of the time of the read's statements.
    pub async fn acquire(&self, cost: Cost, caller: CallerKey) -> Result<Permit, Error> {
        let permits = match cost {
            Cost::Rows => &self.rows,
            Cost::Cpu => &self.cpu,
            Cost::Page => &self.pages,
        };
        let permit = timeout(MAX_WAIT, permits.acquire(caller)).await;
        permit.map_err(|_| Error::Overloaded)
    }
}

/// Returns the permit of a search that took this long; later, if it occupied PostgreSQL: searches have a third of a core, so that
/// they do not delay the statements of others. A task waits, which a client does not end.
pub(super) fn rest(permit: Permit, took: Duration) {
    if took >= SHORT {
        tokio::spawn(async move {
            sleep(took.min(LONG) * 2).await;
            drop(permit);
        });
    }
}
