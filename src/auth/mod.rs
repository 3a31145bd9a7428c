//! Who are you: from the secrets that a request shows to a [`Caller`]. Knows no HTTP types.
//!
//! Invariants: a secret is compared by its SHA-256 alone and cannot be printed; unknown, revoked and
//! expired look the same from outside.

pub mod jwks;
mod memory;
pub mod oauth;
pub mod password;
pub mod secret;
pub mod session;

use std::{collections::HashSet, sync::Arc};

use chrono::Utc;

use self::{
    jwks::Issuers,
    memory::{Memory, OF_AN_ISSUER},
    secret::{Kind, Secret},
};
use crate::{
    db::{self, Database, SecretHash, credential_changes::Change},
    domain::{caller::Caller, clock::Clock},
};

/// Why a request has no caller.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The secret is malformed, unknown, revoked or expired, or two secrets name two callers.
    #[error("the credential is not valid")]
    Invalid,
    /// The issuer of a token does not answer, and we have no keys of it.
    #[error("the token's issuer cannot be reached")]
    IssuerUnavailable,
    /// Nobody could be asked.
    #[error(transparent)]
    Database(#[from] db::Error),
}

/// The secrets of one request, as they were sent.
#[derive(Clone, Copy)]
pub enum Presented<'a> {
    /// As an API key.
    ApiKey(&'a [u8]),
    /// As a bearer token. An API key is good there too.
    Bearer(&'a [u8]),
    /// One each.
    Both {
        /// The API key.
        api_key: &'a [u8],
        /// The bearer token.
        bearer: &'a [u8],
    },
}

/// Finds out who a caller is.
#[derive(Clone)]
pub struct Authenticator {
    database: Database,
    /// Keys without our form that this process lets through: those for a demo, the bootstrap key.
    /// Others never reach the database.
    admitted: Arc<HashSet<SecretHash>>,
    memory: Memory,
    issuers: Issuers,
}

impl Authenticator {
    /// An authenticator that lets `admitted` through beside keys of our own form, and tokens of `issuers`.
    #[must_use]
    pub fn new(
        database: Database,
        admitted: impl IntoIterator<Item = Secret>,
        issuers: Issuers,
        clock: Clock,
    ) -> Self {
        let admitted: HashSet<_> = admitted.into_iter().map(|key| key.hash()).collect();
        Self {
            database,
            admitted: admitted.into(),
            memory: Memory::new(clock),
            issuers,
        }
    }

    /// The same, with the same memory, on another way to the same database.
    #[must_use]
    pub fn on(&self, database: Database) -> Self {
        Self {
            database,
            ..self.clone()
        }
    }

    /// Hears of changed credentials, for ever: then they take effect at once.
    pub async fn follow_changes(self) {
        self.memory.follow(self.database).await;
    }

    /// Forgets what is remembered of these secrets, so that what was changed by this process is so at once.
    pub fn forget(&self, hashes: &[SecretHash]) {
        for hash in hashes {
            self.memory.forget(&Change::Credential(*hash));
        }
    }

    /// Whether an outside issuer is asked about it, which may take its time, rather than our database.
    #[must_use]
    pub fn is_foreign(&self, presented: Presented<'_>) -> bool {
        match presented {
            Presented::Bearer(token) => {
                std::str::from_utf8(token).is_ok_and(|token| self.issuers.take(token))
            }
            Presented::ApiKey(_) | Presented::Both { .. } => false,
        }
    }

    /// The caller that a secret stands for, if that is remembered; asks nobody.
    #[must_use]
    pub fn recall(&self, presented: Presented<'_>) -> Option<Arc<Caller>> {
        let text = match presented {
            Presented::ApiKey(secret) => std::str::from_utf8(secret)
                .ok()
                .filter(|text| !self.issuers.take(text))?,
            Presented::Bearer(token) => std::str::from_utf8(token).ok()?,
            Presented::Both { .. } => return None,
        };
        let away = self.database.breaker().is_open();
        self.memory.recall(&secret::sha256(text), away)?
    }

    /// The caller that all secrets shown stand for.
    ///
    /// # Errors
    /// [`Error::Invalid`] when one of them is no good, or they stand for different callers.
    pub async fn authenticate(&self, presented: Presented<'_>) -> Result<Arc<Caller>, Error> {
        match presented {
            Presented::ApiKey(secret) => self.caller(secret).await,
            Presented::Bearer(token) => self.bearer(token).await,
            Presented::Both { api_key, bearer } => {
                let (one, other) = (self.caller(api_key).await?, self.bearer(bearer).await?);
                if one.id != other.id {
                    return Err(Error::Invalid);
                }
                // Neither secret lends the other what it may not do itself.
                let scopes = one.scopes.intersection(other.scopes);
                Ok(Arc::new(Caller {
                    scopes,
                    ..Caller::clone(&one)
                }))
            }
        }
    }

    async fn bearer(&self, token: &[u8]) -> Result<Arc<Caller>, Error> {
        let text = std::str::from_utf8(token).map_err(|_| Error::Invalid)?;
        if !self.issuers.take(text) {
            return self.caller(token).await;
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "tokens tell time by the wall, and the database's would cost a round trip"
        )]
        let now = Utc::now();
        let look_up = async {
            let found = self.issuers.find_caller(&self.database, text, now).await;
            found.map(Some)
        };
        let hash = secret::sha256(text);
        self.memory
            .caller_by(&hash, OF_AN_ISSUER, look_up)
            .await?
            .ok_or(Error::Invalid)
    }

    async fn caller(&self, secret: &[u8]) -> Result<Arc<Caller>, Error> {
        let text = std::str::from_utf8(secret).map_err(|_| Error::Invalid)?;
        let hash = match Secret::parse(text, &Kind::BEARERS) {
            Some(key) => key.hash(),
            None => {
                let hash = secret::sha256(text);
                self.admitted.get(&hash).copied().ok_or(Error::Invalid)?
            }
        };
        self.memory
            .caller(&self.database, &hash)
            .await?
            .ok_or(Error::Invalid)
    }
}
