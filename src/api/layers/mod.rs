//! The layers around every handler. [`super::router`] has their order.
//!
//! A layer is an async function, which passes the request on. The futures of all layers are one, which is boxed twice, by
//! [`ServiceLayer`] and by [`shield::Shield`], whose work can outlive its client: four boxed layers cost 2.4 µs of the 20 µs that a
//! `GET` takes. A layer that seldom waits boxes what it waits for, so that most
//! requests do not carry its state. State passes from layer to layer in the
//! [`RequestContext`](super::request_context::RequestContext), which also has the facts of the operation.
//!
//! Some layers replace those of tower-http: its request ids are not validated, its timeout has no body, and its
//! `NormalizePath` also changes paths such as `/docs/`.

use std::{
    convert::Infallible,
    mem,
    ops::{Deref, DerefMut},
    sync::Arc,
    task::{Context, Poll},
};

use axum::{extract::Request, response::Response, routing::Route};
use futures_util::future::BoxFuture;
use tower::{Layer, Service, service_fn};

pub mod access_log;
pub mod authenticate;
pub mod check;
pub mod compress;
pub mod cors;
pub mod errors;
pub mod idempotency;
pub mod load_shed;
pub mod rate_limit;
pub mod request_context;
pub mod request_span;
pub mod shield;
pub mod timeout;

/// A request on its way through the layers. It stays where the outermost one has it: the futures of layers, which are nested,
/// hold a reference, where each of them would hold the request.
#[derive(Debug)]
pub struct Incoming<'r>(&'r mut Request);

impl Incoming<'_> {
    /// Takes the request, at the end of its way.
    fn take(self) -> Request {
        mem::take(self.0)
    }
}

impl Deref for Incoming<'_> {
    type Target = Request;

    fn deref(&self) -> &Request {
        self.0
    }
}

impl DerefMut for Incoming<'_> {
    fn deref_mut(&mut self) -> &mut Request {
        self.0
    }
}

/// What a layer passes a request on to: the layers inside it, and the handler.
pub trait Next: Send + Sync + 'static {
    /// Responds to a request.
    fn call(&self, request: Incoming<'_>) -> impl Future<Output = Response> + Send;
}

impl Next for Route {
    async fn call(&self, request: Incoming<'_>) -> Response {
        let response = Service::call(&mut self.clone(), request.take());
        let Ok(response) = response.await;
        response
    }
}

/// Behaviour of a layer.
pub trait Middleware: Send + Sync + 'static {
    /// Responds to a request, or passes it on.
    fn call(
        &self,
        request: Incoming<'_>,
        next: &impl Next,
    ) -> impl Future<Output = Response> + Send;
}

/// Returns a layer with the behaviour of a [`Middleware`].
pub fn around<M: Middleware>(middleware: M) -> Around<M> {
    Around(Arc::new(middleware))
}

/// See [`around`].
#[derive(Debug)]
pub struct Around<M>(Arc<M>);

impl<M> Clone for Around<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M, N> Layer<N> for Around<M> {
    type Service = Layered<M, N>;

    fn layer(&self, next: N) -> Layered<M, N> {
        let middleware = Arc::clone(&self.0);
        Layered { middleware, next }
    }
}

/// A [`Next`] with a layer around it.
#[derive(Debug)]
pub struct Layered<M, N> {
    middleware: Arc<M>,
    next: N,
}

impl<M, N: Clone> Clone for Layered<M, N> {
    fn clone(&self) -> Self {
        Self {
            middleware: Arc::clone(&self.middleware),
            next: self.next.clone(),
        }
    }
}

impl<M: Middleware, N: Next> Next for Layered<M, N> {
    async fn call(&self, request: Incoming<'_>) -> Response {
        self.middleware.call(request, &self.next).await
    }
}

/// Layer that makes a tower service, which axum takes, of the layers inside it.
#[derive(Debug, Clone, Copy)]
pub struct ServiceLayer;

impl<N> Layer<N> for ServiceLayer {
    type Service = NextService<N>;

    fn layer(&self, next: N) -> NextService<N> {
        NextService(Arc::new(next))
    }
}

/// Service of a [`Next`].
#[derive(Debug)]
pub struct NextService<N>(Arc<N>);

impl<N> Clone for NextService<N> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<N: Next> Service<Request> for NextService<N> {
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        let next = Arc::clone(&self.0);
        Box::pin(async move { Ok(next.call(Incoming(&mut request)).await) })
    }
}

/// Returns a tower service for layers of tower-http.
fn service<N: Next>(
    next: &N,
) -> impl Service<Request, Response = Response, Error = Infallible, Future: Send> {
    service_fn(async move |mut request: Request| Ok(next.call(Incoming(&mut request)).await))
}
