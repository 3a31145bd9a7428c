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
        let (operation, collection) = operation_and_table(&text);
        let name = match collection {
            Some(collection) => format!("{operation} {collection}"),
            None => operation.clone(),
        };
        let mut attributes = vec![
            KeyValue::new("db.system.name", "postgresql"),
            KeyValue::new("db.operation.name", operation),
            KeyValue::new("db.query.summary", name.clone()),
            KeyValue::new("db.response.returned_rows", fields.rows),
        ];
        if let Some(collection) = collection {
            attributes.push(KeyValue::new("db.collection.name", collection.to_owned()));
        }
        attributes.push(KeyValue::new("db.query.text", text));
        let mut span = self
            .0
            .span_builder(name)
            .with_kind(SpanKind::Client)
            .with_start_time(end - Duration::try_from_secs_f64(fields.seconds).unwrap_or_default())
            .with_attributes(attributes)
            .start_with_context(&self.0, &parent);
        span.end_with_timestamp(end);
    }
}

/// Returns the operation and the table of a statement. `with` counts as the `insert`, `update` or `delete` in it.
fn operation_and_table(text: &str) -> (String, Option<&str>) {
    const VERBS: [&str; 4] = ["insert into ", "update ", "delete from ", "from "];
    let first = text.split([' ', ';']).next().unwrap_or_default();
    let verb = VERBS.into_iter().find(|verb| match first {
        "with" => text.contains(verb),
        _ => verb.starts_with(first),
    });
    let (verb, operation) = match verb {
        None | Some("from ") => ("from ", first),
        Some(verb) => (verb, verb.split(' ').next().unwrap_or(first)),
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let table = text
        .split_once(verb)
        .and_then(|(_, rest)| rest.split(|c| !is_name(c)).next())
        .filter(|name| !name.is_empty());
    (operation.to_uppercase(), table)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_is_known_by_its_verb_and_table() {
        for (text, operation, collection) in [
            ("select id from pets where id = $1", "SELECT", Some("pets")),
            ("select 1", "SELECT", None),
            ("insert into pets (id) values ($1)", "INSERT", Some("pets")),
            ("update pets set name = $2 from x", "UPDATE", Some("pets")),
            ("delete from pets where id = $1", "DELETE", Some("pets")),
            (
                "with given as (select 1) insert into pets (id) select 1",
                "INSERT",
                Some("pets"),
            ),
            ("with a as (select 1) select * from a", "WITH", Some("a")),
            ("select * from ( (select * from pets) ) pet", "SELECT", None),
            ("begin; set local lock_timeout = '10ms'", "BEGIN", None),
            ("commit", "COMMIT", None),
        ] {
            assert_eq!(
                operation_and_table(text),
                (operation.to_owned(), collection),
                "{text}"
            );
        }
    }
}
