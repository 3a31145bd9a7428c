//! Reasons why a request is not admitted.

use std::time::Duration;

use crate::{db, domain::limit::Limit};

/// Reason why a request is not admitted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Limits are reached.
    #[error("limits reached: {limits:?}")]
    Exceeded {
        /// The limits.
        limits: Vec<Limit>,
        /// Time until capacity returns.
        retry_after: Duration,
    },
    /// The counters cannot be reached.
    #[error(transparent)]
    Database(#[from] db::Error),
}
