//! Defines all metrics and renders them in the Prometheus text format.
//!
//! Invariants:
//! - [`METRICS`] describes every metric. A test compares it with those served.
//! - Labels have few values, and clients cannot invent new ones.

use std::{
    collections::HashSet,
    sync::{Mutex, PoisonError},
};

use metrics::Unit;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use self::Kind::{Counter, Gauge, Histogram};
use super::{build, error::Error, process};

/// Bucket bounds of the latency histograms, in seconds.
const LATENCIES: [f64; 14] = [
    0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5, 5.0, 10.0, 30.0,
];
/// Bucket bounds of the batch-size histogram, in requests.
const BATCHES: [f64; 8] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0];

type Labels = &'static [(&'static str, &'static [&'static str])];

/// Description of a metric.
#[derive(Debug, Clone, Copy)]
pub struct Described {
    /// Name, with the unit as its suffix.
    pub name: &'static str,
    /// Type, as in `# TYPE`.
    pub kind: Kind,
    /// Labels with their possible values. An empty list means one value per route, issuer and the like.
    pub labels: Labels,
    /// Help text, as in `# HELP`.
    pub help: &'static str,
}

/// Type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "Prometheus's own words")]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

const fn metric(kind: Kind, name: &'static str, labels: Labels, help: &'static str) -> Described {
    Described {
        name,
        kind,
        labels,
        help,
    }
}

const PLANS: (&str, &[&str]) = ("plan", &["free", "pro", "enterprise", "open"]);
const POOLS: (&str, &[&str]) = ("db_client_connection_pool_name", &["requests", "batches"]);
const CPU: Described = metric(
    Counter,
    "process_cpu_seconds_total",
    &[],
    "CPU time of the process.",
);
#[rustfmt::skip]
const METHODS: (&str, &[&str]) =
    ("http_request_method", &["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "_OTHER"]);

/// All metrics. Names, types and labels are stable; new metrics may be added.
#[rustfmt::skip]
pub const METRICS: &[Described] = &[
    metric(Histogram, "http_server_request_duration_seconds",
        &[METHODS, ("http_route", &[]), ("http_response_status_code", &[])],
        "Duration of HTTP requests, from the request head to the response head."),
    metric(Gauge, "http_server_active_requests", &[], "API requests in progress."),
    metric(Gauge, "http_server_active_requests_max", &[],
        "Maximum number of API requests in progress (server.max_requests)."),
    metric(Counter, "http_server_shed_requests_total", &[],
        "Requests refused because server.max_requests, server.max_response_memory or another maximum was in use."),
    metric(Counter, "http_server_stalled_connections_total", &[],
        "Connections closed because a write made no progress."),
    metric(Gauge, "http_server_open_connections", &[("listener", &["api", "operations"])], "Open client connections."),
    metric(Gauge, "http_server_open_connections_max", &[("listener", &["api", "operations"])],
        "Maximum number of open client connections: server.max_connections, or fewer if the limit of open files is low."),
    metric(Counter, "http_server_refused_connections_total", &[("listener", &["api", "operations"])],
        "Connections closed because their client address had server.max_connections_per_address."),

    metric(Counter, "limits_admitted_total", &[PLANS], "Requests admitted by the limits of their plan."),
    metric(Counter, "limits_refused_total", &[PLANS, ("limit", &["minute", "day", "in-flight", "limits"])],
        "Requests refused by a limit of their plan."),
    metric(Counter, "limits_blocked_addresses_total", &[],
        "Client addresses that reached the failed-authentication limit."),
    metric(Counter, "logins_total", &[("result", &["ok", "wrong", "limited", "failed"])],
        "Login attempts: successful, wrong, over the limit of the account, failed by a fault of the service."),
    metric(Gauge, "password_hashes_waiting", &[], "Password hashes in progress or queued."),
    metric(Counter, "jwks_fetches_total", &[("issuer", &[]), ("result", &["ok", "failed"])],
        "Fetches of an issuer's keys. The issuer is its index in auth.issuers, from 0."),
    metric(Counter, "idempotent_replays_total", &[], "Responses replayed for a repeated Idempotency-Key."),

    metric(Gauge, "db_client_connections", &[POOLS, ("db_client_connection_state", &["idle", "used"])],
        "Open connections to PostgreSQL: for requests, for batched statements (batches)."),
    metric(Gauge, "db_client_connection_max", &[("db_client_connection_pool_name", &["requests"])],
        "Maximum number of connections to PostgreSQL: database.max_connections."),
    metric(Gauge, "db_client_connection_pending_requests", &[POOLS],
        "Requests that wait for a connection or a batched statement."),
    metric(Histogram, "db_client_operation_batch_size",
        &[("db_query_summary", &["SELECT pets", "SELECT pets by status", "SELECT pets by tag", "INSERT pets", "UPDATE pets", "INSERT orders", "DELETE orders",
            "SELECT credentials", "UPDATE limit_usage"])],
        "Requests per batched statement."),
    metric(Counter, "db_client_transaction_retries_total", &[],
        "Transactions retried after a serialization failure or a deadlock."),
    metric(Gauge, "db_client_breaker_open", &[],
        "Circuit breaker of PostgreSQL: 1 is open (unreachable), 0 is closed."),
    metric(Counter, "db_client_breaker_opened_total", &[], "Openings of the circuit breaker of PostgreSQL."),

    metric(Gauge, "changes_lag_seconds", &[],
        "Age of the oldest change that the last publication of the record of changes found."),
    metric(Gauge, "changes_unpublished", &[], "Changes that the last publication found and published."),
    metric(Counter, "changes_purged_total", &[], "Changes deleted after changes.retention."),
    metric(Gauge, "changes_streams", &[], "Open streams of changes."),
    metric(Gauge, "changes_streams_max", &[], "Maximum number of open streams of changes (changes.max_streams)."),
    metric(Counter, "changes_streams_lagged_total", &[], "Streams of changes ended because they were read too slowly."),

    metric(Counter, "webhooks_deliveries_total", &[("webhook", &[]), ("result", &["delivered", "failed", "parked"])],
        "Deliveries to webhooks: made, failed and repeated later, and given up."),
    metric(Gauge, "webhooks_lag_seconds", &[("webhook", &[])],
        "Age of the oldest change that an enabled webhook has not got, as of the last 10 s."),
    metric(Gauge, "webhooks_waiting", &[("webhook", &[])], "Changes that a webhook has not got, up to 10,000, as of the last 10 s."),
    metric(Gauge, "webhooks_parked", &[("webhook", &[])], "Deliveries to a webhook that were given up."),

    metric(Gauge, "images_uploads_in_flight", &[], "Uploads in progress."),
    metric(Gauge, "images_uploads_in_flight_max", &[], "Maximum number of uploads in progress (images.max_uploads)."),
    metric(Counter, "images_uploaded_total", &[], "Stored images."),
    metric(Counter, "images_uploaded_bytes_total", &[], "Size of the stored images in bytes."),
    metric(Counter, "images_rendered_total", &[("result", &["ok", "undecodable", "panicked"])],
        "Renderings of images."),
    metric(Histogram, "images_rendering_seconds", &[], "Duration of the rendering of an image."),
    metric(Counter, "images_store_failures_total", &[("operation", &["read", "write", "delete"])],
        "Failed image store operations."),
    metric(Counter, "images_missing_total", &[], "Requests of images that the image store has lost or damaged."),
    metric(Counter, "images_swept_total", &[("kind", &["deleted", "orphan"])],
        "Deleted orphaned blobs: of deleted images, and of uploads that were not completed."),
    metric(Counter, "images_sweep_failures_total", &[], "Failed deletions of orphaned blobs."),
    metric(Gauge, "images_store_conflict", &[],
        "Owner of the image store: 1 is another database or a copy of this one (nothing is deleted), 0 is this one."),

    metric(Gauge, "backup_last_success_timestamp_seconds", &[],
        "Time of the last complete backup (pet-inventory backup), in seconds since 1970, as of the last minute; 0 if there is none."),

    metric(Counter, "log_dropped_lines_total", &[], "Log lines dropped because stderr was too slow, or its disk full."),
    metric(Counter, "otlp_exports_total", &[("result", &["ok", "failed"])],
        "Exports of spans to telemetry.otlp_endpoint."),
    metric(Gauge, "pet_inventory_build_info", &[("version", &[]), ("commit", &[])],
        "Version of the service and the commit that it was built of, as labels; always 1."),
    CPU,
    metric(Gauge, "process_resident_memory_bytes", &[], "Resident memory of the process."),
    metric(Gauge, "process_virtual_memory_bytes", &[], "Virtual memory of the process."),
    metric(Gauge, "process_threads", &[], "Threads of the process."),
    metric(Gauge, "process_open_fds", &[], "Open file descriptors of the process."),
    metric(Gauge, "process_max_fds", &[], "Maximum number of open file descriptors."),
    metric(Gauge, "process_start_time_seconds", &[], "Start time of the process, in seconds since 1970."),
];

/// Handle to the metrics that the macros of the `metrics` crate record.
#[derive(Debug, Clone)]
pub struct Metrics(PrometheusHandle);

impl Metrics {
    /// Renders all metrics for Prometheus.
    pub fn render(&self) -> String {
        process::measure();
        self.upkeep();
        let mut text = without_deleted_webhooks(&self.0.render());
        process::write_cpu_time(&mut text, CPU.name, CPU.help);
        text
    }

    /// Sorts samples into buckets. Every sample is kept until then, so this must be called often, even without scrapes.
    pub fn upkeep(&self) {
        self.0.run_upkeep();
    }
}

/// Leaves out the series of webhooks without a lag, which are deleted: the recorder keeps all series.
fn without_deleted_webhooks(text: &str) -> String {
    fn webhook(line: &str) -> Option<&str> {
        let labels = line.strip_prefix("webhooks_")?.split_once("{webhook=\"")?.1;
        labels.split_once('"').map(|(id, _)| id)
    }
    let lags = text
        .lines()
        .filter(|line| line.starts_with("webhooks_lag_seconds{") && !line.ends_with(" NaN"));
    let existing: HashSet<_> = lags.filter_map(webhook).collect();
    let lines = text.split_inclusive('\n');
    lines
        .filter(|line| webhook(line).is_none_or(|id| existing.contains(id)))
        .collect()
}

/// Installs the process's metrics recorder, or returns the handle to the installed one.
pub fn metrics() -> Result<Metrics, Error> {
    static HANDLE: Mutex<Option<Metrics>> = Mutex::new(None);
    let mut handle = HANDLE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(handle) = &*handle {
        return Ok(handle.clone());
    }
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &LATENCIES)
        .and_then(|it| {
            it.set_buckets_for_metric(
                Matcher::Full("db_client_operation_batch_size".into()),
                &BATCHES,
            )
        })
        .map_err(|error| Error::Twice(error.to_string()))?
        .build_recorder();
    let fresh = Metrics(recorder.handle());
    metrics::set_global_recorder(recorder).map_err(|error| Error::Twice(error.to_string()))?;
    describe();
    process::begin();
    metrics::gauge!("pet_inventory_build_info", "version" => build::VERSION, "commit" => build::commit())
        .set(1.0);
    *handle = Some(fresh.clone());
    Ok(fresh)
}

fn describe() {
    for metric in METRICS {
        let (name, help) = (metric.name, metric.help);
        match metric.kind {
            Counter => metrics::describe_counter!(name, help),
            Gauge => metrics::describe_gauge!(name, help),
            Histogram => metrics::describe_histogram!(name, Unit::Count, help),
        }
        // Counters start at 0, because Prometheus cannot see an increase in one that first appears at 1.
        match (metric.kind, metric.labels) {
            (Counter, []) if name != CPU.name => metrics::counter!(name).increment(0),
            (Counter, [(label, values)]) => {
                for value in *values {
                    metrics::counter!(name, *label => *value).increment(0);
                }
            }
            _ => {}
        }
    }
}
