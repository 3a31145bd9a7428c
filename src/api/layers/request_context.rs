//! Gives each request its [`RequestContext`], and writes the request id into its response.

use std::{net::IpAddr, sync::Arc};

use axum::{
    extract::Request,
    http::{HeaderValue, header},
};
use futures_util::FutureExt as _;
use ipnet::IpNet;

use super::{Middleware, Next, Reply, client_address::address_of};
use crate::api::{
    operations::RouteFacts,
    request_context::RequestContext,
    request_id::{RequestId, X_REQUEST_ID},
};

/// Shared caches must not store the response to a credential: they know only that of `Authorization` (RFC 9111,
/// section 3.5).
const PRIVATE: HeaderValue = HeaderValue::from_static("private, no-cache");

/// Creates the context. The client address is that behind these proxies.
#[derive(Debug)]
pub struct CreateContext {
    /// Proxies that are trusted to set `X-Forwarded-For`.
    pub trusted_proxies: Arc<[IpNet]>,
}

impl Middleware for CreateContext {
    fn call<N: Next>(self: &Arc<Self>, mut request: Request, next: &N) -> impl Reply + use<N> {
        let facts = request.extensions().get::<RouteFacts>();
        let facts = facts.map(|it| it.of(request.method()));
        let id = RequestId::of(request.headers());
        let client: Option<IpAddr> = address_of(&request, &self.trusted_proxies);
        let context = RequestContext::new(id, facts.unwrap_or_default(), client);
        request.extensions_mut().insert(context.clone());
        next.call(request).map(move |mut response| {
            let headers = response.headers_mut();
            headers.insert(X_REQUEST_ID, context.id.header());
            if context.facts.needed_scopes.is_some() && !headers.contains_key(header::CACHE_CONTROL)
            {
                headers.insert(header::CACHE_CONTROL, PRIVATE);
            }
            response
        })
    }
}
