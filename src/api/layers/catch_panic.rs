//! Responds with 500 if a handler or a layer panics.

use std::{
    future::{self, Ready},
    panic::{self, AssertUnwindSafe},
    thread,
};

use axum::{extract::Request, response::IntoResponse};
use futures_util::{
    FutureExt,
    future::{CatchUnwind, Either, Map},
};

use super::{Inner, Middleware, Outcome};
use crate::api::error::Error;

/// Layer that catches panics.
#[derive(Debug, Clone, Copy)]
pub struct CatchPanicLayer;

impl_layer!(CatchPanicLayer);

impl Middleware for CatchPanicLayer {
    type Future<S: Inner> = Either<
        Map<CatchUnwind<AssertUnwindSafe<S::Future>>, fn(thread::Result<Outcome>) -> Outcome>,
        Ready<Outcome>,
    >;

    fn call<S: Inner>(&self, inner: &mut S, request: Request) -> Self::Future<S> {
        // A service that panicked is not called again: each request has a clone of it.
        match panic::catch_unwind(AssertUnwindSafe(|| inner.call(request))) {
            Ok(future) => Either::Left(
                AssertUnwindSafe(future)
                    .catch_unwind()
                    .map(recover as fn(_) -> _),
            ),
            Err(panic) => Either::Right(future::ready(recover(Err(panic)))),
        }
    }
}

fn recover(result: thread::Result<Outcome>) -> Outcome {
    result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        let text = text.unwrap_or("unknown payload");
        Ok(Error::internal(format!("a handler panicked: {text}")).into_response())
    })
}

#[cfg(test)]
mod tests {
    use axum::{http::StatusCode, response::Response};
    use tower::{ServiceBuilder, ServiceExt, service_fn};

    use super::*;
    use crate::api::layers::{
        request_span::RequestSpanLayer,
        testing::{get, text},
    };

    #[tokio::test]
    async fn panic_is_a_500_without_its_text_and_the_next_request_is_answered() {
        let in_future = service_fn(async |request: Request| {
            assert!(request.uri().path() != "/panic", "the cause");
            Ok(Response::new("fine".into()))
        });
        let in_call = service_fn(|request: Request| {
            assert!(request.uri().path() != "/panic", "the cause");
            future::ready(Ok(Response::new("fine".into())))
        });
        let around = ServiceBuilder::new()
            .layer(RequestSpanLayer)
            .layer(CatchPanicLayer);
        let (in_future, in_call) = (around.service(in_future), around.service(in_call));
        for (path, status, part) in [
            (
                "/panic",
                StatusCode::INTERNAL_SERVER_ERROR,
                "\"status\":500",
            ),
            ("/", StatusCode::OK, "fine"),
        ] {
            for result in [
                in_future.clone().oneshot(get(path)).await,
                in_call.clone().oneshot(get(path)).await,
            ] {
                let Ok(response) = result;
                assert_eq!(response.status(), status);
                let body = text(response).await;
                assert!(body.contains(part) && !body.contains("the cause"), "{body}");
            }
        }
    }
}
