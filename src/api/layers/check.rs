//! Runs a function on each request; an error becomes the response.

use std::{future, sync::Arc};

use axum::{extract::Request, response::IntoResponse};
use futures_util::future::Either;

use super::{Middleware, Next, Reply};
use crate::api::error::Error;

/// Calls a function for each request, and responds with its error.
#[derive(Debug)]
pub struct Check<F>(pub F);

impl<F> Middleware for Check<F>
where
    F: Fn(&Request) -> Result<(), Error> + Send + Sync + 'static,
{
    fn call<N: Next>(self: &Arc<Self>, request: Request, next: &N) -> impl Reply + use<F, N> {
        match self.0(&request) {
            Ok(()) => Either::Left(next.call(request)),
            Err(error) => Either::Right(future::ready(error.into_response())),
        }
    }
}
