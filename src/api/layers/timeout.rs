//! Limits the time of a request.

use std::time::Duration;

use axum::response::{IntoResponse, Response};

use super::{Incoming, Middleware, Next};
use crate::{
    api::{error::Error, request_context::RequestContext},
    db::scope,
};

/// Drops a request after its time limit, which is this for most operations, or when its statement has ended; the response is 503.
#[derive(Debug)]
pub struct Timeout(pub Duration);

impl Middleware for Timeout {
    async fn call(&self, request: Incoming<'_>, next: &impl Next) -> Response {
        let factor = RequestContext::of(&request).facts.timeout_factor;
        if factor == 0 {
            return next.call(request).await;
        }
        let expired = tokio::time::sleep(self.0 * factor);
        let response = scope::until(expired, next.call(request)).await;
        response.unwrap_or_else(|| Error::TimedOut.into_response())
    }
}
