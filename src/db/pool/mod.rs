//! Pools connections for statements and transactions of requests.
//!
//! Invariants:
//! - No request waits here while PostgreSQL is known to be unavailable (`breaker`), and the queue is bounded.
//! - The time that a request waited for a connection is deducted from its lock timeout.
//! - A connection that failed, or on which a statement was interrupted, is closed and never reused.

mod connection;
pub(super) mod transaction;

use std::{
    borrow::Cow,
    iter::Sum,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use futures_util::future::BoxFuture;
use sqlx::{
    AssertSqlSafe, Executor as _, PgConnection, PgPool, pool::PoolConnectionMetadata,
    postgres::PgPoolOptions,
};
use tokio::sync::Semaphore;

use super::{
    connect::ConnectOptions,
    health::{Health, is_usable},
    pooler,
};
use crate::config;

/// Maximum number of waiting requests per connection; further requests are refused at once.
const MAX_QUEUED_PER_CONNECTION: usize = 32;
/// Total wait for a connection and for a lock, if the request had to wait for the connection.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// Shorter waits for a connection do not count as a wait.
const NEGLIGIBLE_WAIT: Duration = Duration::from_millis(50);

/// Limits that PostgreSQL enforces if this process interrupted a statement or died. For superusers, who may set it,
/// `deadlock_timeout` is below `lock_timeout`, so a deadlock is reported as such and retried.
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
    pub(super) fn new(options: ConnectOptions, config: &config::Database) -> Self {
        let health = Health::new(options.clone());
        let breaker = health.breaker.clone();
        let connections = PgPoolOptions::new()
            .max_connections(config.max_connections)
            .acquire_timeout(config.acquire_timeout)
            // A lost connection fails at its next statement, which costs one 503 response. A check before would cost
            // every request a round trip.
            .test_before_acquire(false)
            .after_connect(configure(health.clone(), ""))
            .before_acquire(move |connection, metadata| {
                let trust = breaker.trust(metadata.age, metadata.idle_for);
                Box::pin(async move { Ok(is_usable(connection, trust).await) })
            })
            .connect_lazy_with(options);
        let queue_capacity =
            (config.max_connections as usize).saturating_mul(1 + MAX_QUEUED_PER_CONNECTION);
        Self {
            connections,
            queue: Arc::new(Semaphore::new(queue_capacity)),
            queue_capacity,
            health,
            has_pooler_options: Arc::default(),
        }
    }

    pub(super) fn connect_options(&self) -> ConnectOptions {
        let options = self.connections.connect_options().as_ref().clone();
        if self.health.is_behind_pooler() {
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
            waiting: self.queue_capacity - self.queue.available_permits(),
        }
    }

    pub(super) async fn close(&self) {
        self.connections.close().await;
    }

    /// Returns the statements that begin a transaction, or `None` if a single statement needs none.
    fn begin_statements(&self, waited: Duration) -> Option<Cow<'static, str>> {
        let is_behind_pooler = self.health.is_behind_pooler();
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
    health: Health,
    settings: &'static str,
) -> impl for<'c> Fn(
    &'c mut PgConnection,
    PoolConnectionMetadata,
) -> BoxFuture<'c, Result<(), sqlx::Error>> {
    move |connection, _| {
        let is_behind_pooler = health.is_behind_pooler();
        Box::pin(async move {
            if !is_behind_pooler {
                let statements = AssertSqlSafe(format!("{SESSION_SETTINGS}; {settings}"));
                connection.execute(sqlx::raw_sql(statements)).await?;
            }
            Ok(())
        })
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

impl Sum for Usage {
    fn sum<I: Iterator<Item = Self>>(usages: I) -> Self {
        usages
            .reduce(|sum, usage| Self {
                idle: sum.idle + usage.idle,
                used: sum.used + usage.used,
                max: sum.max.zip(usage.max).map(|(sum, max)| sum + max),
                waiting: sum.waiting + usage.waiting,
            })
            .unwrap_or_default()
    }
}
