//! Gives each request an id and a span, and writes the id into its response.
//!
//! The span follows OpenTelemetry's semantic conventions for HTTP servers. Invariants:
//! - Of the request, the span has the method, the host and the caller's name only: no path (it names accounts), query,
//!   address or other header.
//! - Every 4xx and 5xx response is a problem document.

use std::borrow::Cow;

use axum::{
    body::Body,
    extract::{MatchedPath, Request},
    http::{HeaderValue, Version, header, uri::Authority},
    response::Response,
};
use tracing::{Instrument as _, Span, field::Empty, instrument::Instrumented};

use super::{
    Inner, Middleware, OnResponse, Then,
    access_log::{method_label, when_sent},
};
use crate::{
    api::{
        problem::{OAuthErrorBody, Problem},
        request_context::RequestContext,
        request_id::{RequestId, X_REQUEST_ID},
    },
    trace_context::{self, TARGET},
};

/// Layer that creates the [`RequestContext`].
#[derive(Debug, Clone, Copy)]
pub struct RequestSpanLayer;

impl_layer!(RequestSpanLayer);

impl Middleware for RequestSpanLayer {
    type Future<S: Inner> = Then<Instrumented<S::Future>, Spanned>;

    fn call<S: Inner>(&self, inner: &mut S, mut request: Request) -> Self::Future<S> {
        let context = RequestContext::new(RequestId::of(request.headers()));
        let mut span = begin(&request, context.id.as_str());
        if span.is_disabled() {
            // With the log level debug, lines of a request have its id.
            span = tracing::debug_span!("request", id = context.id.as_str());
        }
        request.extensions_mut().insert(context.clone());
        let then = Some(Spanned {
            span: span.clone(),
            context,
        });
        let inner = span.in_scope(|| inner.call(request)).instrument(span);
        Then { inner, then }
    }
}

/// Request with its span.
#[derive(Debug)]
pub struct Spanned {
    span: Span,
    context: RequestContext,
}

impl OnResponse for Spanned {
    fn on_response(self, response: Response) -> Response {
        let Self { span, context } = self;
        if !span.is_disabled() {
            let status = response.status();
            span.record("http.response.status_code", i64::from(status.as_u16()));
            let caller = context.caller.get().map(|caller| caller.name.as_str());
            span.record("enduser.id", caller);
            if status.is_server_error() {
                span.record("error.type", status.as_str());
                span.record("otel.status_code", "ERROR");
            }
        }
        when_sent(finish(response, &context))
    }
}

const PRIVATE: HeaderValue = HeaderValue::from_static("private, no-cache");

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
        _ => "1.1",
    }
}

/// Writes the id into the head and, if the response is an error, the body. Shared caches must not store the response to a
/// credential: they know only that of `Authorization` (RFC 9111, section 3.5).
fn finish(mut response: Response, context: &RequestContext) -> Response {
    let (status, id) = (response.status(), &context.id);
    let headers = response.headers_mut();
    headers.insert(X_REQUEST_ID, id.header());
    if context.needed_scopes.get().is_some() && !headers.contains_key(header::CACHE_CONTROL) {
        headers.insert(header::CACHE_CONTROL, PRIVATE);
    }
    let is_oauth_error = response.extensions().get::<OAuthErrorBody>().is_some();
    if (status.is_client_error() || status.is_server_error()) && !is_oauth_error {
        let problem = response
            .extensions_mut()
            .remove::<Problem>()
            .unwrap_or_else(|| Problem::of_status(status));
        let body = problem.into_json(id.as_str());
        let headers = response.headers_mut();
        let problem_json = HeaderValue::from_static(Problem::MEDIA_TYPE);
        headers.insert(header::CONTENT_TYPE, problem_json);
        headers.insert(header::CONTENT_LENGTH, body.len().into());
        *response.body_mut() = Body::from(body);
    }
    response
}
