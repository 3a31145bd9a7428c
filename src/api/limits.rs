//! `/limits`: what a caller's plan admits, and what is left of it.

use std::sync::Arc;

use axum::{
    Extension,
    http::{HeaderValue, StatusCode, header},
    response::Response,
};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::routes;

use super::{answer, error::Error, operations::Operations};
use crate::{
    domain::caller::Caller,
    limits::{Standing, Standings, whole_seconds},
};

/// The operation.
pub fn router() -> Operations {
    Operations::new().routes(routes!(get))
}

/// How a caller's limits stand.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Limits, example = json!({
    "plan": "free",
    "minute": {"limit": 60, "remaining": 59, "reset": 60},
    "day": {"limit": 1000, "remaining": 999, "reset": 43200}
}))]
struct LimitsBody {
    /// The plan.
    #[schema(max_length = 10, pattern = "^(free|pro|enterprise)$")]
    plan: &'static str,
    /// Any 60 seconds; absent when unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    minute: Option<WindowBody>,
    /// The UTC day; absent when unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    day: Option<WindowBody>,
}

/// How one limit stands.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LimitWindow)]
struct WindowBody {
    /// Requests that the window admits.
    #[schema(value_type = i64, minimum = 0, maximum = 4_294_967_295_i64)]
    limit: u32,
    /// Requests that it still would.
    #[schema(value_type = i64, minimum = 0, maximum = 4_294_967_295_i64)]
    remaining: u32,
    /// Seconds until it would admit more.
    #[schema(value_type = i64, minimum = 0, maximum = 86_400)]
    reset: u64,
}

impl From<Standing> for WindowBody {
    fn from(standing: Standing) -> Self {
        Self {
            limit: standing.limit,
            remaining: standing.remaining,
            reset: whole_seconds(standing.reset),
        }
    }
}

/// See what is left of the plan
///
/// Counts as a request itself.
#[utoipa::path(
    get, path = "/limits", operation_id = "getLimits", tag = "limits",
    security(("api_key" = []), ("bearer" = [])),
    responses((status = 200, description = "The plan, and how its limits stand.", body = LimitsBody)),
)]
async fn get(
    Extension(caller): Extension<Arc<Caller>>,
    // None: unlimited.
    standings: Option<Extension<Standings>>,
) -> Result<Response, Error> {
    let standings = standings.map_or_else(Standings::default, |Extension(standings)| standings);
    let body = LimitsBody {
        plan: caller.plan.as_str(),
        minute: standings.minute.map(WindowBody::from),
        day: standings.day.map(WindowBody::from),
    };
    let mut response = answer::json(StatusCode::OK, &body)?;
    let no_store = HeaderValue::from_static("no-store");
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, no_store);
    Ok(response)
}
