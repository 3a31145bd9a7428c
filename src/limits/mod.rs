//! Decides whether a caller's request may proceed. Knows no HTTP types.
//!
//! - [`Limiter`]: the limits of a plan, by leased slices (the contract, "Plans and limits"). [`caller`] decides from
//!   memory, [`db::limits`] leases.
//! - [`token_buckets`], [`wrong_credentials`]: limits by client address and account, which need not be exact.

pub mod caller;
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
use metrics::Counter;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use self::{caller::CallerState, token_buckets::TokenBuckets};
use crate::{
    config::{PlanLimits, Plans},
    db::{
        self, Database,
        limits::{LeaseRequest, Slice},
    },
    domain::{
        address::AddressKey,
        caller::{Caller, CallerKey},
        clock::Clock,
        limit::{Limit, LimitStatus},
        plan::Plan,
    },
};

/// Kinds of requests in the label `plan`; the last one is requests that need no credential.
const PLANS: [&str; 4] = ["free", "pro", "enterprise", "open"];
/// Requests to `GET /limits` per minute and caller.
const STATUS_PER_MINUTE: NonZeroU32 = NonZeroU32::new(60).unwrap();
/// Maximum number of concurrent lease tasks of flushes.
const CONCURRENT_FLUSHES: usize = 512;

/// Reason why a request is not admitted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Limits are reached.
    #[error("limits reached: {limits:?}")]
    Exceeded {
        /// The limits.
        limits: Vec<Limit>,
        /// Time until capacity returns.
        retry_after: Duration,
        /// State of the limits.
        status: LimitStatus,
    },
    /// The counters cannot be reached.
    #[error(transparent)]
    Database(#[from] db::Error),
}

impl Error {
    fn exceeded(limits: &[Limit], retry_after: Duration, status: LimitStatus) -> Self {
        Self::Exceeded {
            limits: limits.to_vec(),
            retry_after,
            status,
        }
    }

    /// State of the limits, as far as it is known.
    #[must_use]
    pub fn status(&self) -> LimitStatus {
        match self {
            Self::Exceeded { status, .. } => *status,
            Self::Database(_) => LimitStatus::default(),
        }
    }
}

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
    /// Registered once, because a look-up by labels costs more than counting does.
    admitted: [Counter; PLANS.len()],
    flushes: Arc<Semaphore>,
    replica: i64,
    statements: AtomicI64,
    clock: Clock,
}

impl Limiter {
    /// A limiter that holds no leases. The metrics recorder must be installed.
    #[must_use]
    pub fn new(plans: Plans, database: Database, clock: Clock) -> Self {
        let open = plans.free.per_minute.and_then(NonZeroU32::new);
        // Registered, so that the series begin at 0.
        for plan in PLANS {
            let _ = Limit::ALL.map(|limit| refused(plan, limit));
        }
        let shared = Shared {
            plans,
            callers: DashMap::new(),
            open: open.map(|per_minute| TokenBuckets::new(per_minute, clock.clone())),
            status: TokenBuckets::new(STATUS_PER_MINUTE, clock.clone()),
            admitted: PLANS.map(|plan| metrics::counter!("limits_admitted_total", "plan" => plan)),
            flushes: Arc::new(Semaphore::new(CONCURRENT_FLUSHES)),
            replica: RandomState::new().hash_one(()).cast_signed(),
            statements: AtomicI64::new(1),
            clock,
        };
        Self {
            shared: Arc::new(shared),
            database,
        }
    }

    /// The same limiter for a worker: its `database` batches the worker's leases.
    #[must_use]
    pub fn for_worker(&self, database: Database) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            database,
        }
    }

    /// Admits one request of a caller. Anonymous callers are identified by `address`.
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
        self.count(Some(caller.plan), &admission);
        admission
    }

    async fn admit_limited(&self, key: CallerKey, limits: &PlanLimits) -> Admission {
        let now = self.shared.clock.now();
        let (decided, in_flight) = {
            let mut state = self.state(key);
            state.set_limits(limits, now);
            let in_flight = state.acquire_in_flight(now)?;
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
        let permit = Permit {
            counted: Some((key, slice)),
            _in_flight: in_flight,
        };
        Ok((status, permit))
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
        if let Err(wait) = self.shared.status.take(&key) {
            let mut state = self.state(key);
            state.set_limits(limits, now);
            let status = state.status(now);
            let refused = Err(Error::exceeded(&[Limit::Status], wait, status));
            self.count(Some(caller.plan), &refused);
            return refused.map(|(status, _)| status);
        }
        if !limits.has_rates() {
            return Ok(LimitStatus::default());
        }
        let unused = self.state(key).unused();
        // Number 0: like a late statement, it has no effect.
        let request = LeaseRequest {
            key: key.to_string(),
            limits: *limits,
            replica: self.shared.replica,
            ..LeaseRequest::default()
        };
        let row = db::limits::lease(&self.database, request).await?;
        let (mut state, now) = (self.state(key), self.shared.clock.now());
        state.set_limits(limits, now);
        // A lease that was granted meanwhile may not be in this row.
        Ok(state.status_of(&row, unused.min(state.unused()), now, now))
    }

    /// Admits one request to an endpoint that needs no credential.
    ///
    /// # Errors
    /// [`Error::Exceeded`].
    pub fn admit_open(&self, address: AddressKey) -> Admission {
        let open = self.shared.open.as_ref();
        let taken = open.map_or(Ok(()), |open| open.take(&address));
        let refused = |wait| Error::exceeded(&[Limit::Minute], wait, LimitStatus::default());
        let admission = taken.map(|()| <_>::default()).map_err(refused);
        self.count(None, &admission);
        admission
    }

    /// Counts an admission of a caller on `plan`; `None` is a request that needs no credential.
    fn count(&self, plan: Option<Plan>, admission: &Admission) {
        let plan = plan.map_or(PLANS.len() - 1, |plan| plan as usize);
        match admission {
            Ok(_) => self.shared.admitted[plan].increment(1),
            Err(Error::Exceeded { limits, .. }) => {
                for limit in limits {
                    refused(PLANS[plan], *limit).increment(1);
                }
            }
            Err(Error::Database(_)) => {}
        }
    }

    /// Gives back the request of a permit: it failed through the service's own fault.
    pub fn give_back(&self, permit: &Permit) {
        if let Some((key, slice)) = permit.counted {
            self.state(key).give_back(slice, self.shared.clock.now());
        }
    }

    /// Leases until no request of the caller waits. Runs in its own task, so that a disconnect does not lose a lease.
    async fn lease(self, key: CallerKey) {
        loop {
            let sent = self.shared.clock.now();
            let number = self.shared.statements.fetch_add(1, Ordering::Relaxed);
            let replica = self.shared.replica;
            let request = self
                .state(key)
                .next_request(key.to_string(), replica, number, sent);
            let leased = db::limits::lease(&self.database, request).await;
            let mut state = self.state(key);
            match leased {
                Ok(lease) => state.apply(lease, sent, self.shared.clock.now()),
                Err(error) => state.fail(&error),
            }
            state.is_leasing = state.needs_statement();
            if !state.is_leasing {
                return;
            }
        }
    }

    fn state(&self, key: CallerKey) -> RefMut<'_, CallerKey, CallerState> {
        self.shared.callers.entry(key).or_default()
    }

    /// Returns the unused requests of slices that have ended, and forgets idle callers. To be called every half second.
    pub async fn flush(&self) {
        let (now, mut flushed) = (self.shared.clock.now(), Vec::new());
        self.shared.callers.retain(|key, state| {
            if state.needs_flush(now) {
                flushed.push(*key);
            }
            !state.is_idle(now)
        });
        for key in flushed {
            // The semaphore is never closed.
            let permit = Arc::clone(&self.shared.flushes).acquire_owned().await;
            let mut state = self.state(key);
            if state.needs_flush(now) {
                state.is_leasing = true;
                let lease = self.clone().lease(key);
                tokio::spawn(async move {
                    lease.await;
                    drop(permit);
                });
            }
        }
    }

    /// Forgets the full token buckets.
    pub fn sweep(&self) {
        self.shared.status.sweep();
        self.shared.open.iter().for_each(TokenBuckets::sweep);
    }

    /// Returns all unused requests before a shutdown, also those of leases in progress. Nothing must be admitted any more.
    pub async fn close(&self) {
        const PERIOD: Duration = Duration::from_millis(10);
        let is_leasing = || self.shared.callers.iter().any(|state| state.is_leasing);
        loop {
            // Before: a lease that arrives after its state was looked at is returned in the next round.
            let was_leasing = is_leasing();
            let states = self.shared.callers.iter_mut();
            states.for_each(|mut state| state.end_lease());
            self.flush().await;
            if !was_leasing && !is_leasing() {
                return;
            }
            tokio::time::sleep(PERIOD).await;
        }
    }
}

fn refused(plan: &'static str, limit: Limit) -> Counter {
    metrics::counter!("limits_refused_total", "plan" => plan, "limit" => limit.as_str())
}
