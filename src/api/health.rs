//! Signs of life, without a credential or a limit: for orchestrators, on both listeners.

use axum::{
    Router,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
    routing::get,
};

use super::{
    error::Error,
    state::{AppState, Readiness},
};
use crate::db::Database;

/// `/livez` and `/readyz`.
pub fn router() -> Router<AppState> {
    Router::new()
        .route("/livez", get(live))
        .route("/readyz", get(ready))
}

/// The process runs. It says nothing of the database: restarting us would not bring that back.
async fn live() -> Response {
    ok()
}

/// Requests are welcome: the database answers, and the process is not about to stop.
async fn ready(
    State(database): State<Database>,
    State(readiness): State<Readiness>,
) -> Result<Response, Error> {
    if readiness.is_stopping() {
        return Err(Error::Stopping);
    }
    database.ping().await?;
    Ok(ok())
}

fn ok() -> Response {
    let headers = [
        (header::CONTENT_TYPE, "application/json"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (headers, r#"{"status":"ok"}"#).into_response()
}
