//! What the process says of itself: log lines on stderr (stdout belongs to what a command prints), metrics, and
//! traces, where somebody collects them.

mod json;
mod lines;
mod statements;
mod traces;

use std::{
    io::{self, IsTerminal},
    sync::{Mutex, PoisonError},
};

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::{
    EnvFilter, Layer as _,
    filter::ParseError,
    fmt::{self, format::JsonFields},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

use self::{
    json::JsonLines,
    lines::{Flush, Lines},
    traces::Traces,
};
use crate::{
    config::{self, LogFormat},
    trace,
};

/// Bounds in seconds of the latency histogram's buckets.
const LATENCIES: [f64; 11] = [
    0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5,
];

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

/// The process's metrics, which the `metrics` crate's macros write to.
#[derive(Debug, Clone)]
pub struct Metrics(PrometheusHandle);

impl Metrics {
    /// All of them, as Prometheus reads them.
    #[must_use]
    pub fn render(&self) -> String {
        self.upkeep();
        self.0.render()
    }

    /// Sorts what was measured into its buckets. Until then every latency is kept, so this is to be done
    /// often, whether or not anybody asks for metrics.
    pub fn upkeep(&self) {
        self.0.run_upkeep();
    }
}

/// The process's metrics, which the `metrics` crate's macros write to from here on.
///
/// # Errors
/// [`Error::Twice`] when another recorder was there first.
pub fn metrics() -> Result<Metrics, Error> {
    static HANDLE: Mutex<Option<Metrics>> = Mutex::new(None);
    let mut handle = HANDLE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(handle) = &*handle {
        return Ok(handle.clone());
    }
    let twice = |error: &dyn ToString| Error::Twice(error.to_string());
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &LATENCIES)
        .map_err(|error| twice(&error))?
        .build_recorder();
    let fresh = Metrics(recorder.handle());
    metrics::set_global_recorder(recorder).map_err(|error| twice(&error))?;
    describe();
    *handle = Some(fresh.clone());
    Ok(fresh)
}

fn describe() {
    metrics::describe_counter!(
        "http_requests_total",
        "Requests answered, by method, route and status."
    );
    metrics::describe_histogram!(
        "http_request_duration_seconds",
        metrics::Unit::Seconds,
        "Time from a request's head to its answer's, by method and route."
    );
    metrics::describe_counter!(
        "limits_admitted_total",
        "Requests admitted to limited and unlimited plans, by plan."
    );
    metrics::describe_counter!(
        "limits_refused_total",
        "Requests refused by a plan's limit, by plan and limit."
    );
    metrics::describe_counter!(
        "limits_addresses_shut_total",
        "Times that an address had spent its budget of wrong credentials."
    );
    metrics::describe_counter!(
        "limits_uncounted_total",
        "Requests admitted without the shared counters, which were out of reach."
    );
    metrics::describe_counter!(
        "jwks_fetches_total",
        "Fetches of an issuer's keys, by its place in auth.issuers (from 0) and result: ok or failed."
    );
    metrics::describe_counter!(
        "http_stalled_total",
        "Connections cut off because their client took nothing of what was sent."
    );
    metrics::describe_gauge!("http_connections", "Connections open, by listener.");
    metrics::describe_gauge!(
        "database_connections",
        "Connections to PostgreSQL, by state: idle or used."
    );
}
