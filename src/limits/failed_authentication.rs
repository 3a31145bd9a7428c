//! Failed-authentication limit: invalid credentials by client address, in memory per replica.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use dashmap::DashMap;

use super::token_buckets::TokenBuckets;
use crate::domain::{
    address::AddressKey,
    clock::{Clock, Moment},
};

/// Counts invalid credentials by client address. Requests that are in progress when an address is blocked count beyond the
/// limit. Clones share the counts.
#[derive(Debug, Clone)]
pub struct FailedAuthenticationLimit {
    buckets: TokenBuckets<AddressKey>,
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
            blocked_until: Arc::default(),
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
        if let Err(wait) = self.buckets.take(&address) {
            metrics::counter!("limits_blocked_addresses_total").increment(1);
            self.blocked_until.insert(address, self.clock.now() + wait);
        }
    }

    /// Removes expired blocks and full buckets.
    pub fn sweep(&self) {
        let now = self.clock.now();
        self.blocked_until.retain(|_, until| *until > now);
        self.buckets.sweep();
    }
}
