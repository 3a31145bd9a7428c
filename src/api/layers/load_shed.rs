//! Bounds the number of requests in progress, and the memory of their responses.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::{MatchedPath, Request},
    http::{Version, header},
    response::{IntoResponse, Response},
};
use futures_util::future::Either;
use http_body::{Frame, SizeHint};

use super::{Inner, LayerFuture, Middleware, OnResponse, Then, respond};
use crate::{
    api::{
        access::AccessRules, credentials::API_KEY, error::Error, request_context::RequestContext,
        state::ConcurrencyLimits,
    },
    db::deadline::{self, Scope},
    limits::shares::Share,
};

/// Maximum size in bytes of a response over HTTP/1 that is not counted: the kernel takes it at once.
const MAX_UNCOUNTED: u64 = 16 << 10;
/// Minimum number of bytes counted for a response, as over HTTP/2 it has a stream.
const MIN_COUNTED: usize = 16 << 10;
/// Bytes counted for a streamed list: five parts of 256 KiB, and room for large pets at their ends.
const STREAMED_LIST: usize = 2 << 20;
/// Bytes counted for the response with an image, which is read in pieces of 128 KiB.
const STREAMED_IMAGE: usize = 256 << 10;

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
        let permit = RequestPermit {
            limits: Arc::clone(limits),
            _shares: (share, without_credentials),
            context: context.clone(),
            is_http2: request.version() == Version::HTTP_2,
            is_safe: request.method().is_safe(),
        };
        Either::Left(Then {
            inner: deadline::scope(inner.call(request)),
            then: Some(permit),
        })
    }
}

/// Permit of a request.
#[derive(Debug)]
pub struct RequestPermit {
    limits: Arc<ConcurrencyLimits>,
    _shares: (Share, Option<Share>),
    context: RequestContext,
    is_http2: bool,
    is_safe: bool,
}

impl OnResponse for RequestPermit {
    /// Exchanges the permit for a share of the memory of responses, which is held until the client has been sent all of it.
    fn on_response(self, response: Response) -> Response {
        let size = response.body().size_hint().exact();
        if size == Some(0) || (!self.is_http2 && size.is_some_and(|size| size <= MAX_UNCOUNTED)) {
            return response;
        }
        let content_type = response.headers().get(header::CONTENT_TYPE);
        let is_image = content_type.is_some_and(|it| it.as_bytes().starts_with(b"image/"));
        let (shares, streamed) = if is_image {
            (&self.limits.images, STREAMED_IMAGE)
        } else {
            (&self.limits.responses, STREAMED_LIST)
        };
        let length = response.headers().get(header::CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
        let exact = |size| usize::try_from(size).unwrap_or(usize::MAX);
        let amount = size.map_or(
            length.map_or(streamed, |length| streamed.min(length)),
            exact,
        );
        let amount = amount.max(MIN_COUNTED);
        let Some(share) = shares.take(self.context.client_address(), amount) else {
            // The response to a change that was made is sent in any case; it is small.
            return if self.is_safe {
                overloaded().into_response()
            } else {
                response
            };
        };
        response.map(|body| {
            let share = Arc::new(share);
            Body::new(CountedBody { body, share })
        })
    }
}

/// Body of a response that holds a share until its last byte is sent, or it is dropped.
struct CountedBody {
    body: Body,
    share: Arc<Share>,
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context)?);
        let count = |bytes| {
            let share = Arc::clone(&self.share);
            Bytes::from_owner(CountedBytes {
                bytes,
                _share: share,
            })
        };
        Poll::Ready(frame.map(|frame| Ok(frame.map_data(count))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Bytes that the server drops when it has sent them.
struct CountedBytes {
    bytes: Bytes,
    _share: Arc<Share>,
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
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

    #[tokio::test]
    async fn memory_of_a_response_is_counted_until_its_bytes_are_dropped() {
        let handler = service_fn(async |_: Request| Ok(vec![0; 100 << 10].into_response()));
        let limits = Arc::new(ConcurrencyLimits::new(32, 1_600 << 10));
        let access = Arc::default();
        let service = LoadShedLayer { limits, access }.layer(handler);
        let ask = async || {
            let Ok(response) = service.clone().oneshot(request_of(None)).await;
            response
        };
        let mut first = ask().await;
        assert_eq!(first.body().size_hint().exact(), Some(100 << 10));
        let context = &mut Context::from_waker(std::task::Waker::noop());
        let frame = Pin::new(first.body_mut()).poll_frame(context);
        drop(first);
        let mut held: Vec<_> = Vec::new();
        for _ in 0..11 {
            held.push(ask().await);
        }
        assert_eq!(ask().await.status(), StatusCode::SERVICE_UNAVAILABLE);
        drop(frame);
        assert_eq!(ask().await.status(), StatusCode::OK);
    }
}
