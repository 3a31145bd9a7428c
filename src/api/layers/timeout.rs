//! Limits the time of a request, and the time of its database statements in all.

use std::{sync::Arc, time::Duration};

use axum::{extract::Request, response::IntoResponse};
use futures_util::{FutureExt as _, future::Either};

use super::{Middleware, Next, Reply};
use crate::{
    api::{error::Error, request_context::RequestContext},
    db::deadline,
};

/// Drops a request after its time limit, which is this for most operations; the response is 503.
#[derive(Debug)]
pub struct Timeout(pub Duration);

impl Middleware for Timeout {
    fn call<N: Next>(self: &Arc<Self>, request: Request, next: &N) -> impl Reply + use<N> {
        let factor = RequestContext::of(&request).facts.timeout_factor;
        let response = next.call(request);
        if factor == 0 {
            return Either::Left(response);
        }
        let response = tokio::time::timeout(self.0 * factor, response);
        Either::Right(response.map(|it| it.unwrap_or_else(|_| Error::TimedOut.into_response())))
    }
}

/// Limits the time that the statements of a request may take in all.
#[derive(Debug)]
pub struct DatabaseDeadline;

impl Middleware for DatabaseDeadline {
    fn call<N: Next>(self: &Arc<Self>, request: Request, next: &N) -> impl Reply + use<N> {
        deadline::scope(next.call(request))
    }
}
