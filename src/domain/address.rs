//! Client addresses, and the keys under which limits count them.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

/// Address of the socket that a request came from.
#[derive(Debug, Clone, Copy)]
pub struct PeerAddress(pub SocketAddr);

/// Returns true if `host` is `localhost` or a loopback address; an IPv6 address may be in brackets.
pub fn is_loopback(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost")
        || address.is_ok_and(|address| address.to_canonical().is_loopback())
}

/// Address that a limit counts: an IPv4 address, or the /64 network of an IPv6 address, since a household has a /64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AddressKey(IpAddr);

impl From<IpAddr> for AddressKey {
    fn from(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(v6) => network(v6, 64),
            v4 @ IpAddr::V4(_) => v4,
        })
    }
}

impl AddressKey {
    /// Returns the networks that one client may have, each with the number of addresses as which it counts: the address
    /// for IPv4. For IPv6, `sizes` has the lengths of their prefixes with these numbers, since a provider gives its
    /// customers a /64, a /56 or, for a company, a /48.
    pub fn networks(self, sizes: &'static [(u8, u32)]) -> impl Iterator<Item = (Network, u32)> {
        let sizes = match self.0 {
            IpAddr::V4(_) => &[(32, 1)],
            IpAddr::V6(_) => sizes,
        };
        sizes.iter().map(move |&(prefix, factor)| {
            let address = match self.0 {
                IpAddr::V6(v6) => network(v6, prefix),
                v4 @ IpAddr::V4(_) => v4,
            };
            (Network { address, prefix }, factor)
        })
    }
}

/// Network of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

fn network(address: Ipv6Addr, prefix: u8) -> IpAddr {
    let mask = u128::MAX << (128 - u32::from(prefix));
    IpAddr::V6(Ipv6Addr::from(u128::from(address) & mask))
}

impl fmt::Display for AddressKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
