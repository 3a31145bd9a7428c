//! May you, now: how many requests a caller's plan admits. Knows no HTTP types.
//!
//! Invariants: in any 60 s and in any UTC day no more than the limit is admitted; the minute and the day
//! are one decision, so that when one refuses the other is not spent; a refusal costs no database
//! statement as long as it is sure to last.
//!
//! Where one process has the database to itself (`replica`), the minute is a log in memory and the day a
//! lease on a durable count (`day.rs`); without the count nothing is admitted that it does not know of.
//! Where several share it (`cluster`), one statement decides both ([`db::usage::admit`]). Should those
//! counters be out of reach, requests pass, held to the minute by each process's own log; that is logged
//! once and counted.
//!
//! What is sure to be refused is refused from memory: by the log, by a spent lease, or by the shared
//! counters' last refusal for as long as it lasts. There is no token bucket (governor's GCRA) in front of
//! these: it would spend on requests that the log behind it refuses, then refuse those that the log has
//! room for, and a request made at `Retry-After` would not be admitted. It guards addresses ([`address`])
//! and logins ([`logins`]), to whom nothing is promised.

pub mod address;
mod bucket;
mod counters;
mod day;
pub mod logins;
mod minute;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

pub use self::bucket::{InFlight, Permit};
use self::{
    address::AddressKey,
    bucket::{Bucket, State},
    counters::{Counted, Counters},
    day::Lease,
};
use crate::{
    config::{PlanLimits, Plans},
    db::{self, Database},
    domain::{
        caller::{Caller, CallerId},
        clock::{Clock, Moment},
    },
};

/// Which window a request was refused for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// Any 60 s.
    Minute,
    /// The UTC day.
    Day,
    /// Requests at once (`plans.*.in_flight`).
    InFlight,
}

impl Window {
    /// Its name in headers, problems and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::Day => "day",
            Self::InFlight => "in-flight",
        }
    }
}

/// How one limit stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Requests that the window admits.
    pub limit: u32,
    /// Requests that it still would.
    pub remaining: u32,
    /// Until it would admit more than that.
    pub reset: Duration,
}

/// How both limits of a caller stand; `None` is unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Standings {
    /// Any 60 s.
    pub minute: Option<Standing>,
    /// The UTC day.
    pub day: Option<Standing>,
}

/// What became of a request.
#[derive(Debug)]
pub enum Verdict {
    /// It may go on.
    Admitted(Standings, Permit),
    /// It may not.
    Refused {
        /// The windows that do not admit it.
        windows: Vec<Window>,
        /// Until it would be admitted.
        retry_after: Duration,
        /// How the limits stand.
        standings: Standings,
    },
    /// Nobody can say, because the count of the day is out of reach.
    Unknown(db::Error),
}

/// Whether the limits are this process's alone.
#[derive(Debug, Clone)]
pub enum Scope {
    /// One process has the database to itself.
    Replica(Database),
    /// Several share it; these connections are for the counters alone.
    Cluster(Database),
}

/// Counts requests against plans. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Limiter(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    plans: Plans,
    scope: Scope,
    clock: Clock,
    buckets: Mutex<HashMap<String, Arc<Bucket>>>,
    counters: Counters,
    /// Whether the counters were out of reach when they were asked last.
    counters_out: AtomicBool,
    /// Until when they are not asked again then; nanoseconds.
    counters_out_until: AtomicU64,
}

/// How long the counters are left alone after they failed.
const COUNTERS_PAUSE: Duration = Duration::from_millis(500);

impl Limiter {
    /// A limiter that begins with nothing used. Metrics must be kept by now: its own are looked up here.
    #[must_use]
    pub fn new(plans: Plans, scope: Scope, clock: Clock) -> Self {
        Self(Arc::new(Shared {
            plans,
            scope,
            clock,
            buckets: Mutex::default(),
            counters: Counters::new(),
            counters_out: AtomicBool::new(false),
            counters_out_until: AtomicU64::new(0),
        }))
    }

    /// Asks for one request of a caller. `address` tells callers without a name apart.
    pub async fn admit(&self, caller: &Caller, address: Option<AddressKey>) -> Verdict {
        let limits = self.0.plans.limits(caller.plan);
        let unlimited = limits
            .per_minute
            .or(limits.per_day)
            .or(limits.in_flight)
            .is_none();
        let verdict = if unlimited {
            Verdict::Admitted(Standings::default(), Permit::default())
        } else {
            let bucket = self.bucket(bucket_name(caller, address));
            // Boxed: a future is moved whole, and this one is large.
            Box::pin(self.admit_limited(&bucket, limits)).await
        };
        self.0.counters.count(Counted::from(caller.plan), &verdict);
        verdict
    }

    /// Asks for one request from an address to what needs no credential: the minute of plan Free, counted
    /// by each process alone, since a stranger is worth no row.
    #[must_use]
    pub fn admit_stranger(&self, address: AddressKey) -> Verdict {
        let bucket = self.bucket(format!("open:{address}"));
        let limits = PlanLimits {
            per_day: None,
            in_flight: None,
            ..self.0.plans.free.clone()
        };
        let now = self.0.clock.now();
        let verdict = bucket.state().admit_by_minute(&bucket, &limits, now);
        self.0.counters.count(Counted::Open, &verdict);
        verdict
    }

    async fn admit_limited(&self, bucket: &Arc<Bucket>, limits: &PlanLimits) -> Verdict {
        let Some(in_flight) = InFlight::enter(bucket, limits) else {
            return Verdict::Refused {
                windows: vec![Window::InFlight],
                retry_after: Duration::from_secs(1),
                standings: bucket.state().known(limits, self.0.clock.now()),
            };
        };
        let verdict = match &self.0.scope {
            Scope::Replica(database) => self.admit_alone(bucket, limits, database).await,
            Scope::Cluster(counters) => self.admit_shared(bucket, limits, counters).await,
        };
        match verdict {
            Verdict::Admitted(standings, permit) => {
                Verdict::Admitted(standings, permit.with(in_flight))
            }
            other => other,
        }
    }

    async fn admit_alone(
        &self,
        bucket: &Arc<Bucket>,
        limits: &PlanLimits,
        database: &Database,
    ) -> Verdict {
        loop {
            let decided = bucket.state().decide(bucket, limits, self.0.clock.now());
            if let Some(verdict) = decided {
                return verdict;
            }
            // The day is not known: ask, one of all that wait here.
            let _leasing = bucket.leasing.lock().await;
            let now = self.0.clock.now();
            let unused = {
                let mut state = bucket.state();
                if let Some(verdict) = state.decide(bucket, limits, now) {
                    return verdict;
                }
                if self.counters_rest(now) {
                    return Verdict::Unknown(db::Error::TimedOut);
                }
                state.lease.take_out()
            };
            // Should this future be dropped here, what was taken out is lost: fewer, never more.
            let limit = limits.per_day.unwrap_or(u32::MAX);
            let (pool, want) = (database.pool(), Lease::size(limit));
            match db::usage::lease(pool, &bucket.name, want, limit, unused).await {
                Ok(grant) => {
                    self.0.counters_out.store(false, Ordering::Relaxed);
                    bucket.state().lease = Lease::new(grant, limit, now);
                }
                Err(error) => {
                    self.counters_failed(&error, now);
                    return Verdict::Unknown(error);
                }
            }
        }
    }

    async fn admit_shared(
        &self,
        bucket: &Arc<Bucket>,
        limits: &PlanLimits,
        counters: &Database,
    ) -> Verdict {
        let asked = self.0.clock.now();
        if let Some(refusal) = bucket.state().sure_refusal(limits, asked) {
            return refusal;
        }
        if limits.per_minute.or(limits.per_day).is_none() {
            return bucket.state().admit_by_minute(bucket, limits, asked);
        }
        if !self.counters_rest(asked) {
            let pool = counters.pool();
            let (per_minute, per_day) = (limits.per_minute, limits.per_day);
            match db::usage::admit(pool, &bucket.name, per_minute, per_day).await {
                Ok(decision) => {
                    self.0.counters_out.store(false, Ordering::Relaxed);
                    return bucket.state().follow(bucket, decision, limits, asked);
                }
                Err(error) => self.counters_failed(&error, self.0.clock.now()),
            }
        }
        metrics::counter!("limits_uncounted_total").increment(1);
        let now = self.0.clock.now();
        bucket.state().admit_by_minute(bucket, limits, now)
    }

    /// Whether the counters are left alone right now.
    fn counters_rest(&self, now: Moment) -> bool {
        self.0.counters_out.load(Ordering::Relaxed)
            && now < Duration::from_nanos(self.0.counters_out_until.load(Ordering::Relaxed))
    }

    /// Says so once, and leaves the counters alone for a while.
    fn counters_failed(&self, error: &db::Error, now: Moment) {
        let until = u64::try_from((now + COUNTERS_PAUSE).as_nanos()).unwrap_or(u64::MAX);
        self.0.counters_out_until.store(until, Ordering::Relaxed);
        if !self.0.counters_out.swap(true, Ordering::Relaxed) {
            tracing::error!(%error, "the counters of requests are out of reach");
        }
    }

    /// Takes an admission back: the request failed through our own fault.
    pub async fn take_back(&self, permit: Permit) {
        let Some((bucket, decision)) = permit.take_back(self.0.clock.now()) else {
            return;
        };
        if let Scope::Cluster(counters) = &self.0.scope
            && let Err(error) = db::usage::take_back(counters.pool(), &bucket.name, &decision).await
        {
            tracing::debug!(%error, "an admission could not be taken back");
        }
    }

    /// Forgets whoever was quiet for a minute, and gives what is left of their leases back.
    pub async fn sweep(&self) {
        let now = self.0.clock.now();
        let quiet = self.take_out(|state| state.is_quiet(now));
        self.give_back(quiet).await;
    }

    /// Gives all leases back: the process is about to stop.
    pub async fn close(&self) {
        let all = self.take_out(|_| true);
        self.give_back(all).await;
    }

    fn take_out(&self, mut which: impl FnMut(&mut State) -> bool) -> Vec<Arc<Bucket>> {
        let mut buckets = self.buckets();
        let mut out = Vec::new();
        buckets.retain(|_, bucket| {
            // Somebody who holds it is about to write to it.
            let stays = Arc::strong_count(bucket) > 1 || !which(&mut bucket.state());
            if !stays {
                out.push(Arc::clone(bucket));
            }
            stays
        });
        buckets.shrink_to_fit();
        out
    }

    async fn give_back(&self, buckets: Vec<Arc<Bucket>>) {
        let Scope::Replica(database) = &self.0.scope else {
            return;
        };
        for bucket in buckets {
            let unused = bucket.state().lease.take_out();
            if let Some(unused) = unused
                && let Err(error) =
                    db::usage::give_back(database.pool(), &bucket.name, unused).await
            {
                tracing::debug!(%error, "a lease could not be given back");
            }
        }
    }

    fn bucket(&self, name: String) -> Arc<Bucket> {
        let mut buckets = self.buckets();
        Arc::clone(
            buckets
                .entry(name)
                .or_insert_with_key(|name| Arc::new(Bucket::new(name.clone()))),
        )
    }

    fn buckets(&self) -> MutexGuard<'_, HashMap<String, Arc<Bucket>>> {
        self.0
            .buckets
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whole seconds, rounded up: what is promised for then has happened by then.
#[must_use]
pub fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

/// The bucket of a caller: all its credentials share it.
#[must_use]
pub fn bucket_name(caller: &Caller, address: Option<AddressKey>) -> String {
    match (caller.id, address) {
        (Some(id), _) => caller_bucket(id),
        (None, Some(address)) => format!("address:{address}"),
        (None, None) => "address:".to_owned(),
    }
}

/// The bucket of a caller with a name.
#[must_use]
pub fn caller_bucket(id: CallerId) -> String {
    format!("caller:{}", id.0)
}
