//! Authentication failures.

use crate::db;

/// Authentication failure.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The secret is malformed, unknown, revoked or expired.
    #[error("the credential is not valid")]
    Invalid,
    /// Of two secrets, the API key is invalid.
    #[error("the API key is not valid")]
    InvalidApiKey,
    /// Of two secrets, the bearer token is invalid.
    #[error("the bearer token is not valid")]
    InvalidBearer,
    /// Two secrets belong to different callers.
    #[error("the API key and the bearer token belong to different callers")]
    DifferentCallers,
    /// No cached key fits the token, and its issuer is unreachable or too many requests wait for it.
    #[error("the token's issuer cannot be reached")]
    IssuerUnavailable,
    /// The database lookup failed.
    #[error(transparent)]
    Database(#[from] db::Error),
}

impl Error {
    /// Returns true if the credentials are invalid, rather than not checked.
    pub const fn is_invalid(&self) -> bool {
        matches!(
            self,
            Self::Invalid | Self::InvalidApiKey | Self::InvalidBearer | Self::DifferentCallers
        )
    }

    /// Returns `which` for an invalid secret, one of two.
    pub fn attribute_to(self, which: Self) -> Self {
        match self {
            Self::Invalid => which,
            other => other,
        }
    }
}
