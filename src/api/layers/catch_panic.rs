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
    Error::internal(format!("a handler panicked: {text}")).into_response()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::{extract::Request, http::StatusCode};
    use http_body_util::BodyExt as _;
    use tower::{ServiceBuilder, ServiceExt, service_fn};

    use super::*;
    use crate::api::layers::request_span::RequestSpanLayer;

    #[tokio::test]
    async fn panic_is_a_500_without_its_text_and_the_next_request_is_answered() {
        let handler = service_fn(async |request: Request| {
            assert!(request.uri().path() != "/panic", "the cause");
            Ok::<_, Infallible>(Response::new(Body::from("fine")))
        });
        let service = ServiceBuilder::new()
            .layer(RequestSpanLayer)
            .layer(catch_panic())
            .service(handler);
        let ask = async |path| {
            let request = Request::get(path).body(Body::empty()).expect("a request");
            let Ok(response) = service.clone().oneshot(request).await;
            let status = response.status();
            let body = response.into_body().collect().await.expect("a body");
            (status, body.to_bytes())
        };
        let (status, body) = ask("/panic").await;
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        let body = String::from_utf8_lossy(&body);
        assert!(
            body.contains("\"status\":500") && !body.contains("the cause"),
            "{body}"
        );
        assert_eq!(ask("/").await, (StatusCode::OK, "fine".into()));
    }
}
