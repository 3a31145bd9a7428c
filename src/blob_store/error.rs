//! Failures of the image store.

use std::{error::Error as StdError, io, iter};

type Cause = Box<dyn StdError + Send + Sync>;

/// Image store failure.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The disk or quota is full.
    #[error("the image store is full: {0}")]
    Full(#[source] Cause),
    /// There is no object with this key.
    #[error("the image store has no such object: {0}")]
    Missing(#[source] Cause),
    /// The object with this key is shorter than it was written.
    #[error("the image store has a damaged object: {0}")]
    Damaged(#[source] Cause),
    /// The store cannot be read or written at present.
    #[error("the image store is unavailable: {0}")]
    Unavailable(#[source] Cause),
    /// The store cannot be used as configured.
    #[error("cannot use {url} (images.url) as the image store: {reason}")]
    Config {
        /// Configured URL.
        url: String,
        /// Cause.
        reason: String,
    },
}

impl Error {
    /// Returns true if one object is lost, not the store.
    pub const fn is_of_object(&self) -> bool {
        matches!(self, Self::Missing(_) | Self::Damaged(_))
    }
}

impl From<object_store::Error> for Error {
    fn from(error: object_store::Error) -> Self {
        match error {
            object_store::Error::NotFound { .. } => Self::Missing(error.into()),
            _ => failed(error.into()),
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        failed(error.into())
    }
}

/// Returns [`Error::Full`] if the cause is a full disk or quota.
fn failed(error: Cause) -> Error {
    use io::ErrorKind as E;
    let first: &(dyn StdError + 'static) = &*error;
    let mut causes = iter::successors(Some(first), |&cause| cause.source());
    let is_full = causes.any(|cause| {
        let cause = cause.downcast_ref::<io::Error>();
        cause.is_some_and(|it| matches!(it.kind(), E::StorageFull | E::QuotaExceeded))
    });
    if is_full {
        Error::Full(error)
    } else {
        Error::Unavailable(error)
    }
}
