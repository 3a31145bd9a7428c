//! Runs a function on each request; an error becomes the response.

use std::future::{self, Ready};

use axum::{extract::Request, response::IntoResponse};
use futures_util::future::Either;

use super::{Inner, Middleware, Outcome};
use crate::api::error::Error;

/// Layer that calls a function for each request, and responds with its error.
#[derive(Debug, Clone, Copy)]
pub struct CheckLayer<F>(pub F);

impl_layer!(CheckLayer<F>);

impl<F: Fn(&Request) -> Result<(), Error> + Clone + Send + 'static> Middleware for CheckLayer<F> {
    type Future<S: Inner> = Either<S::Future, Ready<Outcome>>;

    fn call<S: Inner>(&self, inner: &mut S, request: Request) -> Self::Future<S> {
        match self.0(&request) {
            Ok(()) => Either::Left(inner.call(request)),
            Err(error) => Either::Right(future::ready(Ok(error.into_response()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use tower::{Layer, ServiceExt, service_fn};

    use super::*;
    use crate::api::layers::testing::{get, ok};

    #[tokio::test]
    async fn check_passes_accepted_requests_only() {
        let accept = |request: &Request| match request.uri().path() {
            "/" => Ok(()),
            _ => Err(Error::NoSuchRoute),
        };
        let service = CheckLayer(accept).layer(service_fn(ok));
        for (path, status) in [("/", StatusCode::OK), ("/a", StatusCode::NOT_FOUND)] {
            let Ok(response) = service.clone().oneshot(get(path)).await;
            assert_eq!(response.status(), status);
        }
    }
}
