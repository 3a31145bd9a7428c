//! Enforces the limits of the caller's plan, and reports their state in the headers of every response.

use std::ops::Range;

use axum::{
    body::Bytes,
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode},
    response::{IntoResponse, Response},
};

use super::operation_path;
use crate::{
    api::{
        error::{Cause, Error},
        openapi::BASE,
    },
    domain::{
        address::AddressKey,
        caller::Caller,
        clock::whole_seconds,
        limit::{LimitStatus, Window},
    },
    limits::Limiter,
};

/// `draft-ietf-httpapi-ratelimit-headers`.
pub const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// `draft-ietf-httpapi-ratelimit-headers`.
pub const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// Limit of the tighter window.
pub const X_RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
/// Requests remaining in the tighter window.
pub const X_RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
/// Seconds until the tighter window has more capacity.
pub const X_RATELIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// Passes a caller's request to `next` if its limits have capacity.
pub async fn rate_limit(
    limiter: &Limiter,
    caller: &Caller,
    client: Option<AddressKey>,
    mut request: Box<Request>,
    next: impl AsyncFnOnce(Box<Request>) -> Response,
) -> Response {
    let reports_limits = operation_path(&request) == Some("/limits");
    let admission = if reports_limits {
        let status = Box::pin(limiter.status(caller, client)).await;
        status.map(|status| (status, <_>::default()))
    } else {
        limiter.admit(caller, client).await
    };
    let (mut response, status) = match admission {
        Ok((status, permit)) => {
            if reports_limits {
                request.extensions_mut().insert(status);
            }
            let response = next(request).await;
            if !is_counted(&response) {
                limiter.give_back(&permit);
            }
            (response, status)
        }
        Err(error) => {
            let status = error.status();
            (Error::from(error).into_response(), status)
        }
    };
    write_headers(response.headers_mut(), &status);
    response
}

/// Returns true if a request with this response counts: not if it failed through the service's own fault, or was refused
/// with 429. One that ended in its own timeout counts.
fn is_counted(response: &Response) -> bool {
    if response.status() == StatusCode::TOO_MANY_REQUESTS {
        return false;
    }
    let cause = response.extensions().get::<Cause>();
    let timed_out = || cause.is_some_and(|Cause(error)| matches!(**error, Error::TimedOut));
    !response.status().is_server_error() || timed_out()
}

/// Passes a request that needs no credential to `next` if its client address has capacity.
///
/// # Errors
/// [`Error::LimitExceeded`].
pub async fn rate_limit_open(
    limiter: &Limiter,
    client: Option<AddressKey>,
    request: Box<Request>,
    next: impl AsyncFnOnce(Box<Request>) -> Response,
) -> Result<Response, Error> {
    // Outside the API, a GET only reads what describes the service.
    let in_api = request.uri().path().starts_with(BASE);
    if let Some(address) = client.filter(|_| in_api || request.method() == Method::POST) {
        limiter.admit_open(address)?;
    }
    Ok(next(request).await)
}

/// Writes the headers. The numbers of the `X-` headers share the memory of the others, which saves six allocations per
/// response.
fn write_headers(headers: &mut HeaderMap, status: &LimitStatus) {
    let (mut policy, mut state) = (Text::default(), Text::default());
    let mut tighter: Option<(Window, [Range<usize>; 3])> = None;
    for (name, seconds, window) in [
        ("\"minute\";", "60", status.minute),
        ("\"day\";", "86400", status.day),
    ] {
        let Some(window) = window else {
            continue;
        };
        let comma = if tighter.is_some() { ", " } else { "" };
        policy.push(&[comma, name, "q="]);
        let limit = policy.push_number(window.limit);
        policy.push(&[";w=", seconds]);
        state.push(&[comma, name, "r="]);
        let remaining = state.push_number(window.remaining);
        state.push(&[";t="]);
        let reset = state.push_number(whole_seconds(window.reset));
        if tighter
            .as_ref()
            .is_none_or(|(tighter, _)| window.remaining < tighter.remaining)
        {
            tighter = Some((window, [limit, remaining, reset]));
        }
    }
    let Some((_, [limit, remaining, reset])) = tighter else {
        return;
    };
    let (policy, state) = (Bytes::from(policy.0), Bytes::from(state.0));
    for (name, value) in [
        (X_RATELIMIT_LIMIT, policy.slice(limit)),
        (X_RATELIMIT_REMAINING, state.slice(remaining)),
        (X_RATELIMIT_RESET, state.slice(reset)),
        (RATELIMIT_POLICY, policy),
        (RATELIMIT, state),
    ] {
        // Words, digits and punctuation: always a valid value.
        let value = HeaderValue::from_maybe_shared(value);
        headers.insert(name, value.unwrap_or(HeaderValue::from_static("")));
    }
}

struct Text(Vec<u8>);

impl Default for Text {
    /// An empty text with room for two windows.
    fn default() -> Self {
        Self(Vec::with_capacity(64))
    }
}

impl Text {
    fn push(&mut self, parts: &[&str]) {
        for part in parts {
            self.0.extend_from_slice(part.as_bytes());
        }
    }

    /// Appends a number; returns its place.
    fn push_number(&mut self, number: impl itoa::Integer) -> Range<usize> {
        let start = self.0.len();
        self.push(&[itoa::Buffer::new().format(number)]);
        start..self.0.len()
    }
}
