//! Identifiers. Invariant: a `PetId` is within 1…2^53−1, so that JavaScript reads it exactly.

use std::{fmt, str::FromStr};

use super::Invalid;

/// Identifier of a pet: 1…[`PetId::MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PetId(i64);

impl PetId {
    /// The largest integer that an IEEE 754 double, JavaScript's only number, holds exactly
    /// together with its neighbours (`Number.MAX_SAFE_INTEGER`).
    pub const MAX: i64 = (1 << 53) - 1;

    /// Checks the bounds.
    ///
    /// # Errors
    /// [`Invalid`] outside 1…[`PetId::MAX`].
    pub const fn new(id: i64) -> Result<Self, Invalid> {
        if id >= 1 && id <= Self::MAX {
            Ok(Self(id))
        } else {
            Err(Invalid::because(
                "must be an integer from 1 to 9007199254740991",
            ))
        }
    }

    /// The plain number.
    #[must_use]
    pub const fn get(self) -> i64 {
        self.0
    }
}

impl fmt::Display for PetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Reads the one decimal form that [`Display`](fmt::Display) writes: no sign, no leading zero, so that
/// a pet has one URL.
impl FromStr for PetId {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let number = text.parse().unwrap_or(0);
        let id = Self::new(number)?;
        if text.starts_with(['+', '0']) {
            return Self::new(0);
        }
        Ok(id)
    }
}
