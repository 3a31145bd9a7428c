//! Whether a caller may do what it asks.
//!
//! Behind the limits: what is refused here was asked by a known caller, and counts as its request.

use std::sync::Arc;

use axum::extract::Request;

use super::authenticate::needed;
use crate::{
    api::{access::AccessRules, error::Error},
    domain::caller::Caller,
};

/// Lets a request through to its operation when its caller has the scopes for it.
///
/// # Errors
/// [`Error::Forbidden`].
pub fn authorize(
    rules: &Arc<AccessRules>,
    caller: &Caller,
    request: &Request,
) -> Result<(), Error> {
    let needed = needed(rules, request).unwrap_or_default();
    match needed.iter().find(|scope| !caller.scopes.contains(*scope)) {
        Some(missing) => Err(Error::Forbidden { needed, missing }),
        None => Ok(()),
    }
}
