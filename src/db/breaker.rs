//! Whether PostgreSQL is in reach: while it is not, nobody waits for it.
//!
//! A failure only makes us doubt; a probe on a connection of its own decides, so that one bad connection of
//! many, or a pool that is merely busy, refuses nobody. While probes fail the breaker is open: whoever needs
//! PostgreSQL is refused at once. The first probe that succeeds closes it again; no request is spent on
//! finding out.
//!
//! Invariants: one probe at a time; one log line when the breaker opens and one when it closes, and between
//! them no more than one failure a second is told.

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

/// How long a probe may take: PostgreSQL that needs longer for nothing is as good as away.
const PROBE_TIMEOUT: Duration = Duration::from_millis(400);
/// How many probes may take longer before that counts.
const SLOW_FOR_ONCE: u32 = 1;
/// The pause between two probes.
const PROBE_PAUSE: Duration = Duration::from_millis(100);
/// How long a connection is trusted after its last use.
const TRUST: Duration = Duration::from_secs(1);
/// Failures are told no more often than this.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// Whether PostgreSQL is in reach. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Breaker(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    options: ConnectOptions,
    /// Asked several times a request: a channel's lock would have cores wait for each other.
    open: AtomicBool,
    opened: Notify,
    probing: AtomicBool,
    marks: Mutex<Marks>,
}

#[derive(Debug, Default)]
struct Marks {
    /// Connections unused since then may be lost.
    doubted: Option<Instant>,
    /// Connections opened before then lead to the wrong place.
    outdated: Option<Instant>,
    told: Option<Instant>,
}

/// What to do with a connection that was idle.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// Use it.
    Whole,
    /// Ask it for a sign of life first.
    Doubt,
    /// Close it.
    None,
}

impl Breaker {
    /// A closed one, whose probes connect like this.
    pub(super) fn new(options: ConnectOptions) -> Self {
        Self(Arc::new(Shared {
            options,
            open: AtomicBool::new(false),
            opened: Notify::new(),
            probing: AtomicBool::new(false),
            marks: Mutex::default(),
        }))
    }

    /// Whether PostgreSQL is known to be out of reach.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0.open.load(Ordering::Acquire)
    }

    /// Lets a statement through while PostgreSQL is in reach; else refuses it, at no cost.
    ///
    /// # Errors
    /// One that reads as PostgreSQL being unavailable.
    pub fn admit(&self) -> Result<(), sqlx::Error> {
        if self.is_open() { Err(away()) } else { Ok(()) }
    }

    /// Waits until PostgreSQL is out of reach.
    pub(super) async fn opened(&self) {
        // Before the look: who opens it after that is heard.
        let opened = self.0.opened.notified();
        if !self.is_open() {
            opened.await;
        }
    }

    /// Learns from the failure of a statement that was let through, or of getting a connection for it.
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

    /// Doubts that PostgreSQL is in reach: a statement was given up, say.
    pub fn suspect(&self) {
        if self.0.probing.swap(true, Ordering::AcqRel) {
            return;
        }
        // Outside a runtime nobody could wait for PostgreSQL either.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(probe(Arc::downgrade(&self.0)));
        }
    }

    /// Uses none of the connections that there are again: they lead to the wrong place.
    pub(super) fn outdate(&self) {
        self.marks().outdated = Some(Instant::now());
    }

    /// How far a connection of that age, idle for so long, is trusted.
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

    /// Says what failed, inside the span of the request that it failed; not all of what fails at once.
    fn tell(&self, error: &sqlx::Error) {
        let mut marks = self.marks();
        if marks.told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
            marks.told = Some(Instant::now());
            drop(marks);
            tracing::warn!(%error, "PostgreSQL failed a request");
        }
    }

    fn marks(&self) -> MutexGuard<'_, Marks> {
        self.0.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Probes until PostgreSQL answers, and says so to whoever still wants to know.
async fn probe(breaker: Weak<Shared>) {
    let mut failed_since: Option<Instant> = None;
    let mut slow = 0;
    while let Some(shared) = breaker.upgrade() {
        let breaker = Breaker(shared);
        match look(&breaker.0.options).await {
            Ok(()) => {
                if let Some(since) = failed_since {
                    let away = since.elapsed();
                    tracing::info!(?away, "PostgreSQL is in reach again");
                    // What was open before may lead to a server that is none any more.
                    breaker.outdate();
                    breaker.0.open.store(false, Ordering::Release);
                }
                // Not at once again, however many doubt.
                tokio::time::sleep(PROBE_PAUSE).await;
                breaker.0.probing.store(false, Ordering::Release);
                return;
            }
            // A busy machine is slow for once; what is frozen or cut off is slow again.
            Err(error) if is_slow(&error) && slow < SLOW_FOR_ONCE => slow += 1,
            Err(error) => {
                if failed_since.is_none() {
                    failed_since = Some(Instant::now());
                    tracing::error!(%error, "PostgreSQL is out of reach: whoever needs it is refused until it answers");
                    metrics::counter!("database_breaker_opened_total").increment(1);
                    breaker.0.open.store(true, Ordering::Release);
                    breaker.0.opened.notify_waiters();
                }
            }
        }
        drop(breaker);
        tokio::time::sleep(PROBE_PAUSE).await;
    }
}

/// Asks PostgreSQL for a sign of life, on a connection of its own. One that refuses us in words lives.
async fn look(options: &ConnectOptions) -> Result<(), sqlx::Error> {
    let look = async {
        let mut connection = PgConnection::connect_with(options).await?;
        // A pooler lets us connect whatever lies behind it.
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
    io::Error::new(
        io::ErrorKind::NotConnected,
        "it did not answer when it was asked last",
    )
    .into()
}
