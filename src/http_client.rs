//! HTTP towards others: issuers, a bucket, a collector of traces. Invariant: whom we trust, and that nobody is
//! asked but whom the operator named, is said here alone.

use std::sync::Arc;

use reqwest::{Client, ClientBuilder, redirect};
use rustls::{ClientConfig, Error, RootCertStore, crypto::ring};

/// Begins a client that follows no redirect, and takes no proxy from the environment.
///
/// # Errors
/// When TLS has none of the versions that we speak, which it has.
pub fn builder() -> Result<ClientBuilder, Error> {
    Ok(Client::builder()
        .tls_backend_preconfigured(tls()?)
        .redirect(redirect::Policy::none())
        .no_proxy()
        .user_agent(concat!("pet-inventory/", env!("CARGO_PKG_VERSION"))))
}

/// Trusts the roots that are compiled in, which a bare container has too, and those of the machine,
/// among them an organisation's own. Names its provider: reqwest's own way to find one panics.
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

/// What went wrong, with all that led to it: "error sending request" alone helps nobody.
#[must_use]
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
