//! Compresses responses that are always the same once.

use std::sync::{Arc, OnceLock};

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use tower::{Layer, Service as _};
use tower_http::compression::CompressionBody;

use super::{Incoming, Layered, Middleware, Next, service};
use crate::api::compression::{Encoder, encoder, is_compressed, whole};

/// Layer for routes that respond to each GET with the same bytes, which are compressed once.
#[derive(Debug, Clone, Copy)]
pub struct CompressConstants;

impl<N> Layer<N> for CompressConstants {
    type Service = Layered<CompressConstant, N>;

    fn layer(&self, next: N) -> Self::Service {
        let middleware = Arc::new(CompressConstant {
            encoder: encoder(),
            gzip: OnceLock::new(),
            zstd: OnceLock::new(),
        });
        Layered { middleware, next }
    }
}

/// Compresses the response of a route, and keeps it.
pub struct CompressConstant {
    encoder: Encoder,
    gzip: OnceLock<Bytes>,
    zstd: OnceLock<Bytes>,
}

impl Middleware for CompressConstant {
    async fn call(&self, request: Incoming<'_>, next: &impl Next) -> Response {
        // An encoder takes more time than all the rest, also if its bytes are not used.
        let known = match preferred(request.headers()) {
            Some("zstd") => self.zstd.get().map(|bytes| ("zstd", bytes)),
            Some("gzip") => self.gzip.get().map(|bytes| ("gzip", bytes)),
            _ => None,
        };
        if let Some((encoding, bytes)) = known {
            let mut response = next.call(request).await;
            if response.status() == StatusCode::OK {
                let encoding = HeaderValue::from_static(encoding);
                let headers = response.headers_mut();
                headers.insert(header::CONTENT_ENCODING, encoding);
                // That of a HEAD without an encoding.
                headers.remove(header::CONTENT_LENGTH);
                *response.body_mut() = Body::from(bytes.clone());
            }
            if matches!(response.status(), StatusCode::OK | StatusCode::NOT_MODIFIED) {
                vary(&mut response);
            }
            return response;
        }
        let compressing = self.encoder.layer(service(next)).call(request.take());
        let Ok(mut response) = Box::pin(compressing).await;
        if response.status() == StatusCode::NOT_MODIFIED {
            vary(&mut response);
        }
        if !is_compressed(&response) {
            return response.map(CompressionBody::into_inner);
        }
        let encoding = &response.headers()[header::CONTENT_ENCODING];
        let known = if encoding == "zstd" {
            &self.zstd
        } else {
            &self.gzip
        };
        let (head, body) = response.into_parts();
        if let Some(known) = known.get() {
            return Response::from_parts(head, Body::from(known.clone()));
        }
        match whole(body).await {
            Ok(bytes) => {
                let known = known.get_or_init(|| bytes).clone();
                Response::from_parts(head, Body::from(known))
            }
            Err(error) => error.into_response(),
        }
    }
}

/// Adds the field that a 200 has, and a 304 as the 200 would have (RFC 9110 §15.4.5).
fn vary<B>(response: &mut Response<B>) {
    let encoding = HeaderValue::from_static("accept-encoding");
    response.headers_mut().append(header::VARY, encoding);
}

/// Returns the encoding that the client prefers (RFC 9110 §12.5.3), the smaller one of those with equal weights.
fn preferred(headers: &HeaderMap) -> Option<&'static str> {
    const CODINGS: [(&str, &str); 4] = [
        ("identity", "identity"),
        ("x-gzip", "gzip"),
        ("gzip", "gzip"),
        ("zstd", "zstd"),
    ];
    let fields = headers.get_all(header::ACCEPT_ENCODING).iter();
    let fields = fields.filter_map(|field| field.to_str().ok());
    let weighted = fields
        .flat_map(|field| field.split(','))
        .filter_map(|coding| {
            let (name, weight) = match coding.split_once(';') {
                Some((name, weight)) => (name, weight.trim().strip_prefix("q=")?.parse().ok()?),
                None => (coding, 1.0_f32),
            };
            let is_named = |it: &(&str, &str)| name.trim().eq_ignore_ascii_case(it.0);
            let rank = CODINGS.iter().position(is_named)?;
            (weight > 0.0 && weight <= 1.0).then_some((weight, rank))
        });
    let best = weighted.max_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
    best.map(|(_, rank)| CODINGS[rank].1)
}
