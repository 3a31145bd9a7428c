//! Health of the server that a pool or a batcher is connected to.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use sqlx::Connection as _;
use tokio::time::timeout;

use super::{
    breaker::{Breaker, Trust},
    connect::{ConnectOptions, Connection},
    error::{is_connection_failure, is_prepared_statement_mismatch, is_read_only},
};

/// Timeout of the check that a connection is usable.
pub(super) const PING_TIMEOUT: Duration = Duration::from_millis(500);

/// Circuit breaker and pooler detection for one PostgreSQL. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Health {
    pub breaker: Breaker,
    is_behind_pooler: Arc<AtomicBool>,
}

impl Health {
    /// Creates the health of the server that `options` lead to.
    pub fn new(options: ConnectOptions) -> Self {
        Self {
            breaker: Breaker::new(options),
            is_behind_pooler: Arc::default(),
        }
    }

    /// Updates the circuit breaker and connection trust after a failed statement.
    pub fn record_failure(&self, error: &sqlx::Error) {
        self.breaker.record_failure(error);
        if is_prepared_statement_mismatch(error) {
            self.adapt_to_pooler();
        } else if is_read_only(error) {
            // The primary was demoted. The other connections lead to it as well.
            self.breaker.invalidate_connections();
        }
    }

    /// Returns true if a pooler has been detected.
    pub fn is_behind_pooler(&self) -> bool {
        self.is_behind_pooler.load(Ordering::Relaxed)
    }

    /// Adapts to a pooler, and invalidates all existing connections, which have not.
    pub fn adapt_to_pooler(&self) {
        if !self.is_behind_pooler.swap(true, Ordering::Relaxed) {
            tracing::info!(
                "detected a connection pooler: each statement gets a transaction, and changed \
                 credentials take effect within a second instead of at once"
            );
            self.breaker.invalidate_connections();
        }
    }
}

/// Returns true if an idle connection can be used. Pings it if its trust requires that.
pub(super) async fn is_usable(connection: &mut Connection, trust: Trust) -> bool {
    match trust {
        Trust::Fresh => true,
        Trust::NeedsPing => matches!(timeout(PING_TIMEOUT, connection.ping()).await, Ok(Ok(()))),
        Trust::Stale => false,
    }
}

/// Returns true if a connection can be reused after this error.
pub(super) fn is_reusable_after(error: &sqlx::Error) -> bool {
    !is_connection_failure(error) && !is_read_only(error) && !is_prepared_statement_mismatch(error)
}
