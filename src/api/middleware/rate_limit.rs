//! Enforces the limits of the caller's plan, and reports their state in the headers of every response.

use axum::{
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

const MINUTE_SECONDS: &str = "60";
const DAY_SECONDS: &str = "86400";

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

/// Whether a request with this response counts: it does not if it failed through the service's own fault, or was
/// refused with 429. One that ended in its own timeout counts.
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

fn write_headers(headers: &mut HeaderMap, status: &LimitStatus) {
    /// Bytes that two windows need.
    const CAPACITY: usize = 64;
    let (mut policy, mut state) = (
        String::with_capacity(CAPACITY),
        String::with_capacity(CAPACITY),
    );
    let mut tighter: Option<Window> = None;
    for (name, seconds, window) in [
        ("minute", MINUTE_SECONDS, status.minute),
        ("day", DAY_SECONDS, status.day),
    ] {
        let Some(window) = window else {
            continue;
        };
        let comma = if policy.is_empty() { "" } else { ", " };
        let [mut limit, mut remaining, mut reset] = [(); 3].map(|()| itoa::Buffer::new());
        let limit = limit.format(window.limit);
        policy.extend([comma, "\"", name, "\";q=", limit, ";w=", seconds]);
        let remaining = remaining.format(window.remaining);
        let reset = reset.format(whole_seconds(window.reset));
        state.extend([comma, "\"", name, "\";r=", remaining, ";t=", reset]);
        if tighter.is_none_or(|tighter| window.remaining < tighter.remaining) {
            tighter = Some(window);
        }
    }
    let Some(tighter) = tighter else {
        return;
    };
    // Words, digits and punctuation: always a valid value.
    let value = |text| HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""));
    headers.insert(RATELIMIT_POLICY, value(policy));
    headers.insert(RATELIMIT, value(state));
    headers.insert(X_RATELIMIT_LIMIT, tighter.limit.into());
    headers.insert(X_RATELIMIT_REMAINING, tighter.remaining.into());
    headers.insert(X_RATELIMIT_RESET, whole_seconds(tighter.reset).into());
}
