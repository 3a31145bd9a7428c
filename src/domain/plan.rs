//! Plans, which set the limits of callers.

use std::{fmt, str::FromStr};

use super::Invalid;

/// Plan of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Plan {
    /// 60 requests a minute, 1,000 a day, unless configured otherwise.
    Free,
    /// 600 requests a minute, 50,000 a day, unless configured otherwise.
    Pro,
    /// No limits, unless configured otherwise.
    Enterprise,
}

impl Plan {
    /// All plans, smallest first.
    pub const ALL: [Self; 3] = [Self::Free, Self::Pro, Self::Enterprise];

    /// Returns the name, in lower case.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Pro => "pro",
            Self::Enterprise => "enterprise",
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Plan {
    type Err = Invalid;

    fn from_str(name: &str) -> Result<Self, Invalid> {
        Self::ALL
            .into_iter()
            .find(|plan| plan.as_str() == name)
            .ok_or(Invalid::because("must be free, pro or enterprise"))
    }
}
