//! Failed-authentication limit: invalid credentials by client address, in memory per replica.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use dashmap::DashMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::token_buckets::TokenBuckets;
use crate::domain::{
    address::AddressKey,
    clock::{Clock, Moment},
};

/// Maximum number of concurrent credential lookups per address, and so of failures beyond the limit.
const CONCURRENT_LOOKUPS: u32 = 4;

/// Counts invalid credentials by client address. Clones share the counts.
#[derive(Debug, Clone)]
pub struct FailedAuthenticationLimit {
    buckets: TokenBuckets<AddressKey>,
    lookups: Arc<DashMap<AddressKey, Arc<Semaphore>>>,
    blocked_until: Arc<DashMap<AddressKey, Moment>>,
    clock: Clock,
}

impl FailedAuthenticationLimit {
    /// Creates a limit that admits a burst of `per_minute` failures, then `per_minute` per minute.
    pub fn new(per_minute: NonZeroU32, clock: Clock) -> Self {
        // The failure that finds no token blocks the address; it is the last one of the burst.
        let burst = NonZeroU32::new(per_minute.get() - 1).unwrap_or(NonZeroU32::MIN);
        Self {
            buckets: TokenBuckets::new(burst, per_minute, clock.clone()),
            lookups: Arc::default(),
            blocked_until: Arc::default(),
            clock,
        }
    }

    /// Waits for a permit to look up a credential of `address`, or returns the time for which it remains blocked.
    pub async fn permit(&self, address: AddressKey) -> Result<OwnedSemaphorePermit, Duration> {
        let lookups = || Arc::new(Semaphore::new(CONCURRENT_LOOKUPS as usize));
        let lookups = Arc::clone(&self.lookups.entry(address).or_insert_with(lookups));
        // A recently blocked address gets one lookup at a time, because its bucket is refilled token by token.
        let was_blocked = self.blocked_until.contains_key(&address);
        let permits = if was_blocked { CONCURRENT_LOOKUPS } else { 1 };
        // The semaphore is never closed.
        let permit = lookups.acquire_many_owned(permits).await;
        self.check_not_blocked(address)?;
        permit.map_err(|_| Duration::ZERO)
    }

    /// Checks that the address is not blocked, or returns the time for which it remains so.
    pub fn check_not_blocked(&self, address: AddressKey) -> Result<(), Duration> {
        let blocked = self.blocked_until.get(&address);
        let wait = blocked.map(|until| until.saturating_sub(self.clock.now()));
        wait.filter(|wait| !wait.is_zero()).map_or(Ok(()), Err)
    }

    /// Counts an invalid credential.
    pub fn count(&self, address: AddressKey) {
        if let Err(wait) = self.buckets.take(&address) {
            metrics::counter!("limits_blocked_addresses_total").increment(1);
            self.blocked_until.insert(address, self.clock.now() + wait);
        }
    }

    /// Removes expired blocks, idle semaphores and full buckets.
    pub fn sweep(&self) {
        let now = self.clock.now();
        self.blocked_until.retain(|_, until| *until > now);
        self.lookups
            .retain(|_, lookups| Arc::strong_count(lookups) > 1);
        self.buckets.sweep();
    }
}
