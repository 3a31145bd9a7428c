//! Sets up logging to stderr (stdout is for the output of commands), metrics, and traces if a collector is configured.

pub mod build;
mod error;
mod json;
mod lines;
mod metrics;
mod process;
mod statements;
mod traces;

use std::{
    io::{self, IsTerminal},
    panic,
    sync::Arc,
    time::Duration,
};

use tracing_subscriber::{
    EnvFilter, Layer as _,
    fmt::{self, format::JsonFields},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

pub use self::{
    error::Error,
    metrics::{Described, Kind, METRICS, Metrics, metrics},
};
use self::{json::JsonLines, lines::Lines, traces::Traces};
use crate::{
    config::{Config, LogFormat},
    trace_context,
};

/// Guard of logging and traces. When dropped, it sends the last spans and then writes the last log lines, for as long as
/// `shutdown_grace` allows.
#[must_use]
pub struct Telemetry {
    traces: Option<Traces>,
    lines: Arc<Lines>,
    shutdown_grace: Duration,
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        self.traces = None;
        self.lines.flush(self.shutdown_grace);
    }
}

/// Starts logging and, if configured, sending traces, until the returned guard is dropped. Fails if logging
/// was started before.
pub fn start(config: &Config) -> Result<Telemetry, Error> {
    let shutdown_grace = config.server.shutdown_grace;
    let config = &config.telemetry;
    let filter = EnvFilter::builder().parse(&config.log)?;
    // Events for traces are not logged, and of failures to connect only what the circuit breaker knows of them: to the pool,
    // an orderly stop of PostgreSQL is an error.
    let filter = filter
        .add_directive(format!("{}=off", trace_context::TARGET).parse()?)
        .add_directive("sqlx_core::pool=off".parse()?)
        // They have lines of `.pgpass` with their passwords.
        .add_directive("sqlx_postgres::options::pgpass=off".parse()?);
    let human = match config.format {
        LogFormat::Human => true,
        LogFormat::Json => false,
        LogFormat::Auto => io::stderr().is_terminal(),
    };
    let traces = Traces::start(config)?;
    let writer = Lines::start()?;
    let lines = fmt::layer().with_writer(Arc::clone(&writer));
    let lines = if human {
        let lines = lines.compact().with_target(false);
        lines.with_ansi(io::stderr().is_terminal()).boxed()
    } else {
        let in_traces = traces.is_some();
        let lines = lines.fmt_fields(JsonFields::new());
        lines.event_format(JsonLines { in_traces }).boxed()
    };
    tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .with(traces.as_ref().map(Traces::layer))
        .try_init()
        .map_err(|error| Error::Twice(error.to_string()))?;
    // The default hook would wait for stderr.
    panic::set_hook(Box::new(|panic| tracing::error!(%panic, "panicked")));
    Ok(Telemetry {
        traces,
        lines: writer,
        shutdown_grace,
    })
}

/// Bounds the memory of metrics, forever.
pub async fn maintain_metrics(metrics: Metrics) {
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        metrics.upkeep();
    }
}
