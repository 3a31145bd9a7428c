//! Refuses demo keys that may not come from this machine.
//!
//! They are public. A page of another site can send them by DNS rebinding, in requests with the site's name in `Host`, or,
//! if CORS admits its origin, with that origin in `Origin`; and a proxy can expose them to a network.
//!
//! Inside the rate limit: a refused request counts as a request of its caller.

use axum::{
    extract::Request,
    http::{HeaderName, HeaderValue, Version, header},
};

use crate::{
    api::{credentials::credentials, error::Error, extract, request_context::RequestContext},
    auth::Credentials,
    domain::plan::Plan,
};

/// Fields that proxies and content delivery networks add, besides `X-Forwarded-*`. A proxy that adds no field, or works
/// below HTTP, cannot be detected.
const OF_PROXIES: [&str; 7] = [
    "forwarded",
    "via",
    "x-real-ip",
    "cf-connecting-ip",
    "true-client-ip",
    "x-envoy-external-address",
    "cdn-loop",
];

/// Returns a check that refuses `demo_keys` unless all hosts that the request names are loopback, and no proxy has
/// forwarded it.
pub fn local_demo_keys(
    demo_keys: &'static [(&'static str, Plan)],
) -> impl Fn(&Request) -> Result<(), Error> + Clone + Send + Sync + 'static {
    move |request| {
        let needs_caller = RequestContext::of(request).needed_scopes.get().is_some();
        if demo_keys.is_empty() || !needs_caller {
            return Ok(());
        }
        let is_demo = |key: &str| demo_keys.iter().any(|(demo, _)| *demo == key);
        let has_demo_key = match credentials(request.headers()) {
            Ok(Some(Credentials::ApiKey(key) | Credentials::Bearer(key))) => is_demo(key),
            Ok(Some(Credentials::Both { api_key, bearer })) => is_demo(api_key) || is_demo(bearer),
            Ok(None) | Err(_) => false,
        };
        if has_demo_key && !is_local(request) {
            return Err(Error::DemoKeyNotLocal);
        }
        Ok(())
    }
}

/// Returns true if the request names loopback hosts only, at least one, comes from no page of another host, and shows no sign
/// of a proxy. nginx forwards in HTTP/1.0 by default.
fn is_local(request: &Request) -> bool {
    let is_of_proxy = |name: &HeaderName| {
        OF_PROXIES.contains(&name.as_str()) || name.as_str().starts_with("x-forwarded-")
    };
    let authority = request.uri().authority().map(|it| it.as_str().as_bytes());
    let fields = request.headers().get_all(header::HOST);
    let fields = fields.iter().map(HeaderValue::as_bytes);
    let hosts: Vec<_> = authority.into_iter().chain(fields).collect();
    let origins = request.headers().get_all(header::ORIGIN);
    request.version() != Version::HTTP_10
        && !hosts.is_empty()
        && hosts.into_iter().all(extract::is_loopback)
        && origins.iter().all(is_local_origin)
        && !request.headers().keys().any(is_of_proxy)
}

/// Returns true for the origin of a page of this machine. That of a sandboxed page or a file is `null`.
fn is_local_origin(origin: &HeaderValue) -> bool {
    let origin = origin.as_bytes();
    let host = origin.strip_prefix(b"http://");
    let host = host.or_else(|| origin.strip_prefix(b"https://"));
    host.is_some_and(extract::is_loopback)
}
