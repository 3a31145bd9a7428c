//! Checks the caller's scopes.
//!
//! Inside the rate limit: a refused request counts as a request of its caller.

use axum::extract::Request;

use crate::api::{access::Access, error::Error, request_context::RequestContext};

/// Checks that the caller has the scopes that the operation needs.
///
/// # Errors
/// [`Error::Forbidden`].
pub fn authorize(request: &Request) -> Result<(), Error> {
    let context = RequestContext::of(request);
    let (Some(caller), Some(Access::Needs(needed))) = (context.caller(), context.access()) else {
        return Ok(());
    };
    match needed.iter().find(|scope| !caller.scopes.contains(*scope)) {
        Some(missing) => Err(Error::Forbidden { needed, missing }),
        None => Ok(()),
    }
}
