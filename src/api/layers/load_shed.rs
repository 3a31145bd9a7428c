//! Bounds the number of requests in progress.

use std::sync::Arc;

use axum::{
    extract::{MatchedPath, Request},
    http::header,
    response::Response,
};
use futures_util::future::Either;

use super::{Inner, LayerFuture, Middleware, OnResponse, Then, respond};
use crate::{
    api::{
        access::AccessRules, credentials::API_KEY, error::Error, request_context::RequestContext,
        state::ConcurrencyLimits,
    },
    db::deadline::{self, Scope},
    limits::shares::Share,
};

/// Layer that responds with 503 at once when all permits are in use: a queue would only make all requests late. The
/// database waits of a request share one deadline.
#[derive(Debug, Clone)]
pub struct LoadShedLayer {
    /// The permits.
    pub limits: Arc<ConcurrencyLimits>,
    /// Tells the operations that need no credential: a header makes no difference to them.
    pub access: Arc<AccessRules>,
}

impl_layer!(LoadShedLayer);

impl Middleware for LoadShedLayer {
    type Future<S: Inner> = LayerFuture<Then<Scope<S::Future>, RequestPermit>>;

    fn call<S: Inner>(&self, inner: &mut S, request: Request) -> Self::Future<S> {
        let context = RequestContext::of(&request);
        let headers = request.headers();
        let has_credentials =
            headers.contains_key(API_KEY) || headers.contains_key(header::AUTHORIZATION);
        let route = request.extensions().get().map(MatchedPath::as_str);
        let needed = route.and_then(|route| self.access.needed_scopes(request.method(), route));
        if let Some(needed) = needed {
            let _ = context.needed_scopes.set(needed);
        }
        let (limits, address) = (&self.limits, context.client_address());
        let mut without_credentials = None;
        if needed.is_none() || !has_credentials {
            without_credentials = limits.without_credentials.take(address, 1);
            if without_credentials.is_none() {
                return respond(overloaded());
            }
        }
        let Some(share) = limits.requests.take(address, 1) else {
            return respond(overloaded());
        };
        Either::Left(Then {
            inner: deadline::scope(inner.call(request)),
            then: Some(RequestPermit(share, without_credentials)),
        })
    }
}

/// Permit of a request.
#[derive(Debug)]
#[expect(dead_code, reason = "held until the response head")]
pub struct RequestPermit(Share, Option<Share>);

impl OnResponse for RequestPermit {
    /// Returns the permit: what is being sent is bounded by the memory of responses.
    fn on_response(self, response: Response) -> Response {
        response
    }
}

/// Counts a refusal, and returns its error.
pub(super) fn overloaded() -> Error {
    metrics::counter!("http_server_shed_requests_total").increment(1);
    Error::Overloaded
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use tower::{Layer, ServiceExt, service_fn};

    use super::*;
    use crate::api::layers::testing::request_of;

    #[tokio::test]
    async fn request_beyond_the_permits_is_503_and_a_permit_returns() {
        let handler = service_fn(async |_: Request| {
            tokio::task::yield_now().await;
            Ok(Response::default())
        });
        let limits = Arc::new(ConcurrencyLimits::new(1, 1 << 20));
        let access = Arc::default();
        let service = LoadShedLayer { limits, access }.layer(handler);
        let ask = async || {
            let Ok(response) = service.clone().oneshot(request_of(None)).await;
            response.status()
        };
        let both = tokio::join!(ask(), ask());
        assert_eq!(both, (StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE));
        assert_eq!(ask().await, StatusCode::OK);
    }
}
