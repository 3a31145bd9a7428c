//! Limits the time of each statement, and the total time that the statements of one request may take.
//!
//! Invariants:
//! - In the scope of a request ([`of_request`]), no statement begins once [`TOTAL_TIMEOUT`] is spent, and none lasts longer than what is left of
//!   it.
//! - Outside of it, each statement has only its own timeout ([`QUERY_TIMEOUT`]).

use std::time::{Duration, Instant};

use super::{
    error::Error,
    scope::{self, Scope},
};

/// Timeout of one statement.
pub const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

/// Total time for the statements of a request, so that it is responded to within 2.5 s even if PostgreSQL is frozen.
const TOTAL_TIMEOUT: Duration = Duration::from_millis(2_200);

/// Returns the scope of a request, with one deadline for all of its statements. Only the time spent on statements counts, because a
/// client may take longer to send its body.
pub fn of_request<F: Future + Unpin>(work: F) -> Scope<F> {
    Scope::new(work, Some(TOTAL_TIMEOUT))
}

/// Returns the scope of a task, whose statements share no deadline.
pub fn of_task<F: Future + Unpin>(work: F) -> Scope<F> {
    Scope::new(work, None)
}

/// Waits for a statement, for at most `timeout` or what is left of the deadline.
pub async fn wait<T, E>(
    timeout: Duration,
    statement: impl Future<Output = Result<T, E>>,
) -> Result<T, Error>
where
    Error: From<E>,
{
    let remaining = scope::remaining().unwrap_or(timeout);
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
    let remaining = scope::remaining().unwrap_or(timeout);
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
    scope::set_remaining(remaining.saturating_sub(started.elapsed()));
}
