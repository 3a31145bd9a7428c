//! Handle to the database: the pool, and the batchers of one worker.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use sqlx::{ConnectOptions as _, Connection as _, Executor as _};

use super::{
    batch::{Batchers, KINDS},
    breaker::{Breaker, IS_STANDBY, refuse_standby},
    connect::{Connection, Connector},
    error::{AsDatabaseError, Error},
    large_reads::{Cost, rest},
    options::ConnectOptions,
    pool::{self, Pool, Usage},
    pooler,
};
use crate::{config, domain::caller::CallerKey, turns::Permit};

/// Connection pool to one PostgreSQL, and the batchers on top of it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Database(Arc<WorkerState>);

/// State of one worker, behind an `Arc` of its own: each request clones it, and cores would contend for a shared count.
#[derive(Debug)]
struct WorkerState {
    pool: Pool,
    batchers: Batchers,
}

impl Database {
    /// Creates the pool, which opens connections on demand.
    pub fn new(options: ConnectOptions, config: &config::Database) -> Self {
        let connector = Connector::new(options, config, pool::LOCK_TIMEOUT);
        let pool = Pool::new(connector, config);
        Self(Arc::new(WorkerState {
            batchers: Batchers::new(pool.clone()),
            pool,
        }))
    }

    /// Returns a handle for another worker, with batchers that run on its core.
    pub fn for_worker(&self) -> Self {
        Self(Arc::new(WorkerState {
            pool: self.0.pool.clone(),
            batchers: self.0.batchers.for_worker(),
        }))
    }

    /// Opens a connection like those of the pool. Unlike the pool's, its error has the reason of a refusal.
    pub async fn open(&self) -> Result<Connection, Error> {
        self.connector().open().await
    }

    /// Waits until PostgreSQL accepts connections, and logs why it does not. Fails at once with an error that does not pass by
    /// itself, such as a wrong password.
    pub async fn wait_until_available(&self) -> Result<(), Error> {
        self.connector().wait_until_available().await
    }

    /// Opens and closes two connections, and returns the correction of the setting `database.pooler` if it is wrong.
    pub async fn check_pooler(&self) -> Result<Option<&'static str>, Error> {
        let connector = self.connector();
        pooler::check(&connector.options.current().await, connector.pooler).await
    }

    pub(super) fn connector(&self) -> &Connector {
        &self.0.pool.connector
    }

    /// Returns the circuit breaker.
    pub fn breaker(&self) -> &Breaker {
        &self.connector().breaker
    }

    /// Runs `work`, which needs no transaction, on a connection of the pool.
    pub async fn run<T, E: AsDatabaseError>(
        &self,
        work: impl AsyncFnOnce(&mut Connection) -> Result<T, E>,
    ) -> Result<T, E> {
        self.0.pool.run(false, Duration::ZERO, work).await
    }

    /// Waits until a page that takes several reads may be built, in the turn of a caller.
    pub async fn begin_page(&self, caller: CallerKey) -> Result<Permit, Error> {
        self.0.pool.large_reads.acquire(Cost::Page, caller).await
    }

    /// Runs `read`, which may return many rows or take much CPU, as one of a few at a time, in the turn of a caller.
    pub async fn read_large<T>(
        &self,
        cost: Cost,
        caller: CallerKey,
        read: impl AsyncFnOnce(&mut Connection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let permit = self.0.pool.large_reads.acquire(cost, caller).await?;
        let began = Instant::now();
        let result = self.run(read).await;
        if cost == Cost::Cpu {
            rest(permit, began.elapsed());
        }
        result
    }

    /// Runs `work` in a transaction, rolled back if `work` fails. Retries it a few times if it is [`Error::Contended`].
    pub async fn transact<T, E, W>(&self, work: W) -> Result<T, E>
    where
        W: AsyncFnOnce(&mut Connection) -> Result<T, E> + Clone,
        E: AsDatabaseError,
    {
        self.0.pool.transact(None, work).await
    }

    /// Waits until this process has committed a change since the last call. For one task.
    pub async fn committed(&self) {
        self.0.pool.committed.notified().await;
    }

    /// Returns the batchers, which execute requests in one statement with those of others.
    pub(super) fn batchers(&self) -> &Batchers {
        &self.0.batchers
    }

    /// Opens a connection without timeouts, planner settings or logging of slow statements, for commands that a person
    /// waits for.
    pub async fn connect_without_timeout(&self) -> Result<Connection, Error> {
        let connector = self.connector();
        let options = connector.options.current().await;
        let options = options.disable_statement_logging();
        let mut connection = Connection::connect_with(&options).await?;
        connection.execute(pooler::TRANSACTION_SETTINGS).await?;
        refuse_standby(&connection.fetch_all(IS_STANDBY).await?)?;
        Ok(connection)
    }

    /// Returns the current use of connections by purpose; that of batches is summed up over all workers.
    pub fn usage(&self) -> [(&'static str, Usage); 2] {
        [
            ("requests", self.0.pool.usage()),
            ("batches", self.0.batchers.usage()),
        ]
    }

    /// Returns the maximum number of connections of a process with this many workers: with the one that listens for changes,
    /// that of leases that belong to no worker, and that of the circuit breaker and `/readyz`.
    pub fn max_connections(config: &config::Database, workers: usize) -> u64 {
        let workers = u32::try_from(workers).unwrap_or(u32::MAX);
        u64::from(workers) * u64::from(KINDS) + u64::from(config.max_connections) + 3
    }

    /// Stops the batchers, and closes all connections once they are idle.
    pub async fn close(&self) {
        self.0.batchers.close().await;
        self.0.pool.close().await;
        self.breaker().close().await;
    }
}
