//! Token buckets by key (GCRA), in memory per replica.

use std::{fmt, hash::Hash, num::NonZeroU32, sync::Arc, time::Duration};

use governor::{
    Quota, RateLimiter,
    middleware::NoOpMiddleware,
    state::keyed::{DefaultHasher, HashMapStateStore},
};

use crate::domain::clock::{Clock, Moment};

type Buckets<K> =
    RateLimiter<K, HashMapStateStore<K, DefaultHasher>, Clock, NoOpMiddleware<Moment>>;

/// One bucket per key. Clones share them. [`TokenBuckets::sweep`] bounds the memory by the keys of the last minutes.
#[derive(Debug, Clone)]
pub struct TokenBuckets<K: Clone + Hash + Eq>(Arc<Buckets<K>>);

impl<K: Clone + Hash + Eq + fmt::Debug> TokenBuckets<K> {
    /// Creates buckets that hold `burst` tokens and are refilled with `per_minute` tokens per minute.
    pub fn new(burst: NonZeroU32, per_minute: NonZeroU32, clock: Clock) -> Self {
        let quota = Quota::per_minute(per_minute).allow_burst(burst);
        Self(Arc::new(RateLimiter::hashmap_with_clock(quota, clock)))
    }

    /// Takes one token, or returns the time until one is available.
    pub fn take(&self, key: &K) -> Result<(), Duration> {
        let taken = self.0.check_key(key);
        taken.map_err(|not_until| not_until.wait_time_from(self.0.clock().now()))
    }

    /// Removes full buckets.
    pub fn sweep(&self) {
        self.0.retain_recent();
        self.0.shrink_to_fit();
    }
}

impl governor::clock::Clock for Clock {
    type Instant = Moment;

    fn now(&self) -> Moment {
        Self::now(self)
    }
}
