//! Errors at the start and stop of the service.

use std::{io, net::SocketAddr};

use crate::{blob_store, config, db, domain::Invalid, embedded_postgres, telemetry};

/// Error at the start or stop of the service. Each message ends with what to do next.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An address could not be bound.
    #[error(
        "failed to listen on {address} ({key}): {source}. Set another address, or port 0 for any free \
         port: {variable}=127.0.0.1:0"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Its key in the configuration.
        key: &'static str,
        /// The variable that overrides it.
        variable: &'static str,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] config::Error),
    /// The database cannot be reached or brought up to date.
    #[error("{0}. Check database.url (DATABASE_URL), or unset it to run an embedded PostgreSQL")]
    Database(#[from] db::Error),
    /// The embedded PostgreSQL cannot run.
    #[error(transparent)]
    EmbeddedPostgres(#[from] embedded_postgres::Error),
    /// The image store cannot be used.
    #[error(transparent)]
    BlobStore(#[from] blob_store::Error),
    /// The bootstrap key is invalid.
    #[error("BOOTSTRAP_API_KEY {0}")]
    BootstrapKey(Invalid),
    /// The metrics recorder or the exporter of traces cannot start.
    #[error(transparent)]
    Telemetry(#[from] telemetry::Error),
    /// A worker thread or its runtime cannot start.
    #[error("failed to start a worker thread: {0}")]
    Workers(#[source] io::Error),
    /// The HTTP client for the issuers' keys cannot be built.
    #[error("failed to build the HTTP client for auth.issuers: {0}")]
    HttpClient(String),
    /// The OpenAPI document is inconsistent; a test rules it out.
    #[error("invalid API definition: {0}")]
    Api(String),
}
