//! Checks of requests that never wait: each is a function, whose error becomes the response.

use axum::{
    extract::Request,
    http::{HeaderName, Version, header},
    response::{IntoResponse, Response},
};

use super::{Incoming, Middleware, Next};
use crate::{
    api::{
        credentials::has_demo_key,
        error::Error,
        extract::{is_host, is_local},
        fields::Violations,
        request_context::RequestContext,
    },
    domain::plan::Plan,
};

/// Calls a function for each request, and responds with its error.
#[derive(Debug)]
pub struct Check<F>(pub F);

impl<F> Middleware for Check<F>
where
    F: Fn(&Request) -> Result<(), Error> + Send + Sync + 'static,
{
    async fn call(&self, request: Incoming<'_>, next: &impl Next) -> Response {
        if let Err(error) = self.0(&request) {
            return error.into_response();
        }
        next.call(request).await
    }
}

/// Maximum length of a request target in bytes. RFC 9110, section 4.1, recommends at least 8,000.
const MAX_TARGET: usize = 8_192;

/// Conditional and range fields, which have a maximum length.
static CONDITIONS: [HeaderName; 4] = [
    header::IF_MATCH,
    header::IF_NONE_MATCH,
    header::IF_RANGE,
    header::RANGE,
];
const MAX_CONDITION: usize = 4_096;

/// Rejects requests that hyper accepts although RFC 9112 does not, and fields that are too long: validates the length of the
/// target and of conditional fields, the transfer coding (section 6.1), the authority of the target, and
/// `Host`: HTTP/1.1 requires exactly one (section 3.2), because two servers could read different ones.
pub fn validate_request(request: &Request) -> Result<(), Error> {
    let target = request.uri().path_and_query();
    if target.is_some_and(|target| target.as_str().len() > MAX_TARGET) {
        return Err(Error::UriTooLong(MAX_TARGET));
    }
    let mut lengths = [0; CONDITIONS.len()];
    for (name, value) in request.headers() {
        if let Some(which) = CONDITIONS.iter().position(|condition| condition == name) {
            lengths[which] += value.len();
        }
    }
    if let Some(which) = lengths.iter().position(|length| *length > MAX_CONDITION) {
        let reason = format!("must be at most {MAX_CONDITION} characters");
        return Err(Error::one_violation(CONDITIONS[which].as_str(), reason));
    }
    let mut codings = request.headers().get_all(header::TRANSFER_ENCODING).iter();
    if codings.any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"chunked")) {
        return Err(Error::UnsupportedTransferCoding);
    }
    let authority = request.uri().authority();
    if authority.is_some_and(|authority| !is_host(authority.as_str().as_bytes())) {
        return Err(Error::one_violation("authority", "must be a host name"));
    }
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let broken = match (hosts.next(), hosts.next()) {
        (Some(host), None) => {
            (!host.is_empty() && !is_host(host.as_bytes())).then_some("must be a host name")
        }
        (None, _) => (request.version() == Version::HTTP_11).then_some("is required"),
        (Some(_), Some(_)) => Some("must be given once"),
    };
    broken.map_or(Ok(()), |reason| Err(Error::one_violation("Host", reason)))
}

/// Refuses conditions in requests of operations without an entity tag: they could not be evaluated, and must not be ignored.
pub fn refuse_conditions(request: &Request) -> Result<(), Error> {
    let facts = RequestContext::of(request).facts;
    let mut violations = Violations::default();
    if facts.is_operation() && !facts.has_entity_tag {
        for name in ["If-Match", "If-None-Match"] {
            if request.headers().contains_key(name) {
                violations.add(name, "must be absent: the resource has no ETag");
            }
        }
    }
    violations.finish(Some(()))
}

/// Checks that the caller has the scopes that the operation needs.
pub fn authorize(request: &Request) -> Result<(), Error> {
    let context = RequestContext::of(request);
    let Some(needed) = context.facts.needed_scopes else {
        return Ok(());
    };
    let caller = context.caller.get().ok_or(Error::Unauthenticated)?;
    match needed.iter().find(|scope| !caller.scopes.contains(*scope)) {
        Some(missing) => Err(Error::Forbidden { needed, missing }),
        None => Ok(()),
    }
}

/// Returns a check that refuses `demo_keys`, which are public, unless all hosts that the request names are loopback, and no proxy has
/// forwarded it. A page of another site can send them by DNS rebinding, in requests with the site's name in `Host`, or, if CORS
/// admits its origin, with that origin in `Origin`; and a proxy can expose them to a network.
pub fn local_demo_keys(
    demo_keys: &'static [(&'static str, Plan)],
) -> impl Fn(&Request) -> Result<(), Error> {
    move |request| {
        let needs_caller = RequestContext::of(request).facts.needed_scopes.is_some();
        if demo_keys.is_empty() || !needs_caller {
            return Ok(());
        }
        let has_demo_key = has_demo_key(request.headers(), demo_keys);
        if has_demo_key && !is_local(request.version(), request.uri(), request.headers()) {
            return Err(Error::DemoKeyNotLocal);
        }
        Ok(())
    }
}
