//! Whether a caller may do what it asks.
//!
//! Behind the limits: what is refused here was asked by a known caller, and counts as its request.

use crate::{
    api::error::Error,
    domain::caller::{Caller, Scopes},
};

/// Lets a caller through to an operation that needs these scopes when it has them.
///
/// # Errors
/// [`Error::Forbidden`].
pub fn authorize(needed: Scopes, caller: &Caller) -> Result<(), Error> {
    match needed.iter().find(|scope| !caller.scopes.contains(*scope)) {
        Some(missing) => Err(Error::Forbidden { needed, missing }),
        None => Ok(()),
    }
}
