//! Who are you: from the secrets that a request shows to a [`Caller`]. Knows no HTTP types.
//!
//! Invariants: a secret is compared by its SHA-256 alone and cannot be printed; unknown, revoked and
//! expired look the same from outside.

pub mod api_key;

use std::collections::HashSet;

use self::api_key::ApiKey;
use crate::{
    db::{self, Database, credentials::SecretHash},
    domain::caller::Caller,
};

/// Why a request has no caller.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The secret is malformed, unknown, revoked or expired, or two secrets name two callers.
    #[error("the credential is not valid")]
    Invalid,
    /// Nobody could be asked.
    #[error(transparent)]
    Database(#[from] db::Error),
}

/// The secrets of one request, as they were sent.
#[derive(Clone, Copy, Default)]
pub struct Presented<'a> {
    /// Of the header `api_key`.
    pub api_key: Option<&'a [u8]>,
    /// Of `Authorization: Bearer`.
    pub bearer: Option<&'a [u8]>,
}

/// Finds out who a caller is.
#[derive(Clone)]
pub struct Authenticator {
    database: Database,
    /// Keys without our form that this process lets through: those for a demo, the bootstrap key.
    /// Others never reach the database.
    admitted: HashSet<SecretHash>,
}

impl Authenticator {
    /// An authenticator that lets `admitted` through beside keys of our own form.
    #[must_use]
    pub fn new(database: Database, admitted: impl IntoIterator<Item = ApiKey>) -> Self {
        Self {
            database,
            admitted: admitted.into_iter().map(|key| key.hash()).collect(),
        }
    }

    /// The caller that all secrets shown stand for; `None` when none is shown.
    ///
    /// # Errors
    /// [`Error::Invalid`] when one of them is no good, or they stand for different callers.
    pub async fn authenticate(&self, presented: Presented<'_>) -> Result<Option<Caller>, Error> {
        match (presented.api_key, presented.bearer) {
            (None, None) => Ok(None),
            (Some(secret), None) | (None, Some(secret)) => self.caller(secret).await.map(Some),
            (Some(api_key), Some(bearer)) => {
                let by_key = self.caller(api_key).await?;
                let by_bearer = self.caller(bearer).await?;
                if by_key.id != by_bearer.id {
                    return Err(Error::Invalid);
                }
                // Neither secret lends the other what it may not do itself.
                let scopes = by_key.scopes.intersection(by_bearer.scopes);
                Ok(Some(Caller { scopes, ..by_key }))
            }
        }
    }

    async fn caller(&self, secret: &[u8]) -> Result<Caller, Error> {
        let text = std::str::from_utf8(secret).map_err(|_| Error::Invalid)?;
        let hash = match ApiKey::parse(text) {
            Some(key) => key.hash(),
            None => {
                let hash = api_key::sha256(text);
                self.admitted.get(&hash).copied().ok_or(Error::Invalid)?
            }
        };
        db::credentials::find_caller(self.database.pool(), &hash)
            .await?
            .ok_or(Error::Invalid)
    }
}
