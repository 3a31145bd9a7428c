//! What is seen of a request from outside its handler: its id, how it was answered, how long that took; and
//! the body of its error, which holds the id.
//!
//! Invariant: nothing is said of a request's query string, header values or body; one error line for what lies
//! behind a 5xx; every 4xx and 5xx leaves as a problem.

use std::{
    cell::RefCell,
    pin::pin,
    sync::{Arc, OnceLock},
    time::Instant,
};

use axum::{
    body::Body,
    extract::{MatchedPath, Request},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::Response,
};
use tracing::Instrument;

use super::{
    seen::{Seen, method_label},
    traced,
};
use crate::{
    api::{
        error::{Cause, InOwnForm, X_REQUEST_ID},
        problem::Problem,
    },
    domain::caller::Caller,
};

/// Whom a request turns out to come from, for the access line.
pub type AnsweredTo = OnceLock<Arc<Caller>>;

/// A request's id, 1–64 characters of `[A-Za-z0-9._-]`.
#[derive(Debug, Clone)]
pub struct RequestId(HeaderValue);

impl RequestId {
    /// The caller's own id where it is fit, so that it finds its request in our log; else a new one.
    pub(super) fn of(headers: &HeaderMap) -> Self {
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

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }
}

/// A new id: 128 random bits, so that ids of all replicas differ.
#[must_use]
pub fn random_id() -> HeaderValue {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [0; 32];
    for (digits, byte) in text.chunks_exact_mut(2).zip(random_bits()) {
        digits[0] = DIGITS[usize::from(byte >> 4)];
        digits[1] = DIGITS[usize::from(byte & 15)];
    }
    HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static("none"))
}

/// From the operating system, for many ids at a time: asking it costs more than all else about an id.
fn random_bits() -> [u8; 16] {
    thread_local! {
        static DRAWN: RefCell<(usize, [u8; 1024])> = const { RefCell::new((1024, [0; 1024])) };
    }
    DRAWN.with_borrow_mut(|(at, drawn)| {
        if *at == drawn.len() {
            // Without random numbers the id is useless, the request is not.
            let _ = getrandom::fill(drawn);
            *at = 0;
        }
        let mut bits = [0; 16];
        bits.copy_from_slice(&drawn[*at..*at + 16]);
        *at += 16;
        bits
    })
}

/// The outermost layer.
pub async fn observe(
    request: Box<Request>,
    caller: &AnsweredTo,
    next: impl AsyncFnOnce(Box<Request>) -> Response,
) -> Response {
    let begun = Instant::now();
    let id = RequestId::of(request.headers());
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let path = route.as_ref().map(MatchedPath::as_str);

    let mut span = traced::begin(&request, method_label(&method), path, id.as_str());
    if span.is_disabled() {
        // For whoever looks closely: what is said at the usual level of one request is said below, with its id.
        span = tracing::debug_span!("request", id = id.as_str());
    }
    let response = pin!(next(request)).instrument(span.clone()).await;
    let response = finish(response, &id);

    let said = span.enter();
    if let Some(Cause(cause)) = response.extensions().get() {
        let (id, route) = (id.as_str(), path.unwrap_or("none"));
        tracing::error!(request_id = id, %method, route, error = describe(cause), "request failed");
    }
    let seen = Seen {
        method,
        route,
        status: response.status(),
        latency: begun.elapsed(),
        caller: caller.get().cloned(),
        id,
    };
    if span.is_disabled() {
        seen.write_later();
    } else {
        // The line is part of the span, which ends with the answer.
        traced::end(&span, &seen);
        seen.write();
    }
    drop(said);
    response
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
    let own_form = response.extensions().get::<InOwnForm>().is_some();
    if (status.is_client_error() || status.is_server_error()) && !own_form {
        let problem = response
            .extensions_mut()
            .remove::<Problem>()
            .unwrap_or_else(|| Problem::of_status(status));
        let body = problem.into_json(id.as_str());
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
