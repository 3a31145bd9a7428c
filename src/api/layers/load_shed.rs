//! Bounds the number of requests in progress.

use std::sync::Arc;

use axum::{
    body::{Body, HttpBody},
    extract::Request,
    response::{IntoResponse, Response},
};
use futures_util::future::Either;
use http_body_util::BodyExt;

use super::{Inner, LayerFuture, Middleware, OnResponse, Then, respond};
use crate::{
    api::{error::Error, state::ConcurrencyLimits},
    db::deadline::{self, Scope},
};

/// Layer that responds with 503 at once when all permits are in use: a queue would only make all requests late. The
/// database waits of a request share one deadline.
#[derive(Debug, Clone)]
pub struct LoadShedLayer(pub Arc<ConcurrencyLimits>);

impl_layer!(LoadShedLayer);

impl Middleware for LoadShedLayer {
    type Future<S: Inner> = LayerFuture<Then<Scope<S::Future>, RequestPermit>>;

    fn call<S: Inner>(&self, inner: &mut S, request: Request) -> Self::Future<S> {
        let Ok(permit) = self.0.requests.try_acquire() else {
            return respond(overloaded());
        };
        permit.forget();
        let permit = RequestPermit(Arc::clone(&self.0));
        Either::Left(Then {
            inner: deadline::scope(inner.call(request)),
            then: Some(permit),
        })
    }
}

/// Permit of a request. Not an `OwnedSemaphorePermit`, which would clone an `Arc` that all workers share.
#[derive(Debug)]
pub struct RequestPermit(Arc<ConcurrencyLimits>);

impl Drop for RequestPermit {
    fn drop(&mut self) {
        self.0.requests.add_permits(1);
    }
}

impl OnResponse for RequestPermit {
    /// Exchanges the permit for one of a stream, which is held until the body ends or is dropped.
    fn on_response(self, response: Response) -> Response {
        if response.body().size_hint().exact().is_some() {
            return response;
        }
        let Ok(stream) = Arc::clone(&self.0.streams).try_acquire_owned() else {
            return overloaded().into_response();
        };
        response.map(|body| {
            Body::new(body.map_frame(move |frame| {
                let _ = &stream;
                frame
            }))
        })
    }
}

fn overloaded() -> Error {
    metrics::counter!("http_server_shed_requests_total").increment(1);
    Error::Overloaded
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use tower::{Layer, ServiceExt, service_fn};

    use super::*;

    #[tokio::test]
    async fn request_beyond_the_permits_is_503_and_a_permit_returns() {
        let handler = service_fn(async |_: Request| {
            tokio::task::yield_now().await;
            Ok(Response::default())
        });
        let service = LoadShedLayer(Arc::new(ConcurrencyLimits::new(1))).layer(handler);
        let ask = async || {
            let Ok(response) = service.clone().oneshot(Request::default()).await;
            response.status()
        };
        let both = tokio::join!(ask(), ask());
        assert_eq!(both, (StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE));
        assert_eq!(ask().await, StatusCode::OK);
    }
}
