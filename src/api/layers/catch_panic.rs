//! Responds with 500 if a handler or a layer panics.

use std::any::Any;

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use tower::{layer::util::Stack, util::MapResponseLayer};
use tower_http::{BoxError, body::UnsyncBoxBody, catch_panic::CatchPanicLayer};

use crate::api::error::Error;

/// Layer that catches panics. The second part restores the type of bodies, which the first one boxes.
pub type CatchPanic = Stack<
    CatchPanicLayer<fn(Box<dyn Any + Send>) -> Response>,
    MapResponseLayer<fn(Boxed) -> Response>,
>;

type Boxed = Response<UnsyncBoxBody<Bytes, BoxError>>;

/// Returns the layer.
#[must_use]
pub fn catch_panic() -> CatchPanic {
    Stack::new(
        CatchPanicLayer::custom(respond as fn(_) -> _),
        MapResponseLayer::new(|response| response.map(Body::new)),
    )
}

#[expect(clippy::needless_pass_by_value, reason = "tower-http gives it away")]
fn respond(panic: Box<dyn Any + Send>) -> Response {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("unknown payload");
    Error::Internal(format!("a handler panicked: {text}").into()).into_response()
}
