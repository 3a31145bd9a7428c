//! Bounds the number of requests in progress.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use axum::{
    body::{Body, HttpBody},
    extract::Request,
    response::{IntoResponse, Response},
};
use futures_util::future::Either;
use http_body_util::BodyExt;
use pin_project_lite::pin_project;
use tower::{Layer, Service};

use super::{Inner, LayerFuture, refuse};
use crate::{
    api::{error::Error, state::ConcurrencyLimits},
    db::deadline::{self, Scope},
};

/// Layer that responds with 503 at once when all permits are in use: a queue would only make all requests late. The
/// database waits of a request share one deadline.
#[derive(Debug, Clone)]
pub struct LoadShedLayer(pub Arc<ConcurrencyLimits>);

impl<S> Layer<S> for LoadShedLayer {
    type Service = LoadShed<S>;

    fn layer(&self, inner: S) -> LoadShed<S> {
        LoadShed {
            inner,
            limits: Arc::clone(&self.0),
        }
    }
}

/// Service of a [`LoadShedLayer`].
#[derive(Debug, Clone)]
pub struct LoadShed<S> {
    inner: S,
    limits: Arc<ConcurrencyLimits>,
}

impl<S: Inner> Service<Request> for LoadShed<S> {
    type Response = Response;
    type Error = Infallible;
    type Future = LayerFuture<LoadShedFuture<S::Future>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        match RequestPermit::try_acquire(&self.limits) {
            Some(permit) => Either::Left(LoadShedFuture {
                inner: deadline::scope(self.inner.call(request)),
                permit: Some(permit),
            }),
            None => refuse(overloaded()),
        }
    }
}

pin_project! {
    /// Future of a request with a permit.
    pub struct LoadShedFuture<F> {
        #[pin]
        inner: Scope<F>,
        permit: Option<RequestPermit>,
    }
}

impl<F: Future<Output = Result<Response, Infallible>>> Future for LoadShedFuture<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let response = ready!(this.inner.poll(context))?;
        let permit = this.permit.take();
        if response.body().size_hint().exact().is_some() {
            return Poll::Ready(Ok(response));
        }
        let streams = permit.map(|permit| Arc::clone(&permit.0.streams));
        let stream = streams.and_then(|streams| streams.try_acquire_owned().ok());
        let Some(stream) = stream else {
            return Poll::Ready(Ok(overloaded().into_response()));
        };
        // The permit is held until the body ends or is dropped.
        Poll::Ready(Ok(response.map(|body| {
            Body::new(body.map_frame(move |frame| {
                let _ = &stream;
                frame
            }))
        })))
    }
}

/// Permit of a request. Not an `OwnedSemaphorePermit`, which would clone an `Arc` that all workers share.
#[derive(Debug)]
struct RequestPermit(Arc<ConcurrencyLimits>);

impl RequestPermit {
    fn try_acquire(limits: &Arc<ConcurrencyLimits>) -> Option<Self> {
        limits.requests.try_acquire().ok()?.forget();
        Some(Self(Arc::clone(limits)))
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        self.0.requests.add_permits(1);
    }
}

fn overloaded() -> Error {
    metrics::counter!("http_server_shed_requests_total").increment(1);
    Error::Overloaded
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use tower::{ServiceExt, service_fn};

    use super::*;

    #[tokio::test]
    async fn request_beyond_the_permits_is_503_and_a_permit_returns() {
        let handler = service_fn(async |_: Request| {
            tokio::task::yield_now().await;
            Ok::<_, Infallible>(Response::default())
        });
        let service = LoadShedLayer(Arc::new(ConcurrencyLimits::new(1))).layer(handler);
        let ask = async || {
            let response = service.clone().oneshot(Request::default()).await;
            response.expect("a response").status()
        };
        let (first, second) = tokio::join!(ask(), ask());
        assert_eq!(
            (first, second),
            (StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE)
        );
        assert_eq!(ask().await, StatusCode::OK);
    }
}
