//! Issues, revokes and introspects OAuth 2.0 access tokens (client credentials grant, RFC 6749 §4.4).
//!
//! Invariant: a token has no scope that its client lacks.

use std::time::Duration;

use super::secret::{self, Secret};
use crate::{
    db::{
        self, Connection, Database,
        credentials::CredentialKind,
        oauth::{Client, TokenRecord},
    },
    domain::{
        caller::{Scope, Scopes},
        change::Initiator,
    },
};

/// OAuth failure. The first three variants are error codes of RFC 6749 §5.2.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `invalid_client`: the client is unknown or revoked, or its secret is wrong.
    #[error("the client is unknown or its secret is wrong")]
    InvalidClient,
    /// `invalid_scope`: the scope is unknown, or the client does not have it.
    #[error("the client does not have the requested scope")]
    InvalidScope,
    /// `unauthorized_client`: the token belongs to another client.
    #[error("the token was issued to another client")]
    UnauthorizedClient,
    /// The operating system returned no random numbers.
    #[error("failed to generate random numbers: {0}")]
    Random(#[from] getrandom::Error),
    /// The database query failed.
    #[error(transparent)]
    Database(#[from] db::Error),
}

/// New access token. Its text is shown only once.
pub struct IssuedToken {
    /// Token text.
    pub token: Secret,
    /// Granted scopes.
    pub scopes: Scopes,
}

/// Returns the client with this identifier and secret.
pub async fn authenticate_client(
    database: &Database,
    client_id: &str,
    secret: &str,
) -> Result<Client, Error> {
    // Malformed credentials are rejected without a lookup.
    let secret =
        Secret::parse(secret, &[CredentialKind::ClientSecret]).ok_or(Error::InvalidClient)?;
    if !secret::is_client_id(client_id) {
        return Err(Error::InvalidClient);
    }
    database
        .run(async |connection| db::oauth::find_client(connection, client_id, &secret.hash()).await)
        .await?
        .ok_or(Error::InvalidClient)
}

/// Issues a token for the requested scopes (RFC 6749 §3.3), by default for all scopes of the client.
pub async fn issue(
    database: &Database,
    client: &Client,
    requested: Option<&str>,
    lifetime: Duration,
) -> Result<IssuedToken, Error> {
    let scopes = match requested {
        None => client.scopes,
        Some(names) => names
            .split(' ')
            .map(|name| name.parse::<Scope>().map_err(|_| Error::InvalidScope))
            .collect::<Result<Scopes, _>>()?,
    };
    if !client.scopes.contains_all(scopes) {
        return Err(Error::InvalidScope);
    }
    let token = Secret::generate(CredentialKind::AccessToken)?;
    let (hash, hint) = (token.hash(), token.hint());
    let stored = database.transact(async |transaction: &mut Connection| {
        db::oauth::insert_access_token(transaction, client, &hash, &hint, scopes, lifetime).await
    });
    let is_stored: bool = stored.await?;
    if !is_stored {
        return Err(Error::InvalidClient);
    }
    Ok(IssuedToken { token, scopes })
}

/// Revokes one of the client's own tokens (RFC 7009 §2). A token that is not valid is not an error.
pub async fn revoke(database: &Database, client: &Client, token: &str) -> Result<(), Error> {
    let Some(record) = find(database, token).await? else {
        return Ok(());
    };
    if !record.is_access_token || record.client_id.as_deref() != Some(&client.client_id) {
        return Err(Error::UnauthorizedClient);
    }
    let revoked = database.transact(async |transaction| {
        let initiator = Initiator::default();
        db::credentials::revoke(
            transaction,
            CredentialKind::AccessToken,
            record.id,
            &initiator,
        )
        .await
    });
    revoked.await?;
    Ok(())
}

/// Returns the record of a token (RFC 7662 §2), or `None` if it is not valid or the client must not see it. A client
/// sees the tokens of its own caller or, with the scope `admin`, of all callers.
pub async fn introspect(
    database: &Database,
    client: &Client,
    token: &str,
) -> Result<Option<TokenRecord>, Error> {
    let record = find(database, token).await?;
    Ok(record
        .filter(|record| record.caller == client.caller || client.scopes.contains(Scope::Admin)))
}

async fn find(database: &Database, token: &str) -> Result<Option<TokenRecord>, Error> {
    let Some(token) = Secret::parse(token, &CredentialKind::BEARERS) else {
        return Ok(None);
    };
    let hash = token.hash();
    Ok(database
        .run(async |connection| db::oauth::find_token(connection, &hash).await)
        .await?)
}
