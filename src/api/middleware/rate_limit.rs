//! Enforces the limits of the caller's plan, and reports their state in the headers of every response.

use std::{num::NonZeroU32, ops::Range, time::Duration};

use axum::{
    body::Bytes,
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode},
    response::{IntoResponse, Response},
};
use metrics::Counter;

use super::operation_path;
use crate::{
    api::{
        error::{Cause, Error},
        openapi::BASE,
    },
    config::Plans,
    db::Database,
    domain::{
        address::AddressKey,
        caller::{Caller, CallerKey},
        clock::{Clock, whole_seconds},
        limit::{Limit, LimitStatus, Window},
    },
    limits::{self, Limiter, Permit, token_buckets::TokenBuckets},
};

/// Kinds of requests in the label `plan`: the plans, and requests that need no credential.
const PLANS: [&str; 4] = ["free", "pro", "enterprise", "open"];
/// Requests to `GET /limits` per minute and caller.
const STATUS_PER_MINUTE: NonZeroU32 = NonZeroU32::new(60).unwrap();

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

/// Limits of requests: of callers by their plan, of `GET /limits`, and of operations that need no credential. Clones
/// share the counts.
#[derive(Debug, Clone)]
pub struct RateLimits {
    /// Limits of the plans.
    pub limiter: Limiter,
    /// `GET /limits` by caller.
    status: TokenBuckets<CallerKey>,
    /// Operations that need no credential, by client address; `None` is unlimited.
    open: Option<TokenBuckets<AddressKey>>,
    /// Registered once, because a look-up by labels costs more than counting does.
    admitted: [Counter; PLANS.len()],
}

impl RateLimits {
    /// Creates limits without any use. The metrics recorder must be installed.
    #[must_use]
    pub fn new(plans: Plans, database: Database, clock: Clock) -> Self {
        // Registered, so that the series begin at 0.
        for plan in PLANS {
            let _ = Limit::ALL.map(|limit| refused(plan, limit));
        }
        let open = plans.free.per_minute.and_then(NonZeroU32::new);
        let buckets = |per_minute| TokenBuckets::new(per_minute, per_minute, clock.clone());
        Self {
            status: TokenBuckets::new(STATUS_PER_MINUTE, STATUS_PER_MINUTE, clock.clone()),
            open: open.map(buckets),
            admitted: PLANS.map(|plan| metrics::counter!("limits_admitted_total", "plan" => plan)),
            limiter: Limiter::new(plans, database, clock),
        }
    }

    /// The same limits for a worker: its `database` batches the worker's leases.
    #[must_use]
    pub fn for_worker(&self, database: Database) -> Self {
        Self {
            limiter: self.limiter.for_worker(database),
            ..self.clone()
        }
    }

    /// Forgets the full token buckets.
    pub fn sweep(&self) {
        self.status.sweep();
        self.open.iter().for_each(TokenBuckets::sweep);
    }

    /// Admits a request to `GET /limits`, which is not counted against the limits that it reports.
    async fn admit_status(
        &self,
        caller: &Caller,
        client: Option<AddressKey>,
    ) -> Result<(LimitStatus, Permit), limits::Error> {
        let taken = self.status.take(&CallerKey::new(caller, client));
        taken.map_err(|retry_after| exceeded(Limit::Status, retry_after))?;
        let status = self.limiter.status(caller, client).await?;
        Ok((status, Permit::default()))
    }

    /// Counts an admission in the metrics; `plan` is an index of [`PLANS`].
    fn count<T>(&self, plan: usize, admission: &Result<T, limits::Error>) {
        match admission {
            Ok(_) => self.admitted[plan].increment(1),
            Err(limits::Error::Exceeded { limits, .. }) => {
                for limit in limits {
                    refused(PLANS[plan], *limit).increment(1);
                }
            }
            Err(limits::Error::Database(_)) => {}
        }
    }
}

fn refused(plan: &'static str, limit: Limit) -> Counter {
    metrics::counter!("limits_refused_total", "plan" => plan, "limit" => limit.as_str())
}

fn exceeded(limit: Limit, retry_after: Duration) -> limits::Error {
    limits::Error::Exceeded {
        limits: vec![limit],
        retry_after,
    }
}

/// Passes a caller's request to `next` if its limits have capacity.
pub async fn rate_limit(
    limits: &RateLimits,
    caller: &Caller,
    client: Option<AddressKey>,
    mut request: Box<Request>,
    next: impl AsyncFnOnce(Box<Request>) -> Response,
) -> Response {
    let limiter = &limits.limiter;
    let reports_limits = operation_path(&request) == Some("/limits");
    let admission = if reports_limits {
        Box::pin(limits.admit_status(caller, client)).await
    } else {
        limiter.admit(caller, client).await
    };
    if !reports_limits || admission.is_err() {
        limits.count(caller.plan as usize, &admission);
    }
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
            let status = limiter.known_status(caller, client);
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
    limits: &RateLimits,
    client: Option<AddressKey>,
    request: Box<Request>,
    next: impl AsyncFnOnce(Box<Request>) -> Response,
) -> Result<Response, Error> {
    // Outside the API, a GET only reads what describes the service.
    let in_api = request.uri().path().starts_with(BASE);
    if let Some(address) = client.filter(|_| in_api || request.method() == Method::POST) {
        let taken = limits
            .open
            .as_ref()
            .map_or(Ok(()), |open| open.take(&address));
        let admission = taken.map_err(|retry_after| exceeded(Limit::Minute, retry_after));
        limits.count(PLANS.len() - 1, &admission);
        admission?;
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
