//! Token buckets by key (GCRA), in memory per replica.

use std::{fmt, hash::Hash, num::NonZeroU32, sync::Arc, time::Duration};

use governor::{
    Quota, RateLimiter,
    clock::Clock as _,
    middleware::NoOpMiddleware,
    state::keyed::{DefaultHasher, HashMapStateStore},
};

use crate::domain::clock::{Clock, Moment};

type Buckets<K> =
    RateLimiter<K, HashMapStateStore<K, DefaultHasher>, GovernorClock, NoOpMiddleware<Moment>>;

/// One bucket per key. Clones share them. [`TokenBuckets::sweep`] bounds the memory by the keys of the last minutes.
#[derive(Debug, Clone)]
pub struct TokenBuckets<K: Clone + Hash + Eq> {
    buckets: Arc<Buckets<K>>,
    clock: GovernorClock,
}

/// Login attempts by lower-case account name, whether or not the account exists.
pub type Logins = TokenBuckets<String>;

impl<K: Clone + Hash + Eq + fmt::Debug> TokenBuckets<K> {
    /// Creates buckets that hold `per_minute` tokens and are refilled with `per_minute` tokens per minute.
    #[must_use]
    pub fn new(per_minute: NonZeroU32, clock: Clock) -> Self {
        Self::with_burst(per_minute, per_minute, clock)
    }

    /// Creates buckets that hold `burst` tokens and are refilled with `per_minute` tokens per minute.
    #[must_use]
    pub fn with_burst(per_minute: NonZeroU32, burst: NonZeroU32, clock: Clock) -> Self {
        let clock = GovernorClock(clock);
        let quota = Quota::per_minute(per_minute).allow_burst(burst);
        let buckets = RateLimiter::hashmap_with_clock(quota, clock.clone());
        Self {
            buckets: Arc::new(buckets),
            clock,
        }
    }

    /// Takes one token.
    ///
    /// # Errors
    /// Time until a token is available.
    pub fn take(&self, key: &K) -> Result<(), Duration> {
        let taken = self.buckets.check_key(key);
        taken.map_err(|not_until| not_until.wait_time_from(self.clock.now()))
    }

    /// Removes full buckets.
    pub fn sweep(&self) {
        self.buckets.retain_recent();
        self.buckets.shrink_to_fit();
    }
}

/// [`Clock`] as governor reads it.
#[derive(Debug, Clone)]
struct GovernorClock(Clock);

impl governor::clock::Clock for GovernorClock {
    type Instant = Moment;

    fn now(&self) -> Moment {
        self.0.now()
    }
}
