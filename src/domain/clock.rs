//! Time as an argument: what decides by time takes it from a [`Clock`], and a test turns one by hand.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// A moment: so long after some beginning that all moments of one clock share. Never goes back.
pub type Moment = Duration;

/// Whole seconds of a duration, rounded up.
#[must_use]
pub fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

/// A monotonic clock.
#[derive(Debug, Clone)]
pub enum Clock {
    /// The machine's.
    System(Instant),
    /// One that stands still until it is turned; nanoseconds.
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The machine's monotonic clock.
    #[must_use]
    pub fn system() -> Self {
        Self::System(Instant::now())
    }

    /// A clock that stands still at its beginning.
    #[must_use]
    pub fn manual() -> Self {
        Self::Manual(Arc::default())
    }

    /// The moment it is.
    #[must_use]
    pub fn now(&self) -> Moment {
        match self {
            Self::System(beginning) => beginning.elapsed(),
            Self::Manual(nanos) => Duration::from_nanos(nanos.load(Ordering::SeqCst)),
        }
    }

    /// Turns a manual clock; the machine's does not let itself be turned.
    pub fn advance(&self, by: Duration) {
        if let Self::Manual(nanos) = self {
            let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
            nanos.fetch_add(by, Ordering::SeqCst);
        }
    }
}
