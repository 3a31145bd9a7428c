//! Failures to set up telemetry.

use std::io;

use tracing_subscriber::filter::ParseError;

/// Failure to set up telemetry.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe the variants")]
pub enum Error {
    #[error(
        "configuration: telemetry.log (RUST_LOG) must be a level or module=level, separated by commas: {0}"
    )]
    Filter(#[from] ParseError),
    #[error("failed to start the log writer: {0}")]
    Log(#[from] io::Error),
    #[error("cannot send traces to telemetry.otlp_endpoint: {0}")]
    Traces(String),
    #[error("logging or metrics are set up already: {0}")]
    Twice(String),
}
