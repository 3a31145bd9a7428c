//! Limits the time of each statement, and the total time that the statements of one request may take.
//!
//! Invariants:
//! - Within [`scope`], no statement begins once [`TOTAL_TIMEOUT`] is spent, and none lasts longer than what is left of
//!   it.
//! - Outside of it, each statement has only its own timeout ([`QUERY_TIMEOUT`]).

use std::{
    cell::Cell,
    future::Future,
    time::{Duration, Instant},
};

use tokio::task::futures::TaskLocalFuture;

use super::error::Error;

/// Timeout of one statement.
pub const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

/// Total time for the statements of a request, so that it is responded to within 2.5 s even if PostgreSQL is frozen.
const TOTAL_TIMEOUT: Duration = Duration::from_millis(2_200);

tokio::task_local! {
    /// Only the time spent on statements counts, because a client may take longer to send its body.
    static REMAINING: Cell<Duration>;
}

/// Future with one deadline for all of its statements.
pub type Scope<F> = TaskLocalFuture<Cell<Duration>, F>;

/// Runs `work` with one deadline for all of its statements.
pub fn scope<F: Future>(work: F) -> Scope<F> {
    REMAINING.scope(Cell::new(TOTAL_TIMEOUT), work)
}

/// Waits for a statement, for at most `timeout` or what is left of the deadline.
pub async fn wait<T, E>(
    timeout: Duration,
    statement: impl Future<Output = Result<T, E>>,
) -> Result<T, Error>
where
    Error: From<E>,
{
    let remaining = REMAINING.try_with(Cell::get).unwrap_or(timeout);
    if remaining.is_zero() {
        return Err(Error::TotalTimedOut);
    }
    let started = Instant::now();
    let result = tokio::time::timeout(timeout.min(remaining), statement).await;
    deduct(remaining, started);
    Ok(result.map_err(|_| Error::timed_out(remaining < timeout))??)
}

/// Waits like [`wait`], for a statement that ends within `timeout` by itself. Sets a timer only if less than that is
/// left: a timer costs a request as much as its share of a batched statement.
pub async fn wait_without_timer<T>(
    timeout: Duration,
    statement: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let remaining = REMAINING.try_with(Cell::get).unwrap_or(timeout);
    if remaining < timeout {
        return wait(timeout, statement).await;
    }
    let started = Instant::now();
    let result = statement.await;
    deduct(remaining, started);
    result
}

/// Runs `statement` for at most [`QUERY_TIMEOUT`]. PostgreSQL's `statement_timeout` does not help if PostgreSQL itself
/// or the network is frozen.
pub(super) async fn with_timeout<T>(
    statement: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, Error> {
    wait(QUERY_TIMEOUT, statement).await
}

fn deduct(remaining: Duration, started: Instant) {
    // Fails outside a request, where there is no deadline.
    let _ = REMAINING.try_with(|cell| cell.set(remaining.saturating_sub(started.elapsed())));
}
