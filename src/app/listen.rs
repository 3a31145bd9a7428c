//! Binds the listeners that the configuration names.

use std::{io, net::SocketAddr};

use tokio::net::TcpListener;

use super::error::Error;
use crate::{config::Config, server::listener};

/// A listener of the service.
#[derive(Clone, Copy)]
pub enum Listener {
    /// For clients.
    Api,
    /// For operators: metrics and health.
    Operations,
}

/// Binds a listener. With the embedded PostgreSQL, which is for trials and development, a default port that is in use is
/// replaced by a free one.
///
/// # Errors
/// [`Error::Listen`].
pub fn listen(
    config: &Config,
    which: Listener,
    is_embedded: bool,
) -> Result<(TcpListener, SocketAddr), Error> {
    let of = |config: &Config| match which {
        Listener::Api => config.server.listen,
        Listener::Operations => config.operations.listen,
    };
    let (key, variable) = match which {
        Listener::Api => ("server.listen", "PET_INVENTORY__SERVER__LISTEN"),
        Listener::Operations => ("operations.listen", "PET_INVENTORY__OPERATIONS__LISTEN"),
    };
    let address = of(config);
    let failed = |source| Error::Listen {
        address,
        key,
        variable,
        source,
    };
    let reuse_port = config.server.reuse_port;
    let bound = match listener::bind(address, reuse_port) {
        Err(error)
            if is_embedded
                && error.kind() == io::ErrorKind::AddrInUse
                && address == of(&Config::defaults()?) =>
        {
            tracing::warn!(%address, key, "port is in use; listening on a free port instead");
            listener::bind(SocketAddr::new(address.ip(), 0), reuse_port)
        }
        bound => bound,
    };
    let bound = bound.map_err(failed)?;
    let address = bound.local_addr().map_err(failed)?;
    Ok((bound, address))
}
