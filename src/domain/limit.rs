//! Limits of a caller, and their state.

use std::time::Duration;

/// Limit that can refuse a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Requests in any 60 s.
    Minute,
    /// Requests in the UTC day.
    Day,
    /// Requests in progress (`plans.*.in_flight`).
    InFlight,
    /// Requests to `GET /limits` itself.
    Status,
}

impl Limit {
    /// All limits.
    pub const ALL: [Self; 4] = [Self::Minute, Self::Day, Self::InFlight, Self::Status];

    /// Returns the name in headers, problems and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::Day => "day",
            Self::InFlight => "in-flight",
            Self::Status => "limits",
        }
    }
}

/// Numbers of requests of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestCounts {
    /// Admitted requests.
    pub admitted: u64,
    /// Requests that a limit of the plan refused.
    pub refused: u64,
}

/// State of one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Requests that the window admits.
    pub limit: u32,
    /// Requests that it still admits.
    pub remaining: u32,
    /// Time until it admits more than that.
    pub reset: Duration,
}

/// State of a caller's limits; `None` is unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LimitStatus {
    /// Limit in any 60 s.
    pub minute: Option<Window>,
    /// Limit in the UTC day.
    pub day: Option<Window>,
}
