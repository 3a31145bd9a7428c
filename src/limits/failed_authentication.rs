//! Failed-authentication limit: invalid credentials by client address and its networks, in memory per replica.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use dashmap::DashMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::token_buckets::{AddressBuckets, NETWORKS};
use crate::domain::{
    address::{AddressKey, Network},
    clock::{Clock, Moment},
};

/// Maximum number of concurrent credential lookups per address, and so of failures beyond the limit.
const CONCURRENT_LOOKUPS: u32 = 4;

/// Counts invalid credentials by client address. Clones share the counts.
#[derive(Debug, Clone)]
pub struct FailedAuthenticationLimit {
    buckets: AddressBuckets,
    lookups: Arc<DashMap<Network, Arc<Semaphore>>>,
    blocked_until: Arc<DashMap<Network, Moment>>,
    clock: Clock,
}

impl FailedAuthenticationLimit {
    /// Creates a limit that admits a burst of `per_minute` failures, then `per_minute` per minute.
    pub fn new(per_minute: NonZeroU32, clock: Clock) -> Self {
        // The failure that finds no token blocks the address; it is the last one of the burst.
        let burst = NonZeroU32::new(per_minute.get() - 1).unwrap_or(NonZeroU32::MIN);
        Self {
            buckets: AddressBuckets::new(burst, per_minute, &clock),
            lookups: Arc::default(),
            blocked_until: Arc::default(),
            clock,
        }
    }

    /// Waits for permits to look up a credential of `address`, or returns the time for which it remains blocked.
    pub async fn permits(
        &self,
        address: AddressKey,
    ) -> Result<Vec<OwnedSemaphorePermit>, Duration> {
        let mut permits = Vec::new();
        for (network, addresses) in address.networks(&NETWORKS) {
            let max = CONCURRENT_LOOKUPS * addresses;
            let lookups = || Arc::new(Semaphore::new(max as usize));
            let lookups = Arc::clone(&self.lookups.entry(network).or_insert_with(lookups));
            // A recently blocked network gets one lookup at a time, because its bucket is refilled token by token.
            let was_blocked = self.blocked_until.contains_key(&network);
            let wanted = if was_blocked { max } else { 1 };
            // Never fails: the semaphore is not closed.
            permits.extend(lookups.acquire_many_owned(wanted).await);
        }
        self.check_not_blocked(address)?;
        Ok(permits)
    }

    /// Checks that the address is not blocked, or returns the time for which it remains so.
    pub fn check_not_blocked(&self, address: AddressKey) -> Result<(), Duration> {
        let waits = address.networks(&NETWORKS).filter_map(|(network, _)| {
            let until = *self.blocked_until.get(&network)?;
            Some(until.saturating_sub(self.clock.now()))
        });
        let wait = waits.max().filter(|wait| !wait.is_zero());
        wait.map_or(Ok(()), Err)
    }

    /// Counts an invalid credential. One of a network that is over its limit does not count against those that contain it.
    pub fn count(&self, address: AddressKey) {
        for (network, taken) in self.buckets.take_each(&(), address) {
            if let Err(wait) = taken {
                metrics::counter!("limits_blocked_addresses_total").increment(1);
                self.blocked_until.insert(network, self.clock.now() + wait);
                return;
            }
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
