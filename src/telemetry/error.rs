//! Failures to set up telemetry.

use std::io;

use tracing_subscriber::filter::ParseError;

/// Failure to set up telemetry.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `telemetry.log` is malformed.
    #[error(
        "configuration: telemetry.log must be a level or module=level, separated by commas: {0}"
    )]
    Filter(#[from] ParseError),
    /// The logging thread could not be started.
    #[error("failed to start the log writer: {0}")]
    Log(#[from] io::Error),
    /// The trace exporter could not be built.
    #[error("cannot send traces to telemetry.otlp_endpoint: {0}")]
    Traces(String),
    /// Logging or metrics are set up already.
    #[error("logging or metrics are set up already: {0}")]
    Twice(String),
}
