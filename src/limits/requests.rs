//! Limits of requests: admission, its metrics, and the history of the requests of callers.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use dashmap::DashMap;
use metrics::Counter;

use super::{Admission, Error, Limiter, Permit, token_buckets::TokenBuckets};
use crate::{
    config::Config,
    db::{self, Database},
    domain::{
        address::AddressKey,
        caller::{Caller, CallerId, CallerKey},
        clock::Clock,
        limit::{Limit, RequestCounts},
        plan::Plan,
    },
};

/// Kinds of requests in the label `plan`: the plans, and requests that need no credential.
const PLANS: [&str; 4] = ["free", "pro", "enterprise", "open"];
/// Requests to `GET /limits` per minute and caller.
const STATUS_PER_MINUTE: NonZeroU32 = NonZeroU32::new(60).unwrap();

/// Limits of requests: of callers by their plan, of `GET /limits`, and of operations that need no credential. Clones
/// share the counts.
#[derive(Debug, Clone)]
pub struct RateLimits {
    /// Limits of the plans.
    pub limiter: Limiter,
    /// History of the requests of callers.
    pub usage: Usage,
    /// `GET /limits` by caller.
    status: TokenBuckets<CallerKey>,
    /// Operations that need no credential, by client address; `None` is unlimited.
    open: Option<TokenBuckets<AddressKey>>,
    /// Registered once, because a look-up by labels costs more than counting does.
    admitted: [Counter; PLANS.len()],
}

impl RateLimits {
    /// Creates limits without any use. The metrics recorder must be installed.
    pub fn new(config: &Config, database: Database, clock: Clock) -> Self {
        let plans = config.plans.clone();
        // Registered, so that the series begin at 0.
        for plan in PLANS {
            let _ = Limit::ALL.map(|limit| refused(plan, limit));
        }
        let of_free = plans
            .limits(Plan::Free)
            .per_minute
            .and_then(NonZeroU32::new);
        Self {
            usage: Usage::default(),
            open: of_free.map(|limit| TokenBuckets::new(limit, limit, clock.clone())),
            status: TokenBuckets::new(STATUS_PER_MINUTE, STATUS_PER_MINUTE, clock.clone()),
            admitted: PLANS.map(|plan| metrics::counter!("limits_admitted_total", "plan" => plan)),
            limiter: Limiter::new(plans, database, clock),
        }
    }

    /// Returns the same limits for a worker: its `database` batches its leases apart from those of other workers.
    pub fn for_worker(&self, database: Database) -> Self {
        Self {
            limiter: self.limiter.for_worker(database),
            ..self.clone()
        }
    }

    /// Removes full token buckets.
    pub fn sweep(&self) {
        self.status.sweep();
        if let Some(open) = &self.open {
            open.sweep();
        }
    }

    /// Counts a request of a caller on an unlimited plan.
    pub fn admit_unlimited(&self, plan: Plan, caller: Option<CallerId>) {
        self.admitted[plan as usize].increment(1);
        self.usage.count(caller, true);
    }

    /// Admits a request of a caller: from memory, or after a lease.
    pub async fn admit(&self, caller: &Caller, client: Option<AddressKey>) -> Admission {
        let admission = self.limiter.admit(caller, client).await;
        self.counted((caller.plan as usize, caller.id), admission)
    }

    /// Admits a request to `GET /limits`, which has a limit of its own and does not count against those it reports.
    pub async fn admit_status(&self, caller: &Caller, client: Option<AddressKey>) -> Admission {
        if let Err(retry_after) = self.status.take(&CallerKey::new(caller, client)) {
            let refusal = Err(exceeded(Limit::Status, retry_after));
            return self.counted((caller.plan as usize, None), refusal);
        }
        let status = self.limiter.status(caller, client).await?;
        Ok((status, Permit::default()))
    }

    /// Admits a request that needs no credential.
    pub fn admit_open(&self, client: Option<AddressKey>) -> Result<(), Error> {
        let Some(client) = client else {
            return Ok(());
        };
        let taken = (self.open.as_ref()).map_or(Ok(()), |open| open.take(&client));
        let admission = taken.map_err(|retry_after| exceeded(Limit::Minute, retry_after));
        self.counted((PLANS.len() - 1, None), admission)
    }

    /// Counts an admission in the metrics and in the usage of its caller, and returns it; `plan` is an index of [`PLANS`].
    fn counted<T>(
        &self,
        (plan, caller): (usize, Option<CallerId>),
        admission: Result<T, Error>,
    ) -> Result<T, Error> {
        match &admission {
            Ok(_) => {
                self.admitted[plan].increment(1);
                self.usage.count(caller, true);
            }
            Err(Error::Exceeded(limits, _)) => {
                self.usage.count(caller, false);
                for limit in limits {
                    refused(PLANS[plan], *limit).increment(1);
                }
            }
            Err(Error::Database(_)) => {}
        }
        admission
    }
}

fn refused(plan: &'static str, limit: Limit) -> Counter {
    metrics::counter!("limits_refused_total", "plan" => plan, "limit" => limit.as_str())
}

fn exceeded(limit: Limit, retry_after: Duration) -> Error {
    Error::Exceeded(vec![limit], retry_after)
}

/// Requests of callers since the last write, which is once a second: a statement for each request would cost more than the request.
/// Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Usage(Arc<DashMap<CallerId, RequestCounts>>);

impl Usage {
    /// Counts a request, unless its caller is anonymous.
    pub fn count(&self, caller: Option<CallerId>, is_admitted: bool) {
        let Some(caller) = caller else {
            return;
        };
        let mut counts = self.0.entry(caller).or_default();
        if is_admitted {
            counts.admitted += 1;
        } else {
            counts.refused += 1;
        }
    }

    /// Writes the counts in one statement, if there are any. After a failure, the next write includes them.
    pub async fn write(&self, database: &Database) -> Result<(), db::Error> {
        let mut counts = Vec::new();
        self.0.retain(|caller, count| {
            counts.push((*caller, *count));
            false
        });
        if counts.is_empty() {
            return Ok(());
        }
        let added = database.run(async |it| db::usage::add(it, &counts).await);
        let added = added.await;
        if added.is_err() {
            for (caller, count) in counts {
                let mut counts = self.0.entry(caller).or_default();
                counts.admitted += count.admitted;
                counts.refused += count.refused;
            }
        }
        added
    }
}
