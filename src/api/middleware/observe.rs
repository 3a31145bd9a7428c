//! What is seen of a request from outside its handler: its id, its access line, its metrics; and the
//! body of its error, which holds the id.
//!
//! Invariant: one access line a request, without query string, header values or body; one error line
//! for what lies behind a 5xx; every 4xx and 5xx leaves as a problem.

use std::{sync::Arc, time::Instant};

use axum::{
    body::Body,
    extract::{MatchedPath, Request},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    middleware::Next,
    response::Response,
};
use tracing::Instrument;

use crate::{
    api::{
        error::{Cause, X_REQUEST_ID},
        problem::Problem,
    },
    domain::caller::Caller,
};

/// Whom a response is for, riding it up to the access line.
#[derive(Debug, Clone)]
pub struct AnsweredTo(pub Arc<Caller>);

/// A request's id, 1–64 characters of `[A-Za-z0-9._-]`.
#[derive(Debug, Clone)]
pub struct RequestId(HeaderValue);

impl RequestId {
    /// The caller's own id where it is fit, so that it finds its request in our log; else a new one.
    fn of(headers: &HeaderMap) -> Self {
        let fit = |value: &&HeaderValue| {
            let id = value.as_bytes();
            (1..=64).contains(&id.len())
                && id
                    .iter()
                    .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(b))
        };
        Self(
            headers
                .get(X_REQUEST_ID)
                .filter(fit)
                .cloned()
                .unwrap_or_else(random_id),
        )
    }

    fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }
}

/// A new id: 128 random bits, so that ids of all replicas differ.
#[must_use]
pub fn random_id() -> HeaderValue {
    let mut random = [0; 16];
    // Without random numbers the id is useless, the request is not.
    let _ = getrandom::fill(&mut random);
    HeaderValue::from_str(&format!("{:032x}", u128::from_be_bytes(random)))
        .unwrap_or(HeaderValue::from_static("none"))
}

/// The outermost layer.
pub async fn observe(request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let id = RequestId::of(request.headers());
    let method = request.method().clone();
    // The route, never the path: its number of values is bounded, and no identifier is logged.
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map_or("none", MatchedPath::as_str);

    let span = tracing::info_span!("request", id = id.as_str());
    let response = next.run(request).instrument(span).await;
    let response = finish(response, &id);

    let status = response.status();
    let latency = begun.elapsed();
    if let Some(Cause(cause)) = response.extensions().get() {
        tracing::error!(request_id = id.as_str(), %method, route, error = describe(cause), "request failed");
    }
    let caller = response.extensions().get::<AnsweredTo>();
    tracing::info!(
        target: "pet_inventory::access",
        %method,
        route,
        status = status.as_u16(),
        latency_ms = latency.as_secs_f64() * 1e3,
        caller = caller.map(|AnsweredTo(caller)| caller.name.as_str()),
        request_id = id.as_str(),
    );
    let labels = [
        ("method", method_label(&method)),
        ("route", route.to_owned()),
        ("status", status.as_str().to_owned()),
    ];
    metrics::counter!("http_requests_total", &labels).increment(1);
    metrics::histogram!("http_request_duration_seconds", &labels[..2]).record(latency);
    response
}

/// Bounded: anybody can make up a method.
fn method_label(method: &axum::http::Method) -> String {
    match method.as_str() {
        known @ ("GET" | "HEAD" | "POST" | "PUT" | "PATCH" | "DELETE" | "OPTIONS") => known.into(),
        _ => "other".into(),
    }
}

/// The whole chain of sources, in one line.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}

/// Writes the id into the head and, if the response is an error, its body.
fn finish(mut response: Response, id: &RequestId) -> Response {
    let status = response.status();
    response.headers_mut().insert(X_REQUEST_ID, id.0.clone());
    if status.is_client_error() || status.is_server_error() {
        let problem = response
            .extensions_mut()
            .remove::<Problem>()
            .unwrap_or_else(|| Problem::of_status(status));
        let body = problem.to_json(id.as_str());
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static(Problem::MEDIA_TYPE),
        );
        headers.insert(header::CONTENT_LENGTH, body.len().into());
        if status == StatusCode::REQUEST_TIMEOUT || status == StatusCode::PAYLOAD_TOO_LARGE {
            // The rest of the body is not worth reading (RFC 9110 §15.5.9, §15.5.14).
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        *response.body_mut() = Body::from(body);
    }
    response
}
