//! How long one request may wait for PostgreSQL, all its statements together.
//!
//! Invariant: within [`shared`] no statement begins once [`TOTAL`] is spent, and none lasts longer than what
//! is left of it. Outside of it each statement has [`QUERY_TIMEOUT`](super::QUERY_TIMEOUT) to itself.

use std::{
    cell::Cell,
    future::Future,
    time::{Duration, Instant},
};

use super::Error;

/// What a request may wait in all: its answer comes within 2.5 s, whatever state PostgreSQL is in.
const TOTAL: Duration = Duration::from_millis(2_200);

tokio::task_local! {
    /// What is left of it. Only time spent on statements counts: a client may take longer to send its body.
    static LEFT: Cell<Duration>;
}

/// Does something whose statements share one patience.
pub fn shared<T>(work: impl Future<Output = T>) -> impl Future<Output = T> {
    LEFT.scope(Cell::new(TOTAL), work)
}

/// Waits for a statement, `longest` at most.
///
/// # Errors
/// [`Error::TimedOut`] when there is no answer by then, or no patience left.
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

/// The same for a statement that ends within `longest` by itself: a timer costs each request as much as its
/// place in a shared statement does.
///
/// # Errors
/// As [`wait`].
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
    // Outside a request there is nothing to spend.
    let _ = LEFT.try_with(|all| all.set(left.saturating_sub(begun.elapsed())));
}
