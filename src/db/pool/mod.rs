//! Pools connections for statements and transactions of requests.
//!
//! Invariants:
//! - No request waits here while PostgreSQL is known to be unavailable (`breaker`), and the queue is bounded.
//! - The time that a request waited for a connection is deducted from its lock timeout.
//! - A connection that failed, or on which a statement was interrupted, is closed and never reused.

mod connection;
mod executor;
pub(super) mod find_pools;

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
    AssertSqlSafe, Executor as _, PgConnection, PgPool, pool::PoolConnectionMetadata,
    postgres::PgPoolOptions,
};
use tokio::sync::Semaphore;

use self::connection::PooledConnection;
pub use self::connection::Transaction;
use super::{
    connect::ConnectOptions,
    deadline::with_timeout,
    error::Error,
    health::{Health, is_usable},
    pooler::{self, Pooler},
    usage::Usage,
};

/// Maximum number of waiting requests per connection; further requests are refused at once.
const MAX_QUEUED_PER_CONNECTION: usize = 32;
/// Total wait for a connection and for a lock, if the request had to wait for the connection.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// Shorter waits for a connection do not count as a wait.
const NEGLIGIBLE_WAIT: Duration = Duration::from_millis(50);

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
    queue_capacity: usize,
    pub(super) health: Health,
    /// Set once new connections are configured for a pooler.
    has_pooler_options: Arc<AtomicBool>,
}

impl Pool {
    /// Creates a pool, which opens connections on demand.
    pub(super) fn new(
        options: ConnectOptions,
        max_connections: u32,
        acquire_timeout: Duration,
        health: Health,
    ) -> Self {
        let breaker = health.breaker.clone();
        let connections = PgPoolOptions::new()
            .max_connections(max_connections)
            .acquire_timeout(acquire_timeout)
            // A lost connection fails at its next statement, which costs one 503 response. A check before would cost
            // every request a round trip.
            .test_before_acquire(false)
            .after_connect(configure(health.pooler.clone(), ""))
            .before_acquire(move |connection, metadata| {
                let trust = breaker.trust(metadata.age, metadata.idle_for);
                Box::pin(async move { Ok(is_usable(connection, trust).await) })
            })
            .connect_lazy_with(options);
        let queue_capacity =
            (max_connections as usize).saturating_mul(1 + MAX_QUEUED_PER_CONNECTION);
        Self {
            connections,
            queue: Arc::new(Semaphore::new(queue_capacity)),
            queue_capacity,
            health,
            has_pooler_options: Arc::default(),
        }
    }

    pub(super) async fn begin(&self) -> Result<Transaction, Error> {
        self.begin_after(Duration::ZERO).await
    }

    /// Begins a transaction for a request that has waited for `waited` already, which counts as a wait for a
    /// connection.
    pub(super) async fn begin_after(&self, waited: Duration) -> Result<Transaction, Error> {
        with_timeout(async {
            let mut connection = if waited.is_zero() {
                self.acquire().await?
            } else {
                let remaining = MAX_WAIT.saturating_sub(waited);
                let acquired = tokio::time::timeout(remaining, self.acquire()).await;
                acquired.unwrap_or(Err(sqlx::Error::PoolTimedOut))?
            };
            let begin = self.begin_statements(waited + connection.waited);
            let begin = begin.unwrap_or("begin".into());
            connection.begin(begin).await?;
            Ok(Transaction::new(connection))
        })
        .await
    }

    pub(super) fn connect_options(&self) -> ConnectOptions {
        let options = self.connections.connect_options().as_ref().clone();
        if self.health.pooler.is_detected() {
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
            waiting: self
                .queue_capacity
                .saturating_sub(self.queue.available_permits()),
        }
    }

    pub(super) async fn close(&self) {
        self.connections.close().await;
    }

    async fn acquire(&self) -> Result<PooledConnection, sqlx::Error> {
        let Health { breaker, pooler } = &self.health;
        breaker.admit()?;
        // A connection outside this pool may have detected the pooler.
        if pooler.is_detected() && !self.has_pooler_options.swap(true, Ordering::Relaxed) {
            self.connections.set_connect_options(self.connect_options());
        }
        let started = Instant::now();
        let connection = {
            let permit = self.queue.try_acquire();
            let _permit = permit.map_err(|_| sqlx::Error::PoolTimedOut)?;
            tokio::select! {
                connection = self.connections.acquire() => connection,
                () = breaker.opened() => {
                    breaker.admit()?;
                    return Err(sqlx::Error::PoolTimedOut);
                }
            }
        };
        let connection = connection.inspect_err(|error| breaker.record_failure(error))?;
        Ok(PooledConnection::new(
            connection,
            self.health.clone(),
            started.elapsed(),
        ))
    }

    /// Returns a connection for a single statement, in a transaction if it needs one.
    async fn acquire_for_statement(&self) -> Result<PooledConnection, sqlx::Error> {
        let mut connection = self.acquire().await?;
        if let Some(begin) = self.begin_statements(connection.waited) {
            connection.begin(begin).await?;
        }
        Ok(connection)
    }

    /// Returns the statements that begin a transaction, or `None` if a single statement needs none.
    fn begin_statements(&self, waited: Duration) -> Option<Cow<'static, str>> {
        let is_behind_pooler = self.health.pooler.is_detected();
        let begin = if is_behind_pooler {
            pooler::BEGIN
        } else {
            "begin"
        };
        if waited < NEGLIGIBLE_WAIT {
            return is_behind_pooler.then_some(begin.into());
        }
        // Zero would disable the timeout.
        let remaining = MAX_WAIT.saturating_sub(waited).as_millis().max(10);
        Some(format!("{begin}; set local lock_timeout = '{remaining}ms'").into())
    }
}

/// Returns a hook that applies [`SESSION_SETTINGS`] and `settings` to a new connection.
fn configure(
    pooler: Pooler,
    settings: &'static str,
) -> impl for<'c> Fn(
    &'c mut PgConnection,
    PoolConnectionMetadata,
) -> BoxFuture<'c, Result<(), sqlx::Error>> {
    move |connection, _| {
        let is_behind_pooler = pooler.is_detected();
        Box::pin(async move {
            if !is_behind_pooler {
                let statements = AssertSqlSafe(format!("{SESSION_SETTINGS}; {settings}"));
                connection.execute(sqlx::raw_sql(statements)).await?;
            }
            Ok(())
        })
    }
}
