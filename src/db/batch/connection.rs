//! Connection of a batcher.
//!
//! Invariants:
//! - The connection is reused only if no failure on it could affect the next statement.

use std::borrow::Cow;

use sqlx::{AssertSqlSafe, Connection as _, Executor as _};
use tokio::time::{Duration, Instant};

use super::counters::{CountGuard, Counters};
use crate::db::{
    connect::Connection,
    deadline::with_timeout,
    error::Error,
    health::{is_reusable_after, is_usable},
    pool::{Pool, SESSION_SETTINGS},
    pooler,
};

/// Lock timeout of a batched statement, which delays all its requests. They are then retried separately, with the usual
/// timeout.
const LOCK_TIMEOUT: &str = "lock_timeout = '100ms'";
/// Planner settings. Batched statements look up rows by key, so one generic plan fits any number of keys. Sequential
/// scans are disabled, because a plan may be made while the table is small. JIT is disabled, because reading a sequence
/// counts as a sequential scan, which now looks costly enough to be compiled.
const PLANNER_SETTINGS: &str = "set plan_cache_mode = force_generic_plan; set enable_seqscan = off; set enable_bitmapscan = off; set jit = off";

/// Connection of a batcher. It is opened on demand, and closed after it has been idle for long.
pub(super) struct BatchConnection {
    pool: Pool,
    counters: Counters,
    /// Additional settings of this batcher.
    settings: &'static [&'static str],
    open: Option<OpenConnection>,
}

struct OpenConnection {
    connection: Connection,
    opened_at: Instant,
    used_at: Instant,
    in_transaction: bool,
    _counted: CountGuard,
}

impl BatchConnection {
    pub const fn new(pool: Pool, counters: Counters, settings: &'static [&'static str]) -> Self {
        Self {
            pool,
            counters,
            settings,
            open: None,
        }
    }

    /// Returns the statements for the additional settings, each prefixed with `command`.
    fn settings(&self, command: &str) -> String {
        let statement = |setting: &&str| format!("; {command} {setting}");
        self.settings.iter().map(statement).collect()
    }

    /// Runs statements; if `in_transaction`, or behind a pooler, in a transaction, because only a transaction stays on one
    /// server.
    pub async fn run<T>(
        &mut self,
        in_transaction: bool,
        statements: impl AsyncFnOnce(&mut Connection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let begin = if self.pool.health.is_behind_pooler() {
            let settings = self.settings("set local");
            Some(format!("{}; set local {LOCK_TIMEOUT}{settings}", pooler::BEGIN).into())
        } else {
            in_transaction.then_some(Cow::Borrowed("begin"))
        };
        let open = self.acquire().await?;
        if let Some(begin) = begin {
            // Set in advance, because a failure of these statements may leave a transaction open.
            open.in_transaction = true;
            let begin = sqlx::raw_sql(AssertSqlSafe(begin));
            with_timeout(open.connection.execute(begin)).await?;
        }
        let result = statements(&mut open.connection).await?;
        if open.in_transaction {
            with_timeout(open.connection.execute("commit")).await?;
            open.in_transaction = false;
        }
        Ok(result)
    }

    /// Returns the connection. Opens it if it is closed, known to be lost, or does not respond to a ping.
    async fn acquire(&mut self) -> Result<&mut OpenConnection, Error> {
        let health = &self.pool.health;
        health.breaker.admit()?;
        let now = Instant::now();
        if let Some(mut open) = self.open.take() {
            let (age, idle) = (now - open.opened_at, now - open.used_at);
            let trust = health.breaker.trust(age, idle);
            if is_usable(&mut open.connection, trust).await {
                open.used_at = now;
                return Ok(self.open.insert(open));
            }
        }
        let options = self.pool.connect_options();
        let mut connection = with_timeout(Connection::connect_with(&options)).await?;
        if !health.is_behind_pooler() {
            let more = self.settings("set");
            let settings =
                format!("{SESSION_SETTINGS}; set {LOCK_TIMEOUT}; {PLANNER_SETTINGS}{more}");
            let settings = sqlx::raw_sql(AssertSqlSafe(settings));
            with_timeout(connection.execute(settings)).await?;
        }
        Ok(self.open.insert(OpenConnection {
            connection,
            opened_at: now,
            used_at: now,
            in_transaction: false,
            _counted: self.counters.count_open(),
        }))
    }

    /// Updates the circuit breaker and the connection after a failed statement.
    pub async fn record_failure(&mut self, error: &Error) {
        let health = &self.pool.health;
        let is_reusable = match error.sqlx_error() {
            Some(error) => {
                health.record_failure(error);
                is_reusable_after(error)
            }
            // The statement was probably interrupted, which leaves the connection in an unknown state.
            None if matches!(error, Error::TimedOut) => {
                health.breaker.probe_soon();
                false
            }
            None => true,
        };
        let Some(mut open) = self.open.take().filter(|_| is_reusable) else {
            return;
        };
        if open.in_transaction {
            let rollback = open.connection.execute("rollback");
            if with_timeout(rollback).await.is_err() {
                return;
            }
            open.in_transaction = false;
        }
        self.open = Some(open);
    }

    /// Closes the connection if it has been idle for `timeout`.
    pub async fn close_if_idle(&mut self, timeout: Duration) {
        let open = self.open.as_ref();
        if open.is_some_and(|open| open.used_at.elapsed() >= timeout) {
            self.close().await;
        }
    }

    pub async fn close(&mut self) {
        if let Some(open) = self.open.take() {
            let _ = with_timeout(open.connection.close()).await;
        }
    }
}
