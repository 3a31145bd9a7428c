//! HTTP client for token issuers, S3 and the trace collector.
//!
//! Invariant: only this module decides about trusted certificates, redirects and proxies.

use std::{iter, sync::Arc};

use reqwest::{Client, ClientBuilder, redirect};
use rustls::{ClientConfig, Error, RootCertStore, crypto::ring};

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

/// Formats an error with its causes: reqwest's "error sending request" alone does not tell the problem.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = iter::successors(Some(error), |&error| error.source());
    let texts: Vec<_> = causes.map(ToString::to_string).collect();
    texts.join(": ")
}
