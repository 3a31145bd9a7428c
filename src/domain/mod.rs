//! The nouns and their rules: pure values, no I/O, no clock of their own.
//!
//! Invariant: a value of a type in here is valid. The only way to make one is through a constructor
//! that checks, so no floor above has to check again.

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

/// Why a single value was refused, in words for whoever sent it: "must be 1 to 255 characters".
///
/// It never repeats the value itself, which may be long, hostile or secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(pub Cow<'static, str>);

impl Invalid {
    /// A reason known at compile time.
    #[must_use]
    pub const fn because(reason: &'static str) -> Self {
        Self(Cow::Borrowed(reason))
    }
}

/// Checks a text: at most `max` characters (Unicode scalar values), and no NUL, which PostgreSQL
/// cannot store.
fn check_text(text: &str, max: usize) -> Result<(), Invalid> {
    // The byte length bounds the character count from above: short texts are not walked.
    if text.len() > max && text.chars().count() > max {
        return Err(Invalid(format!("must be at most {max} characters").into()));
    }
    if text.contains('\0') {
        return Err(Invalid::because("must not contain the character NUL"));
    }
    Ok(())
}
