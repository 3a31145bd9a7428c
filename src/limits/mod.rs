//! May you, now: how many requests a caller's plan admits. Knows no HTTP types.
//!
//! Invariants: in any 60 s and in any UTC day no more than the limit is admitted; the minute and the day
//! are one decision, so that when one refuses the other is not spent; a refusal costs no database
//! statement as long as it is sure to last.
//!
//! Where one process has the database to itself (`replica`), the minute is a log in memory and the day a
//! lease on a durable count ([`day`]). Where several share it (`cluster`), one statement decides both
//! ([`db::usage::admit`]) on connections of its own, and the log in memory only stands in for it: should
//! the counters be out of reach, it still holds the minute, requests pass, and that is logged and counted.
//!
//! In front of both stands a gate: the moment before which nothing can have become free. A flood is
//! refused there. It is not a token bucket because that, too, spends on requests that the log refuses
//! behind it, and would then refuse those that the log has room for.

pub mod address;
mod bucket;
mod day;
mod minute;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

pub use self::bucket::{InFlight, Permit};
use self::{
    bucket::{Bucket, State},
    day::Lease,
};
use crate::{
    config::{PlanLimits, Plans},
    db::{self, Database},
    domain::{
        caller::Caller,
        clock::{Clock, Moment},
        plan::Plan,
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
        /// The window that would be the last to admit it.
        window: Window,
        /// Until it would be admitted.
        retry_after: Duration,
        /// How the limits stand.
        standings: Standings,
    },
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
    /// Until when the counters are not asked again after they failed; nanoseconds.
    counters_out_until: AtomicU64,
}

/// How long the counters are left alone after they failed.
const COUNTERS_PAUSE: Duration = Duration::from_secs(1);

impl Limiter {
    /// A limiter that begins with nothing used.
    #[must_use]
    pub fn new(plans: Plans, scope: Scope, clock: Clock) -> Self {
        Self(Arc::new(Shared {
            plans,
            scope,
            clock,
            buckets: Mutex::default(),
            counters_out_until: AtomicU64::new(0),
        }))
    }

    /// Asks for one request of a caller. `address` tells callers without a name apart.
    pub async fn admit(&self, caller: &Caller, address: &str) -> Verdict {
        let limits = self.0.plans.limits(caller.plan);
        let unlimited = limits
            .per_minute
            .or(limits.per_day)
            .or(limits.in_flight)
            .is_none();
        let verdict = if unlimited {
            Verdict::Admitted(Standings::default(), Permit::default())
        } else {
            self.admit_limited(&self.bucket(bucket_name(caller, address)), limits)
                .await
        };
        count(caller.plan, &verdict);
        verdict
    }

    async fn admit_limited(&self, bucket: &Arc<Bucket>, limits: &PlanLimits) -> Verdict {
        let Some(in_flight) = InFlight::enter(bucket, limits) else {
            return Verdict::Refused {
                window: Window::InFlight,
                retry_after: Duration::from_secs(1),
                standings: Standings::default(),
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
            refused @ Verdict::Refused { .. } => refused,
        }
    }

    async fn admit_alone(
        &self,
        bucket: &Arc<Bucket>,
        limits: &PlanLimits,
        database: &Database,
    ) -> Verdict {
        loop {
            {
                let now = self.0.clock.now();
                let mut state = bucket.state();
                if let Some(verdict) = state.decide(bucket, limits, now) {
                    return verdict;
                }
            }
            // The day is not known: ask, one of all that wait here.
            let _leasing = bucket.leasing.lock().await;
            let now = self.0.clock.now();
            let unused = {
                let mut state = bucket.state();
                if let Some(verdict) = state.decide(bucket, limits, now) {
                    return verdict;
                }
                state.lease.take_out()
            };
            // Should this future be dropped here, what was taken out is lost: fewer, never more.
            let limit = limits.per_day.unwrap_or(u32::MAX);
            let want = Lease::size(limit);
            let pool = database.pool();
            match db::usage::lease(pool, &bucket.name, want, limit, unused, None).await {
                Ok(grant) => bucket.state().lease = Lease::new(grant, now),
                Err(error) => {
                    self.counters_failed(&error, now);
                    return bucket.state().admit_by_minute(bucket, limits, now);
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
        let now = self.0.clock.now();
        if let Some(refusal) = bucket.state().still_refused(limits, now) {
            return refusal;
        }
        if now < Duration::from_nanos(self.0.counters_out_until.load(Ordering::Relaxed)) {
            return bucket.state().admit_by_minute(bucket, limits, now);
        }
        let pool = counters.pool();
        let decision =
            db::usage::admit(pool, &bucket.name, limits.per_minute, limits.per_day).await;
        let now = self.0.clock.now();
        match decision {
            Ok(decision) => bucket.state().follow(bucket, decision, limits, now),
            Err(error) => {
                self.counters_failed(&error, now);
                bucket.state().admit_by_minute(bucket, limits, now)
            }
        }
    }

    /// Says so once, and leaves the counters alone for a while.
    fn counters_failed(&self, error: &db::Error, now: Moment) {
        metrics::counter!("limits_uncounted_total").increment(1);
        let until = u64::try_from((now + COUNTERS_PAUSE).as_nanos()).unwrap_or(u64::MAX);
        let before = self.0.counters_out_until.swap(until, Ordering::Relaxed);
        if Duration::from_nanos(before) + COUNTERS_PAUSE < now || before == 0 {
            tracing::error!(%error, "the counters of requests are out of reach: only the minute's limit holds, in this process");
        }
    }

    /// Takes an admission back: the request failed through our own fault.
    pub async fn take_back(&self, permit: Permit) {
        let Some(bucket) = permit.take_back(self.0.clock.now()) else {
            return;
        };
        if let Scope::Cluster(counters) = &self.0.scope
            && let Err(error) = db::usage::take_back(counters.pool(), &bucket.name).await
        {
            tracing::debug!(%error, "an admission could not be taken back");
        }
    }

    /// Forgets whoever was quiet for a minute, and gives what is left of their leases back.
    pub async fn sweep(&self) {
        let now = self.0.clock.now();
        let quiet = self.take_out(|state| state.is_quiet(now));
        self.give_back(quiet).await;
        if let Scope::Cluster(counters) = &self.0.scope
            && let Err(error) = db::usage::sweep(counters.pool()).await
        {
            tracing::debug!(%error, "old counts could not be swept");
        }
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
                return;
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
pub fn bucket_name(caller: &Caller, address: &str) -> String {
    match caller.id {
        Some(id) => format!("caller:{}", id.0),
        None => format!("address:{address}"),
    }
}

fn count(plan: Plan, verdict: &Verdict) {
    let plan = plan.as_str();
    match verdict {
        Verdict::Admitted(..) => {
            metrics::counter!("limits_admitted_total", "plan" => plan).increment(1);
        }
        Verdict::Refused { window, .. } => {
            let limit = window.as_str();
            metrics::counter!("limits_refused_total", "plan" => plan, "limit" => limit)
                .increment(1);
        }
    }
}
