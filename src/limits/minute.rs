//! The minute: a sliding log, which admits at most so many requests in any 60 s, and that many at once.
//!
//! A fixed window admits twice the limit around its edge, a token bucket (GCRA) twice the limit in its
//! first minute: burst plus refill. The times of the last admissions say exactly what is left: 16 bytes
//! each, so about 1 KB for a caller of plan Free and 10 KB for one of plan Pro, and nothing once it has
//! been quiet for a minute.

use std::{collections::VecDeque, time::Duration};

use crate::domain::clock::Moment;

/// The length of the window.
pub const MINUTE: Duration = Duration::from_mins(1);

/// The admissions of the last minute, oldest first.
#[derive(Debug, Default)]
pub struct SlidingLog(VecDeque<Moment>);

impl SlidingLog {
    /// How many admissions the window that ends now holds.
    pub fn used(&mut self, now: Moment) -> u32 {
        // An admission is in the window until exactly a minute later.
        while self.0.front().is_some_and(|at| *at + MINUTE <= now) {
            self.0.pop_front();
        }
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    /// How long until one more is admitted: nothing when there is room.
    pub fn wait(&mut self, now: Moment, limit: u32) -> Duration {
        let used = self.used(now);
        if used < limit {
            return Duration::ZERO;
        }
        // The one whose leaving makes room; more than one must leave after a change to a smaller plan.
        let leaving = (used - limit) as usize;
        let at = self.0.get(leaving).copied().unwrap_or(now);
        (at + MINUTE).saturating_sub(now)
    }

    /// How long until the oldest admission leaves the window.
    pub fn next_leaves(&mut self, now: Moment) -> Duration {
        self.used(now);
        self.0
            .front()
            .map_or(Duration::ZERO, |at| (*at + MINUTE).saturating_sub(now))
    }

    /// Writes an admission down.
    pub fn push(&mut self, now: Moment) {
        self.0.push_back(now);
    }

    /// Takes an admission back.
    pub fn take_back(&mut self, at: Moment) {
        if let Some(index) = self.0.iter().rposition(|admitted| *admitted == at) {
            self.0.remove(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Asks at each moment; gives the moments of admission.
    fn admissions(moments: &[Moment], limit: u32) -> Vec<Moment> {
        let mut log = SlidingLog::default();
        let mut admitted = Vec::new();
        for &now in moments {
            if log.wait(now, limit).is_zero() {
                log.push(now);
                admitted.push(now);
            }
        }
        admitted
    }

    fn moments() -> impl Strategy<Value = Vec<Moment>> {
        let gaps = prop_oneof![Just(0), 0_u64..50, 0_u64..5_000, 0_u64..70_000];
        prop::collection::vec(gaps, 1..400).prop_map(|gaps| {
            let mut now = 0;
            gaps.into_iter()
                .map(|gap| {
                    now += gap;
                    Duration::from_millis(now)
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn no_window_ever_holds_more_than_the_limit(moments in moments(), limit in 1_u32..20) {
            let admitted = admissions(&moments, limit);
            for window in admitted.windows(limit as usize + 1) {
                prop_assert!(window[limit as usize] >= window[0] + MINUTE);
            }
        }

        /// Nothing is refused that would have fitted: the ceiling is reached.
        #[test]
        fn nothing_is_refused_while_there_is_room(moments in moments(), limit in 1_u32..20) {
            let admitted = admissions(&moments, limit);
            for now in moments {
                let in_window = admitted.iter().filter(|at| **at <= now && **at + MINUTE > now).count();
                let was_admitted = admitted.contains(&now);
                prop_assert!(was_admitted || in_window >= limit as usize);
            }
        }

        /// After any history: admitted when the wait is over, refused a moment earlier.
        #[test]
        fn the_wait_is_exact(moments in moments(), limit in 1_u32..20) {
            let mut log = SlidingLog::default();
            let mut now = Duration::ZERO;
            for moment in moments {
                now = moment;
                if log.wait(now, limit).is_zero() {
                    log.push(now);
                }
            }
            let wait = log.wait(now, limit);
            if !wait.is_zero() {
                prop_assert!(log.wait((now + wait).saturating_sub(Duration::from_nanos(1)), limit) > Duration::ZERO);
                prop_assert_eq!(log.wait(now + wait, limit), Duration::ZERO);
            }
        }
    }

    #[test]
    fn a_greedy_client_gets_the_limit_and_not_one_more() {
        for limit in [60, 600, 1_000] {
            // Ten minutes, asking a thousand times a second.
            let moments: Vec<_> = (0..600_000).map(Duration::from_millis).collect();
            let admitted = admissions(&moments, limit);
            assert_eq!(admitted.len(), limit as usize * 10);
            assert_eq!(
                admitted.iter().filter(|at| **at < MINUTE).count(),
                limit as usize
            );
        }
    }
}
