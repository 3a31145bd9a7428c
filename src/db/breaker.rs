//! Circuit breaker: refuses statements at once while PostgreSQL is unavailable.
//!
//! A failed statement only starts a probe on a separate connection, so that one bad connection or a busy pool does not
//! open the breaker. It opens when a probe fails, and closes when one succeeds; no request is used as a probe.
//!
//! Invariants:
//! - One probe runs at a time. That of `/readyz` may run beside it; both use one connection in turn.
//! - The connection is kept between probes, because PostgreSQL may need longer for a new one while it is busy. It is replaced every
//!   10 s, since the address may have moved to another server, and an open breaker closes on a new one only.
//! - The log has one line when the breaker opens, one when it closes, and at most one failure per second in between. These
//!   are warnings, because a planned switchover takes seconds; an error follows if the primary does not respond after 10 s.

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use sqlx::{Connection as _, Executor as _, PgConnection, Row as _, postgres::PgRow};
use tokio::{
    sync::{Mutex as AsyncMutex, Notify},
    time::timeout,
};

use super::{
    error::{Class, Connections, Consequences, is_prepared_statement_mismatch, message},
    options::OptionsSource,
    pooler,
    scope::Held,
};

/// Timeout of each of the two attempts of a probe. PostgreSQL counts as unavailable if it needs longer for a trivial statement.
const PROBE_TIMEOUT: Duration = Duration::from_millis(400);
/// Time for which a connection is kept for probes.
const KEPT_FOR: Duration = Duration::from_secs(10);
/// Pause between two probes.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);
/// Time after its last use for which a connection is used without a check.
const FRESH_FOR: Duration = Duration::from_secs(1);
/// Timeout of the check that a connection is usable.
pub(super) const PING_TIMEOUT: Duration = Duration::from_millis(500);
/// Time without a primary after which that is logged as an error. A planned switchover ends before.
const LONG_OUTAGE: Duration = Duration::from_secs(10);
/// Minimum interval between two logged failures.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Statement that is true at a standby.
pub(super) const IS_STANDBY: &str = "select pg_is_in_recovery()";

/// Fails with an error of the class [`super::Error::Unavailable`] if a server is a standby. The last row is that of
/// [`IS_STANDBY`].
pub(super) fn refuse_standby(rows: &[PgRow]) -> Result<(), sqlx::Error> {
    let row = rows.last().ok_or(sqlx::Error::RowNotFound)?;
    if !row.try_get::<bool, _>(0)? {
        return Ok(());
    }
    let problem = "the server is a standby (in recovery), which may lack the latest writes";
    Err(io::Error::new(io::ErrorKind::NotConnected, problem).into())
}

/// Circuit breaker for one PostgreSQL. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Breaker(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    options: OptionsSource,
    /// Connection of the last probe that succeeded.
    kept: AsyncMutex<Option<Kept>>,
    /// Atomic, because it is read several times per request: cores would contend for the lock of a watch channel.
    is_open: AtomicBool,
    opened: Notify,
    is_probing: AtomicBool,
    times: Mutex<Times>,
}

#[derive(Debug)]
struct Kept {
    connection: PgConnection,
    opened: Instant,
}

#[derive(Debug, Default)]
struct Times {
    /// Connections that have not been used since then may be lost.
    lost: Option<Instant>,
    /// Connections that were opened before then lead to the wrong server, or would be refused now.
    invalidated: Option<Instant>,
    /// The last failure was logged then.
    logged: Option<Instant>,
}

impl Breaker {
    /// Creates a closed breaker that probes with `options`.
    pub(super) fn new(options: OptionsSource) -> Self {
        Self(Arc::new(Inner {
            options,
            kept: AsyncMutex::default(),
            is_open: AtomicBool::new(false),
            opened: Notify::new(),
            is_probing: AtomicBool::new(false),
            times: Mutex::default(),
        }))
    }

    /// Returns true if PostgreSQL is known to be unavailable.
    pub fn is_open(&self) -> bool {
        self.0.is_open.load(Ordering::Acquire)
    }

    /// Admits a statement, or returns an error of the class [`super::Error::Unavailable`] if the breaker is open.
    pub fn admit(&self) -> Result<(), sqlx::Error> {
        if !self.is_open() {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::NotConnected, "the last probe failed").into())
    }

    /// Waits until the breaker is open.
    pub(super) async fn opened(&self) {
        // Registered before the check, so that no notification is missed.
        let opened = self.0.opened.notified();
        if !self.is_open() {
            opened.await;
        }
    }

    /// Records the failure of an admitted statement or of getting a connection. Starts a probe if the server is in doubt.
    /// Logs the failure in the span of its request, unless another was logged a moment ago. Returns true if the connection can
    /// be used again.
    pub(super) fn record_failure(&self, error: &sqlx::Error) -> bool {
        let Consequences {
            class,
            connections,
            is_server_in_doubt,
        } = Consequences::of(error);
        let now = Instant::now();
        let mut times = self.times();
        if is_server_in_doubt && connections != Connections::Reusable {
            times.lost = Some(now);
        }
        if connections == Connections::AllClosed {
            times.invalidated = Some(now);
        }
        let is_logged = class == Class::Unavailable
            && (times.logged).is_none_or(|logged| logged.elapsed() >= LOG_INTERVAL);
        if is_logged {
            times.logged = Some(now);
        }
        drop(times);
        if is_logged {
            let remedy = is_prepared_statement_mismatch(error).then_some(pooler::SET_TRANSACTION);
            tracing::warn!(
                error = message(error),
                remedy,
                "failed to execute a database statement"
            );
        }
        if is_server_in_doubt {
            self.probe_soon();
        }
        connections == Connections::Reusable
    }

    /// Starts a probe, unless one is running; for example after a statement timed out.
    pub(super) fn probe_soon(&self) {
        if self.0.is_probing.swap(true, Ordering::AcqRel) {
            return;
        }
        // Without a runtime, there are no requests that a probe could help.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(probe_until_available(Arc::downgrade(&self.0)));
        }
    }

    /// Returns true if a connection of this age that has been idle for this long can be used. Pings it if it may be lost.
    pub(super) async fn is_usable(
        &self,
        connection: &mut PgConnection,
        age: Duration,
        idle: Duration,
    ) -> bool {
        let Times {
            lost, invalidated, ..
        } = *self.times();
        let is_within =
            |time: Option<Instant>, period| time.is_some_and(|it| it.elapsed() <= period);
        let is_fresh = idle < FRESH_FOR && !is_within(lost, idle);
        !is_within(invalidated, age)
            && (is_fresh || matches!(timeout(PING_TIMEOUT, connection.ping()).await, Ok(Ok(()))))
    }

    /// Runs one probe. An error response from a running server counts as success, unless that is a standby, or refuses the role or
    /// the database.
    async fn probe(&self) -> Result<(), sqlx::Error> {
        match self.ask(PROBE_TIMEOUT).await {
            Err(error) if Consequences::of(&error).is_server_in_doubt => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Fails unless a primary executes a statement within `time_limit`, or in a second attempt within that again: on a new
    /// connection if the kept one failed, or if the first attempt took too long, as on a busy machine.
    pub(super) async fn ask(&self, time_limit: Duration) -> Result<(), sqlx::Error> {
        let mut kept = self.0.kept.lock().await;
        let _held = Held::new();
        let usable = kept.take().filter(|it| self.may_use(it));
        let had_kept = usable.is_some();
        let error = match self.attempt(usable, time_limit).await {
            Ok(asked) => {
                *kept = Some(asked);
                return Ok(());
            }
            Err(error) => error,
        };
        if !had_kept
            && !matches!(&error, sqlx::Error::Io(it) if it.kind() == io::ErrorKind::TimedOut)
        {
            return Err(error);
        }
        *kept = Some(self.attempt(None, time_limit).await?);
        Ok(())
    }

    /// Returns true if the kept connection may show that PostgreSQL is available.
    fn may_use(&self, kept: &Kept) -> bool {
        let is_outdated = self.times().invalidated.is_some_and(|it| it >= kept.opened);
        !self.is_open() && !is_outdated && kept.opened.elapsed() < KEPT_FOR
    }

    /// Asks for a statement on a connection, or on a new one. A pooler accepts connections even if PostgreSQL is unavailable.
    async fn attempt(&self, kept: Option<Kept>, time_limit: Duration) -> Result<Kept, sqlx::Error> {
        let asking = async {
            let mut asked = match kept {
                Some(kept) => kept,
                None => Kept {
                    opened: Instant::now(),
                    connection: PgConnection::connect_with(&self.0.options.current().await).await?,
                },
            };
            refuse_standby(&asked.connection.fetch_all(IS_STANDBY).await?)?;
            Ok(asked)
        };
        let in_time = timeout(time_limit, Box::pin(asking)).await;
        in_time.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
    }

    /// Closes the kept connection.
    pub(super) async fn close(&self) {
        let kept = self.0.kept.lock().await.take();
        if let Some(Kept { connection, .. }) = kept {
            // The server notices the end of the connection without it, too.
            drop(timeout(PING_TIMEOUT, connection.close()).await);
        }
    }

    fn times(&self) -> MutexGuard<'_, Times> {
        self.0.times.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Probes until PostgreSQL responds. Opens the breaker after a failure, and closes it at the end.
async fn probe_until_available(breaker: Weak<Inner>) {
    let mut failed_since: Option<Instant> = None;
    let mut is_long_outage = false;
    while let Some(inner) = breaker.upgrade() {
        let breaker = Breaker(inner);
        match breaker.probe().await {
            Ok(()) => {
                if let Some(since) = failed_since {
                    tracing::info!(
                        away = ?since.elapsed(),
                        "closed the circuit breaker; PostgreSQL responds again"
                    );
                    // Older connections may lead to a server that no longer exists.
                    breaker.times().invalidated = Some(Instant::now());
                    breaker.0.is_open.store(false, Ordering::Release);
                }
                // Limits the rate of probes.
                tokio::time::sleep(PROBE_INTERVAL).await;
                breaker.0.is_probing.store(false, Ordering::Release);
                return;
            }
            Err(error) => match failed_since {
                None => {
                    failed_since = Some(Instant::now());
                    tracing::warn!(
                        error = message(&error),
                        "opened the circuit breaker; refusing statements until PostgreSQL responds"
                    );
                    metrics::counter!("db_client_breaker_opened_total").increment(1);
                    breaker.0.is_open.store(true, Ordering::Release);
                    breaker.0.opened.notify_waiters();
                }
                Some(since) if !is_long_outage && since.elapsed() >= LONG_OUTAGE => {
                    is_long_outage = true;
                    tracing::error!(
                        error = message(&error),
                        "failed to reach PostgreSQL for 10 s; refusing statements until it responds"
                    );
                }
                Some(_) => {}
            },
        }
        drop(breaker);
        tokio::time::sleep(PROBE_INTERVAL).await;
    }
}
