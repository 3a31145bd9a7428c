//! Client addresses, and the keys under which limits count them.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

/// Address of the socket that a request came from.
#[derive(Debug, Clone, Copy)]
pub struct PeerAddress(pub SocketAddr);

/// Address that a limit counts: an IPv4 address, or the /64 network of an IPv6 address, since a household has a /64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AddressKey(IpAddr);

impl From<IpAddr> for AddressKey {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(v6) => {
                let network = u128::from(v6) & !u128::from(u64::MAX);
                Self(IpAddr::V6(Ipv6Addr::from(network)))
            }
            v4 @ IpAddr::V4(_) => Self(v4),
        }
    }
}

impl fmt::Display for AddressKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(address: &str) -> AddressKey {
        AddressKey::from(address.parse::<IpAddr>().expect("an address"))
    }

    #[test]
    fn an_ipv6_network_of_64_bits_is_one_key() {
        assert_eq!(key("2001:db8::1"), key("2001:db8::ffff:1"));
        assert_ne!(key("2001:db8::1"), key("2001:db8:0:1::1"));
        assert_eq!(key("::ffff:192.0.2.1"), key("192.0.2.1"));
    }
}
