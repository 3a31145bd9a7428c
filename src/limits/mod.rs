//! Decides whether a caller's request may proceed. Knows no HTTP types.
//!
//! - [`Limiter`]: the limits of a plan, by leased slices (the contract, "Plans and limits"). [`caller`] decides from
//!   memory, [`db::limits`] leases.
//! - [`token_buckets`], [`wrong_credentials`]: limits by client address and account, which need not be exact.

pub mod caller;
mod error;
mod metrics;
pub mod token_buckets;
pub mod wrong_credentials;

use std::{
    hash::{BuildHasher as _, RandomState},
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use dashmap::{DashMap, mapref::one::RefMut};
use futures_util::{StreamExt as _, stream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub use self::error::Error;
use self::{caller::CallerState, metrics::LimitMetrics, token_buckets::TokenBuckets};
use crate::{
    config::{PlanLimits, Plans},
    db::{self, Database, limits::Slice},
    domain::{
        address::AddressKey,
        caller::{Caller, CallerKey},
        clock::{Clock, Moment},
        limit::{Limit, LimitStatus},
    },
};

/// Requests to `GET /limits` per minute and caller.
const STATUS_PER_MINUTE: NonZeroU32 = NonZeroU32::new(60).unwrap();
/// Maximum number of concurrent lease statements of a flush.
const CONCURRENT_FLUSHES: usize = 512;

/// Counted request, to be given back if it fails through the service's own fault.
#[derive(Debug, Default)]
pub struct Permit {
    counted: Option<(CallerKey, Slice)>,
    _in_flight: Option<OwnedSemaphorePermit>,
}

/// State of the limits after an admission, and its permit.
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
    open: Option<TokenBuckets<AddressKey>>,
    status: TokenBuckets<CallerKey>,
    metrics: LimitMetrics,
    next_id: AtomicI64,
    clock: Clock,
}

impl Limiter {
    /// A limiter that holds no leases. The metrics recorder must be installed.
    #[must_use]
    pub fn new(plans: Plans, database: Database, clock: Clock) -> Self {
        let open = plans.free.per_minute.and_then(NonZeroU32::new);
        let shared = Shared {
            plans,
            callers: DashMap::new(),
            open: open.map(|per_minute| TokenBuckets::new(per_minute, clock.clone())),
            status: TokenBuckets::new(STATUS_PER_MINUTE, clock.clone()),
            metrics: LimitMetrics::new(),
            // At random: other replicas must not use the same identifiers.
            next_id: AtomicI64::new(RandomState::new().hash_one(()).cast_signed()),
            clock,
        };
        Self {
            shared: Arc::new(shared),
            database,
        }
    }

    /// The same limiter for a worker, whose `database` batches its leases.
    #[must_use]
    pub fn for_worker(&self, database: Database) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            database,
        }
    }

    /// Admits one request of a caller. Anonymous callers are told apart by `address`.
    ///
    /// # Errors
    /// [`Error`] when a limit is reached, or the counters cannot be reached.
    pub async fn admit(&self, caller: &Caller, address: Option<AddressKey>) -> Admission {
        let limits = self.shared.plans.limits(caller.plan);
        let admission = if *limits == PlanLimits::default() {
            Ok(<_>::default())
        } else {
            self.admit_limited(CallerKey::new(caller, address), limits)
                .await
        };
        self.shared.metrics.count(Some(caller.plan), &admission);
        admission
    }

    async fn admit_limited(&self, key: CallerKey, limits: &PlanLimits) -> Admission {
        let now = self.shared.clock.now();
        let (decided, in_flight) = {
            let mut state = self.state(key);
            state.set_limits(limits, now);
            let in_flight = acquire_in_flight(&mut state, limits.in_flight, now)?;
            let decided = state.admit(now).ok_or_else(|| {
                let decided = state.enqueue();
                if !state.is_leasing {
                    state.is_leasing = true;
                    tokio::spawn(self.clone().lease(key));
                }
                decided
            });
            (decided, in_flight)
        };
        let decision = match decided {
            Ok(decision) => decision,
            // Boxed: rare and large, and the future of every request would hold it.
            Err(decided) => Box::pin(db::patience::wait(db::QUERY_TIMEOUT, decided)).await?,
        };
        let (slice, status) = decision?;
        let counted = Some((key, slice));
        Ok((
            status,
            Permit {
                counted,
                _in_flight: in_flight,
            },
        ))
    }

    /// State of a caller's limits, for a request that is not counted against them but limited by itself.
    ///
    /// # Errors
    /// As [`Limiter::admit`].
    pub async fn status(
        &self,
        caller: &Caller,
        address: Option<AddressKey>,
    ) -> Result<LimitStatus, Error> {
        let (key, now) = (CallerKey::new(caller, address), self.shared.clock.now());
        let limits = self.shared.plans.limits(caller.plan);
        let taken = self.shared.status.take(&key);
        let is_leasing = {
            let mut state = self.state(key);
            state.set_limits(limits, now);
            if let Err(wait) = taken {
                let refused = Err(Error::exceeded(&[Limit::Status], wait, state.status(now)));
                self.shared.metrics.count(Some(caller.plan), &refused);
                return refused.map(|(status, _)| status);
            }
            !limits.has_rates() || std::mem::replace(&mut state.is_leasing, true)
        };
        if !is_leasing {
            self.lease_now(key).await?;
        }
        Ok(self.state(key).status(now))
    }

    /// Admits one request to an endpoint that needs no credential.
    ///
    /// # Errors
    /// [`Error::Exceeded`].
    pub fn admit_open(&self, address: AddressKey) -> Admission {
        let taken = self
            .shared
            .open
            .as_ref()
            .map_or(Ok(()), |open| open.take(&address));
        let refused = |wait| Error::exceeded(&[Limit::Minute], wait, LimitStatus::default());
        let admission = taken.map(|()| <_>::default()).map_err(refused);
        self.shared.metrics.count(None, &admission);
        admission
    }

    /// Gives back the request of a permit: it failed through the service's own fault.
    pub fn give_back(&self, permit: &Permit) {
        if let Some((key, slice)) = permit.counted {
            self.state(key).give_back(slice, self.shared.clock.now());
        }
    }

    /// Leases until no request of the caller waits. Runs in its own task, so that a disconnect does not lose a lease.
    async fn lease(self, key: CallerKey) {
        while self
            .lease_once(key)
            .await
            .is_ok_and(|()| self.state(key).is_leasing)
        {}
    }

    /// Executes one statement of a caller. Leasing ends unless there is something left to do.
    async fn lease_once(&self, key: CallerKey) -> Result<(), db::Error> {
        let sent = self.shared.clock.now();
        let id = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        let request = self.state(key).next_request(key.to_string(), id, sent);
        let leased = db::limits::lease(&self.database, request).await;
        let mut state = self.state(key);
        let leased = leased
            .map(|lease| state.apply(lease, sent, self.shared.clock.now()))
            .inspect_err(|error| state.fail(error));
        state.is_leasing = leased.is_ok() && (state.has_waiting() || state.has_unused());
        leased
    }

    /// Executes one statement of a caller for which `is_leasing` is set, and those that requests wait for behind it.
    async fn lease_now(&self, key: CallerKey) -> Result<(), db::Error> {
        let this = self.clone();
        let leased = tokio::spawn(async move {
            let leased = this.lease_once(key).await;
            if this.state(key).is_leasing {
                tokio::spawn(this.lease(key));
            }
            leased
        });
        leased.await.unwrap_or(Err(db::Error::TimedOut))
    }

    fn state(&self, key: CallerKey) -> RefMut<'_, CallerKey, CallerState> {
        self.shared.callers.entry(key).or_default()
    }

    /// Returns the unused requests of slices that have ended, and forgets idle callers. To be called every half second.
    pub async fn flush(&self) {
        let (now, mut flushed) = (self.shared.clock.now(), Vec::new());
        self.shared.callers.retain(|key, state| {
            if state.needs_flush(now) {
                state.is_leasing = true;
                flushed.push(*key);
            }
            !state.is_idle(now)
        });
        let flush = async |key| {
            if let Err(error) = self.lease_now(key).await {
                tracing::debug!(%error, "failed to return unused requests; retrying in 0.5 s");
            }
        };
        stream::iter(flushed)
            .for_each_concurrent(CONCURRENT_FLUSHES, flush)
            .await;
    }

    /// Forgets the full token buckets.
    pub fn sweep(&self) {
        self.shared.status.sweep();
        self.shared.open.iter().for_each(TokenBuckets::sweep);
    }

    /// Returns all unused requests before a shutdown, those of leases in progress, too. Nothing must be admitted any more.
    pub async fn close(&self) {
        const PERIOD: Duration = Duration::from_millis(10);
        const PERIODS: usize = 50;
        for _ in 0..PERIODS {
            // Before: what is being leased now is returned in the next round.
            let leases = self.shared.callers.iter().any(|state| state.is_leasing);
            let states = self.shared.callers.iter_mut();
            states.for_each(|mut state| state.retire_lease());
            self.flush().await;
            if !leases {
                return;
            }
            tokio::time::sleep(PERIOD).await;
        }
    }
}

/// Acquires a permit for a request in progress, if the plan limits them to `max`.
fn acquire_in_flight(
    state: &mut CallerState,
    max: Option<u32>,
    now: Moment,
) -> Result<Option<OwnedSemaphorePermit>, Error> {
    let Some(max) = max else { return Ok(None) };
    let permits = || Arc::new(Semaphore::new(max as usize));
    let permits = state.in_flight.get_or_insert_with(permits);
    let permit = Arc::clone(permits).try_acquire_owned();
    let refused = |_| {
        Error::exceeded(
            &[Limit::InFlight],
            Duration::from_secs(1),
            state.status(now),
        )
    };
    permit.map(Some).map_err(refused)
}
