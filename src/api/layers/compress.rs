//! Compresses responses with gzip or zstd, if the client accepts one of them (RFC 9110 §12.5.3).
//!
//! - Responses with a strong entity tag are not compressed, since their bytes would no longer be those that the tag names.
//! - Encoders run on the thread of the worker, which serves other requests between two slices of an encoder's input.
//! - The memory of a response that is compressed while it is sent is counted by
//!   [`ResponseMemory`](super::response_memory::ResponseMemory), which is therefore outside of this layer.
//! - If the body fails, the compressed one fails too, so that the response is cut off.
//! - tower-http is of version 0.6: 0.7 responds with 406, after the handler has run, where 0.6 sends the body uncompressed.

use std::{
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
};

use axum::{
    BoxError,
    body::{Body, Bytes, HttpBody},
    http::{Extensions, HeaderMap, HeaderValue, StatusCode, Version, header},
    response::{IntoResponse, Response},
};
use futures_util::FutureExt as _;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;
use tower::{Layer, Service as _, ServiceExt as _};
use tower_http::{
    CompressionLevel,
    compression::{
        CompressionBody, CompressionLayer,
        predicate::{And, Predicate as _, SizeAbove},
    },
};

use super::{
    Incoming, Layered, Middleware, Next,
    response_memory::{CompressedWhileSent, STREAMED_LIST},
    service,
};
use crate::api::{error::Error, operations::Kind, request_context::RequestContext};

/// Minimum size in bytes of a body that is compressed.
const MIN_SIZE: u16 = 1 << 10;
/// Level of both encoders. Lists of pets become 5 to 7 % with gzip and 2 % with zstd, at 560 and 1,600 MB/s of a core. gzip is
/// three times as slow at its default, 6, for the same size; zstd takes 1.5 MiB more memory at its default, 3.
const LEVEL: CompressionLevel = CompressionLevel::Precise(2);
/// Maximum number of bytes that are compressed before other requests get their turn: 0.1 to 0.3 ms of work. Bodies of at most
/// this size are compressed before the response begins, so that no encoder waits for a client.
const SLICE: usize = 64 << 10;
/// Memory in bytes of a gzip encoder at [`LEVEL`].
const GZIP_MEMORY: usize = 384 << 10;
/// Memory in bytes of a zstd encoder at [`LEVEL`], with its window of 1 MiB.
const ZSTD_MEMORY: usize = 2 << 20;

/// Layer for routes that respond to each GET with the same bytes, which are compressed once.
#[derive(Debug, Clone, Copy)]
pub struct CompressConstants;

impl<N> Layer<N> for CompressConstants {
    type Service = Layered<Compress, N>;

    fn layer(&self, next: N) -> Self::Service {
        let middleware = Arc::new(Compress {
            compressed: Some(Arc::default()),
            ..Compress::of_all()
        });
        Layered { middleware, next }
    }
}

type Eligible = fn(StatusCode, Version, &HeaderMap, &Extensions) -> bool;

fn is_eligible(status: StatusCode, _: Version, headers: &HeaderMap, _: &Extensions) -> bool {
    let tag = headers.get(header::ETAG).map(HeaderValue::as_bytes);
    // An encoder would hold events back, and each stream would need the memory of one.
    let is_stream = headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|it| it == "text/event-stream");
    status == StatusCode::OK && !is_stream && tag.is_none_or(|tag| tag.starts_with(b"W/"))
}

/// Compresses the responses of lists, or of all that is inside, of at least 1 KiB.
pub struct Compress {
    encoder: CompressionLayer<And<SizeAbove, Eligible>>,
    is_of_all: bool,
    /// The compressed body of a route with constant responses.
    compressed: Option<Arc<CompressedConstant>>,
}

impl Default for Compress {
    fn default() -> Self {
        let predicate = SizeAbove::new(MIN_SIZE).and(is_eligible as Eligible);
        Self {
            encoder: CompressionLayer::new()
                .quality(LEVEL)
                .compress_when(predicate),
            is_of_all: false,
            compressed: None,
        }
    }
}

impl Compress {
    /// Creates a layer for routes that are no lists.
    pub fn of_all() -> Self {
        Self {
            is_of_all: true,
            ..Self::default()
        }
    }
}

#[derive(Default)]
struct CompressedConstant {
    gzip: OnceLock<Bytes>,
    zstd: OnceLock<Bytes>,
}

impl Middleware for Compress {
    async fn call(&self, request: Incoming<'_>, next: &impl Next) -> Response {
        if !self.is_of_all && RequestContext::of(&request).facts.kind != Kind::List {
            return next.call(request).await;
        }
        let compressed = self.compressed.as_deref();
        let max = compressed.map_or(SLICE, |_| usize::MAX);
        let sliced = service(next)
            .map_response(move |response: Response| response.map(|body| Slices::new(body, max)));
        let Ok(response) = Box::pin(self.encoder.layer(sliced).call(request.take())).await;
        complete(response, compressed)
    }
}

/// Completes the response: compresses a small or constant body at once, and counts a larger one.
fn complete(
    response: Response<CompressionBody<Slices>>,
    constant: Option<&CompressedConstant>,
) -> Response {
    let is_zstd = match response.headers().get(header::CONTENT_ENCODING) {
        Some(encoding) => encoding == "zstd",
        None => return uncompressed(response),
    };
    let size = response.body().get_ref().size_hint().exact();
    let size = size.map(|size| usize::try_from(size).unwrap_or(usize::MAX));
    let (mut head, body) = response.into_parts();
    let compressed = match (constant, size) {
        (Some(constant), _) => {
            let compressed = if is_zstd {
                &constant.zstd
            } else {
                &constant.gzip
            };
            whole(body, compressed)
        }
        (None, Some(..=SLICE)) => whole(body, &OnceLock::new()),
        (None, _) => {
            let encoder = if is_zstd { ZSTD_MEMORY } else { GZIP_MEMORY };
            let memory = size.unwrap_or(STREAMED_LIST) + encoder;
            head.extensions.insert(CompressedWhileSent(memory));
            let body = YieldingBody {
                body,
                has_yielded: false,
            };
            return Response::from_parts(head, Body::new(body));
        }
    };
    match compressed {
        Ok(compressed) => Response::from_parts(head, Body::from(compressed)),
        Err(error) => error.into_response(),
    }
}

fn uncompressed(response: Response<CompressionBody<Slices>>) -> Response {
    let mut response = response.map(|body| body.into_inner().body);
    if response.status() == StatusCode::NOT_MODIFIED {
        // As the 200 would have (RFC 9110 §15.4.5).
        let encoding = HeaderValue::from_static("accept-encoding");
        response.headers_mut().append(header::VARY, encoding);
    }
    response
}

/// Returns the bytes in `known`, or compresses the body. It must be of one slice, so that it never waits.
fn whole(body: CompressionBody<Slices>, known: &OnceLock<Bytes>) -> Result<Bytes, Error> {
    if let Some(known) = known.get() {
        return Ok(known.clone());
    }
    let collected = body.collect().now_or_never();
    let collected = collected.and_then(Result::ok);
    let collected = collected.ok_or_else(|| Error::internal("failed to compress a response"))?;
    Ok(known.get_or_init(|| collected.to_bytes()).clone())
}

/// Compressed body that lets other tasks run between two slices of its source.
struct YieldingBody {
    body: CompressionBody<Slices>,
    has_yielded: bool,
}

impl HttpBody for YieldingBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        // The encoder has answered the pause with the bytes that it held, and would go on.
        if self.body.get_ref().is_paused && !self.has_yielded {
            self.has_yielded = true;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.has_yielded = false;
        Pin::new(&mut self.body).poll_frame(context)
    }
}

/// Body of slices, with a pause between two of them.
struct Slices {
    body: Body,
    /// Data that follows the last slice.
    rest: Bytes,
    /// Maximum size of a slice in bytes.
    max: usize,
    is_paused: bool,
}

impl Slices {
    fn new(body: Body, max: usize) -> Self {
        Self {
            body,
            rest: Bytes::new(),
            max,
            is_paused: false,
        }
    }
}

impl HttpBody for Slices {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            let frame = ready!(Pin::new(&mut self.body).poll_frame(context)?);
            match frame.map(Frame::into_data) {
                Some(Ok(data)) => self.rest = data,
                Some(Err(trailers)) => return Poll::Ready(Some(Ok(trailers))),
                None => {
                    // It must not be polled again, which tower-http does.
                    self.body = Body::empty();
                    return Poll::Ready(None);
                }
            }
        } else if !self.is_paused {
            self.is_paused = true;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.is_paused = false;
        let length = self.rest.len().min(self.max);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(length)))))
    }

    fn size_hint(&self) -> SizeHint {
        let (hint, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut all = SizeHint::new();
        all.set_lower(hint.lower() + rest);
        if let Some(upper) = hint.upper() {
            all.set_upper(upper + rest);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use axum::{Extension, Router, extract::Request};
    use tower::ServiceBuilder;

    use super::*;
    use crate::api::{
        layers::{ServiceLayer, around, request_context::CreateContext},
        operations::{Facts, RouteFacts},
    };

    const TEXT: &str = "0123456789abcdef";

    /// Returns the response to a request that accepts gzip. The handler responds with `length` bytes and an entity tag.
    async fn respond(status: StatusCode, length: usize, etag: &'static str) -> Response {
        let handler = async move || {
            let body = Body::from(TEXT.repeat(length / TEXT.len()));
            (status, [(header::ETAG, etag)], body)
        };
        let mut request: Request = Request::default();
        let gzip = HeaderValue::from_static("gzip");
        request.headers_mut().insert(header::ACCEPT_ENCODING, gzip);
        let layers = ServiceBuilder::new()
            .layer(Extension(RouteFacts::of_get(Facts::LIST)))
            .layer(ServiceLayer)
            .layer(around(CreateContext {
                trusted_proxies: Arc::default(),
            }))
            .layer(around(Compress::default()));
        let service = Router::new().fallback(handler).layer(layers);
        let Ok(response) = service.oneshot(request).await;
        response
    }

    #[tokio::test]
    async fn strong_entity_tags_small_bodies_and_other_statuses_prevent_compression() {
        use StatusCode as S;
        for (status, length, etag, is_compressed) in [
            (S::OK, 1 << 10, "W/\"1\"", true),
            (S::OK, 1 << 10, "\"1\"", false),
            (S::OK, 1_008, "W/\"1\"", false),
            (S::NOT_FOUND, 1 << 10, "W/\"1\"", false),
            (S::PARTIAL_CONTENT, 1 << 10, "W/\"1\"", false),
            (S::NOT_MODIFIED, 0, "W/\"1\"", false),
        ] {
            let response = respond(status, length, etag).await;
            let headers = response.headers();
            let has_encoding = headers.contains_key(header::CONTENT_ENCODING);
            assert_eq!(has_encoding, is_compressed, "{status} {length} {etag}");
            let varies = is_compressed || status == S::NOT_MODIFIED;
            let has_vary = headers.contains_key(header::VARY);
            assert_eq!(has_vary, varies, "{status} {length} {etag}");
            let size = response.body().size_hint().exact();
            assert_eq!(size == Some(length as u64), !is_compressed);
        }
    }

    #[tokio::test]
    async fn large_body_is_counted_with_its_encoder_and_gives_way_to_other_tasks() {
        let response = respond(StatusCode::OK, 1 << 20, "W/\"1\"").await;
        let counted = response.extensions().get::<CompressedWhileSent>();
        assert_eq!(counted.map(|it| it.0), Some((1 << 20) + GZIP_MEMORY));
        let turns = Cell::new(0);
        let other = async {
            loop {
                turns.set(turns.get() + 1);
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            collected = response.into_body().collect() => assert!(collected.is_ok()),
            () = other => {}
        }
        assert!(turns.get() >= 15, "{}", turns.get());
    }
}
