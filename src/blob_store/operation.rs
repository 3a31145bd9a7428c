//! Traces and counts the operations of the image store.

use tracing::{Instrument, field::Empty};

use super::error::Error;
use crate::trace_context;

/// Runs an operation of the store in a span, and counts its failures. A missing object is not a failure of the store.
pub(super) async fn observed<T>(
    operation: &'static str,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let span = tracing::debug_span!(
        target: trace_context::TARGET,
        "image bytes",
        otel.name = format_args!("{operation} image bytes"),
        otel.status_code = Empty,
    );
    let result = work.instrument(span.clone()).await;
    if let Err(Error::Full(_) | Error::Unavailable(_)) = &result {
        span.record("otel.status_code", "ERROR");
        metrics::counter!("images_store_failures_total", "operation" => operation).increment(1);
    }
    result
}
