//! Authentication failures.

use crate::db;

/// Authentication failure.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The secret is malformed, unknown, revoked or expired, or two secrets belong to different callers.
    #[error("the credential is not valid")]
    Invalid,
    /// No cached key fits the token, and its issuer is unreachable or too many requests wait for it.
    #[error("the token's issuer cannot be reached")]
    IssuerUnavailable,
    /// The database lookup failed.
    #[error(transparent)]
    Database(#[from] db::Error),
}
