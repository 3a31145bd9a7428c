//! Identifiers of resources.
//!
//! Invariant: each is within 1…2^53−1, so that JavaScript reads it exactly; those of categories and tags, which the
//! service does not interpret, are within ±(2^53−1).

use std::{fmt, str::FromStr};

use super::{Invalid, parse_digits};

/// `Number.MAX_SAFE_INTEGER` of JavaScript: doubles represent it and all smaller positive integers exactly.
const MAX: i64 = (1 << 53) - 1;

macro_rules! identifiers {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
        pub struct $name(i64);

        impl $name {
            /// Largest identifier.
            pub const MAX: i64 = MAX;

            /// Validates a number.
            pub const fn new(id: i64) -> Result<Self, Invalid> {
                match id {
                    1..=MAX => Ok(Self(id)),
                    _ => Err(Invalid::because("must be an integer from 1 to 9007199254740991")),
                }
            }

            /// Returns the number.
            pub const fn get(self) -> i64 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        /// Accepts only the decimal form of [`Display`](fmt::Display), without sign or leading zeros, so that each
        /// resource has one URL.
        impl FromStr for $name {
            type Err = Invalid;

            fn from_str(text: &str) -> Result<Self, Invalid> {
                Self::new(parse(text))
            }
        }
    )*};
}

/// Reads a number in its canonical form. Returns 0, which is no identifier, for any other text.
fn parse(text: &str) -> i64 {
    let is_canonical = !text.starts_with('0');
    parse_digits(text).filter(|_| is_canonical).unwrap_or(0)
}

/// Checks the identifier of a category or tag, which the client chooses: an integer that JavaScript reads exactly, of
/// either sign.
pub const fn check_label_id(id: i64) -> Result<i64, Invalid> {
    match id {
        ..=MAX if id >= -MAX => Ok(id),
        _ => Err(Invalid::because(
            "must be an integer from -9007199254740991 to 9007199254740991",
        )),
    }
}

identifiers! {
    /// Identifier of a pet.
    PetId
    /// Identifier of a store order.
    OrderId
    /// Identifier of an API key, an OAuth client or a session.
    CredentialId
    /// Identifier of a webhook.
    WebhookId
}
