//! Makes an error response of a panic, and writes the body of each error response.
//!
//! Invariant: every 4xx and 5xx response is a problem document or, from the OAuth endpoints, of the form that their RFCs
//! define.

use std::{any::Any, panic::AssertUnwindSafe};

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use futures_util::FutureExt as _;

use super::{Incoming, Middleware, Next};
use crate::api::{error::Error, request_context::RequestContext};

/// Header of a 415 response to a PATCH (RFC 5789 §3.1).
const ACCEPT_PATCH: HeaderName = HeaderName::from_static("accept-patch");
/// Media types that a PATCH may have.
const PATCH_TYPES: &str = "application/merge-patch+json, application/json";

/// Writes the body of an [`Error`], which handlers and the layers inside leave in an extension of the response.
#[derive(Debug)]
pub struct ErrorBody;

impl Middleware for ErrorBody {
    async fn call(&self, request: Incoming<'_>, next: &impl Next) -> Response {
        let context = RequestContext::of(&request).clone();
        let is_patch = request.method() == Method::PATCH;
        let mut response = next.call(request).await;
        let status = response.status();
        if status.is_client_error() || status.is_server_error() {
            let error = Error::of(&response);
            let (media_type, body) = Error::body(error, status, context.id.as_str());
            let headers = response.headers_mut();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
            headers.insert(header::CONTENT_LENGTH, body.len().into());
            if is_patch && status == StatusCode::UNSUPPORTED_MEDIA_TYPE {
                headers.insert(ACCEPT_PATCH, HeaderValue::from_static(PATCH_TYPES));
            }
            *response.body_mut() = Body::from(body);
        }
        response
    }
}

/// Responds with 500 if a handler or a layer inside panics.
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

    use axum::{Router, extract::Request};
    use http_body_util::BodyExt as _;
    use tower::{ServiceBuilder, ServiceExt};

    use super::*;
    use crate::api::layers::{ServiceLayer, around, request_context::CreateContext};

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
