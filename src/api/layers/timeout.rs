//! Drops a request after its time limit; the response is 503.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    extract::Request,
    response::{IntoResponse, Response},
};
use pin_project_lite::pin_project;
use tokio::time::{Timeout, timeout};
use tower::{Layer, Service};

use super::{Inner, operation_path};
use crate::api::error::Error;

/// Operation with a longer time limit, and the factor: a thousand passwords take half a minute to hash on one core.
const LONG: (&str, u32) = ("/user/createWithList", 4);

/// Layer with the time limit of a request.
#[derive(Debug, Clone, Copy)]
pub struct TimeoutLayer(pub Duration);

impl<S> Layer<S> for TimeoutLayer {
    type Service = TimeoutService<S>;

    fn layer(&self, inner: S) -> TimeoutService<S> {
        TimeoutService {
            inner,
            limit: self.0,
        }
    }
}

/// Service of a [`TimeoutLayer`].
#[derive(Debug, Clone)]
pub struct TimeoutService<S> {
    inner: S,
    limit: Duration,
}

impl<S: Inner> Service<Request> for TimeoutService<S> {
    type Response = Response;
    type Error = Infallible;
    type Future = TimeoutFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let is_long = operation_path(&request) == Some(LONG.0);
        let limit = self.limit * if is_long { LONG.1 } else { 1 };
        TimeoutFuture {
            inner: timeout(limit, self.inner.call(request)),
        }
    }
}

pin_project! {
    /// Future of [`TimeoutService`].
    pub struct TimeoutFuture<F> {
        #[pin]
        inner: Timeout<F>,
    }
}

impl<F: Future<Output = Result<Response, Infallible>>> Future for TimeoutFuture<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let result = ready!(self.project().inner.poll(context));
        Poll::Ready(result.unwrap_or_else(|_| Ok(Error::TimedOut.into_response())))
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use tower::{ServiceExt, service_fn};

    use super::*;

    #[tokio::test]
    async fn request_over_its_time_limit_is_503() {
        let handler = service_fn(async |_: Request| {
            tokio::time::sleep(Duration::from_millis(50)).await;
            Ok::<_, Infallible>(Response::default())
        });
        for (limit, status) in [
            (5_000, StatusCode::OK),
            (1, StatusCode::SERVICE_UNAVAILABLE),
        ] {
            let service = TimeoutLayer(Duration::from_millis(limit)).layer(handler);
            let response = service.oneshot(Request::default()).await;
            assert_eq!(response.expect("a response").status(), status);
        }
    }
}
