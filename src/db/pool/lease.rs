//! One connection of the pool, for a statement or a transaction.
//!
//! Invariant: it goes back only when all that was begun on it has ended, and nothing on it failed that the next
//! one would meet as well.

use std::{
    borrow::Cow,
    ops::{Deref, DerefMut},
    time::Duration,
};

use sqlx::{AssertSqlSafe, Executor as _, PgConnection, Postgres, pool::PoolConnection};

use super::{CHECK, Pool, is_fit_after};
use crate::db::{Error, bounded};

/// A connection on loan. Dropped before it was given back, it is closed: nobody knows what state it is in.
#[derive(Debug)]
pub struct Lease {
    pub connection: PoolConnection<Postgres>,
    pool: Pool,
    /// How long it took to get it.
    pub waited: Duration,
    in_transaction: bool,
    is_given_back: bool,
}

impl Lease {
    /// A connection of a pool, which took so long to get.
    pub const fn new(connection: PoolConnection<Postgres>, pool: Pool, waited: Duration) -> Self {
        Self {
            connection,
            pool,
            waited,
            in_transaction: false,
            is_given_back: false,
        }
    }

    /// Begins a transaction on it.
    pub async fn begin(&mut self, statements: Cow<'static, str>) -> Result<(), sqlx::Error> {
        let statements = sqlx::raw_sql(AssertSqlSafe(statements.into_owned()));
        let begun = self.connection.execute(statements).await;
        begun.inspect_err(|error| self.pool.learn(error))?;
        self.in_transaction = true;
        Ok(())
    }

    /// Ends the transaction, if there is one, as its statements came out, and gives the connection back if
    /// it is fit to be used again.
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

    /// Not left to the connection's own drop, which waits without end for a sign of life.
    fn give_back(mut self) {
        self.is_given_back = true;
        // Boxed: fifteen kilobytes, which would be copied six times on their way into a task.
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

/// A transaction; undone when dropped.
#[derive(Debug)]
pub struct Transaction(Lease);

impl Transaction {
    /// One that was begun on a connection.
    pub(super) const fn on(lease: Lease) -> Self {
        Self(lease)
    }

    /// Makes it last.
    pub(in crate::db) async fn commit(self) -> Result<(), Error> {
        bounded(self.0.end(Ok(()))).await
    }

    /// Undoes it, for that reason. Not left to the drop, which is done with at some later time: the next
    /// request for the same thing may come at once. Should it fail, PostgreSQL undoes it by itself.
    pub(in crate::db) async fn undo(self, reason: Option<&Error>) {
        if let Some(error) = reason.and_then(Error::by_postgres) {
            self.0.pool.learn(error);
            if !is_fit_after(error) {
                return;
            }
        }
        // Given up in the middle of a statement: there is no going on.
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
