//! Enforces the limits of the caller's plan, and reports their state in the headers of every response.

use std::{
    convert::Infallible,
    future,
    ops::Range,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use axum::{
    body::Bytes,
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode},
    response::{IntoResponse, Response},
};
use futures_util::future::Either;
use pin_project_lite::pin_project;
use tower::{Layer, Service};

use super::{Inner, LayerFuture, operation_path};
use crate::{
    api::{
        error::{Cause, Error},
        openapi::BASE,
        rate_limits::RateLimits,
        request_context::RequestContext,
    },
    config::{PlanLimits, Plans},
    domain::{
        caller::Caller,
        clock::whole_seconds,
        limit::{LimitStatus, Window},
        plan::Plan,
    },
    limits::{self, Permit},
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

impl RateLimitLayer {
    /// Creates the layer of a worker. Workers do not share header values, which are counted references.
    #[must_use]
    pub fn new(limits: Arc<RateLimits>, plans: &Plans) -> Self {
        let policies = Plan::ALL.map(|plan| PolicyHeaders::new(plans.limits(plan)));
        Self {
            limits,
            policies: Arc::new(policies),
        }
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit {
            inner,
            layer: self.clone(),
        }
    }
}

/// Service of a [`RateLimitLayer`].
#[derive(Debug, Clone)]
pub struct RateLimit<S> {
    inner: S,
    layer: RateLimitLayer,
}

impl<S: Inner> Service<Request> for RateLimit<S> {
    type Response = Response;
    type Error = Infallible;
    type Future = LayerFuture<RateLimitFuture<S::Future>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let RateLimitLayer { limits, policies } = &self.layer;
        let context = RequestContext::of(&request);
        let Some(caller) = context.caller() else {
            return Either::Left(self.unlimited(request));
        };
        let is_status = operation_path(&request) == Some("/limits");
        if policies[caller.plan as usize].is_none() && !is_status {
            limits.admit_unlimited(caller.plan);
            return Either::Left(self.unlimited(request));
        }
        let client = context.client_address();
        let limited = Limited {
            layer: self.layer.clone(),
            context: context.clone(),
            caller: Arc::clone(caller),
        };
        let waiting = if is_status {
            None
        } else {
            match limits.admit(caller, client) {
                Either::Left(Ok(admitted)) => {
                    return Either::Left(limited.proceed(admitted, &mut self.inner, request));
                }
                Either::Left(Err(error)) => {
                    return Either::Right(Box::pin(future::ready(Ok(limited.refuse(error)))));
                }
                Either::Right(waiting) => Some(waiting),
            }
        };
        let mut inner = self.inner.clone();
        Either::Right(Box::pin(async move {
            let admission = match waiting {
                Some(waiting) => waiting.await,
                None => {
                    let limits = &limited.layer.limits;
                    limits.admit_status(&limited.caller, client).await
                }
            };
            match admission {
                Ok(admitted) => limited.proceed(admitted, &mut inner, request).await,
                Err(error) => Ok(limited.refuse(error)),
            }
        }))
    }
}

impl<S: Inner> RateLimit<S> {
    fn unlimited(&mut self, request: Request) -> RateLimitFuture<S::Future> {
        RateLimitFuture {
            inner: self.inner.call(request),
            admitted: None,
        }
    }
}

/// Request whose response has the headers of its caller's plan.
#[derive(Debug)]
struct Limited {
    layer: RateLimitLayer,
    context: RequestContext,
    caller: Arc<Caller>,
}

impl Limited {
    fn proceed<S: Inner>(
        self,
        (status, permit): (LimitStatus, Permit),
        inner: &mut S,
        request: Request,
    ) -> RateLimitFuture<S::Future> {
        self.context.set_limit_status(status);
        RateLimitFuture {
            inner: inner.call(request),
            admitted: Some((self, status, permit)),
        }
    }

    fn refuse(&self, error: limits::Error) -> Response {
        let (limiter, client) = (&self.layer.limits.limiter, self.context.client_address());
        let status = limiter.known_status(&self.caller, client);
        let mut response = Error::from(error).into_response();
        self.write_headers(&mut response, &status);
        response
    }

    fn write_headers(&self, response: &mut Response, status: &LimitStatus) {
        if let Some(policy) = &self.layer.policies[self.caller.plan as usize] {
            policy.write(response.headers_mut(), status);
        }
    }
}

pin_project! {
    /// Future of [`RateLimit`].
    pub struct RateLimitFuture<F> {
        #[pin]
        inner: F,
        admitted: Option<(Limited, LimitStatus, Permit)>,
    }
}

impl<F: Future<Output = Result<Response, Infallible>>> Future for RateLimitFuture<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let Ok(mut response) = ready!(this.inner.poll(context));
        if let Some((limited, status, permit)) = this.admitted {
            if !is_counted(&response) {
                limited.layer.limits.limiter.give_back(permit);
            }
            limited.write_headers(&mut response, status);
        }
        Poll::Ready(Ok(response))
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
/// with 429. One that ended in its own timeout counts.
fn is_counted(response: &Response) -> bool {
    if response.status() == StatusCode::TOO_MANY_REQUESTS {
        return false;
    }
    let cause = response.extensions().get::<Cause>();
    let timed_out = || cause.is_some_and(|Cause(error)| matches!(**error, Error::TimedOut));
    !response.status().is_server_error() || timed_out()
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
        let policy = |name, limit: Option<u32>, seconds| {
            limit.map(|limit| format!("\"{name}\";q={limit};w={seconds}"))
        };
        let policies = [
            policy("minute", limits.per_minute, 60),
            policy("day", limits.per_day, 86_400),
        ];
        let policies: Vec<_> = policies.into_iter().flatten().collect();
        Some(Self {
            // Words, digits and punctuation: always a valid value.
            policy: HeaderValue::try_from(policies.join(", "))
                .unwrap_or(HeaderValue::from_static("")),
            minute: limits.per_minute.unwrap_or_default().into(),
            day: limits.per_day.unwrap_or_default().into(),
        })
    }

    /// Writes the headers of a response. The numbers of the `X-` headers share the memory of `RateLimit`, because
    /// allocations are what the headers cost.
    fn write(&self, headers: &mut HeaderMap, status: &LimitStatus) {
        let mut state = Text::default();
        let mut tighter: Option<(Window, &HeaderValue, [Range<usize>; 2])> = None;
        for (name, window, limit) in [
            ("\"minute\";r=", status.minute, &self.minute),
            ("\"day\";r=", status.day, &self.day),
        ] {
            let Some(window) = window else {
                continue;
            };
            state.push(if tighter.is_some() { ", " } else { "" });
            state.push(name);
            let remaining = state.push_number(window.remaining);
            state.push(";t=");
            let reset = state.push_number(whole_seconds(window.reset));
            if tighter
                .as_ref()
                .is_none_or(|(tighter, ..)| window.remaining < tighter.remaining)
            {
                tighter = Some((window, limit, [remaining, reset]));
            }
        }
        let Some((_, limit, [remaining, reset])) = tighter else {
            return;
        };
        let state = Bytes::from(state.0);
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

struct Text(Vec<u8>);

impl Default for Text {
    /// An empty text with room for two windows.
    fn default() -> Self {
        Self(Vec::with_capacity(64))
    }
}

impl Text {
    fn push(&mut self, part: &str) {
        self.0.extend_from_slice(part.as_bytes());
    }

    /// Appends a number; returns its range.
    fn push_number(&mut self, number: impl itoa::Integer) -> Range<usize> {
        let start = self.0.len();
        self.push(itoa::Buffer::new().format(number));
        start..self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use tower::{ServiceExt, service_fn};

    use super::*;
    use crate::{
        api::request_id::RequestId,
        config::Config,
        db::{ConnectOptions, Database},
        domain::{
            caller::{CallerId, Scopes},
            clock::Clock,
        },
    };

    /// Sends a request of a caller through the layer, while the counters cannot be reached.
    async fn respond(plan: Option<Plan>) -> Response {
        let config = Config::defaults().expect("the defaults");
        // A reserved port.
        let options = ConnectOptions::new_without_pgpass()
            .host("127.0.0.1")
            .port(1);
        let database = Database::new(options, &config.database);
        let limits = RateLimits::new(config.plans.clone(), database, Clock::manual());
        let handler = service_fn(async |_: Request| Ok::<_, Infallible>(Response::default()));
        let service = RateLimitLayer::new(Arc::new(limits), &config.plans).layer(handler);
        let mut request = Request::new(Body::empty());
        let context = RequestContext::new(RequestId::of(request.headers()));
        if let Some(plan) = plan {
            context.set_caller(Arc::new(Caller {
                id: Some(CallerId(7)),
                name: "acme".parse().expect("a name"),
                plan,
                scopes: Scopes::all(),
            }));
        }
        request.extensions_mut().insert(context);
        service.oneshot(request).await.expect("a response")
    }

    #[tokio::test]
    async fn unlimited_request_passes_without_headers() {
        for plan in [None, Some(Plan::Enterprise)] {
            let response = respond(plan).await;
            assert_eq!(response.status(), StatusCode::OK);
            assert!(!response.headers().contains_key(RATELIMIT_POLICY));
        }
    }

    #[tokio::test]
    async fn limited_request_is_503_with_headers_while_counters_are_unreachable() {
        let response = respond(Some(Plan::Free)).await;
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(
            response.headers()[RATELIMIT_POLICY],
            "\"minute\";q=60;w=60, \"day\";q=1000;w=86400"
        );
        assert_eq!(response.headers()[X_RATELIMIT_REMAINING], "60");
    }
}
