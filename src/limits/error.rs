//! The error of a request that is not admitted.

use std::time::Duration;

use crate::{
    db,
    domain::limit::{Limit, LimitStatus},
};

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
        /// State of the limits.
        status: LimitStatus,
    },
    /// The counters cannot be reached.
    #[error(transparent)]
    Database(#[from] db::Error),
}

impl Error {
    pub(super) fn exceeded(limits: &[Limit], retry_after: Duration, status: LimitStatus) -> Self {
        Self::Exceeded {
            limits: limits.to_vec(),
            retry_after,
            status,
        }
    }

    /// State of the limits, as far as it is known.
    #[must_use]
    pub fn status(&self) -> LimitStatus {
        match self {
            Self::Exceeded { status, .. } => *status,
            Self::Database(_) => LimitStatus::default(),
        }
    }
}
