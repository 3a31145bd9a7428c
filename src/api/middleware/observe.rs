//! What is seen of a request from outside its handler: its id, how it was answered, how long that took; and
//! the body of its error, which holds the id.
//!
//! Invariant: nothing is said of a request's query string, header values or body; one error line for what lies
//! behind a 5xx; every 4xx and 5xx leaves as a problem.

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

/// Whom a request turns out to come from, for the access line.
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
        // For whoever looks closely: what is said at the usual level of one request is said below, with its id.
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
            // The rest of the body is not worth reading (RFC 9110 §15.5.9, §15.5.14).
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        *response.body_mut() = Body::from(body);
    }
    response
}
