//! Connection of the pool during a statement or a transaction.
//!
//! Invariants:
//! - A connection is returned only after its transaction has ended, and if no failure could affect the next statement.

use std::{
    borrow::Cow,
    ops::{Deref, DerefMut},
    time::Duration,
};

use sqlx::{AssertSqlSafe, Executor as _, PgConnection, Postgres, pool::PoolConnection};

use crate::db::{
    deadline::with_timeout,
    error::Error,
    health::{Health, PING_TIMEOUT, is_reusable_after},
};

/// Connection taken from the pool. If it is dropped before it is returned, it is closed, because its state is unknown.
#[derive(Debug)]
pub struct PooledConnection {
    pub connection: PoolConnection<Postgres>,
    health: Health,
    /// Time it took to get the connection.
    pub waited: Duration,
    in_transaction: bool,
    is_returned: bool,
}

impl PooledConnection {
    /// Wraps a connection to a server of `health`, which took `waited` to get.
    pub const fn new(
        connection: PoolConnection<Postgres>,
        health: Health,
        waited: Duration,
    ) -> Self {
        Self {
            connection,
            health,
            waited,
            in_transaction: false,
            is_returned: false,
        }
    }

    pub async fn begin(&mut self, statements: Cow<'static, str>) -> Result<(), sqlx::Error> {
        let statements = sqlx::raw_sql(AssertSqlSafe(statements.into_owned()));
        let begun = self.connection.execute(statements).await;
        begun.inspect_err(|error| self.health.record_failure(error))?;
        self.in_transaction = true;
        Ok(())
    }

    /// Commits or rolls back the transaction, if there is one, depending on `result`. Returns the connection to the
    /// pool if it can be reused.
    pub async fn finish<T>(mut self, result: Result<T, sqlx::Error>) -> Result<T, sqlx::Error> {
        if let Err(error) = &result {
            self.health.record_failure(error);
            if !is_reusable_after(error) {
                return result;
            }
        }
        if self.in_transaction {
            let end = if result.is_ok() { "commit" } else { "rollback" };
            let ended = self.connection.execute(end).await;
            if let Err(error) = ended {
                self.health.record_failure(&error);
                return result.and(Err(error));
            }
        }
        self.return_to_pool();
        result
    }

    async fn rollback(mut self) -> Result<(), sqlx::Error> {
        self.connection.execute("rollback").await?;
        self.return_to_pool();
        Ok(())
    }

    /// Returns the connection to the pool. The drop of sqlx's connection would do so too, but pings without a timeout.
    fn return_to_pool(mut self) {
        self.is_returned = true;
        // Boxed: it is 15 kB, which would be copied six times on the way into a task.
        let returned = Box::pin(self.connection.return_to_pool());
        tokio::spawn(async move {
            let _ = tokio::time::timeout(PING_TIMEOUT, returned).await;
        });
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        if !self.is_returned {
            self.health.breaker.probe_soon();
            self.connection.close_on_drop();
        }
    }
}

/// Transaction, which is rolled back when it is dropped.
#[derive(Debug)]
pub struct Transaction(PooledConnection);

impl Transaction {
    /// Wraps a connection with a transaction.
    pub(super) const fn new(connection: PooledConnection) -> Self {
        Self(connection)
    }

    pub(in crate::db) async fn commit(self) -> Result<(), Error> {
        with_timeout(self.0.finish(Ok(()))).await
    }

    /// Rolls back the transaction because of `cause`. A drop would do so later, but the client may repeat its request
    /// at once. If the rollback fails, the connection is closed and PostgreSQL rolls back.
    pub(in crate::db) async fn rollback(self, cause: Option<&Error>) {
        if let Some(error) = cause.and_then(Error::sqlx_error) {
            self.0.health.record_failure(error);
            if !is_reusable_after(error) {
                return;
            }
        }
        // After a timeout, the connection is in the middle of a statement.
        if !matches!(cause, Some(Error::TimedOut)) {
            let _ = with_timeout(self.0.rollback()).await;
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
