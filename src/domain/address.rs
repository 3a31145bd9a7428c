//! Client addresses, and the keys under which limits count them.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    str::FromStr,
};

use super::Invalid;

/// Address of the socket that a request came from; `None` for a Unix socket, whose peers have none.
#[derive(Debug, Clone, Copy)]
pub struct PeerAddress(pub Option<SocketAddr>);

/// Address of a listening socket: an IP address with a port, or `unix:` and the absolute path of a Unix socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// TCP.
    Tcp(SocketAddr),
    /// Unix socket.
    Unix(PathBuf),
}

impl ListenAddress {
    /// Returns the address of a TCP socket.
    pub const fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }

    /// Returns true for TCP on a loopback address.
    pub fn is_loopback(&self) -> bool {
        self.tcp().is_some_and(|address| address.ip().is_loopback())
    }
}

impl FromStr for ListenAddress {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        const REASON: Invalid = Invalid::because(
            "must be an address with a port, such as 127.0.0.1:8080, or unix: with an absolute path, such as \
             unix:/run/pet-inventory/api.sock",
        );
        match text.strip_prefix("unix:").map(Path::new) {
            Some(path) if path.is_absolute() => Ok(Self::Unix(path.to_owned())),
            Some(_) => Err(REASON),
            None => text.parse().map(Self::Tcp).map_err(|_| REASON),
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Returns true if `host` is `localhost` or a loopback address; an IPv6 address may be in brackets.
pub fn is_loopback(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost")
        || address.is_ok_and(|address| address.to_canonical().is_loopback())
}

/// Returns true for a global unicast address, which is not of this machine, its network, or a metadata service (IANA's registries
/// of special-purpose addresses). An IPv4 address that is embedded in an IPv6 one counts as itself.
pub fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => !SPECIAL_V4.iter().any(|&(special, prefix)| {
            u32::from(v4) >> (32 - prefix) == u32::from(special) >> (32 - prefix)
        }),
        IpAddr::V6(v6) => match v6.segments() {
            // NAT64 (RFC 6052 §2.1), with which a network without IPv4 resolves names.
            [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
                is_public(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)).into())
            }
            // Protocol assignments with Teredo, documentation, and 6to4.
            [0x2001, 0..0x200 | 0xdb8, ..] | [0x2002, ..] | [0x3fff, 0..0x1000, ..] => false,
            [first, ..] => first & 0xe000 == 0x2000,
        },
    }
}

/// Networks of IPv4 that are not public: the address, and the length of its prefix.
const SPECIAL_V4: [(Ipv4Addr, u32); 16] = [
    (Ipv4Addr::UNSPECIFIED, 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    // The host of a virtual machine of Azure, which has its metadata. It is the only one here that IANA's registries do not have.
    (Ipv4Addr::new(168, 63, 129, 16), 32),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    // Multicast, and what is reserved, with the broadcast address.
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];

/// Client as limits count it: an IPv4 address, or the /56 network of an IPv6 address, since a provider gives its customers a
/// /64 or a /56.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AddressKey(IpAddr);

impl From<IpAddr> for AddressKey {
    fn from(address: IpAddr) -> Self {
        const NETWORK: u128 = u128::MAX << (128 - 56);
        Self(match address.to_canonical() {
            IpAddr::V6(v6) => Ipv6Addr::from(u128::from(v6) & NETWORK).into(),
            v4 @ IpAddr::V4(_) => v4,
        })
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

    #[test]
    fn addresses_of_this_machine_and_its_network_are_not_public() {
        for address in [
            "0.0.0.0",
            "0.1.2.3",
            "10.255.255.255",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.255",
            "168.63.129.16",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.0.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
            "64:ff9b::127.0.0.1",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:1ff::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "3fff::1",
            "5f00::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(
                !is_public(address.parse().expect("an address")),
                "{address}"
            );
        }
        for address in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "168.63.129.15",
            "168.63.129.17",
            "169.253.255.255",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "::ffff:1.1.1.1",
            "64:ff9b::1.1.1.1",
            "2001:200::1",
            "2001:4860:4860::8888",
            "2606:4700::1111",
            "3fff:1000::1",
        ] {
            assert!(is_public(address.parse().expect("an address")), "{address}");
        }
    }
}
