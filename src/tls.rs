//! TLS towards others, as every HTTP client of ours speaks it. Invariant: whom we trust is said here alone.

use std::sync::Arc;

use rustls::{ClientConfig, Error, RootCertStore, crypto::ring};

/// Trusts the roots that are compiled in, which a bare container has too, and those of the machine,
/// among them an organisation's own. Names its provider: reqwest's own way to find one panics.
///
/// # Errors
/// When the provider has none of the protocol's versions, which it has.
pub fn client() -> Result<ClientConfig, Error> {
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
