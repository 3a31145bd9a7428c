//! Credentials in PostgreSQL: hashes of secrets, and whom each stands for.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{FromRow, PgExecutor, postgres::PgListener};

use super::{Database, Error, bounded, codec};
use crate::domain::{
    caller::{Caller, CallerId, Scopes},
    plan::Plan,
};

/// SHA-256 of a secret.
pub type SecretHash = [u8; 32];

/// A credential to be stored.
#[derive(Debug, Clone)]
pub struct NewCredential {
    /// Whom it stands for.
    pub caller: CallerId,
    /// SHA-256 of the secret.
    pub hash: SecretHash,
    /// Its first characters.
    pub hint: String,
    /// What it may do of what its caller may; `None`: all of it.
    pub scopes: Option<Scopes>,
    /// When it ends; `None`: never.
    pub expires_at: Option<DateTime<Utc>>,
}

/// Stores an API key and gives its identifier. `None`: that very secret is stored already.
pub async fn insert_api_key(
    executor: impl PgExecutor<'_>,
    credential: NewCredential,
) -> Result<Option<i64>, Error> {
    bounded(
        sqlx::query_scalar(
            "insert into credentials (caller_id, kind, hash, hint, scopes, expires_at)
             values ($1, 'api_key', $2, $3, $4, $5)
             on conflict (hash) do nothing
             returning id",
        )
        .bind(credential.caller.0)
        .bind(credential.hash)
        .bind(credential.hint)
        .bind(credential.scopes.map(codec::scope_names))
        .bind(credential.expires_at)
        .fetch_optional(executor),
    )
    .await
}

#[derive(FromRow)]
struct CallerRow {
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

/// Whom a secret stands for now: `None` when it is unknown, revoked or expired.
pub async fn find_caller(
    executor: impl PgExecutor<'_>,
    hash: &SecretHash,
) -> Result<Option<Found>, Error> {
    let row = bounded(
        sqlx::query_as::<_, CallerRow>(
            "select callers.id, callers.name, callers.plan, callers.scopes,
                    credentials.scopes as credential_scopes,
                    extract(epoch from expires_at - now())::float8 as expires_in
             from credentials
             join callers on callers.id = credentials.caller_id
             where credentials.hash = $1
               and credentials.revoked_at is null
               and (credentials.expires_at is null or credentials.expires_at > now())",
        )
        .bind(hash)
        .fetch_optional(executor),
    )
    .await?;
    row.map(|row| {
        let granted = codec::scopes(&row.scopes);
        let caller = Caller {
            id: Some(CallerId(row.id)),
            name: row
                .name
                .parse()
                .map_err(|_| Error::Corrupt(format!("callers.name of caller {}", row.id)))?,
            plan: codec::plan(&row.plan)?,
            scopes: row
                .credential_scopes
                .map_or(granted, |own| granted.intersection(codec::scopes(&own))),
        };
        Ok(Found {
            caller,
            expires_in: row
                .expires_in
                .map(|seconds| Duration::from_secs_f64(seconds.max(0.0))),
        })
    })
    .transpose()
}

/// A credential as the operator sees it.
#[derive(Debug, Clone)]
pub struct CredentialRecord {
    /// Identifier, for `keys revoke`.
    pub id: i64,
    /// The first characters of the secret.
    pub hint: String,
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
    caller: String,
    plan: String,
    scopes: Vec<String>,
    created_at: DateTime<Utc>,
    expires_at: Option<DateTime<Utc>>,
    revoked_at: Option<DateTime<Utc>>,
}

/// Every API key, oldest first, the revoked and expired too.
pub async fn list_api_keys(executor: impl PgExecutor<'_>) -> Result<Vec<CredentialRecord>, Error> {
    bounded(
        sqlx::query_as::<_, CredentialRow>(
            "select credentials.id, hint, callers.name as caller, plan,
                    coalesce(credentials.scopes, callers.scopes) as scopes,
                    credentials.created_at, expires_at, revoked_at
             from credentials
             join callers on callers.id = credentials.caller_id
             where kind = 'api_key'
             order by credentials.id",
        )
        .fetch_all(executor),
    )
    .await?
    .into_iter()
    .map(|row| {
        Ok(CredentialRecord {
            id: row.id,
            hint: row.hint,
            caller: row.caller,
            plan: codec::plan(&row.plan)?,
            scopes: codec::scopes(&row.scopes),
            created_at: row.created_at,
            expires_at: row.expires_at,
            revoked_at: row.revoked_at,
        })
    })
    .collect()
}

/// Revokes an API key, once. `false`: there is none of that identifier that is not revoked.
pub async fn revoke_api_key(executor: impl PgExecutor<'_>, id: i64) -> Result<bool, Error> {
    let done = bounded(
        sqlx::query(
            "update credentials set revoked_at = now()
             where id = $1 and kind = 'api_key' and revoked_at is null",
        )
        .bind(id)
        .execute(executor),
    )
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Whether any credential was ever stored.
pub async fn any(executor: impl PgExecutor<'_>) -> Result<bool, Error> {
    bounded(sqlx::query_scalar("select exists (select from credentials)").fetch_one(executor)).await
}

/// A change that somebody committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Of one credential.
    Credential(SecretHash),
    /// Of any number of them.
    Any,
}

const CHANNEL: &str = "credentials";
/// A note to ourselves on that channel: nothing changed.
const NOTE: &str = "note";

/// Changes of credentials and callers, heard of at their commit.
#[derive(Debug)]
pub struct Changes(PgListener);

impl Changes {
    /// Begins to listen, on a connection of its own.
    pub async fn listen(database: &Database) -> Result<Self, Error> {
        let mut listener = bounded(PgListener::connect_with(database.pool())).await?;
        listener.eager_reconnect(false);
        bounded(listener.listen(CHANNEL)).await?;
        Ok(Self(listener))
    }

    /// Sends a note to all that listen, to find out whether we are among them.
    pub async fn check(&self, database: &Database) -> Result<(), Error> {
        bounded(
            sqlx::query("select pg_notify($1, $2)")
                .bind(CHANNEL)
                .bind(NOTE)
                .execute(database.pool()),
        )
        .await?;
        Ok(())
    }

    /// The next change; `None`: a note. Waits as long as it takes.
    pub async fn next(&mut self) -> Result<Option<Change>, Error> {
        // `None` is a connection lost, and with it what was said meanwhile.
        let notification = self.0.try_recv().await?.ok_or(Error::TimedOut)?;
        Ok(match notification.payload() {
            NOTE => None,
            hash => Some(read_hash(hash).map_or(Change::Any, Change::Credential)),
        })
    }
}

fn read_hash(hexadecimal: &str) -> Option<SecretHash> {
    let mut hash = SecretHash::default();
    if hexadecimal.len() != 2 * hash.len() {
        return None;
    }
    for (index, byte) in hash.iter_mut().enumerate() {
        let digits = hexadecimal.get(2 * index..2 * index + 2)?;
        *byte = u8::from_str_radix(digits, 16).ok()?;
    }
    Some(hash)
}
