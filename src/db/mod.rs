//! PostgreSQL: the only room that knows sqlx.
//!
//! One file a noun, one free function a question, each over an executor, so that the handler decides
//! what belongs to one transaction; what many requests ask at once has one over a [`Database`], and travels
//! together (`coalesce`), and so has what finds many, on connections of its own (`pool`). Invariants: every
//! statement ends within [`QUERY_TIMEOUT`], and all of one request's, up to an answer that streams, within its
//! [`patience`], whatever state PostgreSQL is in; while it is out of reach none is sent ([`breaker`]); every
//! failure is classified here, once ([`Error`]).

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

/// How long one statement may take before it is given up.
pub const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

/// How often a transaction is tried that others are in the way of.
const TRIES: u32 = 4;
/// The pause before another try, doubled with each.
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// A pool of connections to one PostgreSQL, lanes for what many requests ask at once, and connections for finds.
/// Cheap to clone.
#[derive(Debug, Clone)]
pub struct Database(Arc<Own>);

/// What each worker has to itself. Behind one pointer of its own, since each request clones it: the counts behind
/// a pool are all workers', and one core waits for the other to count.
#[derive(Debug)]
struct Own {
    lanes: Lanes,
    /// Made for the first find.
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

    /// The same with lanes and finds of its own, for another runtime: a task answers best whom it shares a core
    /// with.
    #[must_use]
    pub fn of_a_worker(&self) -> Self {
        let Own {
            lanes, all_finds, ..
        } = &*self.0;
        Self(Own::new(lanes.shared.clone(), all_finds.clone()))
    }

    /// Looks whether a pooler is between PostgreSQL and us, and goes on accordingly.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when PostgreSQL cannot be reached.
    pub async fn look_for_pooler(&self) -> Result<(), Error> {
        if pooler::is_between(&self.pool().connect_options()).await? {
            self.pool().go_behind_pooler();
        }
        Ok(())
    }

    /// What the functions of this room take for a single statement.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.0.lanes.shared.pool
    }

    /// The same for a single statement that finds many by anything but their keys: planned for its values.
    fn finds(&self) -> &Pool {
        let Own {
            finds, all_finds, ..
        } = &*self.0;
        finds.get_or_init(|| all_finds.another(self.pool()))
    }

    /// Whether PostgreSQL is known to be out of reach. Whoever has connections of its own asks first, and
    /// tells what failed.
    #[must_use]
    pub fn breaker(&self) -> &Breaker {
        &self.pool().breaker
    }

    /// Whether a pooler is between PostgreSQL and us: then a statement outside a transaction, or one that
    /// was prepared before, may meet a server that does not know it.
    #[must_use]
    pub fn is_behind_pooler(&self) -> bool {
        self.pool().pooler.is_there()
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when no connection can be had in time.
    pub async fn begin(&self) -> Result<Transaction, Error> {
        self.pool().begin().await
    }

    /// Commits; only after this has succeeded may a client be told so.
    ///
    /// # Errors
    /// [`Error`] when the commit did not succeed, or nobody can tell whether it did.
    pub async fn commit(transaction: Transaction) -> Result<(), Error> {
        transaction.commit().await
    }

    /// Does `work` in a transaction: all of it, or, when it fails, nothing. Where PostgreSQL gave another
    /// transaction the preference it is done anew, a few times.
    ///
    /// # Errors
    /// What `work` fails with, or [`Error`] when the transaction cannot be begun or committed.
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
                    metrics::counter!("database_retries_total").increment(1);
                    tokio::time::sleep(RETRY_PAUSE * 2_u32.pow(tries)).await;
                    tries += 1;
                }
                result => return result,
            }
        }
    }

    /// A connection of its own, without bounds of time: for a command that a person waits for, and is not
    /// told that its statements are slow.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when it cannot be had.
    pub async fn unhurried(&self) -> Result<PgConnection, Error> {
        let options =
            ConnectOptions::clone(&self.pool().connect_options()).disable_statement_logging();
        Ok(PgConnection::connect_with(&options).await?)
    }

    /// Asks PostgreSQL for a sign of life.
    ///
    /// # Errors
    /// [`Error`] when there is none in time.
    pub async fn ping(&self) -> Result<(), Error> {
        const SIGN_OF_LIFE: Duration = Duration::from_millis(900);
        patience::wait(SIGN_OF_LIFE, sqlx::query("select 1").execute(self.pool())).await?;
        Ok(())
    }

    /// What PostgreSQL says it is.
    ///
    /// # Errors
    /// [`Error`] when it says nothing in time.
    pub async fn server_version(&self) -> Result<ServerVersion, Error> {
        let number = sqlx::query_scalar("select current_setting('server_version_num')::int");
        Ok(ServerVersion(bounded(number.fetch_one(self.pool())).await?))
    }

    /// What is used at the moment of the connections that requests share.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.pool().usage()
    }

    /// The same of those that the lanes keep to themselves, of all workers together.
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

    /// The same of those for finds, of all workers together.
    #[must_use]
    pub fn usage_of_finds(&self) -> Usage {
        self.0.all_finds.usage()
    }

    /// Closes the connections, once nobody uses them.
    pub async fn close(&self) {
        let Shared { closing, tasks, .. } = &self.0.lanes.shared;
        closing.cancel();
        tasks.close();
        tasks.wait().await;
        tokio::join!(self.0.all_finds.close(), self.pool().close());
    }
}

/// Connections, and those who wait for one.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    /// Open, and free.
    pub idle: u32,
    /// On loan.
    pub used: u32,
    /// As many as there can be, where that is bounded.
    pub max: Option<u32>,
    /// Requests that wait.
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

/// A version of PostgreSQL, as in 150018 for 15.18.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerVersion(i32);

impl ServerVersion {
    /// The oldest that the statements of this room are written for.
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

/// Runs `statement` for at most [`QUERY_TIMEOUT`]: PostgreSQL's `statement_timeout` cannot help when
/// it is PostgreSQL, or the way to it, that is frozen.
async fn bounded<T>(statement: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, Error> {
    patience::wait(QUERY_TIMEOUT, statement).await
}
