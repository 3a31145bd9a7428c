//! Limits the time of a request, and the time of its database statements in all.

use std::time::Duration;

use axum::response::{IntoResponse, Response};

use super::{Incoming, Middleware, Next};
use crate::{
    api::{error::Error, request_context::RequestContext},
    db::deadline,
};

/// Drops a request after its time limit, which is this for most operations; the response is 503.
#[derive(Debug)]
pub struct Timeout(pub Duration);

impl Middleware for Timeout {
    async fn call(&self, request: Incoming<'_>, next: &impl Next) -> Response {
        let factor = RequestContext::of(&request).facts.timeout_factor;
        if factor == 0 {
            return next.call(request).await;
        }
        let response = tokio::time::timeout(self.0 * factor, next.call(request)).await;
        response.unwrap_or_else(|_| Error::TimedOut.into_response())
    }
}

/// Limits the time that the statements of a request may take in all.
#[derive(Debug)]
pub struct DatabaseDeadline;

impl Middleware for DatabaseDeadline {
    async fn call(&self, request: Incoming<'_>, next: &impl Next) -> Response {
        deadline::scope(next.call(request)).await
    }
}
