//! Client addresses, and the keys under which limits count them.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr, SocketAddr},
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
