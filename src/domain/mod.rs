//! Resources and their rules, as pure values.
//!
//! Invariants:
//! - No I/O; time is an argument.
//! - A value is valid: constructors validate, and `from_stored` takes values that were validated before they were
//!   stored. Other layers do not validate again.

pub mod address;
pub mod caller;
pub mod clock;
pub mod id;
pub mod image;
pub mod limit;
pub mod merge_patch;
pub mod order;
pub mod pet;
pub mod plan;
pub mod user;

use std::borrow::Cow;

/// Reason for the client why a value is invalid: "must be 1 to 255 characters".
///
/// Never contains the value, which may be long, hostile or secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(pub Cow<'static, str>);

impl Invalid {
    /// Creates a reason from a constant.
    #[must_use]
    pub const fn because(reason: &'static str) -> Self {
        Self(Cow::Borrowed(reason))
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
