//! Gives each request an id and a span, and writes the id into its response.
//!
//! The span follows OpenTelemetry's semantic conventions for HTTP servers. Invariants:
//!
//! - Of the request, the span has the method, the host and the caller's name only: no path (it names accounts), query,
//!   address or other header.
//! - Every 4xx and 5xx response is a problem document.

use std::{
    borrow::Cow,
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, ready},
};

use axum::{
    body::Body,
    extract::{MatchedPath, Request},
    http::{HeaderValue, StatusCode, Version, header, uri::Authority},
    response::Response,
};
use pin_project_lite::pin_project;
use tower::{Layer, Service};
use tracing::{Instrument as _, Span, field::Empty, instrument::Instrumented};

use super::{Inner, access_log::method_label};
use crate::{
    api::{
        error::{OAuthErrorBody, X_REQUEST_ID},
        problem::Problem,
        request_context::RequestContext,
        request_id::RequestId,
    },
    trace_context::{self, TARGET},
};

/// Layer that creates the [`RequestContext`].
#[derive(Debug, Clone, Copy)]
pub struct RequestSpanLayer;

impl<S> Layer<S> for RequestSpanLayer {
    type Service = RequestSpan<S>;

    fn layer(&self, inner: S) -> RequestSpan<S> {
        RequestSpan { inner }
    }
}

/// Service of a [`RequestSpanLayer`].
#[derive(Debug, Clone)]
pub struct RequestSpan<S> {
    inner: S,
}

impl<S: Inner> Service<Request> for RequestSpan<S> {
    type Response = Response;
    type Error = Infallible;
    type Future = RequestSpanFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        let context = RequestContext::new(RequestId::of(request.headers()));
        let mut span = begin(&request, context.id().as_str());
        if span.is_disabled() {
            // With the log level debug, lines of a request have its id.
            span = tracing::debug_span!("request", id = context.id().as_str());
        }
        request.extensions_mut().insert(context.clone());
        let entered = span.enter();
        let inner = self.inner.call(request);
        drop(entered);
        RequestSpanFuture {
            inner: inner.instrument(span),
            context,
        }
    }
}

pin_project! {
    /// Future of [`RequestSpan`].
    pub struct RequestSpanFuture<F> {
        #[pin]
        inner: Instrumented<F>,
        context: RequestContext,
    }
}

impl<F: Future<Output = Result<Response, Infallible>>> Future for RequestSpanFuture<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let Ok(response) = ready!(this.inner.as_mut().poll(context));
        end(this.inner.span(), &response, this.context);
        Poll::Ready(Ok(finish(response, this.context.id())))
    }
}

/// Routes without a span: they are requested every few seconds.
const PROBES: [&str; 3] = ["/livez", "/readyz", "/metrics"];

/// Begins the span of a request, in the client's trace if it sent one.
fn begin(request: &Request, id: &str) -> Span {
    let method = method_label(request.method());
    let route = request.extensions().get().map(MatchedPath::as_str);
    if route.is_some_and(|route| PROBES.contains(&route)) {
        return Span::none();
    }
    let span = tracing::debug_span!(
        target: TARGET,
        "request",
        otel.name = &*name(method, route),
        otel.kind = "server",
        otel.status_code = Empty,
        http.request.method = method,
        http.route = route,
        url.scheme = "http",
        network.protocol.version = version(request.version()),
        server.address = Empty,
        server.port = Empty,
        http.response.status_code = Empty,
        error.type = Empty,
        enduser.id = Empty,
        request.id = id,
    );
    if !span.is_disabled() {
        let host = request.headers().get(header::HOST);
        let host = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
        if let Some(host) = host.as_ref().or(request.uri().authority()) {
            span.record("server.address", host.host());
            // Signed: tracing-opentelemetry turns unsigned numbers into text.
            span.record("server.port", host.port_u16().map(i64::from));
        }
        trace_context::extract(&span, request.headers());
    }
    span
}

/// Records the response.
fn end(span: &Span, response: &Response, context: &RequestContext) {
    if span.is_disabled() {
        return;
    }
    let status = response.status();
    span.record("http.response.status_code", i64::from(status.as_u16()));
    let caller = context.caller().map(|caller| caller.name.as_str());
    span.record("enduser.id", caller);
    if status.is_server_error() {
        span.record("error.type", status.as_str());
        span.record("otel.status_code", "ERROR");
    }
}

fn name(method: &'static str, route: Option<&str>) -> Cow<'static, str> {
    let method = if method == "_OTHER" { "HTTP" } else { method };
    match route {
        Some(route) => format!("{method} {route}").into(),
        None => method.into(),
    }
}

fn version(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2",
        _ => "1.1",
    }
}

/// Writes the id into the head and, if the response is an error, the body.
fn finish(mut response: Response, id: &RequestId) -> Response {
    let status = response.status();
    response.headers_mut().insert(X_REQUEST_ID, id.header());
    let own_form = response.extensions().get::<OAuthErrorBody>().is_some();
    if (status.is_client_error() || status.is_server_error()) && !own_form {
        let problem = response
            .extensions_mut()
            .remove::<Problem>()
            .unwrap_or_else(|| Problem::of_status(status));
        let body = problem.into_json(id.as_str());
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static(Problem::MEDIA_TYPE),
        );
        headers.insert(header::CONTENT_LENGTH, body.len().into());
        if status == StatusCode::REQUEST_TIMEOUT || status == StatusCode::PAYLOAD_TOO_LARGE {
            // The rest of the request body is not read (RFC 9110, sections 15.5.9 and 15.5.14).
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        *response.body_mut() = Body::from(body);
    }
    response
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse as _;
    use http_body_util::BodyExt as _;
    use tower::{ServiceExt, service_fn};

    use super::*;
    use crate::api::error::Error;

    #[tokio::test]
    async fn response_has_the_id_of_the_request_and_an_error_has_a_problem() {
        let handler = service_fn(async |request: Request| {
            assert_eq!(RequestContext::of(&request).id().as_str(), "my-id");
            Ok::<_, Infallible>(Error::NoSuchRoute.into_response())
        });
        let request = Request::builder()
            .header(X_REQUEST_ID, "my-id")
            .body(Body::empty());
        let service = RequestSpanLayer.layer(handler);
        let response = service.oneshot(request.expect("a request")).await;
        let response = response.expect("a response");
        assert_eq!(response.headers()[X_REQUEST_ID], "my-id");
        let body = response.into_body().collect().await.expect("a body");
        let body = String::from_utf8_lossy(&body.to_bytes()).into_owned();
        assert!(
            body.contains("\"status\":404") && body.contains("my-id"),
            "{body}"
        );
    }
}
