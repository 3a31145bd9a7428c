//! Responds with 500 if a handler or a layer panics.

use std::{any::Any, panic::AssertUnwindSafe};

use axum::response::{IntoResponse, Response};
use futures_util::FutureExt as _;

use super::{Incoming, Middleware, Next};
use crate::api::error::Error;

/// Catches panics.
#[derive(Debug)]
pub struct CatchPanic;

impl Middleware for CatchPanic {
    async fn call(&self, request: Incoming<'_>, next: &impl Next) -> Response {
        let response = AssertUnwindSafe(next.call(request)).catch_unwind();
        response.await.unwrap_or_else(|panic| respond(&*panic))
    }
}

fn respond(panic: &(dyn Any + Send)) -> Response {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("unknown payload");
    Error::internal(format!("a handler panicked: {text}")).into_response()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::{Router, body::Body, extract::Request, http::StatusCode};
    use http_body_util::BodyExt as _;
    use tower::{ServiceBuilder, ServiceExt};

    use super::*;
    use crate::api::layers::{
        ServiceLayer, around, error_body::ErrorBody, request_context::CreateContext,
    };

    #[tokio::test]
    async fn panic_is_a_500_without_its_text_and_the_next_request_is_answered() {
        let layers = ServiceBuilder::new()
            .layer(ServiceLayer)
            .layer(around(CreateContext {
                trusted_proxies: Arc::default(),
            }))
            .layer(around(ErrorBody))
            .layer(around(CatchPanic));
        let handler = async |request: Request| {
            assert!(request.uri().path() != "/panic", "the cause");
            "fine"
        };
        let router = Router::new().fallback(handler).layer(layers);
        let ask = async |path| {
            let request = Request::get(path).body(Body::empty()).expect("a request");
            let Ok(response) = router.clone().oneshot(request).await;
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
