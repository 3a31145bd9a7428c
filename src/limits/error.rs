//! Reasons why a request is not admitted.

use std::time::Duration;

use crate::{db, domain::limit::Limit};

/// Reason why a request is not admitted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Limits are reached; capacity returns after this time.
    #[error("limits reached: {0:?}")]
    Exceeded(Vec<Limit>, Duration),
    /// The counters cannot be reached.
    #[error(transparent)]
    Database(#[from] db::Error),
}
