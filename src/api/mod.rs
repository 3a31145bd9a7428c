//! HTTP: the only room that knows axum, bodies and status codes.
//!
//! Here the nouns are mounted; what is around them stands in [`middleware`]. Invariant: no failure leaves but
//! as a problem ([`error`]).

pub mod access;
pub mod answer;
pub mod conditional;
pub mod error;
pub mod extract;
pub mod fields;
pub mod health;
pub mod idempotency;
pub mod images;
pub mod limits;
pub mod middleware;
pub mod oauth;
pub mod openapi;
pub mod operations;
pub mod orders;
mod pages;
pub mod paging;
pub mod pets;
pub mod presented;
pub mod problem;
pub mod request_id;
pub mod state;
pub mod users;

use std::sync::Arc;

use axum::{
    Router,
    http::{Uri, header},
    routing::get,
};
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;

use self::{
    access::AccessRules,
    error::Error,
    middleware::{around, around_anything, around_operation, around_strangers, around_upload},
    operations::Operations,
    state::{AppState, Links},
};

/// Every noun of the API.
fn nouns() -> Operations {
    Operations::with_document(openapi::base())
        .merge(pets::router())
        .merge(orders::router())
        .merge(users::router())
        .merge(images::router())
        .merge(limits::router())
}

/// What of the API strangers may use, each address within its budget.
fn open() -> Operations {
    Operations::new().merge(users::open_router())
}

/// What lies beside the API, where its RFCs look for it, and needs no caller.
fn beside() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().merge(oauth::router())
}

/// The OpenAPI document, as `/api/v3/openapi.json` has it.
#[must_use]
pub fn document(links: &Links) -> OpenApi {
    let operations = nouns().merge(images::uploads()).into_document();
    openapi::complete(
        operations,
        open().into_document(),
        beside().into_openapi(),
        links,
    )
}

/// What each operation needs of its caller.
///
/// # Errors
/// A sentence that names the operation whose `security` cannot be read; a test rules it out.
pub fn access_rules(document: &OpenApi) -> Result<Arc<AccessRules>, String> {
    AccessRules::from_document(document, openapi::BASE).map(Arc::new)
}

/// The operations, with nothing around them yet.
pub fn operations() -> Router<AppState> {
    nouns().into_routes()
}

/// `operations`, the document and the pages, with everything around them.
///
/// # Errors
/// When the document cannot be written as JSON; a test rules it out.
pub fn router(
    operations: Router<AppState>,
    state: AppState,
    document: &OpenApi,
) -> Result<Router, serde_json::Error> {
    let uploads = images::uploads().into_routes();
    let (beside, _) = beside().split_for_parts();

    let for_strangers = open().into_routes().merge(beside);
    let for_anybody = health::router()
        .merge(pages::router())
        .merge(openapi::router(document)?)
        .fallback(async || Error::NoSuchRoute);
    let everything = operations
        .layer(around(&state, around_operation))
        .merge(uploads.layer(around(&state, around_upload)))
        .merge(for_strangers.layer(around(&state, around_strangers)))
        .merge(for_anybody.layer(around(&state, around_anything)));
    Ok(everything.with_state(state))
}

/// What the operator's listener serves: signs of life, and `metrics`, rendered at each request.
pub fn operations_router(
    state: AppState,
    metrics: impl Fn() -> String + Clone + Send + Sync + 'static,
) -> Router {
    const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
    let metrics = async move || ([(header::CONTENT_TYPE, TEXT)], metrics());
    Router::new()
        .merge(health::router())
        .route("/metrics", get(metrics))
        .fallback(async || Error::NoSuchRoute)
        .layer(around(&state, around_anything))
        .with_state(state)
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
