//! Limits of login attempts, in memory per replica.
//!
//! - An attempt counts whether or not the account exists, and whether or not the password is right.
//! - A client address that has used up its attempts to an account is refused; others are not affected.
//! - The attempts of all addresses to an account are refused only if many of them wait at once. Before that, they are
//!   delayed, in order: the owner logs in after those who came first, and an attacker with many addresses gets
//!   [`ACCOUNT_RATIO`] times the attempts of one.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use dashmap::DashMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::token_buckets::TokenBuckets;
use crate::domain::{
    address::AddressKey,
    clock::{Clock, Moment},
};

/// Ratio of the attempts to an account to those from one of the client addresses.
const ACCOUNT_RATIO: u32 = 10;
/// Time whose attempts to an account are admitted at once.
const BURST: Duration = Duration::from_mins(1);
/// Maximum delay of an attempt, shorter than the request timeout.
const MAX_DELAY: Duration = Duration::from_secs(20);

/// Maximum number of delayed attempts, so that they leave most requests in progress to others.
const MAX_DELAYED: usize = 100;

/// Lower-case name of an account, and the client address of an attempt.
type Origin = (String, Option<AddressKey>);

/// Limits of login attempts. Clones share the counts.
#[derive(Debug, Clone)]
pub struct Logins {
    by_origin: TokenBuckets<Origin>,
    /// By account, the moment at which it has admitted its attempts so far, one per `interval`.
    busy_until: Arc<DashMap<String, Moment>>,
    interval: Duration,
    /// By origin, the end of the delay of its last delayed attempt. Each has one at a time, also if its client has
    /// disconnected, so that no client reserves all attempts.
    delayed_until: Arc<DashMap<Origin, Moment>>,
    /// Permits to wait.
    waiting: Arc<Semaphore>,
    clock: Clock,
}

impl Logins {
    /// Creates limits that admit `per_minute` attempts at once from an address to an account, then as many per minute.
    pub fn new(per_minute: NonZeroU32, clock: Clock) -> Self {
        Self {
            by_origin: TokenBuckets::new(per_minute, per_minute, clock.clone()),
            busy_until: Arc::default(),
            interval: Duration::from_mins(1) / per_minute.get().saturating_mul(ACCOUNT_RATIO),
            delayed_until: Arc::default(),
            waiting: Arc::new(Semaphore::new(MAX_DELAYED)),
            clock,
        }
    }

    /// Admits an attempt after its delay, or returns the time until one would be admitted.
    pub async fn admit(
        &self,
        account: String,
        address: Option<AddressKey>,
    ) -> Result<(), Duration> {
        let origin = (account, address);
        if address.is_some() {
            self.by_origin.take(&origin)?;
        }
        let (delay, _permit) = self.reserve(origin)?;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        Ok(())
    }

    /// Reserves the next attempt to an account. Returns its delay and, if there is one, a permit to hold meanwhile.
    fn reserve(
        &self,
        origin: Origin,
    ) -> Result<(Duration, Option<OwnedSemaphorePermit>), Duration> {
        let now = self.clock.now();
        let mut busy_until = self.busy_until.entry(origin.0.clone()).or_insert(now);
        let delay = busy_until.saturating_sub(now + BURST);
        let mut permit = None;
        if !delay.is_zero() {
            let is_delayed = self.delayed_until.get(&origin).is_some_and(|it| *it > now);
            if delay > MAX_DELAY || is_delayed {
                return Err(delay);
            }
            let waiting = Arc::clone(&self.waiting).try_acquire_owned();
            permit = Some(waiting.map_err(|_| delay)?);
            self.delayed_until.insert(origin, now + delay);
        }
        *busy_until = now.max(*busy_until) + self.interval;
        Ok((delay, permit))
    }

    /// Removes full token buckets, and accounts without recent attempts.
    pub fn sweep(&self) {
        let now = self.clock.now();
        self.busy_until.retain(|_, busy_until| *busy_until > now);
        self.delayed_until.retain(|_, until| *until > now);
        self.by_origin.sweep();
    }
}
