//! Gauges that are read from the application state whenever metrics are rendered.

use metrics::gauge;

use crate::{api::state::AppState, db::Usage, telemetry::Metrics};

/// Returns a function that updates the gauges and renders all metrics.
pub fn render(metrics: Metrics, state: AppState) -> impl Fn() -> String + Clone {
    move || {
        let database = &state.database;
        for (pool, usage) in database.usage() {
            set_pool(pool, usage);
        }
        let is_open = database.breaker().is_open();
        set("db_client_breaker_open", is_open.into());

        let requests = &state.concurrency.requests;
        set("http_server_active_requests", requests.in_use());
        set("http_server_active_requests_max", requests.max());
        let uploads = &state.uploads.in_progress;
        set("images_uploads_in_flight", uploads.in_use());
        set("images_uploads_in_flight_max", uploads.max());
        let streams = &state.concurrency.change_streams;
        set("changes_streams", streams.in_use());
        set("changes_streams_max", streams.max());
        let hashes = &state.concurrency.password_hashes;
        set("password_hashes_waiting", hashes.in_use());
        metrics.render()
    }
}

fn set_pool(pool: &'static str, usage: Usage) {
    const POOL: &str = "db_client_connection_pool_name";
    let connections = |state| gauge!("db_client_connections", POOL => pool, "db_client_connection_state" => state);
    connections("idle").set(usage.idle);
    connections("used").set(usage.used);
    if let Some(max) = usage.max {
        gauge!("db_client_connection_max", POOL => pool).set(max);
    }
    let waiting = u32::try_from(usage.waiting).unwrap_or(u32::MAX);
    gauge!("db_client_connection_pending_requests", POOL => pool).set(waiting);
}

fn set(name: &'static str, number: usize) {
    gauge!(name).set(u32::try_from(number).unwrap_or(u32::MAX));
}
