//! The span of a request, by OpenTelemetry's semantic conventions for HTTP servers.
//!
//! Invariant: of the request it has the method, the host and the caller's name only: no path (it names accounts), query,
//! address or other header.

use std::borrow::Cow;

use axum::{
    extract::Request,
    http::{Version, header, uri::Authority},
};
use tracing::{Span, field::Empty};

use super::seen::Seen;
use crate::trace::{self, TARGET};

/// Routes without a span: they are requested every few seconds.
const PROBES: [&str; 3] = ["/livez", "/readyz", "/metrics"];

/// Begins the span of a request, in the client's trace if it sent one.
pub fn begin(request: &Request, method: &'static str, route: Option<&str>, id: &str) -> Span {
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
        trace::go_on(&span, request.headers());
    }
    span
}

/// Records the response.
pub fn end(span: &Span, seen: &Seen) {
    let status = seen.status;
    span.record("http.response.status_code", i64::from(status.as_u16()));
    let caller = seen.caller.as_ref().map(|caller| caller.name.as_str());
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
