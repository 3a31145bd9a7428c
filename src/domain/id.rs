//! Identifiers. Invariant: each is within 1…2^53−1, so that JavaScript reads it exactly.

use std::{fmt, str::FromStr};

use super::Invalid;

/// The largest integer that an IEEE 754 double, JavaScript's only number, holds exactly together with its
/// neighbours (`Number.MAX_SAFE_INTEGER`).
const MAX: i64 = (1 << 53) - 1;

macro_rules! identifiers {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(i64);

        impl $name {
            /// The largest.
            pub const MAX: i64 = MAX;

            /// Checks the bounds.
            ///
            /// # Errors
            /// [`Invalid`] outside of them.
            pub const fn new(id: i64) -> Result<Self, Invalid> {
                if id >= 1 && id <= MAX {
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

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        /// Reads the one decimal form that [`Display`](fmt::Display) writes: no sign, no leading zero, so
        /// that each thing has one URL.
        impl FromStr for $name {
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
    )*};
}

identifiers! {
    /// Identifier of a pet.
    PetId
    /// Identifier of a store order.
    OrderId
}
