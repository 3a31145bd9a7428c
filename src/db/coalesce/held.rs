//! Manages the connection of a batcher.
//!
//! Invariants:
//! - The connection is reused only if no failure on it could affect the next statement.

use sqlx::{AssertSqlSafe, Connection as _, Executor as _};
use tokio::time::{Duration, Instant, timeout};

use super::{LOCK_TIMEOUT, PLANS, Shared, usage::Opened};
use crate::db::{
    Connection, Error, bounded,
    breaker::Trust,
    pool::{CHECK, SESSION_SETTINGS, is_fit_after},
    pooler,
};

/// Connection of a batcher. It is opened on demand, and closed after it has been idle for long.
pub(super) struct Held {
    pub shared: Shared,
    /// Additional settings of this batcher.
    settings: &'static [&'static str],
    open: Option<Open>,
}

struct Open {
    connection: Connection,
    since: Instant,
    used: Instant,
    /// Set only behind a pooler.
    in_transaction: bool,
    _counted: Opened,
}

impl Held {
    pub const fn new(shared: Shared, settings: &'static [&'static str]) -> Self {
        Self {
            shared,
            settings,
            open: None,
        }
    }

    /// Returns the statements for the additional settings, each prefixed with `set`.
    fn set(&self, set: &str) -> String {
        let set = |setting: &&str| format!("; {set} {setting}");
        self.settings.iter().map(set).collect()
    }

    /// Runs statements; behind a pooler in a transaction, because only a transaction stays on one server.
    pub async fn run<T>(
        &mut self,
        statements: impl AsyncFnOnce(&mut Connection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let behind_pooler = self.shared.pool.pooler.is_there();
        let more = behind_pooler.then(|| self.set("set local"));
        let open = self.ready().await?;
        if let Some(more) = more {
            // Set in advance, because a failure of these statements may leave a transaction open.
            open.in_transaction = true;
            let begin = format!("{}; set local {LOCK_TIMEOUT}{more}", pooler::BEGIN);
            let begin = sqlx::raw_sql(AssertSqlSafe(begin));
            bounded(open.connection.execute(begin)).await?;
        }
        let result = statements(&mut open.connection).await?;
        if open.in_transaction {
            bounded(open.connection.execute("commit")).await?;
            open.in_transaction = false;
        }
        Ok(result)
    }

    /// Returns the connection. Opens it if it is closed, known to be lost, or does not respond to a ping.
    async fn ready(&mut self) -> Result<&mut Open, Error> {
        let pool = &self.shared.pool;
        pool.breaker.admit()?;
        if let Some(open) = &mut self.open {
            let is_fit = match pool
                .breaker
                .trust(open.since.elapsed(), open.used.elapsed())
            {
                Trust::Whole => true,
                Trust::Doubt => {
                    let ping = timeout(CHECK, open.connection.ping()).await;
                    matches!(ping, Ok(Ok(())))
                }
                Trust::None => false,
            };
            if !is_fit {
                self.open = None;
            }
        }
        let now = Instant::now();
        let mut open = match self.open.take() {
            Some(open) => open,
            None => {
                let options = pool.connect_options();
                let mut connection = bounded(Connection::connect_with(&options)).await?;
                if !pool.pooler.is_there() {
                    let more = self.set("set");
                    let settings = format!("{SESSION_SETTINGS}; set {LOCK_TIMEOUT}; {PLANS}{more}");
                    let settings = sqlx::raw_sql(AssertSqlSafe(settings));
                    bounded(connection.execute(settings)).await?;
                }
                Open {
                    connection,
                    since: now,
                    used: now,
                    in_transaction: false,
                    _counted: Opened::count(&self.shared.usage),
                }
            }
        };
        open.used = now;
        Ok(self.open.insert(open))
    }

    /// Updates the circuit breaker and the connection after a failed statement.
    pub async fn learn(&mut self, error: &Error) {
        let pool = &self.shared.pool;
        match error.by_postgres() {
            Some(error) => {
                pool.learn(error);
                if !is_fit_after(error) {
                    self.open = None;
                }
            }
            // The statement was probably interrupted, which leaves the connection in an unknown state.
            None if matches!(error, Error::TimedOut) => {
                pool.breaker.suspect();
                self.open = None;
            }
            None => {}
        }
        if let Some(open) = &mut self.open
            && open.in_transaction
        {
            open.in_transaction = false;
            if bounded(open.connection.execute("rollback")).await.is_err() {
                self.open = None;
            }
        }
    }

    /// Closes the connection if it has been idle for `unused_for`.
    pub async fn close_unused(&mut self, unused_for: Duration) {
        let open = self.open.as_ref();
        if open.is_some_and(|open| open.used.elapsed() >= unused_for) {
            self.close().await;
        }
    }

    pub async fn close(&mut self) {
        if let Some(open) = self.open.take() {
            let _ = bounded(open.connection.close()).await;
        }
    }
}
