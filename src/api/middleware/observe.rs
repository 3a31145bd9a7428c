//! Request id, span, access log, metrics, and the body of error responses.
//!
//! Invariants:
//!
//! - Query strings, header values and bodies are not logged.
//! - The cause of a 5xx response is logged once.
//! - Every 4xx and 5xx response is a problem document.

use std::{
    pin::pin,
    sync::{Arc, OnceLock},
    time::Instant,
};

use axum::{
    body::Body,
    extract::{MatchedPath, Request},
    http::{HeaderValue, StatusCode, header},
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
        request_id::RequestId,
    },
    domain::caller::Caller,
};

/// Caller of a request, once it is known; for the access log.
pub type AnsweredTo = OnceLock<Arc<Caller>>;

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
        // With the log level debug, lines of a request have its id.
        span = tracing::debug_span!("request", id = id.as_str());
    }
    let response = pin!(next(request)).instrument(span.clone()).await;
    let response = finish(response, &id);

    let latency = begun.elapsed();
    let said = span.enter();
    if let Some(Cause(cause)) = response.extensions().get() {
        let (id, route) = (id.as_str(), path.unwrap_or("none"));
        tracing::error!(request_id = id, %method, route, error = describe(cause), "request failed");
    }
    let seen = Seen {
        method,
        route,
        status: response.status(),
        latency,
        caller: caller.get().cloned(),
        id,
    };
    if span.is_disabled() {
        seen.write_later();
    } else {
        // The line is part of the span, which ends with the response.
        traced::end(&span, &seen);
        seen.write();
    }
    drop(said);
    response
}

/// Formats an error and its sources in one line.
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

/// Writes the id into the head and, if the response is an error, the body.
fn finish(mut response: Response, id: &RequestId) -> Response {
    let status = response.status();
    response.headers_mut().insert(X_REQUEST_ID, id.header());
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
            // The rest of the request body is not read (RFC 9110, sections 15.5.9 and 15.5.14).
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        *response.body_mut() = Body::from(body);
    }
    response
}
