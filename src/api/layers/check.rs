//! Passes on the requests that a check accepts.

use std::{
    convert::Infallible,
    future::{self, Ready},
    task::{Context, Poll},
};

use axum::{
    extract::Request,
    response::{IntoResponse, Response},
};
use futures_util::future::Either;
use tower::{Layer, Service};

use super::Inner;
use crate::api::error::Error;

/// Layer that calls a function for each request, and responds with its error.
#[derive(Debug, Clone, Copy)]
pub struct CheckLayer<F>(pub F);

impl<S, F: Clone> Layer<S> for CheckLayer<F> {
    type Service = Check<S, F>;

    fn layer(&self, inner: S) -> Check<S, F> {
        let accept = self.0.clone();
        Check { inner, accept }
    }
}

/// Service of a [`CheckLayer`].
#[derive(Debug, Clone)]
pub struct Check<S, F> {
    inner: S,
    accept: F,
}

impl<S: Inner, F> Service<Request> for Check<S, F>
where
    F: Fn(&Request) -> Result<(), Error>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Either<S::Future, Ready<Result<Response, Infallible>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        match (self.accept)(&request) {
            Ok(()) => Either::Left(self.inner.call(request)),
            Err(error) => Either::Right(future::ready(Ok(error.into_response()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, http::StatusCode};
    use tower::{ServiceExt, service_fn};

    use super::*;

    #[tokio::test]
    async fn check_passes_accepted_requests_only() {
        let handler = service_fn(async |_: Request| Ok::<_, Infallible>(Response::default()));
        let accept = |request: &Request| match request.uri().path() {
            "/" => Ok(()),
            _ => Err(Error::NoSuchRoute),
        };
        let service = CheckLayer(accept).layer(handler);
        for (path, status) in [("/", StatusCode::OK), ("/a", StatusCode::NOT_FOUND)] {
            let request = Request::builder().uri(path).body(Body::empty());
            let response = service.clone().oneshot(request.expect("a request")).await;
            assert_eq!(response.expect("a response").status(), status);
        }
    }
}
