//! Gives each request a span, which follows OpenTelemetry's semantic conventions for HTTP servers.
//!
//! Invariant: of the request, the span has the method, the host and the caller's name only: no path (it names accounts),
//! query, address or other header.

use std::borrow::Cow;

use axum::{
    extract::{MatchedPath, Request},
    http::{StatusCode, Version, header, uri::Authority},
    response::Response,
};
use tracing::{Instrument as _, Span, field::Empty};

use super::{Incoming, Middleware, Next, access_log::method_label};
use crate::{
    api::{operations::Kind, request_context::RequestContext},
    trace_context::{self, TARGET},
};

/// Creates the span.
#[derive(Debug)]
pub struct RequestSpan;

impl Middleware for RequestSpan {
    async fn call(&self, request: Incoming<'_>, next: &impl Next) -> Response {
        let context = RequestContext::of(&request).clone();
        let mut span = begin(&request, &context);
        if span.is_disabled() {
            // With the log level debug, lines of a request have its id.
            span = tracing::debug_span!("request", id = context.id.as_str());
        }
        let response = next.call(request).instrument(span.clone()).await;
        end(&span, response.status(), &context);
        response
    }
}

/// Completes and ends the trace span of a request. Lines that wait for its body may hold the span for longer.
fn end(span: &Span, status: StatusCode, context: &RequestContext) {
    if span.is_disabled() {
        return;
    }
    span.record("http.response.status_code", i64::from(status.as_u16()));
    let caller = context.caller.get().map(|caller| caller.name.as_str());
    span.record("enduser.id", caller);
    if status.is_server_error() {
        span.record("error.type", status.as_str());
        span.record("otel.status_code", "ERROR");
    }
    trace_context::end(span);
}

/// Begins the span of a request, in the client's trace if it sent one.
fn begin(request: &Request, context: &RequestContext) -> Span {
    if context.facts.kind == Kind::Probe {
        return Span::none();
    }
    let method = method_label(request.method());
    let route = request.extensions().get().map(MatchedPath::as_str);
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
        request.id = context.id.as_str(),
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
