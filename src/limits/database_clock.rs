//! Detects steps forward of the database's clock, by the replica's monotonic clock.
//!
//! Without this, the requests of the last 60 s would leave the window at such a step. A lease statement that finds the
//! clock beyond [`DatabaseClock::latest`] has no effect. Its response tells a step from a statement that was delayed.

use std::time::Duration;

use crate::{db::limits::Slice, domain::clock::Moment};

/// Time for which a step matters: 61 slices, on a clock that is 5 % fast.
const REMEMBERED: Duration = Duration::from_secs(65);
/// Maximum rate of the database's clock, measured by a clock that is 5 % slow.
const MAX_RATE: f64 = 1.0 / 0.95;

/// Clock of the database, as far as the replica knows it from the responses to lease statements.
#[derive(Debug, Default)]
pub struct DatabaseClock {
    /// Slice of the lease statement that was sent last, and the moment at which it was sent.
    last: Option<(Slice, Moment)>,
    /// Last slice before a step forward, and the moment at which the step was detected.
    step: Option<(Slice, Moment)>,
}

impl DatabaseClock {
    /// Returns the latest slice that the clock can show at `now` unless it was set forward, plus one; `None` before the
    /// first response.
    pub fn latest(&self, now: Moment) -> Option<Slice> {
        let (slice, sent) = self.last?;
        let elapsed = now.saturating_sub(sent).mul_f64(MAX_RATE);
        Some(slice.saturating_add_unsigned(elapsed.as_secs() + 1))
    }

    /// Returns the last slice before a step forward, while requests of it may count against a per-minute limit.
    pub fn last_before_step(&self, now: Moment) -> Option<Slice> {
        let (slice, detected) = self.step?;
        (now < detected + REMEMBERED).then_some(slice)
    }

    /// Updates the clock with the slice of a response to a statement that was sent at `sent`.
    pub fn observe(&mut self, slice: Slice, sent: Moment, now: Moment) {
        match self.last {
            Some((_, last_sent)) if sent < last_sent => return,
            // Set back: the slices before and after the step forward are no longer different.
            Some((last, _)) if slice + 1 < last => self.step = None,
            Some(_) => {
                if let Some(latest) = self.latest(now).filter(|latest| slice > *latest) {
                    self.step = Some((latest, now));
                }
            }
            None => {}
        }
        self.last = Some((slice, sent));
    }
}
