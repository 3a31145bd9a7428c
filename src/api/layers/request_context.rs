//! Gives each request its [`RequestContext`], and writes the request id into its response.
//!
//! The client address is that of the socket, or the one that a trusted proxy reports. The peer of a Unix socket is a trusted
//! proxy.

use std::{
    net::{AddrParseError, IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};

use axum::{
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, header},
    response::Response,
};
use ipnet::IpNet;

use super::{Incoming, Middleware, Next};
use crate::{
    api::{
        operations::{Keys, RouteFacts},
        request_context::{RequestContext, RequestId, X_REQUEST_ID},
    },
    domain::address::PeerAddress,
};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// Shared caches must not store the response to a credential: they know only that of `Authorization` (RFC 9111,
/// section 3.5).
const PRIVATE: HeaderValue = HeaderValue::from_static("private, no-cache");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// Creates the context. The client address is that behind these proxies.
#[derive(Debug)]
pub struct CreateContext {
    /// Proxies that are trusted to set `X-Forwarded-For`.
    pub trusted_proxies: Arc<[IpNet]>,
}

impl Middleware for CreateContext {
    async fn call(&self, mut request: Incoming<'_>, next: &impl Next) -> Response {
        let facts = request.extensions().get::<RouteFacts>();
        let facts = facts.map(|it| it.of(request.method()));
        let id = RequestId::of(request.headers());
        let client: Option<IpAddr> = address_of(&request, &self.trusted_proxies);
        let context = RequestContext::new(id, facts.unwrap_or_default(), client);
        request.extensions_mut().insert(context.clone());
        let mut response = next.call(request).await;
        let headers = response.headers_mut();
        headers.insert(X_REQUEST_ID, context.id.header());
        if context.facts.needed_scopes.is_some() && !headers.contains_key(header::CACHE_CONTROL) {
            let has_secret = context.facts.keys == Keys::Refused;
            let caching = if has_secret { NO_STORE } else { PRIVATE };
            headers.insert(header::CACHE_CONTROL, caching);
        }
        response
    }
}

/// Returns the client address of a request, if it came through a socket; an IPv4 address as such, also if the socket or the
/// proxy has it in the form of IPv6. For a Unix socket without `X-Forwarded-For` it is
/// 127.0.0.1, so that limits apply to all such requests together.
fn address_of(request: &Request, trusted_proxies: &[IpNet]) -> Option<IpAddr> {
    let PeerAddress(peer) = request.extensions().get()?;
    let peer = peer.map(|peer| peer.ip());
    Some(address(peer, request.headers(), trusted_proxies))
}

/// The right-most address of `X-Forwarded-For` that is not a trusted proxy's: clients can invent those to its left.
fn address(peer: Option<IpAddr>, headers: &HeaderMap, trusted: &[IpNet]) -> IpAddr {
    let values = headers.get_all(X_FORWARDED_FOR).iter().rev();
    let mut hops = values.flat_map(|value| value.to_str().unwrap_or_default().rsplit(','));
    let mut last = peer;
    while last.is_none_or(|last| trusted.iter().any(|net| net.contains(&last.to_canonical()))) {
        // An invalid entry ends the chain: no trusted proxy wrote those to its left.
        let Some(Ok(address)) = hops.next().map(str::trim).map(parse_hop) else {
            break;
        };
        last = Some(address);
    }
    last.map_or(Ipv4Addr::LOCALHOST.into(), |address| address.to_canonical())
}

/// Parses an address with or without a port.
fn parse_hop(hop: &str) -> Result<IpAddr, AddrParseError> {
    let address = hop.parse::<IpAddr>();
    address.or_else(|_| hop.parse().map(|address: SocketAddr| address.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_trusted_proxies_are_believed() {
        let trusted = ["10.0.0.0/8", "2001:db8::/32"].map(|net| net.parse().expect("a network"));
        for (peer, forwarded, client) in [
            ("192.0.2.1", &["198.51.100.1"][..], "192.0.2.1"),
            ("unix", &["6.6.6.6, 198.51.100.1"], "198.51.100.1"),
            ("unix", &["198.51.100.1, 10.0.0.1"], "198.51.100.1"),
            ("::ffff:192.0.2.1", &[], "192.0.2.1"),
            ("::ffff:10.0.0.1", &["::ffff:192.0.2.1"], "192.0.2.1"),
            ("unix", &["nonsense"], "127.0.0.1"),
            ("unix", &[], "127.0.0.1"),
            ("10.0.0.1", &[], "10.0.0.1"),
            ("10.0.0.1", &["198.51.100.1"], "198.51.100.1"),
            (
                "10.0.0.1",
                &["6.6.6.6, 198.51.100.1, 10.0.0.2"],
                "198.51.100.1",
            ),
            ("10.0.0.1", &["6.6.6.6", "198.51.100.1"], "198.51.100.1"),
            ("10.0.0.1", &["6.6.6.6, nonsense, 10.0.0.2"], "10.0.0.2"),
            ("2001:db8::1", &["2001:db9::7"], "2001:db9::7"),
            ("10.0.0.1", &["198.51.100.1:4711"], "198.51.100.1"),
        ] {
            let mut headers = HeaderMap::new();
            for value in forwarded {
                headers.append(X_FORWARDED_FOR, value.parse().expect("a value"));
            }
            let address = address(peer.parse().ok(), &headers, &trusted);
            assert_eq!(address.to_string(), client, "{peer} {forwarded:?}");
        }
    }
}
