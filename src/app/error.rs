//! Errors at the start and stop of the service.

use std::io;

use crate::{
    blob_store, config, db,
    domain::{Invalid, address::ListenAddress},
    embedded_postgres,
    limits::open_files::TooFew,
    maintenance::orphaned_blobs,
    telemetry,
};

/// Error at the start or stop of the service. Each message ends with what to do next.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe variants and fields")]
pub enum Error {
    #[error(
        "failed to listen on {address} ({key}): {source}. Set another address{}: PET_INVENTORY__{variable}={}",
        if address.tcp().is_some() { ", or port 0 for any free port" } else { ", in a folder where this user may create files" },
        if address.tcp().is_some() { "127.0.0.1:0" } else { "unix:/FOLDER/api.sock" }
    )]
    Listen {
        address: ListenAddress,
        key: &'static str,
        variable: String,
        source: io::Error,
    },
    #[error(
        "cannot use the sockets of the service manager (LISTEN_FDS): {0}. Pass one listening stream \
         socket for the API, or two with FileDescriptorName=api and FileDescriptorName=operations"
    )]
    Inherited(#[source] io::Error),
    #[error(
        "cannot tell the sockets of the service manager apart (LISTEN_FDNAMES={0}). Set \
         FileDescriptorName=api for that of the API, and FileDescriptorName=operations for that of operations"
    )]
    SocketNames(String),
    #[error(transparent)]
    OpenFiles(#[from] TooFew),
    #[error(transparent)]
    Config(#[from] config::Error),
    #[error("{0}. Correct it, or see what else is wrong: pet-inventory check")]
    Database(#[from] db::Error),
    #[error(transparent)]
    EmbeddedPostgres(#[from] embedded_postgres::Error),
    #[error(transparent)]
    BlobStore(#[from] blob_store::Error),
    #[error("{}", orphaned_blobs::LOST)]
    ImagesLost,
    #[error("BOOTSTRAP_API_KEY {0}")]
    BootstrapKey(Invalid),
    #[error(transparent)]
    Telemetry(#[from] telemetry::Error),
    #[error("failed to get random numbers: {0}")]
    Random(#[from] getrandom::Error),
    #[error("failed to start a worker thread: {0}")]
    Workers(#[source] io::Error),
    #[error("failed to build the HTTP client for auth.issuers: {0}")]
    HttpClient(String),
    #[error("failed to prepare the delivery of webhooks: {0}")]
    Webhooks(String),
    /// The OpenAPI document is inconsistent; a test rules it out.
    #[error("invalid API definition: {0}")]
    Api(String),
}
