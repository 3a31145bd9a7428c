//! Circuit breaker: refuses statements at once while PostgreSQL is unavailable.
//!
//! A failed statement only starts a probe on a separate connection, so that one bad connection or a busy pool does not
//! open the breaker. It opens when a probe fails, and closes when one succeeds; no request is used as a probe.
//!
//! Invariants:
//! - One probe runs at a time.
//! - The log has one line when the breaker opens, one when it closes, and at most one failure per second in between.

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use sqlx::{Connection as _, Executor as _, PgConnection};
use tokio::sync::Notify;

use super::{
    ConnectOptions,
    error::{Kind, is_of_the_connection},
};

/// Timeout of a probe. PostgreSQL counts as unavailable if it needs longer for a trivial statement.
const PROBE_TIMEOUT: Duration = Duration::from_millis(400);
/// Number of probes that may time out before one counts as failed.
const SLOW_FOR_ONCE: u32 = 1;
/// Pause between two probes.
const PROBE_PAUSE: Duration = Duration::from_millis(100);
/// Time after its last use for which a connection is used without a check.
const TRUST: Duration = Duration::from_secs(1);
/// Minimum interval between two logged failures.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// Circuit breaker for one PostgreSQL. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Breaker(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    options: ConnectOptions,
    /// Atomic, because it is read several times per request: cores would contend for the lock of a watch channel.
    open: AtomicBool,
    opened: Notify,
    probing: AtomicBool,
    marks: Mutex<Marks>,
}

#[derive(Debug, Default)]
struct Marks {
    /// Connections that have not been used since then may be lost.
    doubted: Option<Instant>,
    /// Connections that were opened before then lead to the wrong server.
    outdated: Option<Instant>,
    told: Option<Instant>,
}

/// Action for an idle connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// Use it.
    Whole,
    /// Ping it first.
    Doubt,
    /// Close it.
    None,
}

impl Breaker {
    /// Creates a closed breaker that probes with `options`.
    pub(super) fn new(options: ConnectOptions) -> Self {
        Self(Arc::new(Shared {
            options,
            open: AtomicBool::new(false),
            opened: Notify::new(),
            probing: AtomicBool::new(false),
            marks: Mutex::default(),
        }))
    }

    /// Returns true if PostgreSQL is known to be unavailable.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0.open.load(Ordering::Acquire)
    }

    /// Admits a statement unless the breaker is open.
    ///
    /// # Errors
    /// An I/O error, which is classified as [`Unavailable`](super::Error::Unavailable).
    pub fn admit(&self) -> Result<(), sqlx::Error> {
        if self.is_open() { Err(away()) } else { Ok(()) }
    }

    /// Waits until the breaker is open.
    pub(super) async fn opened(&self) {
        // Registered before the check, so that no notification is missed.
        let opened = self.0.opened.notified();
        if !self.is_open() {
            opened.await;
        }
    }

    /// Records the failure of an admitted statement or of getting a connection. Starts a probe if the connection is
    /// suspect.
    pub fn failed(&self, error: &sqlx::Error) {
        if Kind::of(error) == Kind::Unavailable {
            self.tell(error);
        }
        let lost = is_of_the_connection(error);
        if lost {
            self.marks().doubted = Some(Instant::now());
        }
        if lost || matches!(error, sqlx::Error::PoolTimedOut) {
            self.suspect();
        }
    }

    /// Starts a probe, unless one is running; for example after a statement timed out.
    pub fn suspect(&self) {
        if self.0.probing.swap(true, Ordering::AcqRel) {
            return;
        }
        // Without a runtime, there are no requests that a probe could help.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(probe(Arc::downgrade(&self.0)));
        }
    }

    /// Invalidates all connections that are open now.
    pub(super) fn outdate(&self) {
        self.marks().outdated = Some(Instant::now());
    }

    /// Returns the action for a connection of this age that has been idle for this long.
    pub(super) fn trust(&self, age: Duration, idle: Duration) -> Trust {
        let marks = self.marks();
        let since = |mark: Option<Instant>| mark.map(|mark| mark.elapsed());
        if since(marks.outdated).is_some_and(|since| since <= age) {
            return Trust::None;
        }
        if idle >= TRUST || since(marks.doubted).is_some_and(|since| since <= idle) {
            return Trust::Doubt;
        }
        Trust::Whole
    }

    /// Logs a failure in the span of its request, unless another was logged a moment ago.
    fn tell(&self, error: &sqlx::Error) {
        let mut marks = self.marks();
        if marks.told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
            marks.told = Some(Instant::now());
            drop(marks);
            tracing::warn!(%error, "failed to execute a database statement");
        }
    }

    fn marks(&self) -> MutexGuard<'_, Marks> {
        self.0.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Probes until PostgreSQL responds. Opens the breaker after a failure, and closes it at the end.
async fn probe(breaker: Weak<Shared>) {
    let mut failed_since: Option<Instant> = None;
    let mut slow = 0;
    while let Some(shared) = breaker.upgrade() {
        let breaker = Breaker(shared);
        match look(&breaker.0.options).await {
            Ok(()) => {
                if let Some(since) = failed_since {
                    let away = since.elapsed();
                    tracing::info!(
                        ?away,
                        "closed the circuit breaker; PostgreSQL responds again"
                    );
                    // Older connections may lead to a server that no longer exists.
                    breaker.outdate();
                    breaker.0.open.store(false, Ordering::Release);
                }
                // Limits the rate of probes.
                tokio::time::sleep(PROBE_PAUSE).await;
                breaker.0.probing.store(false, Ordering::Release);
                return;
            }
            // A busy host may time out once; a frozen or unreachable one times out again.
            Err(error) if is_slow(&error) && slow < SLOW_FOR_ONCE => slow += 1,
            Err(error) => {
                if failed_since.is_none() {
                    failed_since = Some(Instant::now());
                    tracing::error!(%error, "opened the circuit breaker; refusing statements until PostgreSQL responds");
                    metrics::counter!("db_client_breaker_opened_total").increment(1);
                    breaker.0.open.store(true, Ordering::Release);
                    breaker.0.opened.notify_waiters();
                }
            }
        }
        drop(breaker);
        tokio::time::sleep(PROBE_PAUSE).await;
    }
}

/// Runs one probe on a new connection. An error response from a running server counts as success.
async fn look(options: &ConnectOptions) -> Result<(), sqlx::Error> {
    let look = async {
        let mut connection = PgConnection::connect_with(options).await?;
        // A pooler accepts connections even if PostgreSQL is unavailable.
        connection.execute("select 1").await?;
        connection.close().await
    };
    match tokio::time::timeout(PROBE_TIMEOUT, look).await {
        Ok(Err(error)) if is_of_the_connection(&error) => Err(error),
        Ok(Ok(()) | Err(_)) => Ok(()),
        Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
    }
}

fn is_slow(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Io(error) if error.kind() == io::ErrorKind::TimedOut)
}

fn away() -> sqlx::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the last probe failed").into()
}
