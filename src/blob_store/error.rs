//! Failures of the image store.

use std::{error::Error as StdError, io};

/// Image store failure.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The disk or quota is full.
    #[error("the image store is full: {0}")]
    Full(#[source] Box<dyn StdError + Send + Sync>),
    /// There is no object with this key.
    #[error("the image store has no such object: {0}")]
    Missing(#[source] Box<dyn StdError + Send + Sync>),
    /// The store cannot be read or written at present.
    #[error("the image store is unavailable: {0}")]
    Unavailable(#[source] Box<dyn StdError + Send + Sync>),
    /// The store cannot be used as configured.
    #[error("cannot use {url} (images.url) as the image store: {reason}")]
    Config {
        /// Configured URL.
        url: String,
        /// Cause.
        reason: String,
    },
}

impl From<object_store::Error> for Error {
    fn from(error: object_store::Error) -> Self {
        match error {
            object_store::Error::NotFound { .. } => Self::Missing(error.into()),
            _ if has_no_room(&error) => Self::Full(error.into()),
            _ => Self::Unavailable(error.into()),
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        if has_no_room(&error) {
            Self::Full(error.into())
        } else {
            Self::Unavailable(error.into())
        }
    }
}

impl From<tokio::task::JoinError> for Error {
    fn from(error: tokio::task::JoinError) -> Self {
        Self::Unavailable(error.into())
    }
}

/// Returns true if the cause is a full disk or quota.
fn has_no_room(error: &(dyn StdError + 'static)) -> bool {
    let mut error = Some(error);
    while let Some(cause) = error {
        if let Some(cause) = cause.downcast_ref::<io::Error>() {
            use io::ErrorKind as E;
            if matches!(cause.kind(), E::StorageFull | E::QuotaExceeded) {
                return true;
            }
        }
        error = cause.source();
    }
    false
}
