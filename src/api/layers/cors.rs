//! Lets web pages of other origins use the API (CORS, as the Fetch standard defines it).
//!
//! - tower-http's layer writes the headers. It takes every `OPTIONS` request for a preflight request, and adds headers for
//!   every origin; requests that it must not see pass it by.
//! - A preflight request needs no credential and is not rate limited, so this layer is outside those that check it.
//! - Credentials mode is never enabled: pages send API keys and tokens in headers, which need no cookies.

use std::time::Duration;

use axum::{
    extract::Request,
    http::{HeaderName, HeaderValue, Method, header},
    response::Response,
};
use tower::{Layer as _, Service as _};
use tower_http::cors::{AllowOrigin, CorsLayer};

use super::{Incoming, Middleware, Next, service};
use crate::config::CorsOrigins;

/// Time for which a browser may remember the response to a preflight request. Chromium's maximum.
const MAX_AGE: Duration = Duration::from_hours(2);

/// Methods of the API's operations.
const METHODS: [Method; 6] = [
    Method::GET,
    Method::HEAD,
    Method::POST,
    Method::PUT,
    Method::PATCH,
    Method::DELETE,
];

/// Request headers that the API reads, except those that a page may always send.
const REQUEST_HEADERS: [HeaderName; 12] = [
    header::AUTHORIZATION,
    header::CONTENT_TYPE,
    header::IF_MATCH,
    header::IF_NONE_MATCH,
    header::IF_RANGE,
    header::RANGE,
    HeaderName::from_static("api_key"),
    HeaderName::from_static("idempotency-key"),
    HeaderName::from_static("last-event-id"),
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("tracestate"),
    HeaderName::from_static("x-request-id"),
];

/// Response headers that a page can read.
const EXPOSED_HEADERS: [HeaderName; 11] = [
    header::ETAG,
    header::LINK,
    header::LOCATION,
    header::RETRY_AFTER,
    HeaderName::from_static("ratelimit"),
    HeaderName::from_static("ratelimit-policy"),
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
    HeaderName::from_static("x-request-id"),
    HeaderName::from_static("idempotent-replayed"),
];

/// Answers preflight requests, and adds CORS headers to responses. Without origins, it does nothing.
#[derive(Debug)]
pub struct Cors {
    /// `None` if there are none.
    origins: Option<CorsOrigins>,
    headers: CorsLayer,
}

impl Cors {
    /// Creates the layer for pages of `origins`.
    pub fn new(origins: &CorsOrigins) -> Self {
        let is_off = matches!(origins, CorsOrigins::Listed(origins) if origins.is_empty());
        let allowed = match origins {
            CorsOrigins::Any => AllowOrigin::any(),
            CorsOrigins::Listed(_) => AllowOrigin::mirror_request(),
        };
        let headers = CorsLayer::new()
            .allow_origin(allowed)
            .allow_methods(METHODS)
            .allow_headers(REQUEST_HEADERS)
            .expose_headers(EXPOSED_HEADERS)
            .max_age(MAX_AGE);
        Self {
            origins: (!is_off).then(|| origins.clone()),
            headers,
        }
    }
}

impl Middleware for Cors {
    async fn call(&self, request: Incoming<'_>, next: &impl Next) -> Response {
        let Some(origins) = &self.origins else {
            return next.call(request).await;
        };
        if applies(origins, &request) {
            let response = self.headers.layer(service(next)).call(request.take());
            // Boxed: requests without an origin must not carry the state of this.
            let Ok(response) = Box::pin(response).await;
            return response;
        }
        let mut response = next.call(request).await;
        // Tells caches that another origin may get another response.
        let origin = HeaderValue::from_static("origin");
        response.headers_mut().append(header::VARY, origin);
        response
    }
}

/// Returns true if the response gets CORS headers.
fn applies(origins: &CorsOrigins, request: &Request) -> bool {
    let (headers, origin) = (request.headers(), request.headers().get(header::ORIGIN));
    let is_preflight = headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let is_admitted = match origins {
        CorsOrigins::Any => true,
        CorsOrigins::Listed(origins) => origin.is_some_and(|origin| origins.contains(origin)),
    };
    is_admitted && (request.method() != Method::OPTIONS || (is_preflight && origin.is_some()))
}
