//! HTTP client for token issuers, S3, the trace collector and webhooks.
//!
//! Invariant: only this module decides about trusted certificates, redirects and proxies.

use std::{iter, net::SocketAddr, sync::Arc};

use reqwest::{
    Client, ClientBuilder,
    dns::{Addrs, Name, Resolve, Resolving},
    redirect,
};
use rustls::{ClientConfig, Error, RootCertStore, crypto::ring};
use tokio::net::lookup_host;

use crate::domain::address::is_public;

/// Returns a builder for a client that follows no redirects and uses no proxy. Fails if the crypto provider supports no
/// TLS version, which does not happen.
pub fn builder() -> Result<ClientBuilder, Error> {
    Ok(Client::builder()
        .tls_backend_preconfigured(tls()?)
        .redirect(redirect::Policy::none())
        .no_proxy()
        .user_agent(concat!("pet-inventory/", env!("CARGO_PKG_VERSION"))))
}

/// Trusts the compiled-in roots, for containers without a certificate store, and those of the machine, for an
/// organisation's own roots. Sets the crypto provider explicitly, because reqwest's default lookup panics.
fn tls() -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore {
        roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
    };
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}

/// Resolver for names that must have public addresses only. A connection uses the addresses that were checked. An address as a
/// host is not resolved: the caller checks it.
pub struct PublicAddresses;

impl Resolve for PublicAddresses {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let name = name.as_str();
            let addresses: Vec<SocketAddr> = lookup_host((name, 0)).await?.collect();
            if addresses.iter().any(|it| !is_public(it.ip())) {
                // Without the address: the names of a private network are not for those who read of a failed delivery.
                return Err(format!("{name} has an address that is not public, and webhooks.allow_private is not set").into());
            }
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

/// Formats an error with its causes: reqwest's "error sending request" alone does not tell the problem.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = iter::successors(Some(error), |&error| error.source());
    let texts: Vec<_> = causes.map(ToString::to_string).collect();
    texts.join(": ")
}
