//! Budgets of accounts: how often anybody may try to log in to one, from wherever.
//!
//! Counted before the password is looked at, the right one too: so many tries, and not one more, however many
//! come at once. By the name that is claimed, whether or not there is such an account: what is refused tells
//! nothing. Invariant: memory is bounded by the names tried in the last minutes ([`Logins::sweep`]).

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use governor::{
    Quota, RateLimiter,
    clock::Clock as _,
    middleware::NoOpMiddleware,
    state::keyed::{DefaultHasher, HashMapStateStore},
};

use super::address::GovernorClock;
use crate::domain::clock::{Clock, Moment};

type Budgets = RateLimiter<
    String,
    HashMapStateStore<String, DefaultHasher>,
    GovernorClock,
    NoOpMiddleware<Moment>,
>;

/// Counts tries by account. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Logins {
    budgets: Arc<Budgets>,
    clock: GovernorClock,
}

impl Logins {
    /// So many at once, then so many a minute.
    #[must_use]
    pub fn new(per_minute: NonZeroU32, clock: Clock) -> Self {
        let clock = GovernorClock(clock);
        let quota = Quota::per_minute(per_minute);
        let budgets = RateLimiter::hashmap_with_clock(quota, clock.clone());
        Self {
            budgets: Arc::new(budgets),
            clock,
        }
    }

    /// Asks for one try. `account` is the name without its case.
    ///
    /// # Errors
    /// How long there is none.
    pub fn admit(&self, account: &str) -> Result<(), Duration> {
        self.budgets
            .check_key(&account.to_owned())
            .map_err(|not_until| not_until.wait_time_from(self.clock.now()))
    }

    /// Forgets accounts whose budget is whole again.
    pub fn sweep(&self) {
        self.budgets.retain_recent();
        self.budgets.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guesses_at_one_account_are_few_and_others_are_free() {
        let clock = Clock::manual();
        clock.advance(Duration::from_secs(1_000));
        let logins = Logins::new(NonZeroU32::new(20).expect("not zero"), clock.clone());
        let mut admitted = 0;
        for _ in 0..60_000 {
            admitted += u32::from(logins.admit("bob").is_ok());
            clock.advance(Duration::from_millis(1));
        }
        assert!((20..=40).contains(&admitted), "{admitted}");
        assert!(logins.admit("alice").is_ok());
        let wait = logins.admit("bob").err();
        if let Some(wait) = wait {
            clock.advance(wait);
            assert!(logins.admit("bob").is_ok());
        }
        clock.advance(Duration::from_mins(2));
        logins.sweep();
        assert!(logins.budgets.is_empty());
    }
}
