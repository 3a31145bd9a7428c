//! Determines the client address of a request: that of the socket, or the one that a trusted proxy reports.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use axum::{
    extract::Request,
    http::{HeaderMap, HeaderName},
};
use ipnet::IpNet;

use crate::{
    api::{error::Error, request_context::RequestContext, state::TrustedProxies},
    domain::address::PeerAddress,
};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Returns a check that stores the client address in the request's context, and accepts every request.
pub fn client_address(
    TrustedProxies(trusted): TrustedProxies,
) -> impl Fn(&Request) -> Result<(), Error> + Clone + Send + Sync + 'static {
    move |request| {
        if let Some(PeerAddress(peer)) = request.extensions().get() {
            let address = address(peer.ip(), request.headers(), &trusted);
            RequestContext::of(request).set_client_address(address.into());
        }
        Ok(())
    }
}

/// The right-most address of `X-Forwarded-For` that is not a trusted proxy's: clients can invent those to its left.
fn address(peer: IpAddr, headers: &HeaderMap, trusted: &Arc<[IpNet]>) -> IpAddr {
    let is_trusted = |address: &IpAddr| {
        trusted
            .iter()
            .any(|net| net.contains(&address.to_canonical()))
    };
    if !is_trusted(&peer) {
        return peer;
    }
    let hops: Vec<&str> = headers
        .get_all(X_FORWARDED_FOR)
        .iter()
        .flat_map(|value| value.to_str().unwrap_or_default().split(','))
        .collect();
    let mut last = peer;
    for hop in hops.into_iter().rev() {
        // An invalid entry ends the chain: no trusted proxy wrote those to its left.
        let hop = hop.trim();
        let with_port = hop.parse::<SocketAddr>().map(|address| address.ip());
        let Ok(address) = hop.parse::<IpAddr>().or(with_port) else {
            break;
        };
        last = address;
        if !is_trusted(&address) {
            break;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_trusted_proxies_are_believed() {
        let trusted: Arc<[IpNet]> = ["10.0.0.0/8", "2001:db8::/32"]
            .map(|net| net.parse().expect("a network"))
            .into();
        let address = |peer: &str, forwarded: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in forwarded {
                headers.append(X_FORWARDED_FOR, value.parse().expect("a value"));
            }
            address(peer.parse().expect("an address"), &headers, &trusted).to_string()
        };
        assert_eq!(address("192.0.2.1", &["198.51.100.1"]), "192.0.2.1");
        assert_eq!(address("10.0.0.1", &[]), "10.0.0.1");
        assert_eq!(address("10.0.0.1", &["198.51.100.1"]), "198.51.100.1");
        assert_eq!(
            address("10.0.0.1", &["6.6.6.6, 198.51.100.1, 10.0.0.2"]),
            "198.51.100.1"
        );
        assert_eq!(
            address("10.0.0.1", &["6.6.6.6", "198.51.100.1"]),
            "198.51.100.1"
        );
        assert_eq!(
            address("10.0.0.1", &["6.6.6.6, nonsense, 10.0.0.2"]),
            "10.0.0.2"
        );
        assert_eq!(address("2001:db8::1", &["2001:db9::7"]), "2001:db9::7");
        assert_eq!(address("10.0.0.1", &["198.51.100.1:4711"]), "198.51.100.1");
    }
}
