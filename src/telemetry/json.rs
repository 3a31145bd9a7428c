//! Log lines as JSON, an object each: timestamp, level, target, the event's own fields beside them, the id of
//! the trace and the span it happened in.
//!
//! `tracing-subscriber` has one that says the same by way of serde, piece by piece, each checked to be UTF-8;
//! with an access line a request, that stood high in every profile.

use std::fmt;

use opentelemetry::{
    Context,
    trace::{TraceContextExt, TraceId},
};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    fmt::{
        FmtContext, FormatEvent, FormatFields, FormattedFields,
        format::Writer,
        time::{FormatTime, SystemTime},
    },
    registry::LookupSpan,
};

/// Writes events; spans have their fields as an object by `JsonFields`.
pub struct JsonLines {
    /// Whether a line may be said within a trace, and then has its id.
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
        writer.write_str("{\"timestamp\":\"")?;
        SystemTime.format_time(&mut writer)?;
        let about = event.metadata();
        write!(writer, "\",\"level\":\"{}\",\"target\":", about.level())?;
        string(&mut writer, about.target())?;
        let mut fields = Fields {
            writer: writer.by_ref(),
            result: Ok(()),
        };
        event.record(&mut fields);
        fields.result?;
        if self.in_traces {
            let id = Context::map_current(|it| it.span().span_context().trace_id());
            if id != TraceId::INVALID {
                write!(writer, ",\"trace_id\":\"{id:032x}\"")?;
            }
        }
        if let Some(span) = context.lookup_current() {
            writer.write_str(",\"span\":{\"name\":")?;
            string(&mut writer, span.name())?;
            let extensions = span.extensions();
            let fields = extensions.get::<FormattedFields<N>>();
            let fields = fields.map_or("", |fields| fields.as_str());
            let inside = fields.strip_prefix('{').and_then(|it| it.strip_suffix('}'));
            if let Some(inside) = inside.filter(|inside| !inside.is_empty()) {
                write!(writer, ",{inside}")?;
            }
            writer.write_char('}')?;
        }
        writer.write_str("}\n")
    }
}

/// The fields of an event, each behind a comma.
struct Fields<'a> {
    writer: Writer<'a>,
    result: fmt::Result,
}

impl Fields<'_> {
    fn field(&mut self, field: &Field, value: impl FnOnce(&mut Writer<'_>) -> fmt::Result) {
        if self.result.is_ok() {
            self.result = self.writer.write_char(',').and_then(|()| {
                string(&mut self.writer, field.name())?;
                self.writer.write_char(':')?;
                value(&mut self.writer)
            });
        }
    }
}

impl Visit for Fields<'_> {
    fn record_f64(&mut self, field: &Field, value: f64) {
        // JSON has no word for the others.
        self.field(field, |writer| {
            if value.is_finite() {
                write!(writer, "{value:?}")
            } else {
                writer.write_str("null")
            }
        });
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.field(field, |writer| write!(writer, "{value}"));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.field(field, |writer| write!(writer, "{value}"));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.field(field, |writer| write!(writer, "{value}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.field(field, |writer| string(writer, value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        self.field(field, |writer| string(writer, &text));
    }
}

/// A JSON string (RFC 8259 §7).
fn string(writer: &mut Writer<'_>, text: &str) -> fmt::Result {
    // By the byte, since all of these are ASCII: no character need be put together to be passed over.
    let special = |byte| matches!(byte, 0..b' ' | b'"' | b'\\');
    writer.write_char('"')?;
    let mut rest = text;
    while let Some(at) = rest.bytes().position(special) {
        let (plain, from) = rest.split_at(at);
        let mut characters = from.chars();
        let character = characters.next().unwrap_or_default();
        match character {
            '"' | '\\' => write!(writer, "{plain}\\{character}")?,
            control => write!(writer, "{plain}\\u{:04x}", u32::from(control))?,
        }
        rest = characters.as_str();
    }
    writer.write_str(rest)?;
    writer.write_char('"')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_text_is_read_back_as_it_was(text in any::<String>()) {
            let mut json = String::new();
            string(&mut Writer::new(&mut json), &text).expect("room");
            prop_assert_eq!(serde_json::from_str::<String>(&json).expect("JSON"), text);
        }
    }
}
