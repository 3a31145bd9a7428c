//! A caller's plan, enforced, and how it stands, told in the headers of every answer.

use std::time::Duration;

use axum::{
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, Method},
    response::{IntoResponse, Response},
};

use crate::{
    api::{error::Error, openapi::BASE},
    domain::caller::Caller,
    limits::{Limiter, Standing, Standings, Verdict, Window, address::AddressKey, whole_seconds},
};

/// `draft-ietf-httpapi-ratelimit-headers`.
pub const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// `draft-ietf-httpapi-ratelimit-headers`.
pub const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// Requests that the tighter window admits.
pub const X_RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
/// Requests that it still would.
pub const X_RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
/// Seconds until it would admit more.
pub const X_RATELIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

const MINUTE_SECONDS: &str = "60";
const DAY_SECONDS: &str = "86400";

/// Lets a caller's request through to `next` while its plan has room.
pub async fn rate_limit(
    limiter: &Limiter,
    caller: &Caller,
    client: Option<AddressKey>,
    mut request: Box<Request>,
    next: impl AsyncFnOnce(Box<Request>) -> Response,
) -> Response {
    let (mut response, standings) = match limiter.admit(caller, client).await {
        Verdict::Admitted(standings, permit) => {
            // Whoever has no limits asks `/limits` for none.
            if standings != Standings::default() {
                request.extensions_mut().insert(standings);
            }
            let response = next(request).await;
            if response.status().is_server_error() {
                // Boxed: a future is moved whole, and this one is large and seldom.
                Box::pin(limiter.take_back(permit)).await;
            }
            (response, standings)
        }
        Verdict::Refused {
            windows,
            retry_after,
            standings,
        } => (exceeded(&windows, retry_after).into_response(), standings),
        Verdict::Unknown(error) => return Error::from(error).into_response(),
    };
    write_headers(response.headers_mut(), &standings);
    response
}

/// Lets a request that needs no credential through to `next` while its address has room.
///
/// # Errors
/// [`Error::LimitExceeded`].
pub async fn rate_limit_open(
    limiter: &Limiter,
    client: Option<AddressKey>,
    request: Box<Request>,
    next: impl AsyncFnOnce(Box<Request>) -> Response,
) -> Result<Response, Error> {
    // Beside the API, what is only read is about the service, and the same for everybody.
    let in_api = request.uri().path().starts_with(BASE);
    let Some(address) = client.filter(|_| in_api || request.method() == Method::POST) else {
        return Ok(next(request).await);
    };
    match limiter.admit_stranger(address) {
        Verdict::Admitted(_, permit) => {
            let response = next(request).await;
            if response.status().is_server_error() {
                // Boxed: a future is moved whole, and this one is large and seldom.
                Box::pin(limiter.take_back(permit)).await;
            }
            Ok(response)
        }
        Verdict::Refused {
            windows,
            retry_after,
            ..
        } => Err(exceeded(&windows, retry_after)),
        Verdict::Unknown(error) => Err(error.into()),
    }
}

fn exceeded(windows: &[Window], retry_after: Duration) -> Error {
    Error::LimitExceeded {
        policies: windows.iter().map(|window| window.as_str()).collect(),
        retry_after,
    }
}

fn write_headers(headers: &mut HeaderMap, standings: &Standings) {
    /// Of two windows.
    const ROOM: usize = 64;
    let (mut policy, mut state) = (String::with_capacity(ROOM), String::with_capacity(ROOM));
    let mut tighter: Option<Standing> = None;
    for (name, window, standing) in [
        ("minute", MINUTE_SECONDS, standings.minute),
        ("day", DAY_SECONDS, standings.day),
    ] {
        let Some(standing) = standing else {
            continue;
        };
        let comma = if policy.is_empty() { "" } else { ", " };
        let [mut limit, mut remaining, mut reset] = [(); 3].map(|()| itoa::Buffer::new());
        let limit = limit.format(standing.limit);
        policy.extend([comma, "\"", name, "\";q=", limit, ";w=", window]);
        let remaining = remaining.format(standing.remaining);
        let reset = reset.format(whole_seconds(standing.reset));
        state.extend([comma, "\"", name, "\";r=", remaining, ";t=", reset]);
        if tighter.is_none_or(|tighter| standing.remaining < tighter.remaining) {
            tighter = Some(standing);
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
