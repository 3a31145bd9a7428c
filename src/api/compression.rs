//! Compresses responses with gzip or zstd, if the client accepts one of them (RFC 9110 §12.5.3).
//!
//! - Responses with a strong entity tag are not compressed, since their bytes would no longer be those that the tag names.
//! - Encoders run on the thread of the worker, which serves other requests between two parts of a list.
//! - The memory of an encoder that waits for a client is counted where the list is built ([`paging`](crate::api::paging)).
//! - If the body fails, the compressed one fails too, so that the response is cut off.
//! - tower-http is of version 0.6: 0.7 responds with 406, after the handler has run, where 0.6 sends the body uncompressed.

use std::{convert::Infallible, sync::Arc};

use axum::{
    body::{Body, Bytes, HttpBody as _},
    http::{Extensions, HeaderMap, HeaderValue, StatusCode, Version, header},
    response::{IntoResponse, Response},
};
use http_body_util::BodyExt as _;
use tower_http::{
    CompressionLevel,
    compression::{
        CompressionBody, CompressionLayer,
        predicate::{And, Predicate as _, SizeAbove},
    },
};

use super::{
    error::Error,
    response::{MAX_UNCOUNTED, counted},
};
use crate::limits::shares::Share;

/// Minimum size in bytes of a body that is compressed.
const MIN_SIZE: u16 = 1 << 10;
/// Level of both encoders. Lists of pets become 5 to 7 % with gzip and 2 % with zstd, at 560 and 1,600 MB/s of a core. gzip is
/// three times as slow at its default, 6, for the same size; zstd takes 1.5 MiB more memory at its default, 3.
const LEVEL: CompressionLevel = CompressionLevel::Precise(2);
/// Maximum size in bytes of a body that is compressed before the response begins, in 0.1 to 0.3 ms, so that no encoder waits for
/// a client.
pub const AT_ONCE: usize = 64 << 10;
/// Memory in bytes of a gzip encoder at [`LEVEL`].
const GZIP_MEMORY: usize = 384 << 10;
/// Memory in bytes of a zstd encoder at [`LEVEL`], with its window of 1 MiB.
const ZSTD_MEMORY: usize = 2 << 20;

/// Layer that compresses responses.
pub type Encoder = CompressionLayer<And<SizeAbove, Eligible>>;
type Eligible = fn(StatusCode, Version, &HeaderMap, &Extensions) -> bool;

fn is_eligible(status: StatusCode, _: Version, headers: &HeaderMap, _: &Extensions) -> bool {
    let tag = headers.get(header::ETAG).map(HeaderValue::as_bytes);
    // An encoder would hold events back, and each stream would need the memory of one.
    let is_stream = headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|it| it == "text/event-stream");
    status == StatusCode::OK && !is_stream && tag.is_none_or(|tag| tag.starts_with(b"W/"))
}

/// Returns a layer that compresses responses of at least 1 KiB.
pub fn encoder() -> Encoder {
    let predicate = SizeAbove::new(MIN_SIZE).and(is_eligible as Eligible);
    let encoder = CompressionLayer::new().quality(LEVEL);
    encoder.compress_when(predicate)
}

/// Compresses a whole body at once if it is short.
pub async fn at_once(
    mut response: Response<CompressionBody<Body>>,
) -> Result<Response, Infallible> {
    if !is_compressed(&response) {
        return Ok(response.map(CompressionBody::into_inner));
    }
    let size = response.body().get_ref().size_hint().exact();
    if size.is_none_or(|size| size > AT_ONCE as u64) {
        return Ok(response.map(Body::new));
    }
    // That of the bytes before the compression.
    let share = response.extensions_mut().remove::<Arc<Share>>();
    let (head, body) = response.into_parts();
    Ok(match (whole(body).await, share) {
        (Ok(bytes), Some(share)) if bytes.len() > MAX_UNCOUNTED => {
            Response::from_parts(head, Body::from(counted(bytes, &share)))
        }
        (Ok(bytes), _) => Response::from_parts(head, Body::from(bytes)),
        (Err(error), _) => error.into_response(),
    })
}

/// Returns the memory in bytes of the largest encoder that a client accepts.
pub fn encoder_memory(headers: &HeaderMap) -> usize {
    let accepted = headers.get_all(header::ACCEPT_ENCODING).iter();
    let memory = accepted.map(|accepted| match accepted.to_str().unwrap_or_default() {
        accepted if accepted.contains("zstd") || accepted.contains('*') => ZSTD_MEMORY,
        accepted if accepted.contains("gzip") => GZIP_MEMORY,
        _ => 0,
    });
    memory.max().unwrap_or_default()
}

/// Returns true for a response that [`encoder`] compresses.
pub fn is_compressed<B>(response: &Response<B>) -> bool {
    response.headers().contains_key(header::CONTENT_ENCODING)
}

/// Returns all bytes of a body, which never waits: its source is in memory.
pub async fn whole(body: CompressionBody<Body>) -> Result<Bytes, Error> {
    let collected = body.collect().await.map_err(Error::internal)?;
    Ok(collected.to_bytes())
}

#[cfg(test)]
mod tests {
    use axum::{Router, extract::Request};
    use tower::{ServiceBuilder, ServiceExt as _, util::AndThenLayer};

    use super::*;

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
            .layer(AndThenLayer::new(at_once))
            .layer(encoder());
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
        ] {
            let response = respond(status, length, etag).await;
            let headers = response.headers();
            let has_encoding = headers.contains_key(header::CONTENT_ENCODING);
            assert_eq!(has_encoding, is_compressed, "{status} {length} {etag}");
            let has_vary = headers.contains_key(header::VARY);
            assert_eq!(has_vary, is_compressed, "{status} {length} {etag}");
            let size = response.body().size_hint().exact();
            assert_eq!(size == Some(length as u64), !is_compressed);
        }
    }
}
