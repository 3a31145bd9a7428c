//! Creates a span for each SQL statement, by OpenTelemetry's conventions for databases.
//!
//! The source is the event that sqlx emits at the end of every statement, so none is missed.
//!
//! Invariants:
//! - There are only spans within sampled traces.
//! - A span has the text of the statement with placeholders, and no values.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use opentelemetry::{
    Context, KeyValue,
    trace::{Span as _, SpanKind, TraceContextExt, Tracer},
};
use opentelemetry_sdk::trace::SdkTracer;
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::layer::{self, Layer};

/// Layer that creates the spans.
pub struct Statements(SdkTracer);

impl Statements {
    /// Target of sqlx's events.
    pub const TARGET: &str = "sqlx::query";

    pub const fn new(tracer: SdkTracer) -> Self {
        Self(tracer)
    }
}

impl<S: Subscriber> Layer<S> for Statements {
    #[expect(clippy::disallowed_methods, reason = "spans carry wall-clock times")]
    fn on_event(&self, event: &Event<'_>, _: layer::Context<'_, S>) {
        let parent = Context::current();
        if !parent.span().span_context().is_sampled() {
            return;
        }
        let end = SystemTime::now();
        let mut fields = Fields::default();
        event.record(&mut fields);
        // sqlx omits the statement if the summary is all of it.
        let text = match fields.statement.trim() {
            "" => &fields.summary,
            statement => statement,
        };
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let operation = text.split([' ', ';']).next().unwrap_or_default();
        let operation = operation.to_uppercase();
        let attributes = [
            KeyValue::new("db.system.name", "postgresql"),
            KeyValue::new("db.operation.name", operation.clone()),
            KeyValue::new("db.response.returned_rows", fields.rows),
            KeyValue::new("db.query.text", text),
        ];
        let mut span = self
            .0
            .span_builder(operation)
            .with_kind(SpanKind::Client)
            .with_start_time(end - Duration::try_from_secs_f64(fields.seconds).unwrap_or_default())
            .with_attributes(attributes)
            .start_with_context(&self.0, &parent);
        span.end_with_timestamp(end);
    }
}

/// Fields of an event of sqlx.
#[derive(Default)]
struct Fields {
    summary: String,
    statement: String,
    seconds: f64,
    rows: i64,
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "summary" => value.clone_into(&mut self.summary),
            "db.statement" => value.clone_into(&mut self.statement),
            _ => {}
        }
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        if field.name() == "elapsed_secs" {
            self.seconds = value;
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "rows_returned" {
            self.rows = i64::try_from(value).unwrap_or(i64::MAX);
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}
