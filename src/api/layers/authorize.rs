//! Checks the caller's scopes.
//!
//! Inside the rate limit: a refused request counts as a request of its caller.

use axum::extract::Request;

use crate::api::{error::Error, request_context::RequestContext};

/// Checks that the caller has the scopes that the operation needs.
pub fn authorize(request: &Request) -> Result<(), Error> {
    let context = RequestContext::of(request);
    let Some(needed) = context.facts.needed_scopes else {
        return Ok(());
    };
    let caller = context.caller.get().ok_or(Error::Unauthenticated)?;
    match needed.iter().find(|scope| !caller.scopes.contains(*scope)) {
        Some(missing) => Err(Error::Forbidden { needed, missing }),
        None => Ok(()),
    }
}
