//! Plans, which set the limits of callers.

/// Plan of a caller. Its limits are configured as `plans.*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Plan {
    /// By default, 60 requests a minute and 1,000 a day.
    Free,
    /// By default, 600 requests a minute and 50,000 a day.
    Pro,
    /// By default, no limits.
    Enterprise,
}

impl_names!(
    Plan,
    "must be free, pro or enterprise",
    Free = "free",
    Pro = "pro",
    Enterprise = "enterprise",
);
