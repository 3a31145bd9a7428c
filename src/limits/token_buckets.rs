//! Token buckets by key (GCRA), in memory per replica.

use std::{fmt, hash::Hash, num::NonZeroU32, sync::Arc, time::Duration};

use governor::{
    Quota, RateLimiter,
    middleware::NoOpMiddleware,
    state::keyed::{DefaultHasher, HashMapStateStore},
};

use crate::domain::{
    address::{AddressKey, Network},
    clock::{Clock, Moment},
};

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

/// Networks of an IPv6 address that have a bucket, and its size in buckets of an address. Without those of wider networks,
/// a client with a /48 would have 65,536 buckets.
pub const NETWORKS: [(u8, u32); 3] = [(64, 1), (56, 4), (48, 16)];

/// Buckets by client address and another key, if there is one: of an IPv4 address, or of the [`NETWORKS`] of an IPv6
/// address. Clones share them.
#[derive(Debug, Clone)]
pub struct AddressBuckets<K: Clone + Hash + Eq = ()>([TokenBuckets<(K, Network)>; NETWORKS.len()]);

impl<K: Clone + Hash + Eq + fmt::Debug> AddressBuckets<K> {
    /// Creates buckets with these numbers of tokens for an address.
    pub fn new(burst: NonZeroU32, per_minute: NonZeroU32, clock: &Clock) -> Self {
        Self(NETWORKS.map(|(_, size)| {
            let size = NonZeroU32::new(size).unwrap_or(NonZeroU32::MIN);
            let [burst, per_minute] = [burst, per_minute].map(|it| it.saturating_mul(size));
            TokenBuckets::new(burst, per_minute, clock.clone())
        }))
    }

    /// Takes one token for each network, or returns the time until one is available. The narrowest comes first: one that
    /// has no tokens takes none from those that contain it.
    pub fn take(&self, key: &K, address: AddressKey) -> Result<(), Duration> {
        self.take_each(key, address)
            .try_for_each(|(_, taken)| taken)
    }

    /// Takes one token for each network as the iterator proceeds.
    pub fn take_each(
        &self,
        key: &K,
        address: AddressKey,
    ) -> impl Iterator<Item = (Network, Result<(), Duration>)> {
        let networks = address.networks(&NETWORKS);
        self.0
            .iter()
            .zip(networks)
            .map(move |(buckets, (network, _))| (network, buckets.take(&(key.clone(), network))))
    }

    /// Removes full buckets.
    pub fn sweep(&self) {
        self.0.iter().for_each(TokenBuckets::sweep);
    }
}

impl governor::clock::Clock for Clock {
    type Instant = Moment;

    fn now(&self) -> Moment {
        Self::now(self)
    }
}
