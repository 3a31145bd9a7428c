//! The steps around every handler, one per file, and their order.
//!
//! Invariant: every failure is a response with a body, recorded by [`observe()`]. Steps take futures pinned in place and
//! requests in a box: each move of either is a copy of up to ten kilobytes.

pub mod authenticate;
pub mod authorize;
pub mod client;
pub mod idempotency;
pub mod load_shed;
pub mod observe;
pub mod rate_limit;
pub mod seen;
pub mod traced;
pub mod well_formed;

use std::{
    any::Any,
    convert::Infallible,
    future::Future,
    panic::AssertUnwindSafe,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use axum::{
    extract::{MatchedPath, Request},
    http::Method,
    response::{IntoResponse, Response},
    routing::Route,
};
use futures_util::FutureExt;
use tower::{Layer, Service, layer::layer_fn, service_fn};

use self::{
    authenticate::{authenticate, needed},
    authorize::authorize,
    client::client,
    idempotency::idempotency,
    load_shed::load_shed,
    observe::{AnsweredTo, observe},
    rate_limit::{rate_limit, rate_limit_open},
    well_formed::well_formed,
};
use super::{
    error::Error,
    openapi::BASE,
    state::{AppState, RequestTimeout},
};
use crate::domain::caller::{Caller, Scopes};

/// The service inside a layer.
#[derive(Clone)]
pub struct Inner(Arc<Route>);

/// Bounds of axum for a service with layers.
pub trait Answers:
    Service<Request, Response = Response, Error = Infallible, Future: Send>
    + Clone
    + Send
    + Sync
    + 'static
{
}

impl<T> Answers for T where
    T: Service<Request, Response = Response, Error = Infallible, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static
{
}

/// Returns a layer that calls one function around the inner service. There are few of them, because a layer costs a box and
/// a copy of the request.
pub fn around<S, F>(
    state: &S,
    function: fn(S, Box<Request>, Inner) -> F,
) -> impl Layer<Route, Service: Answers> + Clone + Send + Sync + 'static
where
    S: Clone + Send + Sync + 'static,
    F: Future<Output = Response> + Send + 'static,
{
    let state = state.clone();
    layer_fn(move |route| {
        let (state, inner) = (state.clone(), Inner(Arc::new(route)));
        service_fn(move |request: Request| {
            Box::pin(function(state.clone(), Box::new(request), inner.clone()))
                .map(Ok::<_, Infallible>)
        })
    })
}

/// Steps around public routes: health, docs, the OpenAPI document, and unknown routes.
pub async fn around_anything<S>(_: S, request: Box<Request>, inner: Inner) -> Response {
    let nobody = AnsweredTo::new();
    anything(request, &nobody, async |request| {
        Ok(run(inner, request).await)
    })
    .await
}

/// Steps around operations of the API.
pub async fn around_operation(state: AppState, request: Box<Request>, inner: Inner) -> Response {
    let caller = AnsweredTo::new();
    anything(request, &caller, async |request| {
        let work = async |request| worked(&state, request, inner).await;
        let answer = pin!(operation(&state, request, &caller, work));
        // Before anything waits. Public routes have no such bound.
        load_shed(&state.places, answer).await
    })
    .await
}

/// Steps around uploads: as for operations, without a timeout and without buffering the body.
pub async fn around_upload(state: AppState, request: Box<Request>, inner: Inner) -> Response {
    let caller = AnsweredTo::new();
    anything(request, &caller, async |request| {
        let work = async |request| caught(pin!(async { Ok(run(inner, request).await) })).await;
        let answer = pin!(operation(&state, request, &caller, work));
        load_shed(&state.places, answer).await
    })
    .await
}

/// The outermost steps.
async fn anything(
    request: Box<Request>,
    caller: &AnsweredTo,
    next: impl AsyncFnOnce(Box<Request>) -> Result<Response, Error>,
) -> Response {
    observe(request, caller, async |request| {
        let answer = pin!(async {
            // Before anything acts on a request that two servers could interpret differently.
            well_formed(&request)?;
            next(request).await
        });
        // Inside the access log, which has to record the 500 of a panic.
        caught(answer).await
    })
    .await
}

async fn operation(
    state: &AppState,
    mut request: Box<Request>,
    answered_to: &AnsweredTo,
    work: impl AsyncFnOnce(Box<Request>) -> Response,
) -> Result<Response, Error> {
    // For the failed-authentication limit.
    let client = client(&state.trusted_proxies, &request);
    let Some(needed) = needed(&state.access, &request) else {
        return Ok(work(request).await);
    };
    let caller = authenticate(state, client, &mut request).await?;
    let caller = answered_to.get_or_init(|| caller);
    if let (None, Some(client)) = (caller.id, client) {
        // Idempotency keys of anonymous callers belong to their address.
        request.extensions_mut().insert(client);
    }
    // After authentication: the plan is the caller's.
    let limited = rate_limit(&state.limits, caller, client, request, async |request| {
        // Before the body is read.
        match authorize(needed, caller) {
            Ok(()) => work(request).await,
            Err(error) => error.into_response(),
        }
    });
    Ok(limited.await)
}

/// Steps directly around the handler. Inside the rate limit, which returns the permit of a request that fails through the
/// service's own fault.
async fn worked(state: &AppState, request: Box<Request>, inner: Inner) -> Response {
    let limit = time_for(&request, state.request_timeout);
    // Stored responses belong to a caller.
    let answer = pin!(idempotency(
        state.body_limits,
        &state.database,
        request,
        async |request| run(inner, request).await,
    ));
    caught(pin!(time_limit(limit, answer))).await
}

/// Steps around operations without credentials: sign-up, login, token.
pub async fn around_strangers(state: AppState, request: Box<Request>, inner: Inner) -> Response {
    let nobody = AnsweredTo::new();
    anything(request, &nobody, async |mut request| {
        let answer = pin!(async {
            let client = client(&state.trusted_proxies, &request);
            if let Some(client) = client {
                // For idempotency keys and the failed-authentication limit.
                request.extensions_mut().insert(client);
            }
            rate_limit_open(&state.limits, client, request, async |mut request| {
                if is_sign_up(&request) {
                    // Idempotency keys belong to the address. The response to a login is a secret, and not stored.
                    let nobody = Caller::anonymous(Scopes::default());
                    request.extensions_mut().insert(Arc::new(nobody));
                }
                let limit = time_for(&request, state.request_timeout);
                let answer = pin!(async {
                    let (limits, database) = (state.body_limits, &state.database);
                    let run = async |request| run(inner, request).await;
                    idempotency(limits, database, request, run).await
                });
                let in_time = time_limit(limit, answer).await;
                in_time.unwrap_or_else(Error::into_response)
            })
            .await
        });
        load_shed(&state.places, answer).await
    })
    .await
}

fn is_sign_up(request: &Request) -> bool {
    request.method() == Method::POST && operation_path(request) == Some("/user")
}

/// The path of the request's operation below the API's base.
fn operation_path(request: &Request) -> Option<&str> {
    let route = request.extensions().get::<MatchedPath>()?;
    route.as_str().strip_prefix(BASE)
}

async fn run(inner: Inner, request: Box<Request>) -> Response {
    match Route::clone(&inner.0).call(*request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// Timeout of a request.
fn time_for(request: &Request, RequestTimeout(limit): RequestTimeout) -> Duration {
    /// A thousand passwords take half a minute to hash on one core.
    const LONG: (&str, u32) = ("/user/createWithList", 4);
    let is_long = operation_path(request) == Some(LONG.0);
    limit * if is_long { LONG.1 } else { 1 }
}

/// Drops a request after its timeout; the response is 503.
async fn time_limit(
    limit: Duration,
    work: Pin<&mut impl Future<Output = Result<Response, Error>>>,
) -> Result<Response, Error> {
    tokio::time::timeout(limit, work)
        .await
        .unwrap_or(Err(Error::TimedOut))
}

/// Catches a panic; the response is 500.
async fn caught(work: Pin<&mut impl Future<Output = Result<Response, Error>>>) -> Response {
    // Unwind safe: the future is dropped.
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(answer) => answer.unwrap_or_else(Error::into_response),
        Err(panic) => panicked(&*panic),
    }
}

fn panicked(panic: &(dyn Any + Send)) -> Response {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("unknown payload");
    Error::Internal(format!("a handler panicked: {text}").into()).into_response()
}

#[cfg(test)]
mod tests {
    use axum::{
        Router,
        body::Body,
        http::{StatusCode, Uri},
    };
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
            .layer(around(&(), around_anything));
        let ask = async |path: &str| {
            let request = Request::builder()
                .uri(path)
                .header("host", "a")
                .body(Body::empty());
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
