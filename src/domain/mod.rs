//! Resources and their rules, as pure values.
//!
//! Invariants:
//! - No I/O; time is an argument.
//! - A value is valid: constructors validate, and `from_stored` takes values that were validated before they were
//!   stored, so that they stay readable if the rules become stricter. Other layers do not validate again.

/// Implements the names of the variants of an enum: `ALL`, `as_str`, `Display`, `FromStr` and `Serialize`.
macro_rules! impl_names {
    ($enum:ident, $($variant:ident = $name:literal),+ $(,)?) => {
        impl $enum {
            /// All values, in the order of their declaration.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// Returns the name.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }
        }

        impl std::fmt::Display for $enum {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::str::FromStr for $enum {
            type Err = $crate::domain::Invalid;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                let value = Self::ALL.into_iter().find(|value| value.as_str() == name);
                value.ok_or_else(|| $crate::domain::Invalid::none_of(&[$($name),+]))
            }
        }

        impl serde::Serialize for $enum {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }
    };
}

/// Declares texts, each with the function that checks it. `FromStr` validates a text.
macro_rules! texts {
    ($($(#[$doc:meta])* $name:ident: $check:expr;)+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
        pub struct $name(String);

        impl $name {
            /// Takes a stored text without validation.
            pub const fn from_stored(text: String) -> Self {
                Self(text)
            }

            /// Returns the text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::domain::Invalid;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                $check(text)?;
                Ok(Self(text.to_owned()))
            }
        }
    )+};
}

pub mod address;
pub mod caller;
pub mod change;
pub mod clock;
pub mod condition;
pub mod id;
pub mod image;
pub mod image_store;
pub mod limit;
pub mod order;
pub mod pet;
pub mod plan;
pub mod user;
pub mod webhook;

use std::{borrow::Cow, str::FromStr};

use precis_profiles::{UsernameCasePreserved, precis_core::profile::PrecisFastInvocation as _};
use unicode_security::MixedScript as _;

pub(crate) use impl_names;

/// Maximum number of characters of a [`Text`].
pub const MAX_TEXT: usize = 255;

texts! {
    /// Text of at most [`MAX_TEXT`] characters. It is read from stored JSON without validation.
    #[derive(serde::Deserialize)]
    Text: |text| check_text(text, MAX_TEXT);
}

/// Parses an integer that consists of digits only. Rust's own parser also accepts a plus sign.
pub fn parse_digits<T: FromStr>(digits: &str) -> Option<T> {
    let are_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
    are_digits.then(|| digits.parse().ok())?
}

/// Returns the first text, by the code points of its characters, behind all that begin with `prefix`. `None` if there is none,
/// as for the empty prefix.
pub fn end_of_prefix(prefix: &str) -> Option<String> {
    let mut end: Vec<char> = prefix.chars().collect();
    while let Some(last) = end.pop() {
        if let Some(next) = (last..=char::MAX).nth(1) {
            end.push(next);
            return Some(end.into_iter().collect());
        }
    }
    None
}

/// Reason for the client why a value is invalid: "must be 1 to 255 characters".
///
/// Never contains the value, which may be long, hostile or secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(pub Cow<'static, str>);

impl Invalid {
    /// Creates a reason from a constant.
    pub const fn because(reason: &'static str) -> Self {
        Self(Cow::Borrowed(reason))
    }

    /// Creates the reason for a value that is none of at least two names: "must be a, b or c".
    pub fn none_of(names: &[&str]) -> Self {
        let (last, others) = names.split_last().unwrap_or((&"", &[]));
        Self(format!("must be {} or {last}", others.join(", ")).into())
    }
}

/// Checks that a text has at most `max` characters (Unicode scalar values), and no NUL, which PostgreSQL cannot store.
fn check_text(text: &str, max: usize) -> Result<(), Invalid> {
    // A text has at most as many characters as bytes: short texts need no count.
    if text.len() > max && text.chars().count() > max {
        return Err(Invalid(format!("must be at most {max} characters").into()));
    }
    if text.contains('\0') {
        return Err(Invalid::because("must not contain the character NUL"));
    }
    Ok(())
}

/// Checks the name of a caller or user: 1–64 characters, without control characters, and without white space at either
/// end.
fn check_caller_name(name: &str) -> Result<(), Invalid> {
    check_text(name, 64)?;
    if name.is_empty() || name.trim() != name || name.chars().any(char::is_control) {
        return Err(Invalid::because(
            "must be 1 to 64 characters, without control characters or white space around it",
        ));
    }
    Ok(())
}

/// Validates a name that a person gives to a caller or user, and returns it in the form of UsernameCasePreserved (RFC 8265 §3.4). A
/// name that mixes scripts, and so may look like another one, is refused (UTS #39 §5.1).
fn canonical_name(name: &str) -> Result<String, Invalid> {
    check_caller_name(name)?;
    let canonical = UsernameCasePreserved::enforce(name).map_err(|_| {
        let reason = if name.contains(' ') {
            "must have no spaces; a hyphen, a dot or an underscore can take their place"
        } else {
            "must consist of letters, digits and ASCII symbols, without invisible or bidirectional characters"
        };
        Invalid::because(reason)
    })?;
    if !canonical.is_single_script() {
        return Err(Invalid::because(
            "must not mix scripts, as Latin and Cyrillic",
        ));
    }
    check_caller_name(&canonical)?;
    Ok(canonical.into_owned())
}

#[cfg(test)]
mod tests {
    use super::end_of_prefix;

    #[test]
    fn texts_with_a_prefix_end_before_the_next_text() {
        for (prefix, end) in [
            (":rex", Some(":rey")),
            (":a\u{d7ff}", Some(":a\u{e000}")),
            (":a\u{10ffff}", Some(":b")),
            ("\u{10ffff}", None),
            ("", None),
        ] {
            assert_eq!(end_of_prefix(prefix).as_deref(), end, "{prefix:?}");
        }
    }
}
