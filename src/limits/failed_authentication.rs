//! Failed-authentication limit: invalid credentials by client address, in memory per replica.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use dashmap::DashMap;

use super::token_buckets::TokenBuckets;
use crate::domain::{
    address::AddressKey,
    clock::{Clock, Moment},
};

/// Longest time for which an address is blocked.
const MAX_BLOCK: Duration = Duration::from_mins(1);

/// Counts invalid credentials by client address. Those that are in progress when an address is blocked make the block longer. Clones
/// share the counts.
#[derive(Debug, Clone)]
pub struct FailedAuthenticationLimit {
    buckets: TokenBuckets<AddressKey>,
    blocked_until: Arc<DashMap<AddressKey, Moment>>,
    /// Time in which an address gets a failure back.
    interval: Duration,
    clock: Clock,
}

impl FailedAuthenticationLimit {
    /// Creates a limit that admits a burst of `per_minute` failures, then `per_minute` per minute.
    pub fn new(per_minute: NonZeroU32, clock: Clock) -> Self {
        // The failure that finds no token blocks the address; it is the last one of the burst.
        let burst = NonZeroU32::new(per_minute.get() - 1).unwrap_or(NonZeroU32::MIN);
        Self {
            buckets: TokenBuckets::new(burst, per_minute, clock.clone()),
            blocked_until: Arc::default(),
            interval: MAX_BLOCK / per_minute.get(),
            clock,
        }
    }

    /// Checks that an address is not blocked, or returns the time for which it remains so. An unknown address never is.
    pub fn check(&self, address: Option<AddressKey>) -> Result<(), Duration> {
        let until = address.and_then(|address| Some(*self.blocked_until.get(&address)?));
        let wait = until.map(|until| until.saturating_sub(self.clock.now()));
        match wait.filter(|wait| !wait.is_zero()) {
            Some(wait) => Err(wait),
            None => Ok(()),
        }
    }

    /// Counts an invalid credential, once it has been looked up.
    pub fn count(&self, address: Option<AddressKey>) {
        let Some(address) = address else {
            return;
        };
        let Err(wait) = self.buckets.take(&address) else {
            return;
        };
        let now = self.clock.now();
        let mut until = self.blocked_until.entry(address).or_insert(now);
        if *until <= now {
            metrics::counter!("limits_blocked_addresses_total").increment(1);
            *until = now + wait;
        } else {
            *until = (*until + self.interval).min(now + MAX_BLOCK);
        }
    }

    /// Removes expired blocks and full buckets.
    pub fn sweep(&self) {
        let now = self.clock.now();
        self.blocked_until.retain(|_, until| *until > now);
        self.buckets.sweep();
    }
}
