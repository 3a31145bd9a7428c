//! Budgets of addresses: for what cannot be counted for a caller, because none was shown.
//!
//! A token bucket (GCRA) is right here: nothing is promised to a stranger but that the flood ends.
//! Invariant: memory is bounded by the addresses seen in the last minutes ([`WrongCredentials::sweep`]).

use std::{
    collections::HashMap,
    fmt,
    net::{IpAddr, Ipv6Addr},
    num::NonZeroU32,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use governor::{
    Quota, RateLimiter,
    middleware::StateInformationMiddleware,
    state::keyed::{DefaultHasher, HashMapStateStore},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::domain::clock::{Clock, Moment};

/// What a stranger is told apart by: an IPv4 address, or the /64 of an IPv6 address, of which every
/// household has one whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AddressKey(IpAddr);

impl From<IpAddr> for AddressKey {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(v6) => {
                let network = u128::from(v6) & !u128::from(u64::MAX);
                Self(IpAddr::V6(Ipv6Addr::from(network)))
            }
            v4 @ IpAddr::V4(_) => Self(v4),
        }
    }
}

impl fmt::Display for AddressKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

type Buckets = RateLimiter<
    AddressKey,
    HashMapStateStore<AddressKey, DefaultHasher>,
    GovernorClock,
    StateInformationMiddleware,
>;

/// Credentials from one address that are looked up at once.
const AT_ONCE: u32 = 4;

/// Counts wrong credentials by address. Cheap to clone.
#[derive(Debug, Clone)]
pub struct WrongCredentials(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    buckets: Buckets,
    /// Until a spent budget has room for one more.
    refill: Duration,
    /// Turns at having credentials looked up.
    turns: Mutex<HashMap<AddressKey, Arc<Semaphore>>>,
    /// Until when an address that has spent its budget is not listened to.
    shut_until: Mutex<HashMap<AddressKey, Moment>>,
    clock: Clock,
}

impl WrongCredentials {
    /// So many at once, then so many a minute.
    #[must_use]
    pub fn new(per_minute: NonZeroU32, clock: Clock) -> Self {
        let quota = Quota::per_minute(per_minute);
        Self(Arc::new(Shared {
            buckets: RateLimiter::hashmap_with_clock(quota, GovernorClock(clock.clone()))
                .with_middleware(),
            refill: quota.replenish_interval(),
            turns: Mutex::default(),
            shut_until: Mutex::default(),
            clock,
        }))
    }

    /// Waits for a turn at having a credential from this address looked up: of those that are, no more than
    /// [`AT_ONCE`] can turn out to be one too many.
    ///
    /// # Errors
    /// How long none from there is looked at.
    pub async fn turn(&self, address: AddressKey) -> Result<Turn, Duration> {
        let turns = Arc::clone(
            lock(&self.0.turns)
                .entry(address)
                .or_insert_with(|| Arc::new(Semaphore::new(AT_ONCE as usize))),
        );
        // Who has spent its budget lately gets one at a time, as the budget fills one by one.
        let spent = lock(&self.0.shut_until).contains_key(&address);
        let places = if spent { AT_ONCE } else { 1 };
        // Nobody closes it.
        let turn = turns.acquire_many_owned(places).await.ok();
        self.listen_to(address)?;
        Ok(Turn(turn))
    }

    /// Whether credentials from this address are looked at.
    ///
    /// # Errors
    /// How long they are not.
    pub fn listen_to(&self, address: AddressKey) -> Result<(), Duration> {
        let now = self.0.clock.now();
        match lock(&self.0.shut_until).get(&address) {
            Some(until) if *until > now => Err(until.saturating_sub(now)),
            _ => Ok(()),
        }
    }

    /// Writes a wrong credential down. The one that spends the budget shuts its address out: the next is
    /// not looked at first.
    pub fn wrong(&self, address: AddressKey) {
        let wait = match self.0.buckets.check_key(&address) {
            Ok(left) if left.remaining_burst_capacity() > 0 => return,
            Ok(_) => self.0.refill,
            // Several at once: more were looked at than the budget had room for.
            Err(not_until) => not_until.wait_time_from(self.0.clock.now()),
        };
        metrics::counter!("limits_addresses_shut_total").increment(1);
        let until = self.0.clock.now() + wait;
        lock(&self.0.shut_until).insert(address, until);
    }

    /// Forgets addresses whose budget is whole again.
    pub fn sweep(&self) {
        let now = self.0.clock.now();
        let mut shut = lock(&self.0.shut_until);
        shut.retain(|_, until| *until > now);
        shut.shrink_to_fit();
        drop(shut);
        let mut turns = lock(&self.0.turns);
        turns.retain(|_, turns| Arc::strong_count(turns) > 1);
        turns.shrink_to_fit();
        drop(turns);
        self.0.buckets.retain_recent();
        self.0.buckets.shrink_to_fit();
    }
}

/// A turn at having a credential looked up, until it is dropped.
#[derive(Debug)]
pub struct Turn(#[expect(dead_code, reason = "held for its drop")] Option<OwnedSemaphorePermit>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Our clock, as governor reads one.
#[derive(Debug, Clone)]
pub(super) struct GovernorClock(pub(super) Clock);

impl governor::clock::Clock for GovernorClock {
    type Instant = Moment;

    fn now(&self) -> Moment {
        self.0.now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(address: &str) -> AddressKey {
        AddressKey::from(address.parse::<IpAddr>().expect("an address"))
    }

    #[tokio::test]
    async fn a_flood_is_shut_out_and_others_are_not() {
        let clock = Clock::manual();
        clock.advance(Duration::from_secs(1_000));
        let hundred = NonZeroU32::new(100).expect("not zero");
        let budget = WrongCredentials::new(hundred, clock.clone());
        let mut looked_at = 0;
        // 10,000 in ten seconds.
        for _ in 0..10_000 {
            if budget.turn(key("192.0.2.1")).await.is_ok() {
                looked_at += 1;
                budget.wrong(key("192.0.2.1"));
            }
            clock.advance(Duration::from_millis(1));
        }
        assert!((100..=120).contains(&looked_at), "{looked_at}");
        assert!(budget.turn(key("192.0.2.2")).await.is_ok());
        clock.advance(Duration::from_mins(2));
        budget.sweep();
        assert!(budget.turn(key("192.0.2.1")).await.is_ok());
        assert_eq!(budget.0.buckets.len(), 0);
    }

    #[test]
    fn an_ipv6_household_is_one_address() {
        assert_eq!(key("2001:db8::1"), key("2001:db8::ffff:1"));
        assert_ne!(key("2001:db8::1"), key("2001:db8:0:1::1"));
        assert_eq!(key("::ffff:192.0.2.1"), key("192.0.2.1"));
    }
}
