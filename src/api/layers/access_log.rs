//! Records each request in the access log and the metrics.
//!
//! A worker writes records in batches just before it sleeps: the responses are on their way then, so clients do not wait
//! for log lines, and a batch costs less per line. Other threads, and traced requests, write at once.
//!
//! Invariants:
//!
//! - One line per request, at most 0.1 s late; also for a request whose client disconnects (status 499). All lines of a
//!   connection are written before it ends, for which a shutdown waits.
//! - Query strings, header values and bodies are not logged.
//! - The cause of a 5xx response is logged once.

use std::{
    cell::RefCell,
    collections::HashMap,
    convert::Infallible,
    error::Error as StdError,
    pin::Pin,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use axum::{
    extract::{MatchedPath, Request},
    http::Method,
    response::Response,
};
use metrics::Histogram;
use pin_project_lite::pin_project;
use tower::{Layer, Service};
use tracing::Span;

use super::Inner;
use crate::api::{error::Cause, request_context::RequestContext};

/// Maximum number of records in a batch, for a worker that does not sleep.
const BATCH: usize = 256;
/// Status of a request whose client disconnected before the response, as nginx logs it.
const CLIENT_CLOSED_REQUEST: u16 = 499;

thread_local! {
    /// Batch of this thread; `None` if it writes at once.
    static PENDING: RefCell<Option<Vec<Record>>> = const { RefCell::new(None) };
}

/// Makes this thread write in batches: it has to call [`write_batch`] before it sleeps, and ten times a second.
pub fn enable_batches() {
    PENDING.set(Some(Vec::with_capacity(BATCH)));
}

/// Writes the batch of this thread.
pub fn write_batch() {
    PENDING.with_borrow_mut(|pending| {
        let pending = pending.iter_mut().flat_map(|pending| pending.drain(..));
        pending.for_each(|record| record.write());
    });
}

/// Layer that records each request.
#[derive(Debug, Clone, Copy)]
pub struct AccessLogLayer;

impl<S> Layer<S> for AccessLogLayer {
    type Service = AccessLog<S>;

    fn layer(&self, inner: S) -> AccessLog<S> {
        AccessLog { inner }
    }
}

/// Service of an [`AccessLogLayer`].
#[derive(Debug, Clone)]
pub struct AccessLog<S> {
    inner: S,
}

impl<S: Inner> Service<Request> for AccessLog<S> {
    type Response = Response;
    type Error = Infallible;
    type Future = AccessLogFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let guard = Guard(Some(Record {
            begun: Instant::now(),
            method: request.method().clone(),
            route: request.extensions().get::<MatchedPath>().cloned(),
            status: CLIENT_CLOSED_REQUEST,
            latency: Duration::ZERO,
            context: RequestContext::of(&request).clone(),
        }));
        AccessLogFuture {
            inner: self.inner.call(request),
            guard,
        }
    }
}

pin_project! {
    /// Future of [`AccessLog`].
    pub struct AccessLogFuture<F> {
        #[pin]
        inner: F,
        guard: Guard,
    }
}

impl<F: Future<Output = Result<Response, Infallible>>> Future for AccessLogFuture<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let Ok(response) = ready!(this.inner.poll(context));
        this.guard
            .write(response.status().as_u16(), response.extensions().get());
        Poll::Ready(Ok(response))
    }
}

/// Writes the record of a request once: with its response, or when it is dropped without one.
#[derive(Debug)]
struct Guard(Option<Record>);

impl Guard {
    fn write(&mut self, status: u16, cause: Option<&Cause>) {
        let Some(mut record) = self.0.take() else {
            return;
        };
        record.status = status;
        record.latency = record.begun.elapsed();
        if let Some(Cause(cause)) = cause {
            let (id, route) = (record.context.id().as_str(), record.route());
            let (method, error) = (&record.method, describe(cause));
            tracing::error!(request_id = id, %method, route, error, "request failed");
        }
        // The line of a traced request is part of its span, which ends with the response.
        if Span::current().is_disabled() {
            record.write_in_batch();
        } else {
            record.write();
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.write(CLIENT_CLOSED_REQUEST, None);
    }
}

/// Formats an error and its sources in one line.
fn describe(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}

/// A request and its response.
#[derive(Debug)]
struct Record {
    begun: Instant,
    method: Method,
    /// Route, not path: the number of values is bounded, and no identifier is logged.
    route: Option<MatchedPath>,
    status: u16,
    /// Time from the request head to the response head.
    latency: Duration,
    context: RequestContext,
}

impl Record {
    fn route(&self) -> &str {
        self.route.as_ref().map_or("none", MatchedPath::as_str)
    }

    /// Adds it to the batch of this thread; writes it at once if the thread has none.
    fn write_in_batch(self) {
        let pending = PENDING.with_borrow_mut(|pending| match pending {
            Some(pending) => {
                pending.push(self);
                Ok(pending.len())
            }
            None => Err(self),
        });
        match pending {
            Ok(length) if length < BATCH => {}
            Ok(_) => write_batch(),
            Err(record) => record.write(),
        }
    }

    fn write(&self) {
        tracing::info!(
            target: "pet_inventory::access",
            method = self.method.as_str(),
            route = self.route(),
            status = self.status,
            latency_ms = self.latency.as_secs_f64() * 1e3,
            caller = self.context.caller().map(|caller| caller.name.as_str()),
            request_id = self.context.id().as_str(),
        );
        record_duration(
            method_label(&self.method),
            self.route(),
            self.status,
            self.latency,
        );
    }
}

/// Method in metrics and traces. Unknown methods are `_OTHER`, because clients can invent them.
#[must_use]
pub fn method_label(method: &Method) -> &'static str {
    const KNOWN: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    KNOWN
        .into_iter()
        .find(|known| *known == method.as_str())
        .unwrap_or("_OTHER")
}

/// Records the duration of a request. Histograms are looked up once per thread: a look-up by name and labels costs more
/// than recording.
fn record_duration(method: &'static str, route: &str, status: u16, latency: Duration) {
    type Histograms = Vec<((&'static str, u16), Histogram)>;
    thread_local! {
        static HISTOGRAMS: RefCell<HashMap<String, Histograms>> = RefCell::default();
    }
    let look_up = || {
        metrics::histogram!(
            "http_server_request_duration_seconds",
            "http_request_method" => method,
            "http_route" => route.to_owned(),
            "http_response_status_code" => status.to_string(),
        )
    };
    HISTOGRAMS.with_borrow_mut(|histograms| {
        let of_route = match histograms.get_mut(route) {
            Some(of_route) => of_route,
            None => histograms.entry(route.to_owned()).or_default(),
        };
        let index = of_route
            .iter()
            .position(|(key, _)| *key == (method, status));
        let index = index.unwrap_or_else(|| {
            of_route.push(((method, status), look_up()));
            of_route.len() - 1
        });
        of_route[index].1.record(latency);
    });
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{
            Arc, Mutex,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use axum::http::HeaderMap;
    use futures_util::FutureExt as _;
    use tower::service_fn;

    use super::*;
    use crate::api::{layers::request_span::RequestSpanLayer, request_id::RequestId};

    /// Counts the lines that are written to it, and keeps the last one.
    #[derive(Clone, Default)]
    struct Lines(Arc<AtomicUsize>, Arc<Mutex<String>>);

    impl io::Write for Lines {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.fetch_add(1, Ordering::Relaxed);
            *self.1.lock().expect("a lock") = String::from_utf8_lossy(line).into_owned();
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Lines {
        /// Runs `test` with a subscriber that writes here.
        fn with(&self, test: impl FnOnce()) {
            let writer = self.clone();
            let subscriber = tracing_subscriber::fmt()
                .with_ansi(false)
                .with_writer(move || writer.clone())
                .finish();
            tracing::subscriber::with_default(subscriber, test);
        }
    }

    #[test]
    fn records_wait_for_a_worker_to_sleep_in_a_bounded_batch() {
        let record = || {
            let record = Record {
                begun: Instant::now(),
                method: Method::GET,
                route: None,
                status: 200,
                latency: Duration::ZERO,
                context: RequestContext::new(RequestId::of(&HeaderMap::new())),
            };
            record.write_in_batch();
        };
        let lines = Lines::default();
        let written = || lines.0.load(Ordering::Relaxed);
        lines.with(|| {
            record();
            assert_eq!(written(), 1);
            enable_batches();
            record();
            assert_eq!(written(), 1);
            write_batch();
            assert_eq!(written(), 2);
            (1..BATCH).for_each(|_| record());
            assert_eq!(written(), 2);
            record();
            assert_eq!(written(), 2 + BATCH);
        });
    }

    #[test]
    fn request_that_is_dropped_is_recorded_with_499() {
        let handler = service_fn(async |request: Request| match request.uri().path() {
            "/" => Ok::<_, Infallible>(Response::default()),
            _ => std::future::pending().await,
        });
        let lines = Lines::default();
        for (path, status) in [("/", "status=200"), ("/slow", "status=499")] {
            let request = Request::builder().uri(path).body(axum::body::Body::empty());
            lines.with(|| {
                let mut service = RequestSpanLayer.layer(AccessLogLayer.layer(handler));
                drop(service.call(request.expect("a request")).now_or_never());
            });
            let line = lines.1.lock().expect("a lock").clone();
            assert!(line.contains(status), "{line}");
        }
        assert_eq!(lines.0.load(Ordering::Relaxed), 2);
    }
}
