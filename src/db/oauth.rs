//! Queries on OAuth 2.0 clients and access tokens, which are both rows of `credentials`.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::FromRow;

use super::{
    codec::{self, SecretHash},
    connect::Connection,
    deadline::with_timeout,
    error::Error,
};
use crate::domain::{
    caller::{CallerId, Scopes},
    id::CredentialId,
};

/// Authenticated client.
#[derive(Debug, Clone, FromRow)]
pub struct Client {
    /// Identifier of the client's credential.
    pub id: i64,
    /// Public identifier.
    pub client_id: String,
    /// Caller that it acts for.
    pub caller: CallerId,
    /// Scopes that its tokens may have.
    #[sqlx(flatten)]
    pub scopes: Scopes,
}

/// Returns the client with this identifier and secret, unless it is revoked or its caller is disabled.
pub async fn find_client(
    connection: &mut Connection,
    client_id: &str,
    hash: &SecretHash,
) -> Result<Option<Client>, Error> {
    let query = sqlx::query_as(
        "select credentials.id, client_id, caller_id as caller, callers.scopes,
                credentials.scopes as own_scopes
         from credentials
         cross join lateral (select * from callers where id = credentials.caller_id offset 0) callers
         where hash = $1 and client_id = $2 and revoked_at is null and callers.disabled_at is null",
    );
    with_timeout(query.bind(hash).bind(client_id).fetch_optional(connection)).await
}

/// Inserts an access token of a client. Returns false if the client has been revoked. Locks the caller before the client, as the
/// deletion of either does.
pub async fn insert_access_token(
    connection: &mut Connection,
    client: &Client,
    hash: &SecretHash,
    hint: &str,
    scopes: Scopes,
    lifetime: Duration,
) -> Result<bool, Error> {
    let query = sqlx::query(
        "with owner as materialized (
             select id as caller_id from callers where id = $6 for key share
         )
         insert into credentials (caller_id, kind, hash, hint, scopes, expires_at, issued_by)
         select caller_id, 'access_token', $2, $3, $4, now() + make_interval(secs => $5), credentials.id
         from owner join credentials using (caller_id)
         where credentials.id = $1 and revoked_at is null
         for share of credentials",
    )
    .bind(client.id)
    .bind(hash)
    .bind(hint)
    .bind(codec::scope_names(scopes))
    .bind(lifetime.as_secs_f64())
    .bind(client.caller.0);
    let inserted = with_timeout(query.execute(connection)).await?;
    Ok(inserted.rows_affected() == 1)
}

/// Valid bearer credential, as needed for introspection (RFC 7662) and revocation (RFC 7009).
#[derive(Debug, Clone, FromRow)]
pub struct TokenRecord {
    /// Identifier.
    pub id: CredentialId,
    /// True for an access token, false for an API key or a session.
    pub is_access_token: bool,
    /// Caller that it authenticates.
    pub caller: CallerId,
    /// Name of the caller.
    pub caller_name: String,
    /// Effective scopes.
    #[sqlx(flatten)]
    pub scopes: Scopes,
    /// Public identifier of the client that it was issued to.
    pub client_id: Option<String>,
    /// Time of creation.
    pub created_at: DateTime<Utc>,
    /// Expiry.
    pub expires_at: Option<DateTime<Utc>>,
}

/// Returns the record of a secret, unless it is unknown, revoked, expired, of a disabled caller, or a client secret.
pub async fn find_token(
    connection: &mut Connection,
    hash: &SecretHash,
) -> Result<Option<TokenRecord>, Error> {
    let query = sqlx::query_as(
        "select token.id, token.kind = 'access_token' as is_access_token,
                token.caller_id as caller, callers.name as caller_name,
                callers.scopes, token.scopes as own_scopes, client.client_id,
                token.created_at, token.expires_at
         from credentials token
         cross join lateral (select * from callers where id = token.caller_id offset 0) callers
         left join credentials client on client.id = token.issued_by
         where token.hash = $1 and token.kind <> 'client_secret' and token.revoked_at is null
           and (token.expires_at is null or token.expires_at > now())
           and callers.disabled_at is null",
    );
    with_timeout(query.bind(hash).fetch_optional(connection)).await
}

/// Deletes up to 1,000 access tokens that expired over an hour ago, and returns their number. Skips locked rows.
pub async fn purge_expired(connection: &mut Connection) -> Result<u64, Error> {
    let query = sqlx::query(
        "delete from credentials
         where id = any (array(
             select id from credentials
             where kind = 'access_token' and expires_at < now() - interval '1 hour'
             limit 1000
             for update skip locked
         ))",
    );
    let deleted = with_timeout(query.execute(connection)).await?;
    Ok(deleted.rows_affected())
}
