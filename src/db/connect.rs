//! Opens connections to one PostgreSQL, and runs statements on them.
//!
//! Invariants:
//! - Every connection has the same limits and planner settings; behind a transaction pooler, every transaction.
//! - No connection is to a standby when it is opened: a standby may lack acknowledged writes. A pooler may
//!   connect to another server later.
//! - The failure of a statement updates the circuit breaker, and decides whether its connection is used again.

use std::{
    borrow::Cow,
    time::{Duration, Instant},
};

use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

use super::{
    breaker::{Breaker, IS_STANDBY, refuse_standby},
    deadline::with_timeout,
    error::{AsDatabaseError, Error},
    options::{ConnectOptions, OptionsSource, server, uses_unix_socket},
    pooler::{self, PLANNER_SETTINGS, TRANSACTION_SETTINGS},
};
use crate::config::{self, Pooler};

/// A connection, in or out of a transaction.
pub type Connection = PgConnection;

/// Settings of a session. PostgreSQL enforces the timeouts if this process interrupted a statement or died. For
/// superusers, who may set it, `deadlock_timeout` is below `lock_timeout`, so a deadlock is reported as such and retried.
const SESSION_SETTINGS: &str = "set statement_timeout = '1900ms'; \
                                set idle_in_transaction_session_timeout = '10s'; \
                                set tcp_keepalives_idle = 30; set tcp_keepalives_interval = 10; \
                                set tcp_keepalives_count = 3; \
                                select set_config('deadlock_timeout', '200ms', false) \
                                from pg_roles where rolname = current_user and rolsuper";

/// Pause before another attempt to connect at the start.
const WAIT_PAUSE: Duration = Duration::from_millis(500);
/// Minimum interval between two log lines of these attempts.
const WAIT_LOG_INTERVAL: Duration = Duration::from_secs(5);

/// Opens connections to one PostgreSQL, with its circuit breaker. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Connector {
    pub options: OptionsSource,
    pub pooler: Pooler,
    pub breaker: Breaker,
    /// Lock timeout of sessions.
    pub lock_timeout: Duration,
}

impl Connector {
    pub fn new(options: ConnectOptions, config: &config::Database, lock_timeout: Duration) -> Self {
        let options = OptionsSource::new(options, config);
        Self {
            breaker: Breaker::new(options.clone()),
            options,
            pooler: config.pooler,
            lock_timeout,
        }
    }

    pub async fn open(&self) -> Result<Connection, Error> {
        self.connect().await.inspect_err(|error| {
            self.record_failure(Some(error));
        })
    }

    /// Opens a connection. A failure does not count for the circuit breaker.
    async fn connect(&self) -> Result<Connection, Error> {
        let opening = async {
            let options = self.options.current().await;
            let mut connection = Connection::connect_with(&options).await?;
            self.configure(&mut connection).await?;
            Ok(connection)
        };
        with_timeout(Box::pin(opening)).await
    }

    /// Waits until a primary accepts a connection. Fails at once with an error that does not pass by itself.
    pub async fn wait_until_available(&self) -> Result<(), Error> {
        let mut last_logged: Option<Instant> = None;
        loop {
            match self.connect().await {
                Ok(connection) => {
                    // The server notices the end of the connection without it, too.
                    let _ = with_timeout(connection.close()).await;
                    return Ok(());
                }
                Err(error) if !error.is_transient(uses_unix_socket(&self.options.last())) => {
                    return Err(error);
                }
                Err(error) => {
                    if last_logged.is_none_or(|at| at.elapsed() >= WAIT_LOG_INTERVAL) {
                        last_logged = Some(Instant::now());
                        let server = server(&self.options.last());
                        tracing::warn!(%error, server, "failed to connect to PostgreSQL; waiting until it accepts connections");
                    }
                    tokio::time::sleep(WAIT_PAUSE).await;
                }
            }
        }
    }

    /// Applies the settings of sessions to a new connection, and refuses that of a standby. Behind a pooler,
    /// there are only settings of transactions.
    pub async fn configure(&self, connection: &mut Connection) -> Result<(), sqlx::Error> {
        let statements = match self.pooler {
            Pooler::None => {
                let lock_timeout = self.lock_timeout.as_millis();
                format!(
                    "set lock_timeout = {lock_timeout}; {PLANNER_SETTINGS}; {TRANSACTION_SETTINGS}; {SESSION_SETTINGS}; \
                     {IS_STANDBY}"
                )
            }
            Pooler::Transaction => IS_STANDBY.to_owned(),
        };
        let statements = sqlx::raw_sql(AssertSqlSafe(statements));
        refuse_standby(&connection.fetch_all(statements).await?)
    }

    /// Runs `work`, in a transaction if it has several statements. Returns its result, and true if the connection can be
    /// used again; it cannot if this future is dropped before its end.
    ///
    /// After an error of the commit, it is unknown whether the transaction was committed. The rollback ends before the
    /// client learns of the error, because the client may repeat its request at once.
    pub async fn run<T, E: AsDatabaseError>(
        &self,
        connection: &mut Connection,
        has_several_statements: bool,
        lock_timeout: Duration,
        work: impl AsyncFnOnce(&mut Connection) -> Result<T, E>,
    ) -> (Result<T, E>, bool) {
        let begin = self.begin(has_several_statements, lock_timeout);
        let in_transaction = begin.is_some();
        let result: Result<T, E> = async {
            if let Some(begin) = begin {
                with_timeout(connection.execute(sqlx::raw_sql(AssertSqlSafe(begin)))).await?;
            }
            let value = work(connection).await?;
            if in_transaction {
                with_timeout(connection.execute("commit")).await?;
            }
            Ok(value)
        }
        .await;
        let mut is_reusable = match &result {
            Ok(_) => true,
            Err(error) => self.record_failure(error.database_error()),
        };
        if is_reusable && in_transaction && result.is_err() {
            let rollback = with_timeout(connection.execute("rollback"));
            is_reusable = rollback.await.is_ok();
        }
        (result, is_reusable)
    }

    /// Returns the statements that begin a transaction, or `None` if a single statement needs none.
    fn begin(
        &self,
        has_several_statements: bool,
        lock_timeout: Duration,
    ) -> Option<Cow<'static, str>> {
        let begin = match self.pooler {
            Pooler::None => "begin",
            Pooler::Transaction => pooler::BEGIN,
        };
        if matches!(self.pooler, Pooler::Transaction) || lock_timeout != self.lock_timeout {
            let lock_timeout = lock_timeout.as_millis();
            return Some(format!("{begin}; set local lock_timeout = {lock_timeout}").into());
        }
        has_several_statements.then_some(begin.into())
    }

    /// Updates the circuit breaker after a failure. Returns true if the connection can be used again.
    fn record_failure(&self, error: Option<&Error>) -> bool {
        if let Some(Error::TimedOut | Error::TotalTimedOut) = error {
            // The connection is in the middle of a statement.
            self.breaker.probe_soon();
            return false;
        }
        let error = error.and_then(Error::sqlx_error);
        error.is_none_or(|error| self.breaker.record_failure(error))
    }
}
