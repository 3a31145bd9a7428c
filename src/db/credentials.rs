//! Credentials in PostgreSQL: hashes of secrets, and whom each stands for.

use std::{collections::HashMap, time::Duration};

use chrono::{DateTime, Utc};
use sqlx::{FromRow, PgExecutor};

use super::{
    Connection, Database, Error, SecretHash, bounded,
    coalesce::{Batch, Verdict},
    codec,
};
use crate::domain::{
    caller::{Caller, CallerId, Scopes},
    plan::Plan,
};

/// What a credential is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Opens operations.
    ApiKey,
    /// Is exchanged for access tokens.
    ClientSecret,
    /// Opens operations for a while; see [`super::oauth`].
    AccessToken,
    /// Opens operations until a user logs out; see [`super::sessions`].
    Session,
}

impl Kind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::ApiKey => "api_key",
            Self::ClientSecret => "client_secret",
            Self::AccessToken => "access_token",
            Self::Session => "session",
        }
    }
}

/// An API key or a client to be stored.
#[derive(Debug, Clone)]
pub struct NewCredential {
    /// Whom it stands for.
    pub caller: CallerId,
    /// SHA-256 of the secret.
    pub hash: SecretHash,
    /// Its first characters.
    pub hint: String,
    /// A client's public name; `None` for an API key.
    pub client_id: Option<String>,
    /// What it may do of what its caller may; `None`: all of it.
    pub scopes: Option<Scopes>,
    /// When it ends; `None`: never.
    pub expires_at: Option<DateTime<Utc>>,
}

/// Stores an API key or a client and gives its identifier. `None`: that very secret is stored already.
pub async fn insert(
    executor: impl PgExecutor<'_>,
    credential: NewCredential,
) -> Result<Option<i64>, Error> {
    let kind = match credential.client_id {
        None => Kind::ApiKey,
        Some(_) => Kind::ClientSecret,
    };
    bounded(
        sqlx::query_scalar(
            "insert into credentials (caller_id, kind, hash, hint, client_id, scopes, expires_at)
             values ($1, $2, $3, $4, $5, $6, $7)
             on conflict (hash) do nothing
             returning id",
        )
        .bind(credential.caller.0)
        .bind(kind.as_str())
        .bind(credential.hash)
        .bind(credential.hint)
        .bind(credential.client_id)
        .bind(credential.scopes.map(codec::scope_names))
        .bind(credential.expires_at)
        .fetch_optional(executor),
    )
    .await
}

#[derive(FromRow)]
struct CallerRow {
    hash: SecretHash,
    id: i64,
    name: String,
    plan: String,
    scopes: Vec<String>,
    credential_scopes: Option<Vec<String>>,
    expires_in: Option<f64>,
}

/// Whom a secret stands for.
#[derive(Debug, Clone)]
pub struct Found {
    /// The caller, with what the credential lets it do.
    pub caller: Caller,
    /// How long the credential still lasts; `None`: for ever.
    pub expires_in: Option<Duration>,
}

/// Whom a secret stands for now: `None` when it is unknown, revoked or expired. Looked up together with
/// those that others show at the moment.
pub async fn find_caller(database: &Database, hash: &SecretHash) -> Result<Option<Found>, Error> {
    database.0.lanes.callers.ask(*hash).await
}

/// Look-ups that travel together.
#[derive(Debug)]
pub(super) struct LookUps;

impl Batch for LookUps {
    type Ask = SecretHash;
    type Answer = Option<Found>;

    const SUMMARY: &'static str = "SELECT credentials";

    async fn many(
        connection: &mut Connection,
        asks: &mut Vec<SecretHash>,
    ) -> Result<Vec<Verdict<Self>>, Error> {
        let found = find_callers(connection, asks).await?;
        let find = |hash| Verdict::Answered(Ok(found.get(&hash).cloned()));
        Ok(asks.drain(..).map(find).collect())
    }

    async fn one(connection: &mut Connection, ask: SecretHash) -> Result<Option<Found>, Error> {
        Ok(find_callers(connection, &[ask]).await?.remove(&ask))
    }
}

/// Whom secrets stand for now; those that are unknown, revoked or expired are left out.
pub async fn find_callers(
    executor: impl PgExecutor<'_>,
    hashes: &[SecretHash],
) -> Result<HashMap<SecretHash, Found>, Error> {
    let rows = bounded(
        sqlx::query_as::<_, CallerRow>(
            "select credentials.hash, callers.id, callers.name, callers.plan, callers.scopes,
                    credentials.scopes as credential_scopes,
                    extract(epoch from expires_at - now())::float8 as expires_in
             from credentials
             join callers on callers.id = credentials.caller_id
             where credentials.hash = any ($1)
               and credentials.kind <> 'client_secret'
               and credentials.revoked_at is null
               and (credentials.expires_at is null or credentials.expires_at > now())",
        )
        .bind(hashes)
        .fetch_all(executor),
    )
    .await?;
    rows.into_iter()
        .map(|row| {
            let caller = Caller {
                id: Some(CallerId(row.id)),
                name: row
                    .name
                    .parse()
                    .map_err(|_| Error::Corrupt(format!("callers.name of caller {}", row.id)))?,
                plan: codec::plan(&row.plan)?,
                scopes: codec::narrowed(&row.scopes, row.credential_scopes.as_deref()),
            };
            let expires_in = row
                .expires_in
                .map(|seconds| Duration::from_secs_f64(seconds.max(0.0)));
            Ok((row.hash, Found { caller, expires_in }))
        })
        .collect()
}

/// A credential as the operator sees it.
#[derive(Debug, Clone)]
pub struct CredentialRecord {
    /// Identifier, for `keys revoke`.
    pub id: i64,
    /// The first characters of the secret.
    pub hint: String,
    /// A client's public name.
    pub client_id: Option<String>,
    /// Name of the caller.
    pub caller: String,
    /// The caller's plan.
    pub plan: Plan,
    /// What it may do.
    pub scopes: Scopes,
    /// When it was made.
    pub created_at: DateTime<Utc>,
    /// When it ends by itself.
    pub expires_at: Option<DateTime<Utc>>,
    /// When it was revoked.
    pub revoked_at: Option<DateTime<Utc>>,
}

#[derive(FromRow)]
struct CredentialRow {
    id: i64,
    hint: String,
    client_id: Option<String>,
    caller: String,
    plan: String,
    scopes: Vec<String>,
    own_scopes: Option<Vec<String>>,
    created_at: DateTime<Utc>,
    expires_at: Option<DateTime<Utc>>,
    revoked_at: Option<DateTime<Utc>>,
}

/// Every credential of a kind, oldest first, the revoked and expired too.
pub async fn list(
    executor: impl PgExecutor<'_>,
    kind: Kind,
) -> Result<Vec<CredentialRecord>, Error> {
    bounded(
        sqlx::query_as::<_, CredentialRow>(
            "select credentials.id, hint, client_id, callers.name as caller, plan,
                    callers.scopes, credentials.scopes as own_scopes,
                    credentials.created_at, expires_at, revoked_at
             from credentials
             join callers on callers.id = credentials.caller_id
             where kind = $1
             order by credentials.id",
        )
        .bind(kind.as_str())
        .fetch_all(executor),
    )
    .await?
    .into_iter()
    .map(|row| {
        Ok(CredentialRecord {
            id: row.id,
            hint: row.hint,
            client_id: row.client_id,
            caller: row.caller,
            plan: codec::plan(&row.plan)?,
            scopes: codec::narrowed(&row.scopes, row.own_scopes.as_deref()),
            created_at: row.created_at,
            expires_at: row.expires_at,
            revoked_at: row.revoked_at,
        })
    })
    .collect()
}

/// Revokes a credential of a kind, once, and with a client the tokens it was given. `false`: there is none
/// of that identifier that is not revoked.
pub async fn revoke(transaction: &mut Connection, kind: Kind, id: i64) -> Result<bool, Error> {
    let done = bounded(
        sqlx::query(
            "update credentials set revoked_at = now()
             where id = $1 and kind = $2 and revoked_at is null",
        )
        .bind(id)
        .bind(kind.as_str())
        .execute(&mut *transaction),
    )
    .await?;
    // A statement of its own, which sees the token that a request got while the first one waited for it.
    bounded(
        sqlx::query(
            "update credentials set revoked_at = now() where issued_by = $1 and revoked_at is null",
        )
        .bind(id)
        .execute(transaction),
    )
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Whether any credential was ever stored.
pub async fn any(executor: impl PgExecutor<'_>) -> Result<bool, Error> {
    bounded(sqlx::query_scalar("select exists (select from credentials)").fetch_one(executor)).await
}
