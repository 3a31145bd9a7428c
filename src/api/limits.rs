//! `GET /limits`: the limits of the caller's plan, and their state.

use axum::{
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::routes;

use super::{
    error::Error,
    operations::{Facts, Operations, RequestLimit},
    request_context::{CurrentCaller, RequestContext},
    response,
};
use crate::{
    db::{self, Database, usage::DayUsage},
    domain::{
        caller::{Scope, Scopes},
        clock::whole_seconds,
        limit::Window,
    },
};

/// Router of the operation.
pub fn router() -> Operations {
    let uncounted = Facts {
        limit: RequestLimit::Status,
        ..Facts::OPERATION
    };
    Operations::new().routes_with(uncounted, routes!(get))
}

/// State of a caller's limits.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Limits, example = json!({
    "plan": "free",
    "scopes": ["read:pets"],
    "minute": {"limit": 60, "remaining": 59, "reset": 60},
    "day": {"limit": 1000, "remaining": 999, "reset": 43200},
    "days": [{"day": "2026-01-31", "admitted": 1, "refused": 0}]
}))]
struct LimitsBody {
    /// The plan.
    #[schema(max_length = 10, pattern = "^(free|pro|enterprise)$")]
    plan: &'static str,
    /// Scopes of the credential.
    #[schema(value_type = Vec<Scope>, max_items = 16)]
    scopes: Scopes,
    /// Limit for any 60 seconds; absent if unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    minute: Option<WindowBody>,
    /// Limit for the UTC day; absent if unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    day: Option<WindowBody>,
    /// Requests on each of the last 30 UTC days, the current one last; empty for anonymous callers.
    #[schema(max_items = 30)]
    days: Vec<DayUsage>,
}

/// State of one limit.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LimitWindow, example = json!({"limit": 60, "remaining": 59, "reset": 60}))]
struct WindowBody {
    /// Maximum number of requests in the window.
    #[schema(value_type = i64, minimum = 0, maximum = 4_294_967_295_i64)]
    limit: u32,
    /// Remaining requests in the window.
    #[schema(value_type = i64, minimum = 0, maximum = 4_294_967_295_i64)]
    remaining: u32,
    /// Seconds until more requests are available.
    #[schema(value_type = i64, minimum = 0, maximum = 86_400)]
    reset: u64,
}

impl From<Window> for WindowBody {
    fn from(window: Window) -> Self {
        Self {
            limit: window.limit,
            remaining: window.remaining,
            reset: whole_seconds(window.reset),
        }
    }
}

/// Get the state of the limits
///
/// Responds even when a limit is reached, and is not counted against the limits. It has a limit of its own: 60
/// requests per minute. Also returns the scopes of the credential, and the caller's requests on each of the last 30 UTC days, up to a second ago.
#[utoipa::path(
    get, path = "/limits", operation_id = "getLimits", tag = "limits",
    security(("api_key" = []), ("bearer" = [])),
    responses((status = 200, description = "The plan, and the state of its limits.", body = LimitsBody)),
)]
async fn get(
    State(database): State<Database>,
    context: RequestContext,
    CurrentCaller(caller): CurrentCaller,
) -> Result<impl IntoResponse, Error> {
    let status = context.limit_status.get().copied().unwrap_or_default();
    let days = match caller.id {
        Some(id) => {
            database
                .run(async |it| db::usage::of_caller(it, id).await)
                .await?
        }
        None => Vec::new(),
    };
    let body = LimitsBody {
        plan: caller.plan.as_str(),
        scopes: caller.scopes,
        minute: status.minute.map(WindowBody::from),
        day: status.day.map(WindowBody::from),
        days,
    };
    let response = response::json(StatusCode::OK, &body)?;
    Ok(([(header::CACHE_CONTROL, "no-store")], response))
}
