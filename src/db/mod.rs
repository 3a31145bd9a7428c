//! PostgreSQL: the only room that knows sqlx.
//!
//! One file a noun, one free function a question, each over an executor, so that the handler decides
//! what belongs to one transaction; what many requests ask at once has one over a [`Database`], and travels
//! together (`coalesce.rs`). Invariants: every statement ends within [`QUERY_TIMEOUT`],
//! whatever state PostgreSQL is in; every failure is classified here, once ([`Error`]).

pub mod callers;
mod coalesce;
mod codec;
pub mod credential_changes;
pub mod credentials;
mod error;
pub mod idempotency;
pub mod migrations;
pub mod oauth;
pub mod pets;
pub mod usage;

use std::{future::Future, str::FromStr, sync::Arc, time::Duration};

use secrecy::{ExposeSecret, SecretString};
use sqlx::{
    Connection as _, Executor as _, PgConnection, PgPool, Postgres,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::coalesce::{Lane, Shared};
pub use self::error::Error;
use crate::config;

/// How long one statement may take before it is given up.
pub const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

/// A pool of connections to one PostgreSQL, and lanes for what many requests ask at once. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Database {
    pool: PgPool,
    lanes: Arc<Lanes>,
}

#[derive(Debug)]
struct Lanes {
    shared: Shared,
    pets: Lane<pets::Reads>,
    new_pets: Lane<pets::Inserts>,
    callers: Lane<credentials::LookUps>,
}

impl Lanes {
    fn new(shared: &Shared) -> Arc<Self> {
        Arc::new(Self {
            shared: shared.clone(),
            pets: Lane::new(shared.clone()),
            new_pets: Lane::new(shared.clone()),
            callers: Lane::new(shared.clone()),
        })
    }
}

/// A transaction; rolled back when dropped.
pub type Transaction = sqlx::Transaction<'static, Postgres>;

/// What a single statement runs on: a pool, or a connection in or out of a transaction.
pub use sqlx::PgExecutor as Executor;

/// A connection, in or out of a transaction.
pub type Connection = PgConnection;

/// SHA-256 of a secret, which is all that is stored of one.
pub type SecretHash = [u8; 32];

/// How to reach a PostgreSQL.
pub type ConnectOptions = PgConnectOptions;

/// Reads a `postgres://` URL.
///
/// # Errors
/// [`Error::Url`]; the URL itself, which may hold a password, stays out of it.
pub fn parse_url(url: &SecretString) -> Result<ConnectOptions, Error> {
    ConnectOptions::from_str(url.expose_secret()).map_err(Error::Url)
}

impl Database {
    /// Makes the pool; connections are opened as they are needed.
    #[must_use]
    pub fn new(options: ConnectOptions, config: &config::Database) -> Self {
        Self::with(options, config.max_connections, config.acquire_timeout)
    }

    /// A few connections for the counters of requests alone, so that neither they nor the requests wait for
    /// each other.
    #[must_use]
    pub fn for_counters(options: ConnectOptions) -> Self {
        const CONNECTIONS: u32 = 4;
        const PATIENCE: Duration = Duration::from_millis(250);
        Self::with(options, CONNECTIONS, PATIENCE)
    }

    fn with(options: ConnectOptions, max_connections: u32, acquire_timeout: Duration) -> Self {
        let pool = PgPoolOptions::new()
            .max_connections(max_connections)
            .acquire_timeout(acquire_timeout)
            // A lost connection shows itself at the next statement, and costs one 503 there; asking
            // first would cost every request a round trip.
            .test_before_acquire(false)
            .after_connect(|connection, _| {
                Box::pin(async move {
                    connection.execute(SESSION_SETTINGS).await?;
                    Ok(())
                })
            })
            // But one that has been idle may have been lost meanwhile, all of them at once.
            .before_acquire(|connection, idle| {
                Box::pin(async move {
                    if idle.idle_for < IDLE {
                        return Ok(true);
                    }
                    Ok(bounded(connection.ping()).await.is_ok())
                })
            })
            .connect_lazy_with(options.application_name("pet-inventory"));
        let lanes = Lanes::new(&Shared {
            pool: pool.clone(),
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        Self { pool, lanes }
    }

    /// The same with lanes of its own, for another runtime: a task answers best whom it shares a core with.
    #[must_use]
    pub fn with_own_lanes(&self) -> Self {
        Self {
            pool: self.pool.clone(),
            lanes: Lanes::new(&self.lanes.shared),
        }
    }

    /// What the functions of this room take for a single statement.
    #[must_use]
    pub const fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when no connection can be had in time.
    pub async fn begin(&self) -> Result<Transaction, Error> {
        bounded(self.pool.begin()).await
    }

    /// Commits; only after this has succeeded may a client be told so.
    ///
    /// # Errors
    /// [`Error`] when the commit did not succeed, or nobody can tell whether it did.
    pub async fn commit(transaction: Transaction) -> Result<(), Error> {
        bounded(transaction.commit()).await
    }

    /// Does `work` in a transaction: all of it, or, when it fails, nothing.
    ///
    /// # Errors
    /// What `work` fails with, or [`Error`] when the transaction cannot be begun or committed.
    pub async fn transact<T, E, W>(&self, work: W) -> Result<T, E>
    where
        W: AsyncFnOnce(&mut Connection) -> Result<T, E>,
        E: From<Error>,
    {
        let mut transaction = self.begin().await?;
        match work(&mut transaction).await {
            Ok(value) => {
                Self::commit(transaction).await?;
                Ok(value)
            }
            Err(error) => {
                // Not left to the drop, which is done with at some later time: the next request for the
                // same thing may come at once. Should it fail, PostgreSQL undoes it by itself.
                let _ = bounded(transaction.rollback()).await;
                Err(error)
            }
        }
    }

    /// Asks PostgreSQL for a sign of life.
    ///
    /// # Errors
    /// [`Error`] when there is none in time.
    pub async fn ping(&self) -> Result<(), Error> {
        bounded(sqlx::query("select 1").execute(&self.pool)).await?;
        Ok(())
    }

    /// Connections that are open, and how many of them are idle.
    #[must_use]
    pub fn connections(&self) -> (u32, u32) {
        let idle = u32::try_from(self.pool.num_idle()).unwrap_or(u32::MAX);
        (self.pool.size(), idle)
    }

    /// Closes the connections, once nobody uses them.
    pub async fn close(&self) {
        let Shared { closing, tasks, .. } = &self.lanes.shared;
        closing.cancel();
        tasks.close();
        tasks.wait().await;
        self.pool.close().await;
    }
}

/// How long a connection is trusted after its last use.
const IDLE: Duration = Duration::from_secs(1);

/// PostgreSQL's own bounds, for the case that we are gone: what this process gave up, or left behind
/// when it died, ends there too.
const SESSION_SETTINGS: &str = "set statement_timeout = '2s'; set lock_timeout = '1s'; \
                                set idle_in_transaction_session_timeout = '10s'";

/// Runs `statement` for at most [`QUERY_TIMEOUT`]: PostgreSQL's `statement_timeout` cannot help when
/// it is PostgreSQL, or the way to it, that is frozen.
async fn bounded<T>(statement: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, Error> {
    match tokio::time::timeout(QUERY_TIMEOUT, statement).await {
        Ok(result) => result.map_err(Error::from),
        Err(_) => Err(Error::TimedOut),
    }
}
