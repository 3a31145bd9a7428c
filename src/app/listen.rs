//! Binds the listeners that the configuration names.

use std::{io, net::SocketAddr};

use tokio::net::TcpListener;

use super::error::Error;
use crate::{config::Config, server::listener};

/// Binds the listener whose address is the setting `key`. With the embedded PostgreSQL, which is for trials and
/// development, a default port that is in use is replaced by a free one.
pub fn listen(
    config: &Config,
    key: &'static str,
    setting: fn(&Config) -> SocketAddr,
    is_embedded: bool,
) -> Result<(TcpListener, SocketAddr), Error> {
    let address = setting(config);
    let bind = |address| -> io::Result<_> {
        let bound = listener::bind(address, config.server.reuse_port)?;
        let address = bound.local_addr()?;
        Ok((bound, address))
    };
    let is_default = is_embedded && address == setting(&Config::defaults()?);
    match bind(address) {
        Err(error) if is_default && error.kind() == io::ErrorKind::AddrInUse => {
            tracing::warn!(%address, key, "port is in use; listening on a free port instead");
            bind(SocketAddr::new(address.ip(), 0))
        }
        bound => bound,
    }
    .map_err(|source| Error::Listen {
        address,
        key,
        variable: key.to_uppercase().replace('.', "__"),
        source,
    })
}
