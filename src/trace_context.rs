//! Target of trace spans, and propagation of W3C Trace Context.
//!
//! The code that does the work creates a `tracing` span at level debug with [`TARGET`]; `telemetry` exports it.
//!
//! Invariants:
//! - While traces are not exported, a span is disabled at its call site and costs one branch.
//! - A span holds no secret, and no value sent by a client except the fields listed at its call site.

use http::HeaderMap;
use opentelemetry::{Context, global, trace::TraceContextExt};
use opentelemetry_http::{HeaderExtractor, HeaderInjector};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Target of trace spans. No log line has it.
pub const TARGET: &str = "trace";

/// Sets the parent of `span` from the `traceparent` and `tracestate` headers. If they are missing or invalid, the span
/// starts a new trace.
pub fn extract(span: &Span, headers: &HeaderMap) {
    if span.is_disabled() {
        return;
    }
    let remote = global::get_text_map_propagator(|it| it.extract(&HeaderExtractor(headers)));
    if remote.span().span_context().is_valid() {
        // This fails only for a span that has started; this one has not.
        let _ = span.set_parent(remote);
    }
}

/// Ends the trace span of `span`, which may live longer for log lines.
pub fn end(span: &Span) {
    if !span.is_disabled() {
        span.context().span().end();
    }
}

/// Adds the current trace context to the headers of an outgoing request.
pub fn inject(headers: &mut HeaderMap) {
    let current = Context::current();
    if current.has_active_span() {
        global::get_text_map_propagator(|it| {
            it.inject_context(&current, &mut HeaderInjector(headers));
        });
    }
}
