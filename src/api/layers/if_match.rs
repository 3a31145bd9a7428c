//! Refuses `If-Match` where the resource has no entity tag: it could never match, and must not be ignored.

use axum::{extract::Request, http::header};

use crate::api::{error::Error, request_context::RequestContext};

/// Refuses `If-Match` in requests of operations without an entity tag.
pub fn refuse_if_match(request: &Request) -> Result<(), Error> {
    let facts = RequestContext::of(request).facts;
    if facts.is_operation()
        && !facts.has_entity_tag
        && request.headers().contains_key(header::IF_MATCH)
    {
        let reason = "must be absent: the resource has no ETag";
        return Err(Error::one_violation("If-Match", reason));
    }
    Ok(())
}
