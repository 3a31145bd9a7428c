//! Bounds the memory of responses that are being sent.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::Request,
    http::{Version, header},
    response::{IntoResponse, Response},
};
use futures_util::future::Either;
use http_body::{Frame, SizeHint};

use super::{Inner, LayerFuture, Middleware, OnResponse, Then, respond};
use crate::{
    api::{error::Error, request_context::RequestContext, state::ConcurrencyLimits},
    domain::address::AddressKey,
    limits::shares::Share,
};

/// Maximum size in bytes of a response over HTTP/1 that is not counted: the kernel takes it at once.
const MAX_UNCOUNTED: usize = 16 << 10;
/// Minimum number of bytes counted for a response, as over HTTP/2 it has a stream.
const MIN_COUNTED: usize = 16 << 10;
/// Bytes counted before a change is made, for its response: most are smaller.
const OF_A_CHANGE: usize = 32 << 10;
/// Bytes counted for a streamed list: three of the largest pets, of nearly 1 MiB, or five parts of 256 KiB.
const STREAMED_LIST: usize = 3 << 20;
/// Bytes counted for the response with an image: two pieces of 128 KiB, of which one is being sent. Those of S3 have the
/// size of a TLS record, 16 KiB.
const STREAMED_IMAGE: usize = 256 << 10;

/// Layer that counts a response until the client has been sent all of it. When the memory is in use, the response is 503.
/// Requests that will need memory are refused before they cause any work; after a change, that leaves only large responses.
#[derive(Debug, Clone)]
pub struct ResponseMemoryLayer(pub Arc<ConcurrencyLimits>);

impl_layer!(ResponseMemoryLayer);

impl Middleware for ResponseMemoryLayer {
    type Future<S: Inner> = LayerFuture<Then<S::Future, ResponseMemory>>;

    fn call<S: Inner>(&self, inner: &mut S, request: Request) -> Self::Future<S> {
        let address = RequestContext::of(&request).client_address();
        let is_http2 = request.version() == Version::HTTP_2;
        let reserved = if request.method().is_safe() {
            is_http2.then_some(MIN_COUNTED)
        } else {
            Some(OF_A_CHANGE)
        };
        let reserved = reserved.map(|amount| self.0.responses.take(address, amount));
        let reserved = match reserved.transpose() {
            Ok(reserved) => reserved,
            Err(exhausted) => return respond(Error::from(exhausted)),
        };
        let then = Some(ResponseMemory {
            limits: Arc::clone(&self.0),
            address,
            is_http2,
            reserved,
        });
        let inner = inner.call(request);
        Either::Left(Then { inner, then })
    }
}

/// Counts the response to a request.
#[derive(Debug)]
pub struct ResponseMemory {
    limits: Arc<ConcurrencyLimits>,
    address: Option<AddressKey>,
    is_http2: bool,
    reserved: Option<Share>,
}

impl OnResponse for ResponseMemory {
    fn on_response(self, response: Response) -> Response {
        let content_type = response.headers().get(header::CONTENT_TYPE);
        let is_image = content_type.is_some_and(|it| it.as_bytes().starts_with(b"image/"));
        let (shares, streamed) = if is_image {
            (&self.limits.images, STREAMED_IMAGE)
        } else {
            (&self.limits.responses, STREAMED_LIST)
        };
        let amount = match response.body().size_hint().exact() {
            Some(size) => {
                let size = usize::try_from(size).unwrap_or(usize::MAX);
                if size == 0 || (!self.is_http2 && size <= MAX_UNCOUNTED) {
                    return response;
                }
                size
            }
            None => content_length(&response).map_or(streamed, |length| length.min(streamed)),
        };
        let amount = amount.max(MIN_COUNTED);
        let share = match self.reserved {
            Some(mut share) if !is_image => share.grow_to(amount).map(|()| share),
            _ => shares.take(self.address, amount),
        };
        match share {
            Ok(share) => response.map(|body| {
                let share = Arc::new(share);
                Body::new(CountedBody { body, share })
            }),
            Err(exhausted) => Error::from(exhausted).into_response(),
        }
    }
}

fn content_length(response: &Response) -> Option<usize> {
    let length = response.headers().get(header::CONTENT_LENGTH)?;
    length.to_str().ok()?.parse().ok()
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

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use tower::{Layer, ServiceExt, service_fn};

    use super::*;
    use crate::api::layers::testing::request_of;

    #[tokio::test]
    async fn memory_of_a_response_is_counted_until_its_bytes_are_dropped() {
        let handler = service_fn(async |_: Request| Ok(vec![0; 100 << 10].into_response()));
        let limits = Arc::new(ConcurrencyLimits::new(32, 1_600 << 10));
        let service = ResponseMemoryLayer(limits).layer(handler);
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
