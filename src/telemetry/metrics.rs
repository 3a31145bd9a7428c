//! The process's metrics, in the text format of Prometheus, and what each means.
//!
//! Invariants: [`METRICS`] describes every one, and a test compares it with what is served; the values of a
//! label are few, and none is a client's to make up.

use std::sync::{Mutex, PoisonError};

use metrics::Unit;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use super::{Error, process};

/// Bounds in seconds of the latency histograms' buckets.
const LATENCIES: [f64; 11] = [
    0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5,
];
/// Bounds of the buckets of how many travel together.
const BATCHES: [f64; 8] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0];

/// What a metric is, and means.
#[derive(Debug, Clone, Copy)]
pub struct Described {
    /// Its name; a unit is at its end.
    pub name: &'static str,
    /// As `# TYPE` says it.
    pub kind: Kind,
    /// Its labels, each with the values it can have; with none: one for each route, issuer and the like.
    pub labels: &'static [(&'static str, &'static [&'static str])],
    /// As `# HELP` says it.
    pub help: &'static str,
}

/// What kind of metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "Prometheus's own words")]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

type Labels = &'static [(&'static str, &'static [&'static str])];

const fn counter(name: &'static str, labels: Labels, help: &'static str) -> Described {
    described(name, Kind::Counter, labels, help)
}

const fn gauge(name: &'static str, labels: Labels, help: &'static str) -> Described {
    described(name, Kind::Gauge, labels, help)
}

const fn histogram(name: &'static str, labels: Labels, help: &'static str) -> Described {
    described(name, Kind::Histogram, labels, help)
}

const fn described(
    name: &'static str,
    kind: Kind,
    labels: Labels,
    help: &'static str,
) -> Described {
    Described {
        name,
        kind,
        labels,
        help,
    }
}

const PLANS: (&str, &[&str]) = ("plan", &["free", "pro", "enterprise", "open"]);
const POOLS: (&str, &[&str]) = ("pool", &["requests", "lanes", "finds"]);
#[rustfmt::skip]
const METHODS: (&str, &[&str]) =
    ("method", &["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "other"]);

/// Every metric. Their names, kinds and labels stay; new ones may come.
#[rustfmt::skip]
pub const METRICS: &[Described] = &[
    counter("http_requests_total", &[METHODS, ("route", &[]), ("status", &[])],
        "Requests answered, by method, route and status."),
    histogram("http_request_duration_seconds", &[METHODS, ("route", &[])],
        "Time from a request's head to its answer's, by method and route."),
    gauge("http_requests_in_flight", &[], "Requests of the API being answered."),
    gauge("http_requests_in_flight_max", &[],
        "Requests of the API that may be answered at once (server.max_requests)."),
    counter("http_overloaded_total", &[],
        "Requests refused because as many as may be were being answered."),
    counter("http_stalled_total", &[],
        "Connections cut off because their client took nothing of what was sent."),
    gauge("http_connections", &[("listener", &["api", "operations"])], "Connections open, by listener."),

    counter("limits_admitted_total", &[PLANS], "Requests admitted to limited and unlimited plans, by plan."),
    counter("limits_refused_total", &[PLANS, ("limit", &["minute", "day", "in-flight", "limits"])],
        "Requests refused by a plan's limit, by plan and limit."),
    counter("limits_addresses_shut_total", &[],
        "Client addresses that reached the failed-authentication limit."),
    counter("logins_total", &[("result", &["ok", "wrong", "limited", "failed"])],
        "Tries to log in: let in, wrong, more than an account may have, or failed by our own fault."),
    gauge("password_hashes_waiting", &[], "Passwords being hashed, or waiting for their turn."),
    counter("jwks_fetches_total", &[("issuer", &[]), ("result", &["ok", "failed"])],
        "Fetches of an issuer's keys, by its place in auth.issuers (from 0) and result."),
    counter("idempotent_replays_total", &[],
        "Answers given again to a request with an Idempotency-Key that was answered before."),

    gauge("database_connections", &[POOLS, ("state", &["idle", "used"])],
        "Connections to PostgreSQL: those that requests share, those of the lanes on which requests travel \
         together, and those of the workers for finds."),
    gauge("database_connections_max", &[("pool", &["requests", "finds"])],
        "Connections to PostgreSQL that there may be (of requests: database.max_connections; of finds: two a \
         worker that has been asked to find something)."),
    gauge("database_waiting", &[POOLS], "Requests that wait for a connection, or for others' statement to end."),
    histogram("database_batch_requests", &[("statement", &["SELECT pets", "INSERT pets", "SELECT credentials", "UPDATE limit_usage"])],
        "Requests that one statement of a lane answered."),
    counter("database_retries_total", &[],
        "Transactions done anew because PostgreSQL gave another one the preference."),
    gauge("database_breaker_open", &[],
        "Whether PostgreSQL is out of reach (1) and whoever needs it is refused at once, or not (0)."),
    counter("database_breaker_opened_total", &[], "Times that PostgreSQL went out of reach."),

    gauge("images_uploads_in_flight", &[], "Uploads being taken."),
    gauge("images_uploads_in_flight_max", &[], "Uploads that may be taken at once (images.max_uploads)."),
    counter("images_uploaded_total", &[], "Images stored."),
    counter("images_uploaded_bytes_total", &[], "Their bytes."),
    counter("images_rendered_total", &[("result", &["ok", "undecodable", "panicked"])],
        "Smaller versions of images made, or not."),
    histogram("images_rendering_seconds", &[], "Time that making a smaller version took."),
    counter("images_store_failures_total", &[("operation", &["read", "write", "delete"])],
        "What the place of images did not do: it was full, or out of reach."),
    counter("images_swept_total", &[("kind", &["leftover", "orphan"])],
        "Images whose bytes were deleted: of rows that are gone, and of uploads never finished."),
    counter("images_sweep_failures_total", &[], "Times that deleting such bytes failed."),

    counter("otlp_exports_total", &[("result", &["ok", "failed"])],
        "Requests with spans to telemetry.otlp_endpoint, by result."),
    gauge("pet_inventory_build_info", &[("version", &[])], "1; the label says which version runs."),
    counter("process_cpu_seconds_total", &[], "Time that the process spent on processors."),
    gauge("process_resident_memory_bytes", &[], "Memory that the process has in RAM."),
    gauge("process_virtual_memory_bytes", &[], "Memory that the process has mapped."),
    gauge("process_threads", &[], "Threads of the process."),
    gauge("process_open_fds", &[], "Files and sockets that the process has open."),
    gauge("process_max_fds", &[], "Files and sockets that it may have open."),
    gauge("process_start_time_seconds", &[], "When the process started, in seconds since 1970."),
];

/// The process's metrics, which the `metrics` crate's macros write to.
#[derive(Debug, Clone)]
pub struct Metrics(PrometheusHandle);

impl Metrics {
    /// All of them, as Prometheus reads them.
    #[must_use]
    pub fn render(&self) -> String {
        process::measure();
        self.upkeep();
        let mut text = self.0.render();
        process::write_cpu_time(&mut text);
        text
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
        .and_then(|it| {
            it.set_buckets_for_metric(Matcher::Full("database_batch_requests".into()), &BATCHES)
        })
        .map_err(|error| twice(&error))?
        .build_recorder();
    let fresh = Metrics(recorder.handle());
    metrics::set_global_recorder(recorder).map_err(|error| twice(&error))?;
    describe();
    process::begin();
    metrics::gauge!("pet_inventory_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    *handle = Some(fresh.clone());
    Ok(fresh)
}

fn describe() {
    for Described {
        name,
        kind,
        labels,
        help,
    } in METRICS
    {
        match kind {
            Kind::Counter => metrics::describe_counter!(*name, *help),
            Kind::Gauge => metrics::describe_gauge!(*name, *help),
            Kind::Histogram => metrics::describe_histogram!(*name, Unit::Count, *help),
        }
        // From the beginning, at 0: what is first seen at 1 looks as if it had never been less.
        match (kind, labels) {
            (Kind::Counter, []) if !process::is_its(name) => metrics::counter!(*name).increment(0),
            (Kind::Counter, [(label, values)]) => {
                for value in *values {
                    metrics::counter!(*name, *label => *value).increment(0);
                }
            }
            _ => {}
        }
    }
}
