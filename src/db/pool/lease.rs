//! Manages one connection of the pool during a statement or a transaction.
//!
//! Invariants:
//! - A connection is returned only after its transaction has ended, and if no failure could affect the next statement.

use std::{
    borrow::Cow,
    ops::{Deref, DerefMut},
    time::Duration,
};

use sqlx::{AssertSqlSafe, Executor as _, PgConnection, Postgres, pool::PoolConnection};

use super::{CHECK, Pool, is_fit_after};
use crate::db::{Error, bounded};

/// Connection taken from the pool. If it is dropped before it is returned, it is closed, because its state is unknown.
#[derive(Debug)]
pub struct Lease {
    pub connection: PoolConnection<Postgres>,
    pool: Pool,
    /// Time it took to get the connection.
    pub waited: Duration,
    in_transaction: bool,
    is_given_back: bool,
}

impl Lease {
    /// Wraps a connection of `pool`, which took `waited` to get.
    pub const fn new(connection: PoolConnection<Postgres>, pool: Pool, waited: Duration) -> Self {
        Self {
            connection,
            pool,
            waited,
            in_transaction: false,
            is_given_back: false,
        }
    }

    pub async fn begin(&mut self, statements: Cow<'static, str>) -> Result<(), sqlx::Error> {
        let statements = sqlx::raw_sql(AssertSqlSafe(statements.into_owned()));
        let begun = self.connection.execute(statements).await;
        begun.inspect_err(|error| self.pool.learn(error))?;
        self.in_transaction = true;
        Ok(())
    }

    /// Commits or rolls back the transaction, if there is one, depending on `result`. Returns the connection to the
    /// pool if it can be reused.
    pub async fn end<T>(mut self, result: Result<T, sqlx::Error>) -> Result<T, sqlx::Error> {
        if let Err(error) = &result {
            self.pool.learn(error);
            if !is_fit_after(error) {
                return result;
            }
        }
        if self.in_transaction {
            let end = if result.is_ok() { "commit" } else { "rollback" };
            let ended = self.connection.execute(end).await;
            if let Err(error) = ended {
                self.pool.learn(&error);
                return result.and(Err(error));
            }
        }
        self.give_back();
        result
    }

    async fn undo(mut self) -> Result<(), sqlx::Error> {
        self.connection.execute("rollback").await?;
        self.give_back();
        Ok(())
    }

    /// Returns the connection to the pool. The drop of sqlx's connection would do so too, but pings without a timeout.
    fn give_back(mut self) {
        self.is_given_back = true;
        // Boxed: it is 15 kB, which would be copied six times on the way into a task.
        let returned = Box::pin(self.connection.return_to_pool());
        tokio::spawn(async move {
            let _ = tokio::time::timeout(CHECK, returned).await;
        });
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.is_given_back {
            self.pool.breaker.suspect();
            self.connection.close_on_drop();
        }
    }
}

/// Transaction, which is rolled back when it is dropped.
#[derive(Debug)]
pub struct Transaction(Lease);

impl Transaction {
    /// Wraps a connection with a transaction.
    pub(super) const fn on(lease: Lease) -> Self {
        Self(lease)
    }

    pub(in crate::db) async fn commit(self) -> Result<(), Error> {
        bounded(self.0.end(Ok(()))).await
    }

    /// Rolls back the transaction because of `reason`. A drop would do so later, but the client may repeat its request
    /// at once. If the rollback fails, the connection is closed and PostgreSQL rolls back.
    pub(in crate::db) async fn undo(self, reason: Option<&Error>) {
        if let Some(error) = reason.and_then(Error::by_postgres) {
            self.0.pool.learn(error);
            if !is_fit_after(error) {
                return;
            }
        }
        // After a timeout, the connection is in the middle of a statement.
        if !matches!(reason, Some(Error::TimedOut)) {
            let undone = self.0.undo();
            let _ = bounded(undone).await;
        }
    }
}

impl Deref for Transaction {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.0.connection
    }
}

impl DerefMut for Transaction {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.0.connection
    }
}
