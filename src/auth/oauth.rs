//! OAuth 2.0 client credentials (RFC 6749 §4.4): from a client's name and secret to an access token that
//! may do no more than the client.

use std::time::Duration;

use super::secret::{self, Kind, Secret};
use crate::{
    db::{
        self, Database,
        oauth::{Client, TokenRecord},
    },
    domain::caller::{Scope, Scopes},
};

/// Why there is no token; each an error code of RFC 6749 §5.2.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `invalid_client`: unknown or revoked, or its secret is wrong.
    #[error("the client is unknown or its secret is wrong")]
    InvalidClient,
    /// `invalid_scope`: not a scope, or not one of the client's.
    #[error("a scope that the client does not have")]
    InvalidScope,
    /// `unauthorized_client`: the token is another client's.
    #[error("the token was not given to this client")]
    NotItsToken,
    /// The operating system has no random numbers.
    #[error("no random numbers: {0}")]
    Random(#[from] getrandom::Error),
    /// Nobody could be asked.
    #[error(transparent)]
    Database(#[from] db::Error),
}

/// An access token, to be shown once.
pub struct Issued {
    /// The token.
    pub token: Secret,
    /// What it may do.
    pub scopes: Scopes,
    /// How long it lasts.
    pub lifetime: Duration,
}

/// The client of that name and secret.
pub async fn authenticate_client(
    database: &Database,
    client_id: &str,
    secret: &str,
) -> Result<Client, Error> {
    // Not of our form: not worth a look-up.
    let secret = Secret::parse(secret, &[Kind::ClientSecret]).ok_or(Error::InvalidClient)?;
    if !secret::is_client_id(client_id) {
        return Err(Error::InvalidClient);
    }
    db::oauth::find_client(database.pool(), client_id, &secret.hash())
        .await?
        .ok_or(Error::InvalidClient)
}

/// Gives a client a token for the scopes it asks for (RFC 6749 §3.3), or for all that it has.
pub async fn issue(
    database: &Database,
    client: &Client,
    requested: Option<&str>,
    lifetime: Duration,
) -> Result<Issued, Error> {
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
    let token = Secret::generate(Kind::AccessToken)?;
    let stored = db::oauth::insert_access_token(
        database.pool(),
        client,
        &token.hash(),
        &token.hint(),
        scopes,
        lifetime,
    )
    .await?;
    if !stored {
        return Err(Error::InvalidClient);
    }
    Ok(Issued {
        token,
        scopes,
        lifetime,
    })
}

/// Revokes one of a client's own tokens (RFC 7009 §2). A token that is none, or none any more, is fine.
pub async fn revoke(database: &Database, client: &Client, token: &str) -> Result<(), Error> {
    let Some(record) = find(database, token).await? else {
        return Ok(());
    };
    if !record.is_access_token || record.client_id.as_deref() != Some(&client.client_id) {
        return Err(Error::NotItsToken);
    }
    let mut transaction = database.begin().await?;
    let kind = db::credentials::Kind::AccessToken;
    db::credentials::revoke(&mut transaction, kind, record.id).await?;
    Ok(Database::commit(transaction).await?)
}

/// What a token is (RFC 7662 §2): `None` when it is no good, or none of this client's business, which is
/// its own caller's tokens, and everybody's for an `admin`.
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
    let Some(token) = Secret::parse(token, &Kind::BEARERS) else {
        return Ok(None);
    };
    Ok(db::oauth::find_token(database.pool(), &token.hash()).await?)
}
