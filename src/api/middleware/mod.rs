//! What is around every handler, a step a file (and in [`seen`] and [`traced`] what [`observe()`] leaves behind);
//! here is their order, and its reasons, read from top to bottom.
//!
//! Invariant: no failure leaves but as an answer with a body, seen by [`observe()`]. What is done around a
//! future gets it pinned in its place: a future that is handed on is copied whole, and at each hand twice as large.
//! The request goes through all of it in a box, since each step would hold two copies of it.

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

/// What a request is on its way to.
#[derive(Clone)]
pub struct Inner(Arc<Route>);

/// What axum wants of a layered service.
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

/// A layer of one function: it does what is to be done before and after what is inside. Few layers with much in
/// each, since a layer's own cost, a box and a copy, is that of all it does here. The copy is of pointers alone:
/// axum's own would go down to the handler, and is made again at each layer.
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
            // Boxed at once: axum moves it several times on the way to a box of its own.
            Box::pin(function(state.clone(), Box::new(request), inner.clone()))
                .map(Ok::<_, Infallible>)
        })
    })
}

/// Around what needs nobody's leave: health, docs, the document, and whatever there is none of.
pub async fn around_anything<S>(_: S, request: Box<Request>, inner: Inner) -> Response {
    let nobody = AnsweredTo::new();
    anything(request, &nobody, async |request| {
        Ok(run(inner, request).await)
    })
    .await
}

/// Around each operation of the API.
pub async fn around_operation(state: AppState, request: Box<Request>, inner: Inner) -> Response {
    let caller = AnsweredTo::new();
    anything(request, &caller, async |request| {
        let work = async |request| worked(&state, request, inner).await;
        let answer = pin!(operation(&state, request, &caller, work));
        // Before anything waits. Health, docs and the document are outside: they are answered always.
        load_shed(&state.places, answer).await
    })
    .await
}

/// Around an upload: the same, but that it takes as long as its line does, and nobody holds all of it.
pub async fn around_upload(state: AppState, request: Box<Request>, inner: Inner) -> Response {
    let caller = AnsweredTo::new();
    anything(request, &caller, async |request| {
        let work = async |request| caught(pin!(async { Ok(run(inner, request).await) })).await;
        let answer = pin!(operation(&state, request, &caller, work));
        load_shed(&state.places, answer).await
    })
    .await
}

/// Outermost: nothing happens unseen, and every problem gets the request's id.
async fn anything(
    request: Box<Request>,
    caller: &AnsweredTo,
    next: impl AsyncFnOnce(Box<Request>) -> Result<Response, Error>,
) -> Response {
    observe(request, caller, async |request| {
        let answer = pin!(async {
            // Before anything acts on a request that two servers could read in two ways.
            well_formed(&request)?;
            next(request).await
        });
        // What observes must see the 500 of whatever panics.
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
    // Whose budget a wrong credential spends.
    let client = client(&state.trusted_proxies, &request);
    let Some(needed) = needed(&state.access, &request) else {
        return Ok(work(request).await);
    };
    let caller = authenticate(state, client, &mut request).await?;
    let caller = answered_to.get_or_init(|| caller);
    if let (None, Some(client)) = (caller.id, client) {
        // Whose `Idempotency-Key` it is: the address's.
        request.extensions_mut().insert(client);
    }
    // Behind the caller whose plan it is: nothing unverified spends a permit.
    let limited = rate_limit(&state.limiter, caller, client, request, async |request| {
        // Before the body is read: whoever may not write need not be listened to.
        match authorize(needed, caller) {
            Ok(()) => work(request).await,
            Err(error) => error.into_response(),
        }
    });
    Ok(limited.await)
}

/// The handler's own work. Around all that waits and all that could panic, and inside the limits: what fails
/// through our own fault gives its permit back.
async fn worked(state: &AppState, request: Box<Request>, inner: Inner) -> Response {
    let limit = time_for(&request, state.request_timeout);
    // A kept answer is its caller's alone.
    let answer = pin!(idempotency(
        state.body_limits,
        &state.database,
        request,
        async |request| run(inner, request).await,
    ));
    caught(pin!(time_limit(limit, answer))).await
}

/// Around what needs no credential.
pub async fn around_strangers(state: AppState, request: Box<Request>, inner: Inner) -> Response {
    let nobody = AnsweredTo::new();
    anything(request, &nobody, async |mut request| {
        let answer = pin!(async {
            let client = client(&state.trusted_proxies, &request);
            if let Some(client) = client {
                // Whose `Idempotency-Key` it is, and whose budget a wrong client secret spends.
                request.extensions_mut().insert(client);
            }
            rate_limit_open(&state.limiter, client, request, async |mut request| {
                if is_sign_up(&request) {
                    // Whose `Idempotency-Key` it is: the address's. A login's answer is a secret, and not kept.
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

/// The path of the operation that a request is for, below the API's base.
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

/// How long a request may take.
fn time_for(request: &Request, RequestTimeout(limit): RequestTimeout) -> Duration {
    /// A thousand passwords take half a minute to hash on one core, and nobody else waits for it.
    const LONG: (&str, u32) = ("/user/createWithList", 4);
    let is_long = operation_path(request) == Some(LONG.0);
    limit * if is_long { LONG.1 } else { 1 }
}

/// Answers 503 in place of what takes too long, and drops it.
async fn time_limit(
    limit: Duration,
    work: Pin<&mut impl Future<Output = Result<Response, Error>>>,
) -> Result<Response, Error> {
    tokio::time::timeout(limit, work)
        .await
        .unwrap_or(Err(Error::TimedOut))
}

/// Answers 500 in place of what panics.
async fn caught(work: Pin<&mut impl Future<Output = Result<Response, Error>>>) -> Response {
    // What it leaves behind is only ever dropped.
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
        .unwrap_or("of no known type");
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
