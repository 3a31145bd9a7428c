//! Transactions, which are retried if they conflict with others.

use std::{
    ops::{Deref, DerefMut},
    time::Duration,
};

use sqlx::PgConnection;

use super::{MAX_WAIT, Pool, connection::PooledConnection};
use crate::db::{
    connect::Connection,
    deadline::with_timeout,
    error::{AsDatabaseError, Error},
};

/// Maximum number of attempts at a transaction.
const MAX_ATTEMPTS: u32 = 4;
/// Unit of the backoff: the pause after attempt n is 2ⁿ times as long.
const BACKOFF: Duration = Duration::from_millis(5);

/// Transaction, which is rolled back when it is dropped.
#[derive(Debug)]
pub struct Transaction(PooledConnection);

impl Pool {
    /// Runs `work` in a transaction like `Database::transact`, for a request that has waited for `waited()` already.
    pub(in crate::db) async fn transact<T, E, W>(
        &self,
        waited: impl Fn() -> Duration,
        work: W,
    ) -> Result<T, E>
    where
        W: AsyncFnOnce(&mut Connection) -> Result<T, E> + Clone,
        E: AsDatabaseError,
    {
        let mut attempt = 1;
        loop {
            let mut transaction = self.begin(waited()).await?;
            let result = match work.clone()(&mut transaction).await {
                Ok(value) => transaction.commit().await.map(|()| value).map_err(E::from),
                Err(error) => {
                    transaction.rollback(error.database_error()).await;
                    Err(error)
                }
            };
            match result {
                Err(error) if attempt < MAX_ATTEMPTS && is_contended(&error) => {
                    metrics::counter!("db_client_transaction_retries_total").increment(1);
                    tokio::time::sleep(BACKOFF * 2_u32.pow(attempt)).await;
                    attempt += 1;
                }
                result => return result,
            }
        }
    }

    /// Begins a transaction. `waited`, the time spent in a batch queue, is deducted from the waits for a connection and
    /// for locks.
    pub(in crate::db) async fn begin(&self, waited: Duration) -> Result<Transaction, Error> {
        with_timeout(async {
            let mut connection = if waited.is_zero() {
                self.acquire().await?
            } else {
                let remaining = MAX_WAIT.saturating_sub(waited);
                let acquired = tokio::time::timeout(remaining, self.acquire()).await;
                acquired.unwrap_or(Err(sqlx::Error::PoolTimedOut))?
            };
            let begin = self.begin_statements(waited + connection.waited);
            connection.begin(begin.unwrap_or("begin".into())).await?;
            Ok(Transaction(connection))
        })
        .await
    }
}

fn is_contended(error: &impl AsDatabaseError) -> bool {
    matches!(error.database_error(), Some(Error::Contended(_)))
}

impl Transaction {
    /// Commits. A client may be told of success only after this has succeeded; after an error, the outcome is unknown.
    pub async fn commit(self) -> Result<(), Error> {
        with_timeout(self.0.finish(Ok(()))).await
    }

    /// Rolls back because of `cause`. A drop would do so later, but the client may repeat its request at once. If the
    /// rollback fails, the connection is closed and PostgreSQL rolls back.
    async fn rollback(self, cause: Option<&Error>) {
        // After a timeout, the connection is in the middle of a statement.
        if !matches!(cause, Some(Error::TimedOut)) {
            let error = cause.and_then(Error::sqlx_error);
            let _ = with_timeout(self.0.end("rollback", error)).await;
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
