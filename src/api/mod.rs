//! HTTP: the only room that knows axum, bodies and status codes.
//!
//! Here the nouns are mounted and the one layer stack is built, read from the outside in. Invariant: no
//! failure leaves but as a problem ([`error`]).

pub mod access;
pub mod answer;
pub mod conditional;
pub mod error;
pub mod extract;
pub mod fields;
pub mod health;
pub mod idempotency;
pub mod limits;
pub mod middleware;
pub mod oauth;
pub mod openapi;
pub mod orders;
pub mod paging;
pub mod pets;
pub mod presented;
pub mod problem;
pub mod state;
pub mod users;

use std::{any::Any, sync::Arc};

use axum::{
    Router,
    extract::{MatchedPath, Request, State},
    http::Uri,
    middleware::{Next, from_fn, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::get,
};
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;

use self::{
    access::AccessRules,
    error::Error,
    middleware::{
        authenticate::authenticate,
        authorize::authorize,
        client::client,
        idempotency::idempotency,
        load_shed::load_shed,
        observe::observe,
        rate_limit::{rate_limit, rate_limit_open},
        well_formed::well_formed,
    },
    state::{AppState, Links, RequestTimeout},
};

/// Every noun of the API.
fn nouns() -> OpenApiRouter<AppState> {
    OpenApiRouter::with_openapi(openapi::base())
        .merge(pets::router())
        .merge(orders::router())
        .merge(users::router())
        .merge(limits::router())
}

/// What of the API strangers may use, each address within its budget.
fn open() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().merge(users::open_router())
}

/// What lies beside the API, where its RFCs look for it, and needs no caller.
fn beside() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().merge(oauth::router())
}

/// The OpenAPI document, as `/api/v3/openapi.json` has it.
#[must_use]
pub fn document(links: &Links) -> OpenApi {
    let operations = nouns().merge(open()).into_openapi();
    openapi::complete(operations, beside().into_openapi(), links)
}

/// What each operation needs of its caller.
///
/// # Errors
/// A sentence that names the operation whose `security` cannot be read; a test rules it out.
pub fn access_rules(document: &OpenApi) -> Result<Arc<AccessRules>, String> {
    AccessRules::from_document(document, openapi::BASE).map(Arc::new)
}

/// The API, its document and its docs, with everything around them.
///
/// # Errors
/// When the document cannot be written as JSON; a test rules it out.
pub fn router(state: AppState, document: &OpenApi) -> Result<Router, serde_json::Error> {
    let (operations, _) = nouns().split_for_parts();
    let (open, _) = open().split_for_parts();
    let (beside, _) = beside().split_for_parts();

    // A request meets these layers from the last to the first, so it is read from below.
    let operations = operations
        // A kept answer is its caller's alone.
        .layer(from_fn_with_state(state.clone(), idempotency))
        // Around all that waits and all that could panic, and inside the limits: what fails through our
        // own fault gives its permit back.
        .layer(from_fn_with_state(state.clone(), time_limit))
        .layer(CatchPanicLayer::custom(panicked))
        // Before the body is read: whoever may not write need not be listened to.
        .layer(from_fn_with_state(state.clone(), authorize))
        // Behind the caller whose plan it is: nothing unverified spends a permit.
        .layer(from_fn_with_state(state.clone(), rate_limit))
        .layer(from_fn_with_state(state.clone(), authenticate))
        // Whose budget a wrong credential spends.
        .layer(from_fn_with_state(state.clone(), client))
        // Before anything waits. Health, docs and the document are outside: they are answered always.
        .layer(from_fn_with_state(state.clone(), load_shed));
    let for_strangers = Router::new()
        .nest(openapi::BASE, open)
        .merge(beside)
        .layer(from_fn_with_state(state.clone(), time_limit))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn_with_state(state.clone(), rate_limit_open))
        .layer(from_fn_with_state(state.clone(), client))
        .layer(from_fn_with_state(state.clone(), load_shed));
    let everything = Router::new()
        .nest(openapi::BASE, operations)
        .merge(for_strangers)
        .merge(health::router())
        .merge(openapi::router(document)?)
        .fallback(async || Error::NoSuchRoute)
        // Before anything acts on a request that two servers could read in two ways.
        .layer(from_fn(well_formed))
        // What observes must see the 500 of whatever panics.
        .layer(CatchPanicLayer::custom(panicked))
        // Outermost: nothing happens unseen, and every problem gets the request's id.
        .layer(from_fn(observe));
    Ok(everything.with_state(state))
}

/// What the operator's listener serves: signs of life, and `metrics`, rendered at each request.
pub fn operations_router(
    state: AppState,
    metrics: impl Fn() -> String + Clone + Send + Sync + 'static,
) -> Router {
    const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
    let metrics = async move || ([(axum::http::header::CONTENT_TYPE, TEXT)], metrics());
    Router::new()
        .merge(health::router())
        .route("/metrics", get(metrics))
        .fallback(async || Error::NoSuchRoute)
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn(observe))
        .with_state(state)
}

/// Answers 503 in place of a handler that takes too long, and drops it.
async fn time_limit(
    State(RequestTimeout(limit)): State<RequestTimeout>,
    request: Request,
    next: Next,
) -> Result<Response, Error> {
    /// A thousand passwords take half a minute to hash on one core, and nobody else waits for it.
    const LONG: (&str, u32) = ("/api/v3/user/createWithList", 4);
    let route = request.extensions().get::<MatchedPath>();
    let is_long = route.is_some_and(|route| route.as_str() == LONG.0);
    let limit = limit * if is_long { LONG.1 } else { 1 };
    tokio::time::timeout(limit, next.run(request))
        .await
        .map_err(|_| Error::TimedOut)
}

#[expect(clippy::needless_pass_by_value, reason = "the layer hands it over")]
fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("of no known type");
    Error::Internal(format!("a handler panicked: {text}").into()).into_response()
}

/// Takes the slashes off the end of a path of the API; `/docs/` and the like need theirs.
pub fn without_trailing_slash(uri: &Uri) -> Option<Uri> {
    let path = uri.path();
    let trimmed = path.trim_end_matches('/');
    if trimmed.len() == path.len() || !trimmed.starts_with(openapi::BASE) {
        return None;
    }
    let target = match uri.query() {
        Some(query) => format!("{trimmed}?{query}"),
        None => trimmed.to_owned(),
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(target.parse().ok()?);
    Uri::from_parts(parts).ok()
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, http::StatusCode};
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use super::*;

    #[tokio::test]
    async fn a_panic_is_a_500_and_the_next_request_is_answered() {
        async fn handler(uri: Uri) -> &'static str {
            assert!(uri.path() != "/panic", "the cause");
            "fine"
        }
        let router = Router::new()
            .fallback(handler)
            .layer(CatchPanicLayer::custom(panicked))
            .layer(from_fn(observe));
        let ask = async |path: &str| {
            let request = Request::builder().uri(path).body(Body::empty());
            let answer = router.clone().oneshot(request.expect("a request")).await;
            let answer = answer.expect("an answer");
            let status = answer.status();
            let body = answer
                .into_body()
                .collect()
                .await
                .expect("a body")
                .to_bytes();
            (status, String::from_utf8_lossy(&body).into_owned())
        };
        let (status, body) = ask("/panic").await;
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        assert!(
            body.contains("\"status\":500") && !body.contains("the cause"),
            "{body}"
        );
        assert_eq!(ask("/").await, (StatusCode::OK, "fine".to_owned()));
    }
}
