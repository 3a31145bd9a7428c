//! Checks the caller's scopes.
//!
//! Inside the rate limit: a refused request counts as a request of its caller.

use crate::{
    api::error::Error,
    domain::caller::{Caller, Scopes},
};

/// Checks that the caller has the scopes that the operation needs.
///
/// # Errors
/// [`Error::Forbidden`].
pub fn authorize(needed: Scopes, caller: &Caller) -> Result<(), Error> {
    match needed.iter().find(|scope| !caller.scopes.contains(*scope)) {
        Some(missing) => Err(Error::Forbidden { needed, missing }),
        None => Ok(()),
    }
}
