//! Queries and connections to PostgreSQL.
//!
//! Each resource has a file with one function per query. Functions take an executor, so that the handler decides which
//! statements share a transaction, or a [`Database`] if their statement is batched with those of other requests
//! (`coalesce`) or finds many rows (`pool`). Large, rare futures are boxed, because each move copies them.
//!
//! Invariants:
//! - Every statement of a request ends within [`QUERY_TIMEOUT`], and all before its response starts end within its
//!   deadline ([`patience`]), even if PostgreSQL is frozen.
//! - While PostgreSQL is known to be unavailable, no statement is sent ([`breaker`]).
//! - Every failure is classified here, once ([`Error`]).

pub mod breaker;
pub mod callers;
mod coalesce;
mod codec;
pub mod credential_changes;
pub mod credentials;
mod error;
pub mod exports;
pub mod idempotency;
pub mod images;
pub mod imports;
pub mod inventory;
pub mod limits;
pub mod migrations;
pub mod oauth;
pub mod orders;
pub mod patience;
pub mod pets;
mod pool;
mod pooler;
pub mod sessions;
pub mod users;

use std::{
    fmt,
    future::Future,
    iter::Sum,
    str::FromStr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use secrecy::{ExposeSecret, SecretString};
use sqlx::{ConnectOptions as _, Connection as _, PgConnection, postgres::PgConnectOptions};

use self::{
    breaker::Breaker,
    coalesce::{Lane, Shared},
    pool::Finds,
    pooler::Pooler,
};
pub use self::{
    error::{Error, Failure},
    pool::{Pool, Transaction},
};
use crate::config;

/// Timeout of one statement.
pub const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of attempts at a transaction that conflicts with others.
const TRIES: u32 = 4;
/// Unit of the backoff between attempts: the pause after attempt n is 2ⁿ times as long.
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// Connection pools to one PostgreSQL, and the batchers on top of them. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Database(Arc<Own>);

/// State of one worker, behind an `Arc` of its own: each request clones it, and cores would contend for a shared count.
#[derive(Debug)]
struct Own {
    lanes: Lanes,
    /// Created by the first find.
    finds: OnceLock<Pool>,
    all_finds: Finds,
}

#[derive(Debug)]
struct Lanes {
    shared: Shared,
    pets: Lane<pets::Reads>,
    new_pets: Lane<pets::Inserts>,
    callers: Lane<credentials::LookUps>,
    leases: Lane<limits::Leases>,
}

impl Own {
    fn new(shared: Shared, all_finds: Finds) -> Arc<Self> {
        Arc::new(Self {
            lanes: Lanes {
                pets: Lane::new(shared.clone()),
                new_pets: Lane::new(shared.clone()),
                callers: Lane::new(shared.clone()),
                leases: Lane::new(shared.clone()),
                shared,
            },
            finds: OnceLock::new(),
            all_finds,
        })
    }
}

/// Executor of a single statement: a pool, or a connection in or out of a transaction.
pub use sqlx::PgExecutor as Executor;

/// A connection, in or out of a transaction.
pub type Connection = PgConnection;

/// SHA-256 of a secret. The secret itself is never stored.
pub type SecretHash = [u8; 32];

/// Options of connections to a PostgreSQL.
pub type ConnectOptions = PgConnectOptions;

/// Parses a `postgres://` URL.
///
/// # Errors
/// [`Error::Url`], without the URL, which may contain a password.
pub fn parse_url(url: &SecretString) -> Result<ConnectOptions, Error> {
    ConnectOptions::from_str(url.expose_secret()).map_err(Error::Url)
}

impl Database {
    /// Creates the pool, which opens connections on demand.
    #[must_use]
    pub fn new(options: ConnectOptions, config: &config::Database) -> Self {
        let options = pooler::options(options).application_name("pet-inventory");
        let breaker = Breaker::new(options.clone());
        Self::over(Pool::new(
            options,
            config.max_connections,
            config.acquire_timeout,
            breaker,
            Pooler::default(),
        ))
    }

    fn over(pool: Pool) -> Self {
        Self(Own::new(Shared::new(pool), Finds::default()))
    }

    /// Returns a handle for another worker, with batchers and find connections that run on its core.
    #[must_use]
    pub fn of_a_worker(&self) -> Self {
        let Own {
            lanes, all_finds, ..
        } = &*self.0;
        Self(Own::new(lanes.shared.clone(), all_finds.clone()))
    }

    /// Detects a pooler between this process and PostgreSQL, and adapts to it.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if PostgreSQL cannot be reached.
    pub async fn look_for_pooler(&self) -> Result<(), Error> {
        if pooler::is_between(&self.pool().connect_options()).await? {
            self.pool().go_behind_pooler();
        }
        Ok(())
    }

    /// Returns the pool that runs single statements of requests.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.0.lanes.shared.pool
    }

    /// Returns the pool for statements that find many rows by other columns than the key, planned for their values.
    fn finds(&self) -> &Pool {
        let Own {
            finds, all_finds, ..
        } = &*self.0;
        finds.get_or_init(|| all_finds.another(self.pool()))
    }

    /// Returns the circuit breaker. Code with its own connections checks it first, and reports failures to it.
    #[must_use]
    pub fn breaker(&self) -> &Breaker {
        &self.pool().breaker
    }

    /// Returns true if there is a pooler. Then a prepared statement, or one outside a transaction, may reach a server
    /// that does not know it.
    #[must_use]
    pub fn is_behind_pooler(&self) -> bool {
        self.pool().pooler.is_there()
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// [`Error::Unavailable`] or [`Error::TimedOut`] if no connection is available in time.
    pub async fn begin(&self) -> Result<Transaction, Error> {
        self.pool().begin().await
    }

    /// Commits the transaction. A client may be told of success only after this has succeeded.
    ///
    /// # Errors
    /// [`Error`] if the commit failed, or if its outcome is unknown.
    pub async fn commit(transaction: Transaction) -> Result<(), Error> {
        transaction.commit().await
    }

    /// Runs `work` in a transaction, which is rolled back if `work` fails. Retries serialization failures and deadlocks
    /// ([`Error::Contended`]) a few times.
    ///
    /// # Errors
    /// The error of `work`, or [`Error`] if the transaction cannot be begun or committed.
    pub async fn transact<T, E, W>(&self, work: W) -> Result<T, E>
    where
        W: AsyncFnOnce(&mut Connection) -> Result<T, E> + Clone,
        E: Failure,
    {
        let mut tries = 1;
        loop {
            let mut transaction = self.begin().await?;
            let result = match work.clone()(&mut transaction).await {
                Ok(value) => Self::commit(transaction)
                    .await
                    .map(|()| value)
                    .map_err(E::from),
                Err(error) => {
                    transaction.undo(error.database_error()).await;
                    Err(error)
                }
            };
            match result {
                Err(error) if tries < TRIES && is_contended(&error) => {
                    metrics::counter!("db_client_transaction_retries_total").increment(1);
                    tokio::time::sleep(RETRY_PAUSE * 2_u32.pow(tries)).await;
                    tries += 1;
                }
                result => return result,
            }
        }
    }

    /// Opens a connection without timeouts and without logging of slow statements, for commands that a person waits
    /// for.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if PostgreSQL cannot be reached.
    pub async fn unhurried(&self) -> Result<PgConnection, Error> {
        let options =
            ConnectOptions::clone(&self.pool().connect_options()).disable_statement_logging();
        Ok(PgConnection::connect_with(&options).await?)
    }

    /// Checks that PostgreSQL responds.
    ///
    /// # Errors
    /// [`Error`] if there is no response within 900 ms.
    pub async fn ping(&self) -> Result<(), Error> {
        const SIGN_OF_LIFE: Duration = Duration::from_millis(900);
        patience::wait(SIGN_OF_LIFE, sqlx::query("select 1").execute(self.pool())).await?;
        Ok(())
    }

    /// Returns the version of PostgreSQL.
    ///
    /// # Errors
    /// [`Error`] if there is no response in time.
    pub async fn server_version(&self) -> Result<ServerVersion, Error> {
        let number = sqlx::query_scalar("select current_setting('server_version_num')::int");
        Ok(ServerVersion(bounded(number.fetch_one(self.pool())).await?))
    }

    /// Returns the current use of the connections that requests share.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.pool().usage()
    }

    /// Returns the current use of the connections of all batchers, over all workers.
    #[must_use]
    pub fn usage_of_lanes(&self) -> Usage {
        let (open, used, waiting) = self.0.lanes.shared.usage.now();
        let idle = open.saturating_sub(used);
        Usage {
            idle,
            used,
            max: None,
            waiting,
        }
    }

    /// Returns the current use of the connections for finds, over all workers.
    #[must_use]
    pub fn usage_of_finds(&self) -> Usage {
        self.0.all_finds.usage()
    }

    /// Stops the batchers, and closes all connections once they are idle.
    pub async fn close(&self) {
        let Shared { closing, tasks, .. } = &self.0.lanes.shared;
        closing.cancel();
        tasks.close();
        tasks.wait().await;
        tokio::join!(self.0.all_finds.close(), self.pool().close());
    }
}

/// Use of a set of connections.
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
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.reduce(|sum, it| Self {
            idle: sum.idle + it.idle,
            used: sum.used + it.used,
            max: sum.max.zip(it.max).map(|(sum, it)| sum + it),
            waiting: sum.waiting + it.waiting,
        })
        .unwrap_or_default()
    }
}

/// Version of PostgreSQL, such as 150018 for 15.18.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerVersion(i32);

impl ServerVersion {
    /// Oldest supported version.
    pub const OLDEST_SUPPORTED: Self = Self(130_000);
}

impl fmt::Display for ServerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 10_000, self.0 % 10_000)
    }
}

fn is_contended(error: &impl Failure) -> bool {
    matches!(error.database_error(), Some(Error::Contended(_)))
}

/// Runs `statement` for at most [`QUERY_TIMEOUT`]. PostgreSQL's `statement_timeout` does not help if PostgreSQL itself
/// or the network is frozen.
async fn bounded<T>(statement: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, Error> {
    patience::wait(QUERY_TIMEOUT, statement).await
}
