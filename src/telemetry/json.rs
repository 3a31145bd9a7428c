//! Formats log lines as JSON objects with timestamp, level, target, event fields, trace id and span.
//!
//! The JSON formatter of `tracing-subscriber` uses serde and checks each piece to be UTF-8. With an access log line per
//! request, that was prominent in every profile.

use std::{
    cell::RefCell,
    fmt::{self, Write as _},
    time::{SystemTime, UNIX_EPOCH},
};

use opentelemetry::{
    Context,
    trace::{TraceContextExt, TraceId},
};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields, format::Writer},
    registry::LookupSpan,
};

/// JSON formatter of events. `JsonFields` formats the fields of spans.
pub struct JsonLines {
    /// Set if lines contain the id of the current trace.
    pub in_traces: bool,
}

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        /// Initial capacity in bytes; enough for most lines.
        const INITIAL_CAPACITY: usize = 512;
        let mut line = String::with_capacity(INITIAL_CAPACITY);
        line.push_str("{\"timestamp\":\"");
        #[expect(
            clippy::disallowed_methods,
            reason = "log lines carry wall-clock times"
        )]
        timestamp(&mut line, SystemTime::now());
        let about = event.metadata();
        line.push_str("\",\"level\":\"");
        line.push_str(about.level().as_str());
        line.push_str("\",\"target\":");
        string(&mut line, about.target());
        event.record(&mut Fields(&mut line));
        if self.in_traces {
            let id = Context::map_current(|it| it.span().span_context().trace_id());
            if id != TraceId::INVALID {
                write!(line, ",\"trace_id\":\"{id:032x}\"")?;
            }
        }
        if let Some(span) = context.lookup_current() {
            line.push_str(",\"span\":{\"name\":");
            string(&mut line, span.name());
            let extensions = span.extensions();
            let fields = extensions.get::<FormattedFields<N>>();
            let fields = fields.map_or("", |fields| fields.as_str());
            let inside = fields.strip_prefix('{').and_then(|it| it.strip_suffix('}'));
            if let Some(inside) = inside.filter(|inside| !inside.is_empty()) {
                line.push(',');
                line.push_str(inside);
            }
            line.push('}');
        }
        line.push_str("}\n");
        writer.write_str(&line)
    }
}

/// Appends a time in RFC 3339 with microseconds. Each thread formats date and time once per second.
fn timestamp(line: &mut String, now: SystemTime) {
    thread_local! {
        static SECOND: RefCell<(u64, String)> = RefCell::default();
    }
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    SECOND.with_borrow_mut(|(second, text)| {
        if text.is_empty() || *second != since.as_secs() {
            *second = since.as_secs();
            *text = humantime::format_rfc3339_seconds(now).to_string();
        }
        line.push_str(text.trim_end_matches('Z'));
    });
    line.push('.');
    let micros = since.subsec_micros();
    for power in (0..6).rev() {
        let digit = micros / 10_u32.pow(power) % 10;
        line.push(char::from_digit(digit, 10).unwrap_or_default());
    }
    line.push('Z');
}

/// Visitor that appends event fields, each after a comma.
struct Fields<'a>(&'a mut String);

impl Fields<'_> {
    fn name(&mut self, field: &Field) -> &mut String {
        self.0.push(',');
        string(self.0, field.name());
        self.0.push(':');
        self.0
    }
}

impl Visit for Fields<'_> {
    fn record_f64(&mut self, field: &Field, value: f64) {
        let line = self.name(field);
        if value.is_finite() {
            line.push_str(zmij::Buffer::new().format_finite(value));
        } else {
            // JSON has no NaN or infinity.
            line.push_str("null");
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.name(field).push_str(itoa::Buffer::new().format(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.name(field).push_str(itoa::Buffer::new().format(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.name(field)
            .push_str(if value { "true" } else { "false" });
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        string(self.name(field), value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        string(self.name(field), &format!("{value:?}"));
    }
}

/// Appends a JSON string (RFC 8259 §7).
fn string(line: &mut String, text: &str) {
    // All special characters are ASCII, so bytes are compared without decoding characters.
    let special = |byte| matches!(byte, 0..b' ' | b'"' | b'\\');
    line.push('"');
    // Hardly any text has a special character. Without an early exit, the scan is vectorised; with one, it goes byte by
    // byte.
    if text.bytes().fold(false, |some, byte| some | special(byte)) {
        for character in text.chars() {
            match character {
                '"' | '\\' => line.extend(['\\', character]),
                control @ '\0'..' ' => {
                    // Writing to a `String` cannot fail.
                    let _ = write!(line, "\\u{:04x}", u32::from(control));
                }
                plain => line.push(plain),
            }
        }
    } else {
        line.push_str(text);
    }
    line.push('"');
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_moment_is_written_to_the_microsecond() {
        let begin = UNIX_EPOCH + Duration::from_secs(1_792_580_702);
        for (micros, expected) in [
            (0, "2026-10-21T11:05:02.000000Z"),
            (40_507, "2026-10-21T11:05:02.040507Z"),
            (1_000_000, "2026-10-21T11:05:03.000000Z"),
        ] {
            let mut line = String::new();
            timestamp(&mut line, begin + Duration::from_micros(micros));
            assert_eq!(line, expected);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_back_as_it_was(text in any::<String>()) {
            let mut json = String::new();
            string(&mut json, &text);
            prop_assert_eq!(serde_json::from_str::<String>(&json).expect("JSON"), text);
        }
    }
}
