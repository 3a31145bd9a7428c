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
