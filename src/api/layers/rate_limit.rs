//! Enforces the limits of the caller's plan, and reports their state in the headers of every response.

use std::{ops::Range, sync::Arc};

use axum::{
    body::Bytes,
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode},
    response::{IntoResponse, Response},
};
use futures_util::future::Either;

use super::{Inner, LayerFuture, Middleware, OnResponse, Then, operation_path, respond};
use crate::{
    api::{
        error::Error, openapi::BASE, problem::CountedFailure, rate_limits::RateLimits,
        request_context::RequestContext,
    },
    config::{PlanLimits, Plans},
    domain::{
        clock::whole_seconds,
        limit::{LimitStatus, Window},
        plan::Plan,
    },
    limits::{Admission, Permit},
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

/// Layer that enforces the limits.
#[derive(Debug, Clone)]
pub struct RateLimitLayer {
    limits: Arc<RateLimits>,
    /// By plan; `None` is unlimited.
    policies: Arc<[Option<PolicyHeaders>; 3]>,
}

impl_layer!(RateLimitLayer);

impl Middleware for RateLimitLayer {
    type Future<S: Inner> = LayerFuture<Then<S::Future, Admitted>>;

    fn call<S: Inner>(&self, inner: &mut S, request: Request) -> Self::Future<S> {
        let context = RequestContext::of(&request);
        let Some(caller) = context.caller.get() else {
            return unlimited(inner, request);
        };
        let (plan, client) = (caller.plan, context.client_address());
        if operation_path(&request) == Some("/limits") {
            let (layer, caller, mut inner) = (self.clone(), Arc::clone(caller), inner.clone());
            return Either::Right(Box::pin(async move {
                let admission = layer.limits.admit_status(&caller, client).await;
                layer.proceed(admission, plan, &mut inner, request).await
            }));
        }
        if self.policies[plan as usize].is_none() {
            self.limits.admit_unlimited(plan, caller.id);
            return unlimited(inner, request);
        }
        let waiting = match self.limits.admit(caller, client) {
            Either::Left(admission) => return self.proceed(admission, plan, inner, request),
            Either::Right(waiting) => waiting,
        };
        let (layer, mut inner) = (self.clone(), inner.clone());
        Either::Right(Box::pin(async move {
            layer
                .proceed(waiting.await, plan, &mut inner, request)
                .await
        }))
    }
}

fn unlimited<S: Inner>(inner: &mut S, request: Request) -> LayerFuture<Then<S::Future, Admitted>> {
    let (inner, then) = (inner.call(request), None);
    Either::Left(Then { inner, then })
}

impl RateLimitLayer {
    /// Creates the layer of a worker. Workers do not share header values, which are counted references.
    pub fn new(limits: Arc<RateLimits>, plans: &Plans) -> Self {
        let policies = Plan::ALL.map(|plan| PolicyHeaders::new(plans.limits(plan)));
        let policies = Arc::new(policies);
        Self { limits, policies }
    }

    /// Passes the request of a caller on, or refuses it.
    fn proceed<S: Inner>(
        &self,
        admission: Admission,
        plan: Plan,
        inner: &mut S,
        request: Request,
    ) -> LayerFuture<Then<S::Future, Admitted>> {
        let context = RequestContext::of(&request);
        match admission {
            Ok((status, permit)) => {
                let _ = context.limit_status.set(status);
                let then = Some(Admitted {
                    layer: self.clone(),
                    plan,
                    status,
                    permit,
                });
                let inner = inner.call(request);
                Either::Left(Then { inner, then })
            }
            Err(error) => {
                let mut response = Error::from(error).into_response();
                if let Some(caller) = context.caller.get() {
                    let limiter = &self.limits.limiter;
                    let status = limiter.known_status(caller, context.client_address());
                    self.write_headers(plan, &mut response, &status);
                }
                respond(response)
            }
        }
    }

    fn write_headers(&self, plan: Plan, response: &mut Response, status: &LimitStatus) {
        if let Some(policy) = &self.policies[plan as usize] {
            policy.write(response.headers_mut(), status);
        }
    }
}

/// Admitted request of a caller. Its response has the headers of the plan.
#[derive(Debug)]
pub struct Admitted {
    layer: RateLimitLayer,
    plan: Plan,
    status: LimitStatus,
    permit: Permit,
}

impl OnResponse for Admitted {
    fn on_response(self, mut response: Response) -> Response {
        if !is_counted(&response) {
            self.layer.limits.limiter.give_back(&self.permit);
        }
        let Self { plan, status, .. } = self;
        self.layer.write_headers(plan, &mut response, &status);
        response
    }
}

/// Returns a check of the limit of open operations, which counts requests by client address. Outside the API, a GET only
/// reads what describes the service.
pub fn limit_open(
    limits: Arc<RateLimits>,
) -> impl Fn(&Request) -> Result<(), Error> + Clone + Send + Sync + 'static {
    move |request| {
        if request.uri().path().starts_with(BASE) || request.method() == Method::POST {
            limits.admit_open(RequestContext::of(request).client_address())?;
        }
        Ok(())
    }
}

/// Returns true if a request with this response counts: not if it failed through the service's own fault, or was refused
/// with 429. One that ended in its own timeout counts, also if it is that of a statement or of all of them, as does one that
/// was refused because the client address uses its share.
fn is_counted(response: &Response) -> bool {
    if response.status() == StatusCode::TOO_MANY_REQUESTS {
        return false;
    }
    !response.status().is_server_error() || response.extensions().get::<CountedFailure>().is_some()
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
