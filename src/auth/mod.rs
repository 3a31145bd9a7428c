//! Authenticates callers by API keys, access tokens, sessions and external JWTs.
//!
//! Invariants:
//! - This module uses no HTTP types.
//! - A secret is compared only by its SHA-256 hash and cannot be printed.
//! - Unknown, revoked and expired credentials give the same error.

mod credential_cache;
mod error;
pub mod jwks;
pub mod oauth;
pub mod password;
pub mod secret;
pub mod session;

use std::{collections::HashSet, sync::Arc};

use chrono::Utc;

pub use self::error::Error;
use self::{
    credential_cache::{CredentialCache, TTL_OF_ISSUER_TOKENS},
    jwks::Issuers,
    secret::{Kind, Secret},
};
use crate::{
    db::{Database, SecretHash, credential_changes::Change},
    domain::{caller::Caller, clock::Clock},
};

/// Credentials of one request, as received.
#[derive(Clone, Copy)]
pub enum Credentials<'a> {
    /// Sent as an API key.
    ApiKey(&'a [u8]),
    /// Sent as a bearer token, which may also be an API key.
    Bearer(&'a [u8]),
    /// Both at once.
    Both {
        /// API key.
        api_key: &'a [u8],
        /// Bearer token.
        bearer: &'a [u8],
    },
}

/// Authenticator with a cache of credentials.
#[derive(Clone)]
pub struct Authenticator {
    database: Database,
    /// Hashes of accepted keys without this service's format: the demo keys and the bootstrap key. Any other key
    /// without that format is rejected before a database lookup.
    custom_keys: Arc<HashSet<SecretHash>>,
    cache: CredentialCache,
    issuers: Issuers,
}

impl Authenticator {
    /// Creates an authenticator that accepts keys in this service's format, the keys in `custom_keys`, and tokens of
    /// `issuers`.
    #[must_use]
    pub fn new(
        database: Database,
        custom_keys: impl IntoIterator<Item = Secret>,
        issuers: Issuers,
        clock: Clock,
    ) -> Self {
        let custom_keys: HashSet<_> = custom_keys.into_iter().map(|key| key.hash()).collect();
        Self {
            database,
            custom_keys: custom_keys.into(),
            cache: CredentialCache::new(clock),
            issuers,
        }
    }

    /// Returns an authenticator with the same cache and another handle to the same database.
    #[must_use]
    pub fn with_database(&self, database: Database) -> Self {
        Self {
            database,
            ..self.clone()
        }
    }

    /// Listens for changed credentials forever and removes them from the cache.
    pub async fn follow_changes(self) {
        self.cache.follow_changes(self.database).await;
    }

    /// Removes these credentials from the cache, so that a change made by this process takes effect at once.
    pub fn invalidate(&self, hashes: &[SecretHash]) {
        for hash in hashes {
            self.cache.invalidate(&Change::Credential(*hash));
        }
    }

    /// Returns true if the credential is a token of an external issuer. Fetching its keys can be slow.
    #[must_use]
    pub fn is_external(&self, credentials: Credentials<'_>) -> bool {
        match credentials {
            Credentials::Bearer(token) => {
                std::str::from_utf8(token).is_ok_and(|token| self.issuers.handles(token))
            }
            Credentials::ApiKey(_) | Credentials::Both { .. } => false,
        }
    }

    /// Returns the caller of a cached credential, without a lookup.
    #[must_use]
    pub fn get_cached(&self, credentials: Credentials<'_>) -> Option<Arc<Caller>> {
        let text = match credentials {
            Credentials::ApiKey(secret) => std::str::from_utf8(secret)
                .ok()
                .filter(|text| !self.issuers.handles(text))?,
            Credentials::Bearer(token) => std::str::from_utf8(token).ok()?,
            Credentials::Both { .. } => return None,
        };
        let unreachable = self.database.breaker().is_open();
        self.cache.get(&secret::sha256(text), unreachable)?
    }

    /// Returns the caller that all of the request's secrets belong to.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a secret is not valid or the secrets belong to different callers.
    pub async fn authenticate(&self, credentials: Credentials<'_>) -> Result<Arc<Caller>, Error> {
        match credentials {
            Credentials::ApiKey(secret) => self.caller(secret).await,
            Credentials::Bearer(token) => self.bearer(token).await,
            Credentials::Both { api_key, bearer } => {
                let (one, other) = (self.caller(api_key).await?, self.bearer(bearer).await?);
                if one.id != other.id {
                    return Err(Error::Invalid);
                }
                // Neither secret extends the scopes of the other.
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
        if !self.issuers.handles(text) {
            return self.caller(token).await;
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "tokens use wall-clock time; the database's clock would cost a round trip"
        )]
        let now = Utc::now();
        let look_up = async {
            let found = self.issuers.find_caller(&self.database, text, now).await;
            found.map(Some)
        };
        let hash = secret::sha256(text);
        self.cache
            .get_or_insert_with(&hash, TTL_OF_ISSUER_TOKENS, look_up)
            .await?
            .ok_or(Error::Invalid)
    }

    async fn caller(&self, secret: &[u8]) -> Result<Arc<Caller>, Error> {
        let text = std::str::from_utf8(secret).map_err(|_| Error::Invalid)?;
        let hash = match Secret::parse(text, &Kind::BEARERS) {
            Some(key) => key.hash(),
            None => {
                let hash = secret::sha256(text);
                self.custom_keys.get(&hash).copied().ok_or(Error::Invalid)?
            }
        };
        self.cache
            .get_or_query(&self.database, &hash)
            .await?
            .ok_or(Error::Invalid)
    }
}
