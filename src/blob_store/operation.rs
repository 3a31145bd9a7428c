//! Runs operations of the image store: traced and counted, or on blocking threads.

use std::{fs::File, io, ops::Range, os::unix::fs::FileExt, sync::Arc};

use bytes::Bytes;
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
    let result = counted(operation, work.instrument(span.clone()).await);
    if let Err(Error::Full(_) | Error::Unavailable(_)) = &result {
        span.record("otel.status_code", "ERROR");
    }
    result
}

/// Counts a failure of the store. A missing object is none.
pub(super) fn counted<T>(
    operation: &'static str,
    result: Result<T, impl Into<Error>>,
) -> Result<T, Error> {
    let result = result.map_err(Into::into);
    if let Err(Error::Full(_) | Error::Unavailable(_)) = &result {
        metrics::counter!("images_store_failures_total", "operation" => operation).increment(1);
    }
    result
}

/// Runs `work` on a blocking thread.
pub(super) async fn blocking<T: Send + 'static, E: Into<Error> + Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(Into::into),
        Err(panic) => Err(Error::Unavailable(panic.into())),
    }
}

/// Reads a range of a file on a blocking thread.
pub(super) async fn read_range(file: &Arc<File>, range: Range<u64>) -> Result<Bytes, Error> {
    let file = Arc::clone(file);
    blocking(move || {
        let length = usize::try_from(range.end - range.start).unwrap_or_default();
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, range.start)?;
        Ok::<_, io::Error>(bytes.into())
    })
    .await
}
