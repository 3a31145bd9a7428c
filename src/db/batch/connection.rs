//! Connection of a batcher.

use sqlx::Connection as _;
use tokio::time::{Duration, Instant};

use crate::db::{
    connect::{Connection, Connector},
    deadline::with_timeout,
    error::Error,
};

/// Connection of a batcher. It is opened on demand, and closed after a failure.
pub(super) struct BatchConnection {
    pub connector: Connector,
    pub idle: Option<IdleConnection>,
}

pub(super) struct IdleConnection {
    connection: Connection,
    opened_at: Instant,
    used_at: Instant,
}

impl BatchConnection {
    /// Runs `work`, in a transaction if it has several statements. If this future is dropped before its end, the
    /// connection is closed.
    pub async fn run<T>(
        &mut self,
        has_several_statements: bool,
        work: impl AsyncFnOnce(&mut Connection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.connector.breaker.admit()?;
        let (mut connection, opened_at) = match self.take_usable().await {
            Some(usable) => usable,
            None => (self.connector.open().await?, Instant::now()),
        };
        let connector = &self.connector;
        let lock_timeout = connector.lock_timeout;
        let running = connector.run(&mut connection, has_several_statements, lock_timeout, work);
        let (result, is_reusable) = running.await;
        self.idle = is_reusable.then(|| IdleConnection {
            connection,
            opened_at,
            used_at: Instant::now(),
        });
        result
    }

    /// Returns the idle connection and the time it was opened, unless it is known to be lost or does not respond.
    async fn take_usable(&mut self) -> Option<(Connection, Instant)> {
        let mut idle = self.idle.take()?;
        let (age, idle_for) = (idle.opened_at.elapsed(), idle.used_at.elapsed());
        let breaker = &self.connector.breaker;
        let is_usable = breaker.is_usable(&mut idle.connection, age, idle_for);
        is_usable.await.then_some((idle.connection, idle.opened_at))
    }

    /// Closes the connection if it has been idle for `timeout`.
    pub async fn close_if_idle_for(&mut self, timeout: Duration) {
        if let Some(idle) = self.idle.take_if(|idle| idle.used_at.elapsed() >= timeout) {
            let _ = with_timeout(idle.connection.close()).await;
        }
    }
}
