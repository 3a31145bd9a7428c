//! Monotonic time: code that depends on it takes a [`Clock`], which tests advance by hand.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Time since the origin of a clock. Never decreases.
pub type Moment = Duration;

/// Returns a duration in seconds, rounded up.
pub fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

/// Monotonic clock.
#[derive(Debug, Clone)]
pub enum Clock {
    /// Clock of the operating system, with its origin.
    System(Instant),
    /// Clock that only [`Clock::advance`] moves; nanoseconds since its origin.
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// Returns the clock of the operating system; its origin is now.
    pub fn system() -> Self {
        Self::System(Instant::now())
    }

    /// Returns a manual clock at its origin.
    pub fn manual() -> Self {
        Self::Manual(Arc::default())
    }

    /// Returns the current time.
    pub fn now(&self) -> Moment {
        match self {
            Self::System(origin) => origin.elapsed(),
            Self::Manual(nanos) => Duration::from_nanos(nanos.load(Ordering::SeqCst)),
        }
    }

    /// Advances a manual clock; does nothing to the system clock.
    pub fn advance(&self, by: Duration) {
        if let Self::Manual(nanos) = self {
            let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
            nanos.fetch_add(by, Ordering::SeqCst);
        }
    }
}
