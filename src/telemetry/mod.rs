//! What the process says of itself: log lines on stderr (stdout belongs to what a command prints), metrics, and
//! traces, where somebody collects them.

mod json;
mod lines;
mod metrics;
mod process;
mod statements;
mod traces;

use std::io::{self, IsTerminal};

use tracing_subscriber::{
    EnvFilter, Layer as _,
    filter::ParseError,
    fmt::{self, format::JsonFields},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

pub use self::metrics::{Described, Kind, METRICS, Metrics, metrics};
use self::{
    json::JsonLines,
    lines::{Flush, Lines},
    traces::Traces,
};
use crate::{
    config::{self, LogFormat},
    trace,
};

/// Why the process cannot speak.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `telemetry.log` cannot be read.
    #[error(
        "configuration: telemetry.log must be a level or module=level, separated by commas: {0}"
    )]
    Filter(#[from] ParseError),
    /// No thread to write the log.
    #[error("cannot start writing the log: {0}")]
    Log(#[from] io::Error),
    /// There is no sending traces.
    #[error("cannot send traces to telemetry.otlp_endpoint: {0}")]
    Traces(String),
    /// Something else in this process has taken over logging or metrics.
    #[error("logging or metrics are set up already: {0}")]
    Twice(String),
}

/// What was begun, and ends well when this is dropped: the last spans are sent, then the last lines written.
#[must_use]
pub struct Telemetry {
    _traces: Option<Traces>,
    _lines: Flush,
}

/// Sends log lines to stderr, and traces where they are collected; the last of them when what it gives is
/// dropped.
///
/// # Errors
/// [`Error::Filter`], [`Error::Log`], [`Error::Traces`], and [`Error::Twice`] when called twice.
pub fn start(config: &config::Telemetry) -> Result<Telemetry, Error> {
    let filter = EnvFilter::builder().parse(&config.log)?;
    // What is said for traces is for them alone.
    let filter = filter.add_directive(format!("{}=off", trace::TARGET).parse()?);
    let human = match config.format {
        LogFormat::Human => true,
        LogFormat::Json => false,
        LogFormat::Auto => io::stderr().is_terminal(),
    };
    let traces = Traces::start(config)?;
    let registry = tracing_subscriber::registry();
    let writer = Lines::start()?;
    let lines = fmt::layer().with_writer(writer.clone());
    if human {
        let lines = lines.compact().with_target(false);
        let lines = lines.with_ansi(io::stderr().is_terminal());
        registry
            .with(lines.with_filter(filter))
            .with(traces.as_ref().map(Traces::layer))
            .try_init()
    } else {
        let json = JsonLines {
            in_traces: traces.is_some(),
        };
        let lines = lines.fmt_fields(JsonFields::new()).event_format(json);
        registry
            .with(lines.with_filter(filter))
            .with(traces.as_ref().map(Traces::layer))
            .try_init()
    }
    .map_err(|error| Error::Twice(error.to_string()))?;
    Ok(Telemetry {
        _traces: traces,
        _lines: Flush(writer),
    })
}
