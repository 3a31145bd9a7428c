//! The HTTP API: routes by resource, and the layers around them ([`layers`]).
//!
//! Invariant: every error response is a problem document ([`error`]), except those that hyper sends itself.

pub mod admin;
pub mod body;
pub mod changes;
pub mod compression;
pub mod conditional;
pub mod credentials;
pub mod error;
pub mod extract;
pub mod fields;
pub mod health;
pub mod idempotency;
pub mod images;
mod kinds;
pub mod layers;
pub mod limits;
pub mod list_body;
pub mod list_parameters;
pub mod oauth;
pub mod openapi;
pub mod operations;
pub mod orders;
mod pages;
pub mod paging;
pub mod pets;
pub mod problem;
pub mod request_context;
pub mod response;
mod scopes;
pub mod state;
pub mod users;

use std::{convert::Infallible, sync::Arc};

use axum::{
    BoxError, Extension, Router,
    body::{Body, Bytes, HttpBody},
    extract::Request,
    http::{Uri, header},
    response::Response,
    routing::{Route as AxumRoute, get},
};
use tower::{Layer, Service, ServiceBuilder, util::MapRequest};
use utoipa::openapi::OpenApi;

use self::{
    error::Error,
    layers::{
        ServiceLayer,
        access_log::AccessLog,
        around,
        authenticate::Authenticate,
        check::{Check, authorize, local_demo_keys, refuse_conditions, validate_request},
        compress::CompressConstants,
        cors::Cors,
        errors::{CatchPanic, ErrorBody},
        idempotency::IdempotencyKeys,
        load_shed::LoadShed,
        rate_limit::RateLimit,
        request_context::CreateContext,
        request_span::RequestSpan,
        shield::Shield,
        timeout::Timeout,
    },
    operations::{BASE, Operations, Route},
    state::{AppState, Links},
};

/// The operations of the API, with their facts.
pub fn operations() -> Operations {
    Operations::with_document(openapi::base())
        .merge(pets::router())
        .merge(images::router())
        .merge(orders::router())
        .merge(users::router())
        .merge(limits::router())
        .merge(changes::router())
        .merge(admin::router())
        .merge(oauth::router())
}

/// The OpenAPI document, as `/api/v3/openapi.json` has it.
pub fn document(links: &Links) -> OpenApi {
    openapi::complete(&operations(), links)
}

/// The pages and the document. Clones share the compressed ones. Fails if the document cannot be written as JSON; a
/// test rules it out.
pub fn constants(
    document: &OpenApi,
    state: &AppState,
) -> Result<Router<AppState>, serde_json::Error> {
    let has_demo_keys = !state.demo_keys.is_empty();
    let document = openapi::serve::router(document, &state.links, has_demo_keys)?;
    let constants = pages::router().merge(document);
    let layers = ServiceBuilder::new()
        .layer(ServiceLayer)
        .layer(CompressConstants);
    Ok(constants.layer(layers))
}

/// `operations`, health and `constants`, with all layers.
pub fn router(operations: &Operations, constants: Router<AppState>, state: AppState) -> Router {
    let trusted_proxies = Arc::clone(&state.trusted_proxies);
    let (has_details, limits) = (state.access_details, &state.concurrency);
    // The layers, from the outermost to the innermost. What they do depends on the facts of the route, which are outside of
    // them all; without facts, it is no operation.
    let layers = ServiceBuilder::new()
        .layer(ServiceLayer)
        .layer(around(CreateContext { trusted_proxies })) // first: all others read it
        .layer(around(RequestSpan)) // log lines have its trace
        .layer(around(AccessLog { has_details })) // also of requests that are refused, panic, or whose client disconnects
        .layer(Shield(state.cancelled_requests.clone())) // inside the access log, whose line does not wait; around all permits
        .layer(around(ErrorBody)) // of all that follow
        .layer(around(Cors::new(&state.cors_origins))) // preflight requests have no credential; errors have CORS headers too
        .layer(around(CatchPanic)) // inside the access log, which records the 500, and the request id
        .layer(around(Check(validate_request))) // before anything acts on a request that two servers could read differently
        .layer(around(Check(refuse_conditions))) // they must not be ignored
        .layer(around(LoadShed {
            limits: limits.clone(),
        })) // before anything waits
        .layer(around(Authenticate(state.clone()))) // failures count against the client address
        .layer(around(RateLimit::new(&state))) // the plan is the caller's; without a caller, by client address
        .layer(around(Check(local_demo_keys(state.demo_keys)))) // they are public
        .layer(around(Check(authorize))) // before the body is read; a refusal counts against the limits
        .layer(around(CatchPanic)) // inside the limits, against which a panic does not count
        .layer(around(Timeout(state.request_timeout))) // inside the layers that must not be cut off
        .layer(around(IdempotencyKeys(state.clone()))) // stored responses belong to a caller; reads the body
        .into_inner();
    let routes = operations.routes.iter().cloned().chain(health::routes());
    let pages = constants
        .fallback(async || Error::NoSuchRoute)
        .layer(layers.clone());
    with_layers(routes, &layers).merge(pages).with_state(state)
}

/// Router of the operations listener: health, and `metrics`, rendered at each request.
pub fn operations_router(
    state: AppState,
    metrics: impl Fn() -> String + Clone + Send + Sync + 'static,
) -> Router {
    const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
    let metrics = get(async move || ([(header::CONTENT_TYPE, TEXT)], metrics()));
    let metrics = Route::probe("/metrics", metrics.layer(compression::encoder()));
    let trusted_proxies = Arc::clone(&state.trusted_proxies);
    let has_details = state.access_details;
    let layers = ServiceBuilder::new()
        .layer(ServiceLayer)
        .layer(around(CreateContext { trusted_proxies }))
        .layer(around(RequestSpan))
        .layer(around(AccessLog { has_details }))
        .layer(Shield(state.cancelled_requests.clone()))
        .layer(around(ErrorBody))
        .layer(around(CatchPanic))
        .layer(around(Check(validate_request)))
        .into_inner();
    let fallback = Router::new().fallback(async || Error::NoSuchRoute);
    with_layers(health::routes().into_iter().chain([metrics]), &layers)
        .merge(fallback.layer(layers))
        .with_state(state)
}

/// Returns a router of routes with layers, outside of which are the facts of each.
fn with_layers<L>(routes: impl IntoIterator<Item = Route>, layers: &L) -> Router<AppState>
where
    L: Layer<AxumRoute> + Clone + Send + Sync + 'static,
    L::Service: Service<Request, Response = Response, Error = Infallible> + Clone + Send + Sync,
    <L::Service as Service<Request>>::Future: Send,
{
    routes.into_iter().fold(Router::new(), |all, route| {
        let layers = ServiceBuilder::new()
            .layer(Extension(route.facts))
            .layer(layers.clone());
        all.route(&route.path, route.methods.layer(layers))
    })
}

/// A router as the server calls it, with its type of request bodies.
pub type HttpApi<B> = MapRequest<Router, fn(Request<B>) -> Request<Body>>;

/// Wraps a router for the server. A trailing slash of an API path is ignored; tower-http's `NormalizePath` would
/// also change paths such as `/docs/`, which need theirs.
pub fn http_service<B>(router: Router) -> HttpApi<B>
where
    B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    MapRequest::new(router, |mut request| {
        if let Some(uri) = without_trailing_slash(request.uri()) {
            *request.uri_mut() = uri;
        }
        request.map(Body::new)
    })
}

/// The URI without slashes at the end of its path, if it is a path of the API and has some.
fn without_trailing_slash(uri: &Uri) -> Option<Uri> {
    let path = uri.path();
    let trimmed = path.trim_end_matches('/');
    if trimmed.len() == path.len() || !trimmed.starts_with(BASE) {
        return None;
    }
    let query = uri.query().map(|query| format!("?{query}"));
    let target = trimmed.to_owned() + query.as_deref().unwrap_or_default();
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(target.parse().ok()?);
    Uri::from_parts(parts).ok()
}
