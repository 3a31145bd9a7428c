//! What is said for traces: spans, and the W3C Trace Context that joins ours to those of others.
//!
//! A span is made where the work is, by `tracing`'s macros at level debug with [`TARGET`]; `telemetry` sends
//! it on. Invariants: while nobody collects traces such a span is off where it stands, at the cost of a
//! branch; a span never holds a secret, or a value that a client sent, but for the names listed where it is
//! made.

use http::HeaderMap;
use opentelemetry::{Context, global, trace::TraceContextExt};
use opentelemetry_http::{HeaderExtractor, HeaderInjector};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// The target of what is for traces alone. No log line has it.
pub const TARGET: &str = "trace";

/// Makes a span go on with the trace that `traceparent` and `tracestate` tell of. Without them, or where
/// they cannot be read, it begins one of its own.
pub fn go_on(span: &Span, headers: &HeaderMap) {
    if span.is_disabled() {
        return;
    }
    let theirs = global::get_text_map_propagator(|it| it.extract(&HeaderExtractor(headers)));
    if theirs.span().span_context().is_valid() {
        // It fails for a span that has begun, which this one has not.
        let _ = span.set_parent(theirs);
    }
}

/// Tells whom we ask which trace it is for.
pub fn pass_on(headers: &mut HeaderMap) {
    let ours = Context::current();
    if ours.has_active_span() {
        global::get_text_map_propagator(|it| {
            it.inject_context(&ours, &mut HeaderInjector(headers));
        });
    }
}
