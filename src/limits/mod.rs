//! Decides whether a caller's request may proceed. Knows no HTTP types.
//!
//! - [`Limiter`]: the limits of a plan, by leased slices (`.github/decisions/0001-leased-slices.md`). [`caller`]
//!   decides from memory, [`db::limits`] leases.
//! - [`requests`]: all limits of requests, their metrics, and the history of the requests of callers.
//! - [`resources`], [`shares`]: what requests, and one client address, may use at the same time.
//! - [`open_files`]: how many files connections of clients and images may have open.
//! - [`token_buckets`], [`failed_authentication`], [`logins`]: limits by client address and account, which need not be
//!   exact.

pub mod caller;
mod error;
pub mod failed_authentication;
pub mod logins;
pub mod open_files;
pub mod requests;
pub mod resources;
pub mod shares;
pub mod token_buckets;

use std::{sync::Arc, time::Duration};

use dashmap::{DashMap, mapref::one::RefMut};
use tokio::sync::OwnedSemaphorePermit;

use self::caller::CallerState;
pub use self::error::Error;
use crate::{
    config::Plans,
    db::{
        self, Database,
        limits::{LeaseRequest, Slice},
    },
    domain::{
        address::AddressKey,
        caller::{Caller, CallerKey},
        clock::{Clock, Moment},
        limit::LimitStatus,
        plan::PlanLimits,
    },
};

/// Maximum number of callers that a flush returns requests of. The next one continues.
const MAX_FLUSHED: usize = 2048;

type LockedState<'l> = RefMut<'l, CallerKey, CallerState>;

/// Counted request, to be given back if it fails through the service's own fault.
#[derive(Debug, Default)]
pub struct Permit {
    counted: Option<(CallerKey, Slice)>,
    #[expect(dead_code, reason = "held until the request ends")]
    in_flight: Option<OwnedSemaphorePermit>,
}

/// Outcome of admitting a request: limit status and permit, or the refusal.
pub type Admission = Result<(LimitStatus, Permit), Error>;

/// Counts requests against plans. Clones share the counts.
#[derive(Debug, Clone)]
pub struct Limiter {
    shared: Arc<Shared>,
    database: Database,
}

#[derive(Debug)]
struct Shared {
    plans: Plans,
    callers: DashMap<CallerKey, CallerState>,
    clock: Clock,
}

impl Limiter {
    /// Creates a limiter that holds no leases.
    pub fn new(plans: Plans, database: Database, clock: Clock) -> Self {
        let callers = DashMap::new();
        Self {
            shared: Arc::new(Shared {
                plans,
                callers,
                clock,
            }),
            database,
        }
    }

    /// Returns the same limiter for a worker: its `database` batches the worker's leases.
    pub fn for_worker(&self, database: Database) -> Self {
        Self {
            database,
            ..self.clone()
        }
    }

    /// Admits one request of a caller: from memory, or after a lease. Anonymous callers are identified by `address`.
    pub async fn admit(&self, caller: &Caller, address: Option<AddressKey>) -> Admission {
        let limits = self.shared.plans.limits(caller.plan);
        let (key, now) = (CallerKey::new(caller, address), self.shared.clock.now());
        let (in_flight, decision) = {
            let mut state = self.state(key, limits, now);
            let in_flight = state.acquire_in_flight()?;
            let decision = state.admit(now).ok_or_else(|| {
                let decided = state.enqueue();
                if !state.is_leasing {
                    self.spawn_lease(key, &mut state);
                }
                decided
            });
            (in_flight, decision)
        };
        let decision = match decision {
            Ok(decision) => decision,
            Err(decided) => Box::pin(db::deadline::wait(db::QUERY_TIMEOUT, decided)).await?,
        };
        let (slice, status) = decision?;
        let counted = Some((key, slice));
        Ok((status, Permit { counted, in_flight }))
    }

    /// Gives back the request of a permit: it failed through the service's own fault.
    pub fn give_back(&self, permit: &Permit) {
        if let Some((key, slice)) = permit.counted {
            let mut state = self.shared.callers.entry(key).or_default();
            state.give_back(slice, self.shared.clock.now());
        }
    }

    /// Returns the state of a caller's limits, as far as this replica knows.
    pub fn known_status(&self, caller: &Caller, address: Option<AddressKey>) -> LimitStatus {
        let limits = self.shared.plans.limits(caller.plan);
        let (key, now) = (CallerKey::new(caller, address), self.shared.clock.now());
        self.state(key, limits, now).status(now)
    }

    /// Reads the state of a caller's limits from the database.
    pub async fn status(
        &self,
        caller: &Caller,
        address: Option<AddressKey>,
    ) -> Result<LimitStatus, Error> {
        let limits = self.shared.plans.limits(caller.plan);
        if limits.has_rates() {
            let key = CallerKey::new(caller, address);
            // No request waits, so the statement leases nothing.
            let request = LeaseRequest {
                key: key.to_string(),
                limits: *limits,
                ..LeaseRequest::default()
            };
            let sent = self.shared.clock.now();
            let row = db::limits::lease(&self.database, request).await?;
            let now = self.shared.clock.now();
            self.state(key, limits, now).observe(row, sent, now);
        }
        Ok(self.known_status(caller, address))
    }

    /// Locks the state of a caller, and sets its limits.
    fn state(&self, key: CallerKey, limits: &PlanLimits, now: Moment) -> LockedState<'_> {
        let mut state = self.shared.callers.entry(key).or_default();
        state.set_limits(limits, now);
        state
    }

    /// Spawns the lease loop of a caller, so that a disconnect does not cancel a statement.
    fn spawn_lease(&self, key: CallerKey, state: &mut CallerState) {
        state.is_leasing = true;
        tokio::spawn(self.clone().lease(key));
    }

    /// Leases until no request of the caller waits.
    async fn lease(self, key: CallerKey) {
        let Shared { callers, clock, .. } = &*self.shared;
        loop {
            let sent = clock.now();
            let request = {
                let mut state = callers.entry(key).or_default();
                state.next_request(key.to_string(), sent)
            };
            let leased = db::limits::lease(&self.database, request).await;
            let mut state = callers.entry(key).or_default();
            match leased {
                Ok(lease) => state.succeed(lease, sent, clock.now()),
                Err(error) => state.fail(&error),
            }
            if !state.is_leasing {
                return;
            }
        }
    }

    /// Returns unused requests of ended slices in tasks, and forgets idle callers. To be called every half second.
    pub fn flush(&self) {
        let (now, mut flushed) = (self.shared.clock.now(), 0);
        self.shared.callers.retain(|key, state| {
            if state.needs_flush(now) && flushed < MAX_FLUSHED {
                flushed += 1;
                self.spawn_lease(*key, state);
            }
            !state.is_idle(now)
        });
    }

    /// Returns all unused requests before a shutdown. Nothing must be admitted any more.
    pub async fn close(&self) {
        let is_leasing = || self.shared.callers.iter().any(|state| state.is_leasing);
        loop {
            // Before: a lease that arrives after its state was looked at is returned in the next round.
            let was_leasing = is_leasing();
            (self.shared.callers.iter_mut()).for_each(|mut state| state.end_lease());
            self.flush();
            if !was_leasing && !is_leasing() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
