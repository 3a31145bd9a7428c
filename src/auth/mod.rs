//! Authenticates callers by API keys, access tokens, sessions and external JWTs.
//!
//! Invariants:
//! - This module uses no types of the requests that it authenticates.
//! - A secret is compared only by its SHA-256 hash and cannot be printed.
//! - Unknown, revoked and expired credentials give the same error, as do all those of a disabled caller.

mod credential_cache;
mod error;
pub mod jwks;
pub mod oauth;
pub mod password;
pub mod secret;
pub mod session;

use std::{collections::HashSet, sync::Arc};

use chrono::Utc;
use futures_util::TryFutureExt;

pub use self::error::Error;
use self::{
    credential_cache::{CredentialCache, TTL_OF_ISSUER_TOKENS, TTL_WITH_NOTIFICATIONS},
    jwks::{Issuers, looks_like_jwt},
    secret::Secret,
};
use crate::{
    db::{self, Database, SecretHash, credential_changes::Change, credentials::CredentialKind},
    domain::{caller::Caller, clock::Clock},
};

/// Credentials of one request, as received.
#[derive(Clone, Copy)]
pub enum Credentials<'a> {
    /// Sent as an API key.
    ApiKey(&'a str),
    /// Sent as a bearer token, which may also be an API key.
    Bearer(&'a str),
    /// Both at once.
    Both {
        /// API key.
        api_key: &'a str,
        /// Bearer token.
        bearer: &'a str,
    },
}

/// Authenticator with a cache of credentials.
#[derive(Clone)]
pub struct Authenticator {
    database: Database,
    /// Hashes of keys in other formats: the demo keys and the bootstrap key. Others are rejected without a lookup.
    custom_keys: Arc<HashSet<SecretHash>>,
    cache: CredentialCache,
    /// `None` if none are configured.
    issuers: Option<Issuers>,
}

impl Authenticator {
    /// Creates an authenticator that accepts keys in this service's format, the keys in `custom_keys`, and tokens of
    /// `issuers`.
    pub fn new(
        database: Database,
        custom_keys: impl IntoIterator<Item = Secret>,
        issuers: Option<Issuers>,
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

    /// Writes the times at which API keys were last used, each at most once a minute.
    pub async fn write_key_uses(&self) -> Result<(), db::Error> {
        self.cache.write_key_uses(&self.database).await
    }

    /// Removes these credentials from the cache, so that a change made by this process takes effect at once.
    pub fn invalidate(&self, hashes: &[SecretHash]) {
        for hash in hashes {
            self.cache.invalidate(&Change::Credential(*hash));
        }
    }

    /// Returns the caller of a cached credential, without a lookup. `None` while PostgreSQL is away.
    pub fn get_cached(&self, credentials: Credentials<'_>) -> Option<Arc<Caller>> {
        let text = match credentials {
            Credentials::ApiKey(secret) if self.issuers_of(secret).is_none() => secret,
            Credentials::Bearer(token) => token,
            Credentials::ApiKey(_) | Credentials::Both { .. } => return None,
        };
        self.require_database().ok()?;
        self.cache.get(&secret::sha256(text))?
    }

    /// Returns the caller that all of the request's secrets belong to.
    pub async fn authenticate(&self, credentials: Credentials<'_>) -> Result<Arc<Caller>, Error> {
        match credentials {
            Credentials::ApiKey(secret) => self.caller(secret).await,
            Credentials::Bearer(token) => self.bearer(token).await,
            Credentials::Both { api_key, bearer } => {
                let one = self.caller(api_key).await;
                let one = one.map_err(|error| error.attribute_to(Error::InvalidApiKey))?;
                let other = self.bearer(bearer).await;
                let other = other.map_err(|error| error.attribute_to(Error::InvalidBearer))?;
                if one.id != other.id {
                    return Err(Error::DifferentCallers);
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

    /// Fails while PostgreSQL is away: a cached credential may have been revoked.
    fn require_database(&self) -> Result<(), Error> {
        let admitted = self.database.breaker().admit();
        Ok(admitted.map_err(db::Error::from)?)
    }

    /// Returns the configured issuers if the token looks like one of theirs.
    fn issuers_of(&self, token: &str) -> Option<&Issuers> {
        self.issuers.as_ref().filter(|_| looks_like_jwt(token))
    }

    async fn bearer(&self, token: &str) -> Result<Arc<Caller>, Error> {
        let Some(issuers) = self.issuers_of(token) else {
            return self.caller(token).await;
        };
        self.require_database()?;
        #[expect(
            clippy::disallowed_methods,
            reason = "tokens use wall-clock time; the database's clock would cost a round trip"
        )]
        let now = Utc::now();
        let found = issuers.find_caller(&self.database, token, now);
        let hash = secret::sha256(token);
        self.cache
            .get_or_insert_with(&hash, TTL_OF_ISSUER_TOKENS, found.map_ok(Some))
            .await?
            .ok_or(Error::Invalid)
    }

    async fn caller(&self, secret: &str) -> Result<Arc<Caller>, Error> {
        let hash = secret::sha256(secret);
        if Secret::parse(secret, &CredentialKind::BEARERS).is_none()
            && !self.custom_keys.contains(&hash)
        {
            return Err(Error::Invalid);
        }
        self.require_database()?;
        let found = db::credentials::find_caller(&self.database, &hash);
        self.cache
            .get_or_insert_with(&hash, TTL_WITH_NOTIFICATIONS, found)
            .await?
            .ok_or(Error::Invalid)
    }
}
