//! Pools connections for statements and transactions of requests.
//!
//! Invariants:
//! - No request waits here while PostgreSQL is known to be unavailable ([`Breaker`]), and the queue is bounded.
//! - The time that a request waited for a connection is deducted from its lock timeout.
//! - A connection that failed, or on which a statement was interrupted, is closed and never reused.

mod executor;
mod finds;
mod lease;

use std::{
    borrow::Cow,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::BoxFuture;
use sqlx::{
    AssertSqlSafe, Connection as _, Executor as _, PgConnection, PgPool,
    pool::PoolConnectionMetadata, postgres::PgPoolOptions,
};
use tokio::sync::Semaphore;

use self::lease::Lease;
pub use self::{finds::Finds, lease::Transaction};
use super::{
    ConnectOptions, Error, Usage, bounded,
    breaker::{Breaker, Trust},
    error::{is_of_a_pooler, is_of_the_connection, is_read_only},
    pooler::{self, Pooler},
};

/// Maximum number of waiting requests per connection; further requests are refused at once.
const QUEUE: usize = 32;
/// Total wait for a connection and for a lock, if the request had to wait for the connection.
const WAIT: Duration = Duration::from_secs(1);
/// Shorter waits for a connection do not count as a wait.
const NO_WAIT: Duration = Duration::from_millis(50);
/// Timeout of the check that a connection is usable.
pub(super) const CHECK: Duration = Duration::from_millis(500);

/// Limits that PostgreSQL enforces if this process interrupted a statement or died. For superusers, deadlocks are
/// detected before the lock timeout, so that the aborted transaction is retried.
pub(super) const SESSION_SETTINGS: &str = "set statement_timeout = '2s'; set lock_timeout = '1s'; \
                                set idle_in_transaction_session_timeout = '10s'; \
                                set tcp_keepalives_idle = 30; set tcp_keepalives_interval = 10; \
                                set tcp_keepalives_count = 3; \
                                select set_config('deadlock_timeout', '200ms', false) \
                                from pg_roles where rolname = current_user and rolsuper";

/// Connection pool to one PostgreSQL. A single statement runs on a reference to it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Pool {
    connections: PgPool,
    queue: Arc<Semaphore>,
    /// Number of permits of `queue`.
    places: usize,
    pub(super) breaker: Breaker,
    pub(super) pooler: Pooler,
    /// Set once new connections are configured for a pooler.
    adapted: Arc<AtomicBool>,
}

impl Pool {
    /// Creates a pool, which opens connections on demand.
    pub(super) fn new(
        options: ConnectOptions,
        max_connections: u32,
        acquire_timeout: Duration,
        breaker: Breaker,
        pooler: Pooler,
    ) -> Self {
        let trusted = breaker.clone();
        let connections = PgPoolOptions::new()
            .max_connections(max_connections)
            .acquire_timeout(acquire_timeout)
            // A lost connection fails at its next statement, which costs one 503 response. A check before would cost
            // every request a round trip.
            .test_before_acquire(false)
            .after_connect(prepare(pooler.clone(), ""))
            .before_acquire(move |connection, it| {
                let trust = trusted.trust(it.age, it.idle_for);
                Box::pin(async move {
                    Ok(match trust {
                        Trust::Whole => true,
                        Trust::None => false,
                        Trust::Doubt => {
                            let ping = tokio::time::timeout(CHECK, connection.ping()).await;
                            matches!(ping, Ok(Ok(())))
                        }
                    })
                })
            })
            .connect_lazy_with(options);
        let places = (max_connections as usize).saturating_mul(1 + QUEUE);
        Self {
            connections,
            queue: Arc::new(Semaphore::new(places)),
            places,
            breaker,
            pooler,
            adapted: Arc::default(),
        }
    }

    pub(super) async fn begin(&self) -> Result<Transaction, Error> {
        self.begin_after(Duration::ZERO).await
    }

    /// Begins a transaction for a request that has waited for `waited` already, which counts as a wait for a
    /// connection.
    pub(super) async fn begin_after(&self, waited: Duration) -> Result<Transaction, Error> {
        bounded(async {
            let mut lease = if waited.is_zero() {
                self.lease().await?
            } else {
                let left = WAIT.saturating_sub(waited);
                let lease = tokio::time::timeout(left, self.lease()).await;
                lease.unwrap_or(Err(sqlx::Error::PoolTimedOut))?
            };
            let begin = self.beginning(waited + lease.waited);
            let begin = begin.unwrap_or("begin".into());
            lease.begin(begin).await?;
            Ok(Transaction::on(lease))
        })
        .await
    }

    pub(super) fn connect_options(&self) -> ConnectOptions {
        let options = self.connections.connect_options().as_ref().clone();
        if self.pooler.is_there() {
            // Behind a pooler, a server does not know statements that were prepared on another.
            options.statement_cache_capacity(0)
        } else {
            options
        }
    }

    pub(super) fn usage(&self) -> Usage {
        let idle = u32::try_from(self.connections.num_idle()).unwrap_or(u32::MAX);
        Usage {
            idle,
            used: self.connections.size().saturating_sub(idle),
            max: Some(self.connections.options().get_max_connections()),
            waiting: self.places - self.queue.available_permits().min(self.places),
        }
    }

    pub(super) async fn close(&self) {
        self.connections.close().await;
    }

    /// Adapts to a pooler, and invalidates all existing connections, which have not.
    pub(super) fn go_behind_pooler(&self) {
        if self.pooler.found() {
            self.breaker.outdate();
        }
    }

    /// Updates the circuit breaker and connection trust after a failed statement.
    pub(super) fn learn(&self, error: &sqlx::Error) {
        self.breaker.failed(error);
        if is_of_a_pooler(error) {
            self.go_behind_pooler();
        } else if is_read_only(error) {
            // The primary was demoted. The other connections lead to it as well.
            self.breaker.outdate();
        }
    }

    async fn lease(&self) -> Result<Lease, sqlx::Error> {
        self.breaker.admit()?;
        // A connection outside this pool may have detected the pooler.
        if self.pooler.is_there() && !self.adapted.swap(true, Ordering::Relaxed) {
            self.connections.set_connect_options(self.connect_options());
        }
        let began = Instant::now();
        let connection = {
            let place = self.queue.try_acquire();
            let _place = place.map_err(|_| sqlx::Error::PoolTimedOut)?;
            tokio::select! {
                connection = self.connections.acquire() => connection,
                () = self.breaker.opened() => return Err(away(&self.breaker)),
            }
        };
        let connection = connection.inspect_err(|error| self.breaker.failed(error))?;
        Ok(Lease::new(connection, self.clone(), began.elapsed()))
    }

    /// Returns a connection for a single statement, in a transaction if it needs one.
    async fn lease_for_one(&self) -> Result<Lease, sqlx::Error> {
        let mut lease = self.lease().await?;
        if let Some(begin) = self.beginning(lease.waited) {
            lease.begin(begin).await?;
        }
        Ok(lease)
    }

    /// Returns the statements that begin a transaction, or `None` if a single statement needs none.
    fn beginning(&self, waited: Duration) -> Option<Cow<'static, str>> {
        let behind_pooler = self.pooler.is_there();
        let begin = if behind_pooler {
            pooler::BEGIN
        } else {
            "begin"
        };
        if waited < NO_WAIT {
            return behind_pooler.then_some(begin.into());
        }
        // Zero would disable the timeout.
        let left = WAIT.saturating_sub(waited).as_millis().max(10);
        Some(format!("{begin}; set local lock_timeout = '{left}ms'").into())
    }
}

/// Returns a hook that applies [`SESSION_SETTINGS`] and `more` to a new connection.
fn prepare(
    pooler: Pooler,
    more: &'static str,
) -> impl for<'c> Fn(
    &'c mut PgConnection,
    PoolConnectionMetadata,
) -> BoxFuture<'c, Result<(), sqlx::Error>> {
    move |connection, _| {
        let behind_pooler = pooler.is_there();
        Box::pin(async move {
            if !behind_pooler {
                let settings = AssertSqlSafe(format!("{SESSION_SETTINGS}; {more}"));
                connection.execute(sqlx::raw_sql(settings)).await?;
            }
            Ok(())
        })
    }
}

/// Returns true if a connection can be reused after this error.
pub(super) fn is_fit_after(error: &sqlx::Error) -> bool {
    !is_of_the_connection(error) && !is_read_only(error) && !is_of_a_pooler(error)
}

fn away(breaker: &Breaker) -> sqlx::Error {
    breaker.admit().err().unwrap_or(sqlx::Error::PoolTimedOut)
}
