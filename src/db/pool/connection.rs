//! Connection of the pool during a statement or a transaction.
//!
//! Invariants:
//! - A connection is returned only after its transaction has ended, and if no failure could affect the next statement.

use std::{
    borrow::Cow,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use sqlx::{AssertSqlSafe, Executor as _, Postgres, pool::PoolConnection};

use super::Pool;
use crate::db::health::{Health, PING_TIMEOUT, is_reusable_after};

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

impl Pool {
    pub(super) async fn acquire(&self) -> Result<PooledConnection, sqlx::Error> {
        let breaker = &self.health.breaker;
        breaker.admit()?;
        // A connection outside this pool may have detected the pooler.
        if self.health.is_behind_pooler() && !self.has_pooler_options.swap(true, Ordering::Relaxed)
        {
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
        Ok(PooledConnection {
            connection,
            health: self.health.clone(),
            waited: started.elapsed(),
            in_transaction: false,
            is_returned: false,
        })
    }

    /// Returns a connection for a single statement, in a transaction if it needs one.
    pub(in crate::db) async fn acquire_for_statement(
        &self,
    ) -> Result<PooledConnection, sqlx::Error> {
        let mut connection = self.acquire().await?;
        if let Some(begin) = self.begin_statements(connection.waited) {
            connection.begin(begin).await?;
        }
        Ok(connection)
    }
}

impl PooledConnection {
    pub async fn begin(&mut self, statements: Cow<'static, str>) -> Result<(), sqlx::Error> {
        let statements = sqlx::raw_sql(AssertSqlSafe(statements));
        let begun = self.connection.execute(statements).await;
        begun.inspect_err(|error| self.health.record_failure(error))?;
        self.in_transaction = true;
        Ok(())
    }

    /// Commits or rolls back the transaction, if there is one, depending on `result`.
    pub async fn finish<T>(self, result: Result<T, sqlx::Error>) -> Result<T, sqlx::Error> {
        let statement = if result.is_ok() { "commit" } else { "rollback" };
        let ended = self.end(statement, result.as_ref().err()).await;
        result.and_then(|value| ended.map(|()| value))
    }

    /// Ends the transaction, if there is one, with `statement`. Returns the connection to the pool if it can be reused
    /// after the error.
    pub async fn end(
        mut self,
        statement: &'static str,
        error: Option<&sqlx::Error>,
    ) -> Result<(), sqlx::Error> {
        if let Some(error) = error {
            self.health.record_failure(error);
            if !is_reusable_after(error) {
                return Ok(());
            }
        }
        if self.in_transaction {
            let ended = self.connection.execute(statement).await;
            ended.inspect_err(|error| self.health.record_failure(error))?;
        }
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
