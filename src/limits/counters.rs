//! Metrics of admissions and refusals, looked up once: each request counts, and finding a metric by its name
//! and labels costs more than counting.

use metrics::Counter;

use super::{Verdict, Window};
use crate::domain::plan::Plan;

/// What a request is counted as: its plan's, or one to what needs no credential.
#[derive(Debug, Clone, Copy)]
pub enum Counted {
    Free,
    Pro,
    Enterprise,
    Open,
}

impl From<Plan> for Counted {
    fn from(plan: Plan) -> Self {
        match plan {
            Plan::Free => Self::Free,
            Plan::Pro => Self::Pro,
            Plan::Enterprise => Self::Enterprise,
        }
    }
}

/// A counter for all that can happen.
#[derive(Debug)]
pub struct Counters {
    /// In the order of [`Counted`].
    admitted: [Counter; 4],
    /// The same, and each in the order of [`Window`].
    refused: [[Counter; 3]; 4],
}

impl Counters {
    /// Those of the recorder that is installed by now.
    pub fn new() -> Self {
        const PLANS: [&str; 4] = ["free", "pro", "enterprise", "open"];
        const WINDOWS: [Window; 3] = [Window::Minute, Window::Day, Window::InFlight];
        let refused = |plan| {
            WINDOWS.map(|window| {
                let limit = window.as_str();
                metrics::counter!("limits_refused_total", "plan" => plan, "limit" => limit)
            })
        };
        Self {
            admitted: PLANS.map(|plan| metrics::counter!("limits_admitted_total", "plan" => plan)),
            refused: PLANS.map(refused),
        }
    }

    /// Counts a decision.
    pub fn count(&self, counted: Counted, verdict: &Verdict) {
        match verdict {
            Verdict::Admitted(..) => self.admitted[counted as usize].increment(1),
            Verdict::Refused { windows, .. } => {
                for window in windows {
                    self.refused[counted as usize][*window as usize].increment(1);
                }
            }
            Verdict::Unknown(_) => {}
        }
    }
}
