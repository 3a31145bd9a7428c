//! Opens the listeners: sockets of the service manager, or those that the configuration names.

use std::{io, net::SocketAddr};

use super::error::Error;
use crate::{config::Config, domain::address::ListenAddress, server::Listener};

/// Keys of the addresses.
const API: &str = "server.listen";
const OPERATIONS: &str = "operations.listen";

/// Returns one of the addresses.
type Setting = fn(&Config) -> &ListenAddress;

/// Listener with its address.
type Bound = (Listener, ListenAddress);

/// Sockets that a service manager has passed.
#[derive(Default)]
pub struct Inherited {
    api: Option<Listener>,
    operations: Option<Listener>,
}

impl Inherited {
    /// Takes the sockets with these names. The name decides on the use, because the order of sockets of several units is
    /// undefined; a single socket may also have the name that systemd gives by default. Fails for
    /// other names.
    pub fn take(names: &[String]) -> Result<Self, Error> {
        let mut taken = Self::default();
        if names.is_empty() {
            return Ok(taken);
        }
        let sockets = Listener::inherited().map_err(Error::Inherited)?;
        for (name, socket) in names.iter().zip(sockets) {
            let place = match name.as_str() {
                "operations" => &mut taken.operations,
                "api" => &mut taken.api,
                "" | "unknown" | "pet-inventory.socket" if names.len() == 1 => &mut taken.api,
                _ => return Err(Error::SocketNames(names.join(":"))),
            };
            if place.replace(socket).is_some() {
                return Err(Error::SocketNames(names.join(":")));
            }
        }
        Ok(taken)
    }

    /// Fails if an address that was not passed is in use, before the start has waited for PostgreSQL. Clients do not wait meanwhile: it
    /// listens only once it is ready.
    pub fn check(&self, config: &Config) -> Result<(), Error> {
        let settings: [(_, _, Setting); 2] = [
            (&self.api, API, |it| &it.server.listen),
            (&self.operations, OPERATIONS, |it| &it.operations.listen),
        ];
        for (inherited, key, setting) in settings {
            let address = setting(config);
            if inherited.is_none() && address.tcp().is_some() && !is_replaceable(config, setting) {
                let bound = Listener::bind(address, config.server.reuse_port);
                bound.map_err(|source| failed(key, address, source))?;
            }
        }
        Ok(())
    }

    /// Returns the listeners of the API and of operations with their addresses, and binds those that were not passed.
    pub fn listen(self, config: &Config) -> Result<(Bound, Bound), Error> {
        Ok((
            listen(self.api, config, API, |it| &it.server.listen)?,
            listen(self.operations, config, OPERATIONS, |it| {
                &it.operations.listen
            })?,
        ))
    }
}

/// Returns the inherited listener, or binds the setting `key`, and its address. With the embedded PostgreSQL, which is for
/// trials and development, a default port that is in use is replaced by a free one.
fn listen(
    inherited: Option<Listener>,
    config: &Config,
    key: &'static str,
    setting: Setting,
) -> Result<Bound, Error> {
    let listener = match inherited {
        Some(inherited) => Ok(inherited),
        None => bind(config, key, setting),
    };
    listener
        .and_then(|listener| {
            let address = listener.local_address()?;
            Ok((listener, address))
        })
        .map_err(|source| failed(key, setting(config), source))
}

fn failed(key: &'static str, address: &ListenAddress, source: io::Error) -> Error {
    Error::Listen {
        address: address.clone(),
        key,
        variable: key.to_uppercase().replace('.', "__"),
        source,
    }
}

/// Returns true for a default address with the embedded PostgreSQL.
fn is_replaceable(config: &Config, setting: Setting) -> bool {
    config.database.url.is_none()
        && Config::defaults().is_ok_and(|defaults| setting(config) == setting(&defaults))
}

fn bind(config: &Config, key: &str, setting: Setting) -> io::Result<Listener> {
    let address = setting(config);
    let reuse_port = config.server.reuse_port;
    let is_default = is_replaceable(config, setting);
    match (Listener::bind(address, reuse_port), address.tcp()) {
        (Err(error), Some(tcp)) if is_default && error.kind() == io::ErrorKind::AddrInUse => {
            tracing::warn!(%address, key, "port is in use; listening on a free port instead");
            let free = ListenAddress::Tcp(SocketAddr::new(tcp.ip(), 0));
            Listener::bind(&free, reuse_port)
        }
        (bound, _) => bound,
    }
}
