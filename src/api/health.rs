//! Liveness and readiness endpoints, without credentials or limits, on both listeners.

use axum::{extract::State, http::header, response::IntoResponse, routing::get};

use super::{error::Error, operations::Route, state::Readiness};
use crate::db::Database;

/// Returns the routes `/livez` and `/readyz`.
pub fn routes() -> [Route; 2] {
    [
        Route::probe("/livez", get(live)),
        Route::probe("/readyz", get(ready)),
    ]
}

/// Succeeds while the process runs. Does not check the database, since a restart of the process would not fix it.
async fn live() -> impl IntoResponse {
    let headers = [
        (header::CONTENT_TYPE, "application/json"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (headers, r#"{"status":"ok"}"#)
}

/// Succeeds while the database responds and the process is not about to stop.
async fn ready(
    State(database): State<Database>,
    State(readiness): State<Readiness>,
) -> Result<impl IntoResponse, Error> {
    if readiness.is_stopping() {
        return Err(Error::Stopping);
    }
    readiness.database.run(&database).await?;
    Ok(live().await)
}
