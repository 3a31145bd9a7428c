//! Records each request in the access log and the metrics.
//!
//! A worker writes records in batches just before it sleeps: the responses are on their way then, so clients do not wait
//! for log lines, and a batch costs less per line. Other threads, and traced requests, write at once.
//!
//! Invariants:
//! - One line per request, at most 0.1 s after the response head; also if the client disconnects (status 499).
//!   All lines of a connection are written before it ends, for which a shutdown waits.
//! - Query strings, header values and bodies are not logged. Paths and client addresses are, if `telemetry.access_details`
//!   is set; then the line, but neither metric nor trace, waits until the response body has been sent or dropped.
//! - The cause of a 5xx response is logged once.

use std::{
    cell::RefCell,
    collections::HashMap,
    error::Error as StdError,
    iter,
    pin::Pin,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::MatchedPath,
    http::Method,
    response::Response,
};
use http_body::{Frame, SizeHint};
use metrics::Histogram;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use tracing::{Span, field};

use super::{Incoming, Middleware, Next};
use crate::api::{error::Error, request_context::RequestContext};

/// Maximum number of records in a batch, for a worker that does not sleep.
const BATCH: usize = 256;
/// Status if the client disconnected before the response, as nginx logs it.
const CLIENT_CLOSED_REQUEST: u16 = 499;
/// Maximum number of bytes of a method in a line.
const MAX_METHOD: usize = 16;
/// Maximum number of bytes of a path in a line, before percent-encoding.
const MAX_PATH: usize = 512;
/// Characters of a path that are percent-encoded, as are all beyond ASCII: a line has visible ones only.
const INVISIBLE: &AsciiSet = &CONTROLS.add(b' ');

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

/// Records each request.
#[derive(Debug)]
pub struct AccessLog {
    /// True if lines also have the path, the client address and the size of the response.
    pub has_details: bool,
}

impl Middleware for AccessLog {
    async fn call(&self, request: Incoming<'_>, next: &impl Next) -> Response {
        let context = RequestContext::of(&request);
        let details = self.has_details.then(|| {
            Box::new(Details {
                path: visible(request.uri().path()),
                response_bytes: 0,
                span: Span::current(),
            })
        });
        let mut record = Unwritten(Some(Record {
            begun: Instant::now(),
            method: request.method().clone(),
            route: request.extensions().get().cloned(),
            status: CLIENT_CLOSED_REQUEST,
            latency: Duration::ZERO,
            context: context.clone(),
            details,
        }));
        let response = next.call(request).await;
        match record.complete(response.status().as_u16(), Error::of(&response)) {
            Some(record) if record.details.is_some() => response.map(|body| {
                let record = Some(record);
                Body::new(RecordedBody { body, record })
            }),
            record => {
                record.into_iter().for_each(Record::submit);
                response
            }
        }
    }
}

/// Cuts a path and makes it visible.
fn visible(path: &str) -> String {
    let path = &path[..path.floor_char_boundary(MAX_PATH)];
    utf8_percent_encode(path, INVISIBLE).to_string()
}

/// Record of a request without its line. It is completed once: with its response, or when it is dropped without one.
#[derive(Debug)]
struct Unwritten(Option<Record>);

impl Unwritten {
    /// Completes and returns the record, once.
    fn complete(&mut self, status: u16, error: Option<&Error>) -> Option<Record> {
        let mut record = self.0.take()?;
        record.status = status;
        record.latency = record.begun.elapsed();
        if record.details.is_some() {
            record.record_duration();
        }
        if let Some(error) = error {
            let (method, route) = (record.method(), record.route());
            log_failure(&record.context, Some(method), Some(route), error);
        }
        Some(record)
    }
}

impl Drop for Unwritten {
    fn drop(&mut self) {
        let record = self.complete(CLIENT_CLOSED_REQUEST, None);
        record.into_iter().for_each(Record::submit);
    }
}

/// Body of a response with the record of its request.
struct RecordedBody {
    body: Body,
    record: Option<Record>,
}

impl HttpBody for RecordedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context)?);
        let data = frame.as_ref().and_then(Frame::data_ref);
        let details = self.record.as_mut().and_then(|it| it.details.as_mut());
        if let (Some(details), Some(data)) = (details, data) {
            details.response_bytes += data.len() as u64;
        }
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for RecordedBody {
    fn drop(&mut self) {
        let record = self.record.take();
        record.into_iter().for_each(Record::submit);
    }
}

/// Logs the cause of a 5xx response, unless it is logged elsewhere. The method and the route are in the line of the request, too.
pub fn log_failure(
    context: &RequestContext,
    method: Option<&str>,
    route: Option<&str>,
    error: &Error,
) {
    if !error.is_logged() {
        return;
    }
    let (id, cause) = (context.id.as_str(), describe(error));
    if error.is_database_outage() {
        tracing::warn!(
            request_id = id,
            method,
            route,
            error = cause,
            "request failed"
        );
    } else {
        tracing::error!(
            request_id = id,
            method,
            route,
            error = cause,
            "request failed"
        );
    }
}

/// Formats an error and its sources in one line.
fn describe(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    for cause in iter::successors(error.source(), |&cause| cause.source()) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Details of a record, which `telemetry.access_details` adds.
#[derive(Debug, Clone)]
struct Details {
    /// Path without the query: visible ASCII, of limited length.
    path: String,
    /// Size of the body, as far as it was passed to the connection.
    response_bytes: u64,
    /// Span of the request, for the ids in the line.
    span: Span,
}

/// A request and its response.
#[derive(Debug, Clone)]
struct Record {
    begun: Instant,
    method: Method,
    /// Route, not path: the number of values is bounded, and no identifier is logged.
    route: Option<MatchedPath>,
    status: u16,
    /// Time from the request head to the response head.
    latency: Duration,
    context: RequestContext,
    details: Option<Box<Details>>,
}

impl Record {
    /// Writes the line, in a batch if possible.
    fn submit(self) {
        let span = self.details.as_ref().map(|details| details.span.clone());
        let span = span.unwrap_or_else(Span::current);
        // The line of a traced request has the id of its trace, which a batch would not have.
        if span.is_disabled() {
            self.write_in_batch();
        } else {
            span.in_scope(|| self.write());
        }
    }

    /// Method, cut to [`MAX_METHOD`]: clients can invent long ones.
    fn method(&self) -> &str {
        let method = self.method.as_str();
        &method[..method.floor_char_boundary(MAX_METHOD)]
    }

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
        let details = self.details.as_ref();
        tracing::info!(
            target: "pet_inventory::access",
            method = self.method(),
            route = self.route(),
            status = self.status,
            latency_ms = self.latency.as_secs_f64() * 1e3,
            caller = self.context.caller.get().map(|caller| caller.name.as_str()),
            request_id = self.context.id.as_str(),
            path = details.map(|it| it.path.as_str()),
            client_address = details.and(self.context.client).map(field::display),
            response_bytes = details.map(|it| it.response_bytes),
        );
        if details.is_none() {
            self.record_duration();
        }
    }

    /// Records the duration in the metrics: at the response head for a record with details, else with the line.
    fn record_duration(&self) {
        let method = method_label(&self.method);
        record_duration(method, self.route(), self.status, self.latency);
    }
}

/// Method in metrics and traces. Unknown methods are `_OTHER`, because clients can invent them.
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
    HISTOGRAMS.with_borrow_mut(|histograms| {
        let of_route = match histograms.get_mut(route) {
            Some(of_route) => of_route,
            None => histograms.entry(route.to_owned()).or_default(),
        };
        let key = (method, status);
        let known = of_route.iter().position(|(known, _)| *known == key);
        let index = known.unwrap_or_else(|| {
            let histogram = metrics::histogram!(
                "http_server_request_duration_seconds",
                "http_request_method" => method,
                "http_route" => route.to_owned(),
                "http_response_status_code" => status.to_string(),
            );
            of_route.push((key, histogram));
            of_route.len() - 1
        });
        of_route[index].1.record(latency);
    });
}
