//! Enforces the limits of the caller's plan, and reports their state in the headers of every response.

use std::{ops::Range, sync::Arc};

use axum::{
    body::Bytes,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode},
    response::{IntoResponse, Response},
};

use super::{Incoming, Middleware, Next};
use crate::{
    api::{
        error::Error, operations::RequestLimit, request_context::RequestContext, state::AppState,
    },
    domain::{
        clock::whole_seconds,
        limit::{LimitStatus, Window},
        plan::{Plan, PlanLimits},
    },
    limits::{self, Permit, requests::RateLimits},
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

/// Enforces the limits.
#[derive(Debug)]
pub struct RateLimit {
    limits: Arc<RateLimits>,
    /// By plan; `None` is unlimited. Workers do not share header values, which are counted references.
    policies: [Option<PolicyHeaders>; 3],
}

impl Middleware for RateLimit {
    async fn call(&self, request: Incoming<'_>, next: &impl Next) -> Response {
        let context = RequestContext::of(&request).clone();
        let admitted = match self.admit(&context).await {
            Ok(admitted) => admitted,
            Err(error) => return self.refuse(error, &context),
        };
        let Some((status, permit)) = admitted else {
            return next.call(request).await;
        };
        let _ = context.limit_status.set(status);
        let mut response = next.call(request).await;
        if !is_counted(&response) {
            self.limits.limiter.give_back(&permit);
        }
        self.write_headers(&context, &mut response, &status);
        response
    }
}

impl RateLimit {
    /// Creates the layer of a worker.
    pub fn new(state: &AppState) -> Self {
        Self {
            limits: Arc::clone(&state.limits),
            policies: Plan::ALL.map(|plan| PolicyHeaders::new(state.plans.limits(plan))),
        }
    }

    /// Admits a request. `None` if it counts against no limit of a caller, so that there is nothing to report.
    async fn admit(
        &self,
        context: &RequestContext,
    ) -> Result<Option<(LimitStatus, Permit)>, limits::Error> {
        let (limits, client) = (&self.limits, context.client_address());
        let Some(caller) = context.caller.get() else {
            if context.facts.limit == RequestLimit::Address {
                limits.admit_open(client)?;
            }
            return Ok(None);
        };
        if context.facts.limit == RequestLimit::Status {
            return Box::pin(limits.admit_status(caller, client))
                .await
                .map(Some);
        }
        if self.policies[caller.plan as usize].is_none() {
            limits.admit_unlimited(caller.plan, caller.id);
            return Ok(None);
        }
        limits.admit(caller, client).await.map(Some)
    }

    /// Returns the response to a request that is refused.
    fn refuse(&self, error: limits::Error, context: &RequestContext) -> Response {
        let mut response = Error::from(error).into_response();
        if let Some(caller) = context.caller.get() {
            let limiter = &self.limits.limiter;
            let status = limiter.known_status(caller, context.client_address());
            self.write_headers(context, &mut response, &status);
        }
        response
    }

    fn write_headers(
        &self,
        context: &RequestContext,
        response: &mut Response,
        status: &LimitStatus,
    ) {
        let plan = context.caller.get().map(|caller| caller.plan as usize);
        let policy = plan.and_then(|plan| self.policies[plan].as_ref());
        if let Some(policy) = policy {
            policy.write(response.headers_mut(), status);
        }
    }
}

/// Returns true if a request with this response counts: not if it failed through the service's own fault, or was refused
/// with 429. One that ended in its own timeout counts, also if it is that of a statement or of all of them, as does one that
/// was refused because the client address uses its share.
fn is_counted(response: &Response) -> bool {
    if response.status() == StatusCode::TOO_MANY_REQUESTS {
        return false;
    }
    !response.status().is_server_error() || Error::of(response).is_some_and(Error::is_counted)
}

/// Headers of a plan that are the same in every response.
#[derive(Debug, Clone)]
struct PolicyHeaders {
    /// `RateLimit-Policy`.
    policy: HeaderValue,
    /// `X-RateLimit-Limit`, if the minute is the tighter window.
    minute: HeaderValue,
    /// `X-RateLimit-Limit`, if the day is.
    day: HeaderValue,
}

impl PolicyHeaders {
    /// Returns the headers of a plan with limits.
    fn new(limits: &PlanLimits) -> Option<Self> {
        if *limits == PlanLimits::default() {
            return None;
        }
        let minute = limits
            .per_minute
            .map(|limit| format!("\"minute\";q={limit};w=60"));
        let day = limits
            .per_day
            .map(|limit| format!("\"day\";q={limit};w=86400"));
        let policies: Vec<_> = minute.into_iter().chain(day).collect();
        // Words, digits and punctuation: always a valid value.
        let policy = HeaderValue::try_from(policies.join(", "));
        Some(Self {
            policy: policy.unwrap_or(HeaderValue::from_static("")),
            minute: limits.per_minute.unwrap_or_default().into(),
            day: limits.per_day.unwrap_or_default().into(),
        })
    }

    /// Writes the headers of a response. The numbers of the `X-` headers share the memory of `RateLimit`, because
    /// allocations are what the headers cost.
    fn write(&self, headers: &mut HeaderMap, status: &LimitStatus) {
        let mut state = Vec::with_capacity(64);
        let mut tighter: Option<(Window, &HeaderValue, [Range<usize>; 2])> = None;
        for (name, window, limit) in [
            ("\"minute\";r=", status.minute, &self.minute),
            ("\"day\";r=", status.day, &self.day),
        ] {
            let Some(window) = window else {
                continue;
            };
            state.extend_from_slice(if tighter.is_some() { b", " } else { b"" });
            state.extend_from_slice(name.as_bytes());
            let remaining = push_number(&mut state, window.remaining);
            state.extend_from_slice(b";t=");
            let reset = push_number(&mut state, whole_seconds(window.reset));
            if (tighter.as_ref()).is_none_or(|(other, ..)| window.remaining < other.remaining) {
                tighter = Some((window, limit, [remaining, reset]));
            }
        }
        let Some((_, limit, [remaining, reset])) = tighter else {
            return;
        };
        let state = Bytes::from(state);
        let shared = |value: Bytes| {
            let value = HeaderValue::from_maybe_shared(value);
            value.unwrap_or(HeaderValue::from_static(""))
        };
        headers.insert(X_RATELIMIT_LIMIT, limit.clone());
        headers.insert(X_RATELIMIT_REMAINING, shared(state.slice(remaining)));
        headers.insert(X_RATELIMIT_RESET, shared(state.slice(reset)));
        headers.insert(RATELIMIT_POLICY, self.policy.clone());
        headers.insert(RATELIMIT, shared(state));
    }
}

/// Appends a number; returns its range.
fn push_number(text: &mut Vec<u8>, number: impl itoa::Integer) -> Range<usize> {
    let start = text.len();
    text.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    start..text.len()
}
