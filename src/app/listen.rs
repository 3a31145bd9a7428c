//! Opens the listeners: sockets of the service manager, or those that the configuration names.

use std::{io, net::SocketAddr, vec};

use super::error::Error;
use crate::{config::Config, domain::address::ListenAddress, server::Listener};

/// Maximum number of listeners.
const MAX: usize = 2;

/// Source of the listeners: first the sockets that a service manager has passed, in their order.
pub struct Listeners<'c> {
    config: &'c Config,
    is_embedded: bool,
    inherited: vec::IntoIter<Listener>,
}

impl<'c> Listeners<'c> {
    /// Takes the sockets of the service manager. Fails if there are more than two, or other than stream sockets.
    pub fn new(config: &'c Config, is_embedded: bool) -> Result<Self, Error> {
        let inherited = Listener::inherited().map_err(Error::Inherited)?;
        if inherited.len() > MAX {
            let problem = format!("there are {}", inherited.len());
            return Err(Error::Inherited(io::Error::other(problem)));
        }
        let inherited = inherited.into_iter();
        Ok(Self {
            config,
            is_embedded,
            inherited,
        })
    }

    /// Returns the next listener, and its address. If the service manager passed none, binds the setting `key`. With the
    /// embedded PostgreSQL, which is for trials and development, a default port that is in use is replaced by a free one.
    pub fn next(
        &mut self,
        key: &'static str,
        setting: fn(&Config) -> &ListenAddress,
    ) -> Result<(Listener, ListenAddress), Error> {
        let address = setting(self.config);
        let fail = |source| Error::Listen {
            address: address.clone(),
            key,
            variable: key.to_uppercase().replace('.', "__"),
            source,
        };
        let listener = match self.inherited.next() {
            Some(inherited) => Ok(inherited),
            None => self.bind(key, setting),
        };
        listener
            .and_then(|listener| {
                let address = listener.local_address()?;
                Ok((listener, address))
            })
            .map_err(fail)
    }

    fn bind(&self, key: &str, setting: fn(&Config) -> &ListenAddress) -> io::Result<Listener> {
        let address = setting(self.config);
        let bind = |address| Listener::bind(address, self.config.server.reuse_port);
        let is_default = self.is_embedded
            && Config::defaults().is_ok_and(|defaults| address == setting(&defaults));
        match (bind(address), address.tcp()) {
            (Err(error), Some(tcp)) if is_default && error.kind() == io::ErrorKind::AddrInUse => {
                tracing::warn!(%address, key, "port is in use; listening on a free port instead");
                bind(&ListenAddress::Tcp(SocketAddr::new(tcp.ip(), 0)))
            }
            (bound, _) => bound,
        }
    }
}
