//! Refuses demo keys that may not come from this machine.
//!
//! They are public. A page of another site can send them by DNS rebinding, in requests with the site's name in `Host`, or,
//! if CORS admits its origin, with that origin in `Origin`; and a proxy can expose them to a network.
//!
//! Inside the rate limit: a refused request counts as a request of its caller.

use axum::extract::Request;

use crate::{
    api::{
        credentials::credentials, error::Error, extract::is_local, request_context::RequestContext,
    },
    auth::Credentials,
    domain::plan::Plan,
};

/// Returns a check that refuses `demo_keys` unless all hosts that the request names are loopback, and no proxy has
/// forwarded it.
pub fn local_demo_keys(
    demo_keys: &'static [(&'static str, Plan)],
) -> impl Fn(&Request) -> Result<(), Error> {
    move |request| {
        let needs_caller = RequestContext::of(request).facts.needed_scopes.is_some();
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
