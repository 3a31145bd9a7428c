//! Monotonic time: code that depends on it takes a [`Clock`], which tests advance by hand. And how times are written.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Serialize as _, Serializer};

/// Time since the origin of a clock. Never decreases.
pub type Moment = Duration;

/// Returns a duration in seconds, rounded up.
pub fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

/// Formats a time as RFC 3339, to the second.
pub fn rfc3339(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// Serializes a time, or none, with [`rfc3339`].
pub fn serialize_time<S: Serializer>(
    time: &(impl Copy + Into<Option<DateTime<Utc>>>),
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let time: Option<_> = (*time).into();
    time.map(rfc3339).serialize(serializer)
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
