//! Pools connections for statements and transactions of requests.
//!
//! Invariants:
//! - No request waits here while PostgreSQL is known to be unavailable (`breaker`), and the queue is bounded.
//! - The time since a request was queued for a batch is deducted from its acquire timeout, and the time until it has a
//!   connection from its lock timeout.
//! - A connection that failed, or on which a statement was interrupted, is closed and never used again. A client that disconnects
//!   interrupts no statement, and no opening of a connection (`scope`).

use std::sync::Arc;

use sqlx::{
    PgPool, Postgres,
    pool::{PoolConnection, PoolConnectionMetadata},
    postgres::PgPoolOptions,
};
use tokio::{
    sync::{Notify, Semaphore},
    time::{Duration, Instant, timeout},
};
use tracing::Instrument as _;

use super::{
    breaker::PING_TIMEOUT,
    connect::{Connection, Connector},
    deadline::with_timeout,
    error::{AsDatabaseError, Error},
    large_reads::LargeReads,
    scope::{self, Held},
};
use crate::config;

/// Maximum number of waiting requests per connection; further requests are refused at once.
const MAX_QUEUED_PER_CONNECTION: usize = 32;
/// Lock timeout, including the wait for the connection if there was one.
pub(super) const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// Shorter waits for a connection do not count as a wait.
const NEGLIGIBLE_WAIT: Duration = Duration::from_millis(50);
/// Shortest wait for a connection, however long the request has waited before.
const MIN_ACQUIRE_TIMEOUT: Duration = Duration::from_millis(50);
/// Shortest lock timeout; zero would disable it.
const MIN_LOCK_TIMEOUT: Duration = Duration::from_millis(10);
const MAX_ATTEMPTS: u32 = 4;
/// Unit of the backoff: the pause after attempt n is 2ⁿ times as long.
const BACKOFF: Duration = Duration::from_millis(5);

/// Connection pool to one PostgreSQL. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Pool {
    pub connector: Connector,
    pub large_reads: LargeReads,
    /// Signals that something was committed.
    pub committed: Arc<Notify>,
    connections: PgPool,
    queue: Arc<Semaphore>,
    queue_capacity: usize,
}

impl Pool {
    /// Creates a pool, which opens connections on demand.
    pub fn new(connector: Connector, config: &config::Database) -> Self {
        let (configuring, breaker) = (connector.clone(), connector.breaker.clone());
        let connections = PgPoolOptions::new()
            .max_connections(config.max_connections)
            .acquire_timeout(config.acquire_timeout)
            // A lost connection fails at its next statement, which costs one 503 response. A check before would cost
            // every request a round trip.
            .test_before_acquire(false)
            .after_connect(move |connection, _| {
                let connector = configuring.clone();
                Box::pin(async move {
                    let configured = connector.configure(connection).await;
                    configured.inspect_err(|error| {
                        connector.breaker.record_failure(error);
                    })
                })
            })
            .before_acquire(
                move |connection, PoolConnectionMetadata { age, idle_for, .. }| {
                    let breaker = breaker.clone();
                    Box::pin(async move {
                        let _held = Held::new();
                        Ok(breaker.is_usable(connection, age, idle_for).await)
                    })
                },
            )
            .connect_lazy_with(connector.options.last().clone());
        let queue_capacity =
            (config.max_connections as usize).saturating_mul(1 + MAX_QUEUED_PER_CONNECTION);
        Self {
            connector,
            large_reads: LargeReads::new(config.max_connections),
            committed: Arc::default(),
            connections,
            queue: Arc::new(Semaphore::new(queue_capacity)),
            queue_capacity,
        }
    }

    /// Runs `work` in a transaction, which is rolled back if `work` fails. Retries it if it is [`Error::Contended`]. The
    /// time since `queued_at`, if any, is deducted from the acquire timeout and the lock timeout.
    pub async fn transact<T, E, W>(&self, queued_at: Option<Instant>, work: W) -> Result<T, E>
    where
        W: AsyncFnOnce(&mut Connection) -> Result<T, E> + Clone,
        E: AsDatabaseError,
    {
        let mut attempt = 1;
        loop {
            let waited = queued_at.map_or(Duration::ZERO, |queued_at| queued_at.elapsed());
            let result = self.run(true, waited, work.clone()).await;
            let error = result.as_ref().err().and_then(E::database_error);
            if result.is_ok() {
                self.committed.notify_one();
            }
            if attempt == MAX_ATTEMPTS || !matches!(error, Some(Error::Contended(_))) {
                return result;
            }
            metrics::counter!("db_client_transaction_retries_total").increment(1);
            tokio::time::sleep(BACKOFF * 2_u32.pow(attempt)).await;
            attempt += 1;
        }
    }

    /// Runs `work` on a connection, in a transaction if it has several statements. `waited`, the time since the request
    /// was queued for a batch, is deducted from the acquire timeout and the lock timeout.
    pub async fn run<T, E: AsDatabaseError>(
        &self,
        has_several_statements: bool,
        waited: Duration,
        work: impl AsyncFnOnce(&mut Connection) -> Result<T, E>,
    ) -> Result<T, E> {
        scope::admit().await;
        let started = Instant::now();
        let mut connection = with_timeout(Box::pin(self.acquire(waited))).await?;
        let _held = Held::new();
        // Until it is returned below: its state is unknown.
        connection.close_on_drop();
        let waited = waited + started.elapsed();
        let lock_timeout = if waited < NEGLIGIBLE_WAIT {
            LOCK_TIMEOUT
        } else {
            (LOCK_TIMEOUT.saturating_sub(waited)).max(MIN_LOCK_TIMEOUT)
        };
        let connector = &self.connector;
        let running = connector.run(&mut connection, has_several_statements, lock_timeout, work);
        let (result, is_reusable) = running.await;
        if is_reusable {
            // sqlx pings it without a timeout. Boxed: it is 15 kB, which would be copied six times on the way into a task.
            let returned = Box::pin(connection.return_to_pool());
            tokio::spawn(async move { drop(timeout(PING_TIMEOUT, returned).await) });
        }
        result
    }

    async fn acquire(&self, waited: Duration) -> Result<PoolConnection<Postgres>, sqlx::Error> {
        let acquire_timeout = self.connections.options().get_acquire_timeout();
        let remaining = acquire_timeout
            .saturating_sub(waited)
            .max(MIN_ACQUIRE_TIMEOUT);
        let breaker = &self.connector.breaker;
        breaker.admit()?;
        let permit = self.queue.try_acquire();
        let _permit = permit.map_err(|_| sqlx::Error::PoolTimedOut)?;
        let connection = tokio::select! {
            connection = timeout(remaining, self.take()) => {
                connection.unwrap_or(Err(sqlx::Error::PoolTimedOut))
            }
            () = breaker.opened() => {
                breaker.admit()?;
                return Err(sqlx::Error::PoolTimedOut);
            }
        };
        connection.inspect_err(|error| {
            breaker.record_failure(error);
        })
    }

    /// Takes a connection. If one must be opened, a task does, which goes on if the request is cancelled.
    async fn take(&self) -> Result<PoolConnection<Postgres>, sqlx::Error> {
        let connections = &self.connections;
        let has_idle = connections.num_idle() > 0;
        if has_idle || connections.size() >= connections.options().get_max_connections() {
            return connections.acquire().await;
        }
        let (connections, options) = (connections.clone(), self.connector.options.clone());
        let opening = async move {
            connections.set_connect_options(options.current().await);
            connections.acquire().await
        };
        let opening = tokio::spawn(opening.in_current_span());
        opening.await.unwrap_or(Err(sqlx::Error::PoolClosed))
    }

    pub fn usage(&self) -> Usage {
        let idle = u32::try_from(self.connections.num_idle()).unwrap_or(u32::MAX);
        Usage {
            idle,
            used: self.connections.size().saturating_sub(idle),
            max: Some(self.connections.options().get_max_connections()),
            waiting: self.queue_capacity - self.queue.available_permits(),
        }
    }

    pub async fn close(&self) {
        self.connections.close().await;
    }
}

/// Use of a set of connections, for metrics.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    /// Number of open connections that are idle.
    pub idle: u32,
    /// Number of connections in use.
    pub used: u32,
    /// Maximum number of connections, if there is one.
    pub max: Option<u32>,
    /// Number of requests that wait for a connection.
    pub waiting: usize,
}
