//! Opens and closes sessions: exchanges a username and password for a bearer token of limited lifetime.

use std::{num::NonZeroU32, time::Duration};

use chrono::{DateTime, Utc};

use super::{
    password::{self, Passwords, Verification},
    secret::Secret,
};
use crate::{
    db::{self, Connection, Database, SecretHash, credentials::CredentialKind},
    domain::{
        address::AddressKey,
        plan::Plan,
        user::{Password, Username},
    },
};

/// Login failure.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The user does not exist or is disabled, or its password is different or not set.
    #[error("the username or the password is wrong")]
    InvalidCredentials,
    /// The password could not be verified.
    #[error(transparent)]
    Password(#[from] password::Error),
    /// The operating system returned no random numbers.
    #[error("failed to generate random numbers: {0}")]
    Random(#[from] getrandom::Error),
    /// The database query failed.
    #[error(transparent)]
    Database(#[from] db::Error),
}

/// New session. Its token is shown only once.
pub struct NewSession {
    /// Session token.
    pub token: Secret,
    /// Expiry time.
    pub expires_at: DateTime<Utc>,
    /// Plan that the session's requests count against.
    pub plan: Plan,
    /// Hashes of the sessions that ended because the user had too many, to be removed from the credential cache.
    pub ended: Vec<SecretHash>,
}

/// Logs a user in, from a client address. A refusal takes equally long for known and unknown users, except for a hash with outdated
/// parameters. A successful login renews such a hash, and that of a password that was not prepared. Ends the oldest sessions of the user beyond `max_sessions`.
pub async fn open(
    database: &Database,
    passwords: &Passwords,
    client: Option<AddressKey>,
    username: &Username,
    password: Password,
    lifetime: Duration,
    max_sessions: NonZeroU32,
) -> Result<NewSession, Error> {
    let account = database
        .run(async |connection| db::users::find(connection, username).await)
        .await?;
    let stored = account
        .as_ref()
        .and_then(|account| account.password_hash.clone());
    let verification = passwords.verify(client, password, stored.clone()).await?;
    let (Some(account), Some(stored), Verification::Match { renewed }) =
        (account, stored, verification)
    else {
        return Err(Error::InvalidCredentials);
    };
    let token = Secret::generate(CredentialKind::Session)?;
    let (expires_at, ended) = database
        .transact(async |transaction: &mut Connection| {
            let user = account.user.id;
            if let Some(renewed) = &renewed {
                db::users::renew_hash(transaction, user, &stored, renewed).await?;
            }
            let current = renewed.unwrap_or(stored);
            let (hash, hint) = (token.hash(), token.hint());
            let session = (&hash, hint.as_str(), lifetime);
            let expires_at = db::sessions::insert(transaction, user, &current, session).await?;
            let mut ended = Vec::new();
            if expires_at.is_some() {
                ended = db::sessions::revoke_oldest(transaction, user, max_sessions).await?;
            }
            Ok::<_, db::Error>((expires_at, ended))
        })
        .await?;
    // Absent if the password was changed after its verification, or the caller is disabled.
    let expires_at = expires_at.ok_or(Error::InvalidCredentials)?;
    Ok(NewSession {
        token,
        expires_at,
        plan: account.plan,
        ended,
    })
}

/// Ends a session. Returns the hash to remove from the credential cache, or `None` if there is no such session.
pub async fn close(database: &Database, token: &str) -> Result<Option<SecretHash>, db::Error> {
    let Some(session) = Secret::parse(token, &[CredentialKind::Session]) else {
        return Ok(None);
    };
    let hash = session.hash();
    let ended = database
        .run(async |connection| db::sessions::revoke(connection, &hash).await)
        .await?;
    Ok(ended.then_some(hash))
}
