//! Drops a request after its time limit; the response is 503.

use std::time::Duration;

use axum::{extract::Request, response::IntoResponse};
use futures_util::{FutureExt, future::Map};
use tokio::time::{self, error::Elapsed, timeout};

use super::{Inner, Middleware, Outcome, operation_path};
use crate::api::error::Error;

/// Operation with a longer time limit: a thousand passwords take half a minute to hash on one core.
const LONG_OPERATION: &str = "/user/createWithList";
/// Factor of its time limit.
const LONG_OPERATION_FACTOR: u32 = 4;

/// Layer with the time limit of a request.
#[derive(Debug, Clone, Copy)]
pub struct TimeoutLayer(pub Duration);

impl_layer!(TimeoutLayer);

impl Middleware for TimeoutLayer {
    type Future<S: Inner> = Map<time::Timeout<S::Future>, fn(Result<Outcome, Elapsed>) -> Outcome>;

    fn call<S: Inner>(&self, inner: &mut S, request: Request) -> Self::Future<S> {
        let is_long = operation_path(&request) == Some(LONG_OPERATION);
        let limit = self.0 * if is_long { LONG_OPERATION_FACTOR } else { 1 };
        timeout(limit, inner.call(request))
            .map(|result| result.unwrap_or_else(|_| Ok(Error::TimedOut.into_response())))
    }
}
