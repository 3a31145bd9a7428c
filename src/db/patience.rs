//! Limits the total time that the statements of one request may take.
//!
//! Invariants:
//! - Within [`shared`], no statement begins once [`TOTAL`] is spent, and none lasts longer than what is left of it.
//! - Outside of it, each statement has only its own timeout ([`QUERY_TIMEOUT`](super::QUERY_TIMEOUT)).

use std::{
    cell::Cell,
    future::Future,
    time::{Duration, Instant},
};

use tokio::task::futures::TaskLocalFuture;

use super::Error;

/// Total time for the statements of a request, so that it is responded to within 2.5 s even if PostgreSQL is frozen.
const TOTAL: Duration = Duration::from_millis(2_200);

tokio::task_local! {
    /// Remaining time. Only the time spent on statements counts, because a client may take longer to send its body.
    static LEFT: Cell<Duration>;
}

/// Future with one deadline for all of its statements.
pub type Shared<F> = TaskLocalFuture<Cell<Duration>, F>;

/// Runs `work` with one deadline for all of its statements.
pub fn shared<F: Future>(work: F) -> Shared<F> {
    LEFT.scope(Cell::new(TOTAL), work)
}

/// Waits for a statement, for at most `longest`.
///
/// # Errors
/// [`Error::TimedOut`] if there is no result by then, or if no time is left.
pub async fn wait<T, E>(
    longest: Duration,
    statement: impl Future<Output = Result<T, E>>,
) -> Result<T, Error>
where
    Error: From<E>,
{
    let left = LEFT.try_with(Cell::get).unwrap_or(longest);
    if left.is_zero() {
        return Err(Error::TimedOut);
    }
    let begun = Instant::now();
    let result = tokio::time::timeout(longest.min(left), statement).await;
    spend(left, begun);
    match result {
        Ok(result) => result.map_err(Error::from),
        Err(_) => Err(Error::TimedOut),
    }
}

/// Waits like [`wait`], for a statement that ends within `longest` by itself. Sets a timer only if less than that is
/// left: a timer costs a request as much as its share of a batched statement.
///
/// # Errors
/// Same as [`wait`].
pub async fn wait_for_bounded<T>(
    longest: Duration,
    statement: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let left = LEFT.try_with(Cell::get).unwrap_or(longest);
    if left < longest {
        return wait(longest, statement).await;
    }
    let begun = Instant::now();
    let result = statement.await;
    spend(left, begun);
    result
}

fn spend(left: Duration, begun: Instant) {
    // Fails outside a request, where there is no deadline.
    let _ = LEFT.try_with(|all| all.set(left.saturating_sub(begun.elapsed())));
}
