//! Compresses responses that are always the same once.

use std::sync::{Arc, OnceLock};

use axum::{
    body::{Body, Bytes},
    http::{HeaderValue, StatusCode, header},
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
        let compressing = self.encoder.layer(service(next)).call(request.take());
        let Ok(mut response) = Box::pin(compressing).await;
        if response.status() == StatusCode::NOT_MODIFIED {
            // As the 200 would have (RFC 9110 §15.4.5).
            let encoding = HeaderValue::from_static("accept-encoding");
            response.headers_mut().append(header::VARY, encoding);
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
