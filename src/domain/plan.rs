//! Plans, which set the limits of callers, as `plans.*` configures them.

use utoipa::ToSchema;

/// Plan, which sets the limits of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ToSchema)]
#[schema(rename_all = "lowercase", example = "pro")]
pub enum Plan {
    /// By default, 60 requests a minute and 1,000 a day.
    Free,
    /// By default, 600 requests a minute and 50,000 a day.
    Pro,
    /// By default, no limits.
    Enterprise,
}

impl_names!(Plan, Free = "free", Pro = "pro", Enterprise = "enterprise",);

/// Limits of a plan; `None` is unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlanLimits {
    /// Requests in any 60 seconds.
    pub per_minute: Option<u32>,
    /// Requests in a UTC day.
    pub per_day: Option<u32>,
    /// Requests in progress.
    pub in_flight: Option<u32>,
}

impl PlanLimits {
    /// Returns true if the plan limits requests per minute or per day.
    pub const fn has_rates(&self) -> bool {
        self.per_minute.is_some() || self.per_day.is_some()
    }

    /// Returns the number of requests that an hour admits, or `None` if unlimited.
    pub fn per_hour(&self) -> Option<u32> {
        let by_minute = self.per_minute.map(|limit| limit.saturating_mul(60));
        [by_minute, self.per_day].into_iter().flatten().min()
    }
}
