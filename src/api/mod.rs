//! The HTTP API: routes by resource, and the layers around them ([`layers`]).
//!
//! Invariant: every error response is a problem document ([`error`]), except those that hyper sends itself.

pub mod access;
pub mod admin;
pub mod body;
pub mod changes;
pub mod conditional;
pub mod credentials;
pub mod error;
pub mod extract;
pub mod fields;
pub mod health;
pub mod idempotency;
pub mod images;
pub mod layers;
pub mod limits;
pub mod oauth;
pub mod openapi;
pub mod operations;
pub mod orders;
mod pages;
pub mod paging;
pub mod pets;
pub mod problem;
pub mod rate_limits;
pub mod request_context;
pub mod request_id;
pub mod response;
mod scopes;
pub mod state;
pub mod usage;
pub mod users;

use std::sync::Arc;

use axum::{
    BoxError, Router,
    body::{Body, Bytes, HttpBody},
    extract::Request,
    http::{Uri, header},
    routing::get,
};
use tower::{ServiceBuilder, util::MapRequest};
use utoipa::openapi::OpenApi;

use self::{
    error::Error,
    layers::{
        access_log::AccessLogLayer,
        authenticate::AuthenticateLayer,
        authorize::authorize,
        catch_panic::catch_panic,
        check::CheckLayer,
        client_address::client_address,
        compress::CompressLayer,
        cors::CorsLayer,
        demo_keys::local_demo_keys,
        idempotency::IdempotencyLayer,
        if_match::refuse_if_match,
        load_shed::LoadShedLayer,
        rate_limit::{RateLimitLayer, limit_open},
        request_span::RequestSpanLayer,
        response_memory::ResponseMemoryLayer,
        timeout::TimeoutLayer,
        validate_request::validate_request,
    },
    operations::Operations,
    state::{AppState, Links},
};

/// Operations of callers. Open operations, which need no caller: [`users::open_router`] and [`oauth::router`], whose routes are
/// at the paths of their RFCs, too.
fn resources() -> Operations {
    Operations::with_document(openapi::base())
        .merge(pets::router())
        .merge(orders::router())
        .merge(users::router())
        .merge(images::router())
        .merge(limits::router())
        .merge(admin::router())
}

/// Lists of callers, with responses that may be compressed.
fn lists() -> Operations {
    pets::lists()
        .merge(orders::lists())
        .merge(images::lists())
        .merge(changes::lists())
        .merge(admin::lists())
}

/// The OpenAPI document, as `/api/v3/openapi.json` has it.
pub fn document(links: &Links) -> OpenApi {
    let operations = resources().merge(lists()).merge(images::uploads());
    let operations = operations.into_document();
    let open = users::open_router().into_document();
    openapi::complete(operations, open, oauth::router().into_openapi(), links)
}

/// Routes of the operations of callers, without layers, and without lists and uploads, which have layers of their own.
pub fn operations() -> Router<AppState> {
    resources().router
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
    Ok(constants.layer(CompressLayer::of_constants()))
}

/// `operations` and `constants`, with all layers.
pub fn router(
    operations: Router<AppState>,
    constants: Router<AppState>,
    state: AppState,
) -> Router {
    let lists = lists().router;
    let uploads = images::uploads().router;
    let oauth = Router::from(oauth::router());
    let open = users::open_router().router.merge(oauth.clone());
    // Tools with one base URL look for them below it. `nest` rewrites the target of these few requests only.
    let open = open.nest(openapi::BASE, oauth);
    let public = health::router()
        .merge(constants)
        .fallback(async || Error::NoSuchRoute);

    let concurrency = Arc::new(state.concurrency.clone());

    // The layers, from the outermost to the innermost.
    let public_layers = ServiceBuilder::new()
        .layer(RequestSpanLayer) // first: every response and log line has the request's id
        .layer(access_log(&state)) // also of requests that are refused, panic, or whose client disconnects
        .layer(CorsLayer::new(&state.cors_origins)) // preflight requests have no credential; errors have CORS headers too
        .layer(catch_panic()) // inside the access log, which records the 500, and the request id
        .layer(CheckLayer(validate_request)); // before anything acts on a request that two servers could read differently
    let api_layers = public_layers
        .clone()
        .layer(CheckLayer(refuse_if_match(Arc::clone(&state.access)))) // it must not be ignored
        .layer(CheckLayer(client_address(state.trusted_proxies.clone()))) // for the limits that follow
        .layer(LoadShedLayer {
            limits: Arc::clone(&concurrency),
            access: Arc::clone(&state.access),
        }); // before anything waits
    let upload_layers = api_layers
        .clone()
        .layer(AuthenticateLayer(state.clone())) // failures count against the client address
        .layer(RateLimitLayer::new(Arc::clone(&state.limits), &state.plans)) // the plan is the caller's
        .layer(ResponseMemoryLayer(Arc::clone(&concurrency))) // inside the limits, against which its refusal does not count
        .layer(CheckLayer(local_demo_keys(state.demo_keys))) // they are public
        .layer(CheckLayer(authorize)) // before the body is read; a refusal counts against the limits
        .layer(catch_panic()); // inside the limits, against which a panic does not count
    let operation_layers = upload_layers
        .clone()
        .layer(TimeoutLayer(state.request_timeout)) // an upload has timeouts for the parts of its body
        .layer(IdempotencyLayer::new(&state)); // stored responses belong to a caller; reads the body
    let list_layers = operation_layers.clone().layer(CompressLayer::default()); // only lists; inside the memory of responses
    let open_layers = api_layers
        .layer(CheckLayer(limit_open(Arc::clone(&state.limits)))) // by client address, without a caller
        .layer(ResponseMemoryLayer(concurrency))
        .layer(TimeoutLayer(state.request_timeout))
        .layer(IdempotencyLayer::new(&state));
    let routes = operations
        .layer(operation_layers)
        .merge(lists.layer(list_layers))
        .merge(open.layer(open_layers))
        .merge(uploads.layer(upload_layers))
        .merge(public.layer(public_layers));
    routes.with_state(state)
}

/// Router of the operations listener: health, and `metrics`, rendered at each request.
pub fn operations_router(
    state: AppState,
    metrics: impl Fn() -> String + Clone + Send + Sync + 'static,
) -> Router {
    const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
    let metrics = get(async move || ([(header::CONTENT_TYPE, TEXT)], metrics()));
    let layers = ServiceBuilder::new()
        .layer(RequestSpanLayer)
        .layer(access_log(&state))
        .layer(catch_panic())
        .layer(CheckLayer(validate_request));
    let metrics = metrics.layer(CompressLayer::default());
    let routes = health::router().route("/metrics", metrics);
    let routes = routes.fallback(async || Error::NoSuchRoute);
    routes.layer(layers).with_state(state)
}

fn access_log(state: &AppState) -> AccessLogLayer {
    let has_details = state.access_details;
    AccessLogLayer(has_details.then(|| state.trusted_proxies.clone()))
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
    if trimmed.len() == path.len() || !trimmed.starts_with(openapi::BASE) {
        return None;
    }
    let query = uri.query().map(|query| format!("?{query}"));
    let target = trimmed.to_owned() + query.as_deref().unwrap_or_default();
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(target.parse().ok()?);
    Uri::from_parts(parts).ok()
}
