//! Refuses `If-Match` where the resource has no entity tag: it could never match, and must not be ignored.

use std::sync::Arc;

use axum::{
    extract::{MatchedPath, Request},
    http::header,
};

use crate::api::{access::AccessRules, error::Error};

/// Returns a check that refuses `If-Match` in requests of operations without an entity tag.
pub fn refuse_if_match(
    rules: Arc<AccessRules>,
) -> impl Fn(&Request) -> Result<(), Error> + Clone + Send + Sync + 'static {
    move |request| {
        if !request.headers().contains_key(header::IF_MATCH) {
            return Ok(());
        }
        let route = request.extensions().get().map(MatchedPath::as_str);
        if route.is_some_and(|route| rules.lacks_entity_tag(request.method(), route)) {
            let reason = "must be absent: the resource has no ETag";
            return Err(Error::one_violation("If-Match", reason));
        }
        Ok(())
    }
}
