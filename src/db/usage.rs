//! Use of a set of connections, for metrics.

use std::iter::Sum;

/// Use of a set of connections.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    /// Number of open connections that are idle.
    pub idle: u32,
    /// Number of connections in use.
    pub used: u32,
    /// Maximum number of connections, if there is one.
    pub max: Option<u32>,
    /// Number of requests that wait for a connection.
    pub waiting: usize,
}

impl Sum for Usage {
    fn sum<I: Iterator<Item = Self>>(usages: I) -> Self {
        usages
            .reduce(|sum, usage| Self {
                idle: sum.idle + usage.idle,
                used: sum.used + usage.used,
                max: sum.max.zip(usage.max).map(|(sum, max)| sum + max),
                waiting: sum.waiting + usage.waiting,
            })
            .unwrap_or_default()
    }
}
