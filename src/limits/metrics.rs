//! Counters of admitted and refused requests. Registered once, because a look-up by name and labels costs more than
//! counting does.

use metrics::Counter;

use super::{Admission, Error};
use crate::domain::{limit::Limit, plan::Plan};

/// Kinds of requests in the label `plan`; the last one is requests that need no credential.
const PLANS: [&str; 4] = ["free", "pro", "enterprise", "open"];
const LIMITS: [Limit; 4] = [Limit::Minute, Limit::Day, Limit::InFlight, Limit::Status];

#[derive(Debug)]
pub struct LimitMetrics {
    admitted: [Counter; PLANS.len()],
    refused: [[Counter; LIMITS.len()]; PLANS.len()],
}

impl LimitMetrics {
    /// Registers the counters with the recorder, which must be installed.
    pub fn new() -> Self {
        let refused = |plan| {
            LIMITS.map(|limit| {
                metrics::counter!("limits_refused_total", "plan" => plan, "limit" => limit.as_str())
            })
        };
        Self {
            admitted: PLANS.map(|plan| metrics::counter!("limits_admitted_total", "plan" => plan)),
            refused: PLANS.map(refused),
        }
    }

    /// Counts an admission of a caller on `plan`; `None` is a request that needs no credential.
    pub fn count(&self, plan: Option<Plan>, admission: &Admission) {
        let plan = plan.map_or(PLANS.len() - 1, |plan| plan as usize);
        match admission {
            Ok(_) => self.admitted[plan].increment(1),
            Err(Error::Exceeded { limits, .. }) => {
                for limit in limits {
                    self.refused[plan][*limit as usize].increment(1);
                }
            }
            Err(Error::Database(_)) => {}
        }
    }
}
