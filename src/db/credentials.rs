//! Queries on credentials: hashes of secrets, and the callers that they authenticate.

use std::{collections::HashMap, time::Duration};

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::json;
use sqlx::{FromRow, Row as _, postgres::PgRow};
use utoipa::ToSchema;

use super::{
    administration::{Administration, is_administrator},
    batch::{BatchResult, BatchedStatement},
    codec::{self, SecretHash},
    connect::Connection,
    database::Database,
    deadline::with_timeout,
    error::Error,
    record::{self, Record},
};
use crate::domain::{
    caller::{Caller, CallerId, KeyName, Scope, Scopes},
    change::{Action, Initiator, Kind},
    clock::{rfc3339, serialize_time},
    id::CredentialId,
    plan::Plan,
};

/// Kind of a credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CredentialKind {
    /// API key, which authenticates requests.
    ApiKey,
    /// OAuth client secret, which is exchanged for access tokens.
    ClientSecret,
    /// Access token of an OAuth client, valid for 1 hour by default; see [`super::oauth`].
    AccessToken,
    /// Session of a user until logout; see [`super::sessions`].
    Session,
}

impl CredentialKind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::ApiKey => "api_key",
            Self::ClientSecret => "client_secret",
            Self::AccessToken => "access_token",
            Self::Session => "session",
        }
    }

    /// Returns its kind in the record of changes, which does not have access tokens.
    const fn recorded(self) -> Option<Kind> {
        match self {
            Self::ApiKey => Some(Kind::Key),
            Self::ClientSecret => Some(Kind::Client),
            Self::Session => Some(Kind::Session),
            Self::AccessToken => None,
        }
    }
}

/// API key or client secret to be stored.
#[derive(Debug, Clone)]
pub struct NewCredential {
    /// Caller that it authenticates.
    pub caller: CallerId,
    /// SHA-256 of the secret.
    pub hash: SecretHash,
    /// First characters of a generated secret; empty for a chosen one.
    pub hint: String,
    /// Public identifier of the client; `None` for an API key.
    pub client_id: Option<String>,
    /// Name of an API key, for people.
    pub name: Option<KeyName>,
    /// Limit on the scopes of the caller; `None` for all of them.
    pub scopes: Option<Scopes>,
    /// Expiry; `None` for never.
    pub expires_at: Option<DateTime<Utc>>,
}

/// Inserts an API key or a client secret of a caller that the transaction has inserted or keeps, and returns its identifier.
/// Returns `None` if the same secret is already stored.
pub async fn insert(
    transaction: &mut Connection,
    credential: NewCredential,
    initiator: &Initiator,
) -> Result<Option<CredentialId>, Error> {
    let kind = match credential.client_id {
        None => CredentialKind::ApiKey,
        Some(_) => CredentialKind::ClientSecret,
    };
    let query = sqlx::query_as(
        "insert into credentials (caller_id, kind, hash, hint, client_id, name, scopes, expires_at)
         values ($1, $2, $3, $4, $5, $6, $7, $8)
         on conflict (hash) do nothing
         returning id, coalesce(scopes, (select scopes from callers where id = caller_id))",
    )
    .bind(credential.caller.0)
    .bind(kind.as_str())
    .bind(credential.hash)
    .bind(credential.hint)
    .bind(credential.client_id)
    .bind(credential.name.as_ref().map(KeyName::as_str))
    .bind(credential.scopes.map(codec::scope_names))
    .bind(credential.expires_at);
    let inserted: Option<(CredentialId, Scopes)> =
        with_timeout(query.fetch_optional(&mut *transaction)).await?;
    let Some((id, scopes)) = inserted else {
        return Ok(None);
    };
    let mut data = json!({"caller": credential.caller.0, "scopes": codec::scope_names(scopes)});
    if let Some(expires_at) = credential.expires_at {
        data["expiresAt"] = json!(rfc3339(expires_at));
    }
    let kind = kind.recorded().unwrap_or(Kind::Key);
    let record = Record::new(kind, &id, Action::Created, initiator).with_data(Some(data));
    record::write(transaction, &[record]).await?;
    Ok(Some(id))
}

/// Caller that a valid credential authenticates.
#[derive(Debug, Clone)]
pub struct Found {
    /// Caller, with the scopes of the credential.
    pub caller: Caller,
    /// Time until the credential expires; `None` for never.
    pub expires_in: Option<Duration>,
    /// Identifier of the credential if it is an API key.
    pub api_key: Option<i64>,
}

/// Returns the caller that a secret authenticates, in a batch with the lookups of other requests. Returns `None` if the
/// secret is unknown, revoked or expired, or its caller is disabled.
pub async fn find_caller(database: &Database, hash: &SecretHash) -> Result<Option<Found>, Error> {
    database.batchers().execute::<Lookups>(*hash).await
}

/// Statement that looks up the credentials of several requests.
pub(super) struct Lookups;

impl BatchedStatement for Lookups {
    type Input = SecretHash;
    type Output = Option<Found>;

    const SUMMARY: &'static str = "SELECT credentials";
    const IS_READ_ONLY: bool = true;

    async fn execute_all(
        connection: &mut Connection,
        inputs: &mut Vec<SecretHash>,
    ) -> Result<Vec<BatchResult<Self>>, Error> {
        let callers = find_callers(connection, inputs).await?;
        let results = (inputs.drain(..)).map(|hash| BatchResult::Done(callers.get(&hash).cloned()));
        Ok(results.collect())
    }
}

/// Returns the callers that these secrets authenticate. Unknown, revoked and expired secrets are left
/// out, and those of disabled callers.
pub async fn find_callers(
    connection: &mut Connection,
    hashes: &[SecretHash],
) -> Result<HashMap<SecretHash, Found>, Error> {
    let query = sqlx::query(
        "select credentials.hash, callers.id, callers.name, callers.plan, callers.scopes,
                credentials.scopes as own_scopes,
                extract(epoch from expires_at - now())::float8 as expires_in,
                case when credentials.kind = 'api_key' then credentials.id end as api_key
         from credentials
         cross join lateral (select * from callers where id = caller_id offset 0) callers
         where credentials.hash = any ($1)
           and credentials.kind <> 'client_secret'
           and credentials.revoked_at is null
           and (credentials.expires_at is null or credentials.expires_at > now())
           and callers.disabled_at is null",
    );
    let found = query.bind(hashes).try_map(|row: PgRow| {
        let caller = Caller {
            id: row.try_get("id")?,
            name: row.try_get("name")?,
            plan: row.try_get("plan")?,
            scopes: Scopes::from_row(&row)?,
        };
        let expires_in = row.try_get::<Option<f64>, _>("expires_in")?;
        let expires_in = expires_in.map(|seconds| Duration::from_secs_f64(seconds.max(0.0)));
        let found = Found {
            caller,
            expires_in,
            api_key: row.try_get("api_key")?,
        };
        Ok((row.try_get("hash")?, found))
    });
    let found = with_timeout(found.fetch_all(connection)).await?;
    Ok(found.into_iter().collect())
}

/// Records that API keys were just used. Skips those with a use recorded in the last minute, and locked ones.
pub async fn record_uses(connection: &mut Connection, ids: &[i64]) -> Result<(), Error> {
    let query = sqlx::query(
        "update credentials set last_used_at = now()
         where id = any (array(
             select id from credentials
             where id = any ($1)
               and (last_used_at is null or last_used_at <= now() - interval '1 minute')
             for no key update skip locked
         ))",
    );
    let recorded = with_timeout(query.bind(ids).execute(connection)).await;
    recorded.map(drop)
}

/// API key, OAuth client or login session, without its secret.
#[derive(Debug, Clone, FromRow, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Credential, example = json!({
    "id": 12,
    "callerId": 7,
    "caller": "acme",
    "hint": "pik_1a2B",
    "scopes": ["read:pets"],
    "createdAt": "2026-01-31T12:00:00Z",
    "lastUsedAt": "2026-02-01T08:30:00Z"
}))]
pub struct CredentialRecord {
    /// Identifier.
    #[schema(value_type = i64, minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub id: CredentialId,
    /// Identifier of its caller.
    #[schema(value_type = i64, minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub caller_id: CallerId,
    /// Name of its caller.
    #[schema(min_length = 1, max_length = 128, pattern = r"^[^\x00]*$")]
    pub caller: String,
    /// First characters of the secret; empty if a person chose it.
    #[schema(max_length = 8, pattern = "^[0-9A-Za-z_]*$")]
    pub hint: String,
    /// Name of a key, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(
        nullable = false,
        min_length = 1,
        max_length = 100,
        pattern = r"^[^\x00-\x1f\x7f]*$"
    )]
    pub name: Option<String>,
    /// Public identifier of an OAuth client.
    #[serde(rename = "client_id", skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, max_length = 64, pattern = "^[0-9A-Za-z_]+$")]
    pub client_id: Option<String>,
    /// Scopes of the caller that it has.
    #[sqlx(flatten)]
    #[schema(value_type = Vec<Scope>, max_items = 16)]
    pub scopes: Scopes,
    /// Time of creation, in UTC.
    #[serde(serialize_with = "serialize_time")]
    #[schema(value_type = String, format = "date-time", max_length = 64)]
    pub created_at: DateTime<Utc>,
    /// Expiry; absent for never.
    #[serde(
        serialize_with = "serialize_time",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<String>, nullable = false, format = "date-time", max_length = 64)]
    pub expires_at: Option<DateTime<Utc>>,
    /// Time of the revocation.
    #[serde(
        serialize_with = "serialize_time",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<String>, nullable = false, format = "date-time", max_length = 64)]
    pub revoked_at: Option<DateTime<Utc>>,
    /// Time of the last use of a key, to the minute.
    #[serde(
        serialize_with = "serialize_time",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<String>, nullable = false, format = "date-time", max_length = 64)]
    pub last_used_at: Option<DateTime<Utc>>,
}

/// Returns the first `limit` credentials of a kind after `after`, of all callers or of one, oldest first, including revoked
/// and expired ones.
pub async fn list(
    connection: &mut Connection,
    kind: CredentialKind,
    caller: Option<CallerId>,
    after: Option<CredentialId>,
    limit: usize,
) -> Result<Vec<CredentialRecord>, Error> {
    macro_rules! list {
        ($from:literal) => {
            concat!(
                "select credentials.id, hint, credentials.name, client_id, caller_id, callers.name as caller,
                        callers.scopes, credentials.scopes as own_scopes,
                        credentials.created_at, expires_at, revoked_at, last_used_at
                 from ",
                $from,
                "
                 join callers on callers.id = credentials.caller_id
                 where kind = $1 and credentials.id > $2
                 order by kind, credentials.id
                 limit $3"
            )
        };
    }
    // `offset 0` keeps the credentials of a caller from being looked for among all.
    let query = match caller {
        None => sqlx::query_as(list!("credentials")),
        Some(_) => sqlx::query_as(list!(
            "(select * from credentials where caller_id = $4 offset 0) credentials"
        )),
    };
    let query = query
        .bind(kind.as_str())
        .bind(after.map_or(0, CredentialId::get))
        .bind(i64::try_from(limit).unwrap_or(i64::MAX));
    let query = match caller {
        None => query,
        Some(caller) => query.bind(caller.0),
    };
    with_timeout(query.fetch_all(connection)).await
}

/// API key that another one replaces.
#[derive(Debug, Clone, FromRow)]
pub struct ReplacedKey {
    /// Identifier of its caller.
    pub caller: CallerId,
    /// Name of its caller.
    pub caller_name: String,
    /// Plan of its caller.
    pub plan: Plan,
    /// Its name.
    pub name: Option<String>,
    /// Limit on the scopes of its caller; `None` for all of them.
    pub scopes: Option<Scopes>,
    /// Its new expiry.
    pub expires_at: DateTime<Utc>,
    /// Expiry of a key that is created now, with the same lifetime; `None` for never.
    pub same_expiry: Option<DateTime<Utc>>,
}

/// API key that has replaced another one.
#[derive(Debug, Clone, Copy)]
pub struct NewKey {
    /// Identifier.
    pub id: CredentialId,
    /// Expiry; `None` for never.
    pub expires_at: Option<DateTime<Utc>>,
}

/// Outcome of a rotation.
#[derive(Debug)]
pub enum RotateOutcome {
    /// The key was replaced by this one.
    Rotated(ReplacedKey, NewKey, Administration),
    /// There is no valid key with this identifier.
    NotFound,
    /// Another key has replaced it already.
    AlreadyRotated,
    /// The new secret is already stored.
    NotUnique,
}

/// Replaces an API key by another, `new`, with the same caller. Lets the old one expire at `until`, unless it expires earlier.
pub async fn rotate(
    transaction: &mut Connection,
    id: CredentialId,
    until: DateTime<Utc>,
    new: impl FnOnce(&ReplacedKey) -> NewCredential,
    initiator: &Initiator,
) -> Result<RotateOutcome, Error> {
    let Some(was_administrator) = owner_is_administrator(transaction, id).await? else {
        return Ok(RotateOutcome::NotFound);
    };
    let query = sqlx::query_as(
        "update credentials set expires_at = least(old.expires_at, $2), rotated_at = now()
         from (select * from credentials where id = $1 for update) old join callers on callers.id = old.caller_id
         where credentials.id = old.id and old.kind = 'api_key' and old.revoked_at is null and old.rotated_at is null
           and (old.expires_at is null or old.expires_at > now())
         returning old.caller_id as caller, callers.name as caller_name, plan, old.name, old.scopes, credentials.expires_at,
                   now() + (old.expires_at - old.created_at) as same_expiry",
    );
    let query = query.bind(id.get()).bind(until);
    let replaced: Option<ReplacedKey> =
        with_timeout(query.fetch_optional(&mut *transaction)).await?;
    let Some(replaced) = replaced else {
        let query = sqlx::query_scalar(
            "select exists (select from credentials where id = $1 and rotated_at is not null and revoked_at is null
                                                      and (expires_at is null or expires_at > now()))",
        );
        let is_rotated = with_timeout(query.bind(id.get()).fetch_one(transaction)).await?;
        return Ok(if is_rotated {
            RotateOutcome::AlreadyRotated
        } else {
            RotateOutcome::NotFound
        });
    };
    let data = json!({"caller": replaced.caller.0, "expiresAt": rfc3339(replaced.expires_at)});
    let record = Record::new(Kind::Key, &id, Action::Changed, initiator).with_data(Some(data));
    record::write(transaction, &[record]).await?;
    let new = new(&replaced);
    let expires_at = new.expires_at;
    let Some(id) = insert(transaction, new, initiator).await? else {
        return Ok(RotateOutcome::NotUnique);
    };
    let new = NewKey { id, expires_at };
    let administration = Administration::after(transaction, was_administrator).await?;
    Ok(RotateOutcome::Rotated(replaced, new, administration))
}

/// Returns true if the caller of a credential is an administrator, as [`is_administrator`] does, or `None` if there is no such
/// credential.
async fn owner_is_administrator(
    transaction: &mut Connection,
    id: CredentialId,
) -> Result<Option<bool>, Error> {
    let query = sqlx::query_scalar("select caller_id from credentials where id = $1");
    let query = query.bind(id.get()).fetch_optional(&mut *transaction);
    match with_timeout(query).await? {
        Some(caller) => is_administrator(transaction, caller).await,
        None => Ok(None),
    }
}

/// Revokes an API key, a client with its tokens, or a session. Returns `None` if there is none to revoke.
pub async fn revoke(
    transaction: &mut Connection,
    kind: CredentialKind,
    id: CredentialId,
    initiator: &Initiator,
) -> Result<Option<Administration>, Error> {
    // The caller before its credential, as the deletion of the caller does: otherwise both could deadlock. Tokens and sessions make
    // no administrator.
    let was_administrator = match kind {
        CredentialKind::ApiKey | CredentialKind::ClientSecret => {
            owner_is_administrator(transaction, id).await?
        }
        CredentialKind::AccessToken | CredentialKind::Session => None,
    };
    let query = sqlx::query_scalar(
        "update credentials set revoked_at = now()
         where id = $1 and kind = $2 and revoked_at is null
         returning caller_id",
    )
    .bind(id.get())
    .bind(kind.as_str());
    let caller: Option<CallerId> = with_timeout(query.fetch_optional(&mut *transaction)).await?;
    let revoked = caller.map(|caller| (id, kind, caller));
    record(transaction, revoked.as_slice(), Action::Deleted, initiator).await?;
    // A separate statement, so that it sees a token that was issued while the first one waited for the row lock.
    let query = sqlx::query(
        "update credentials set revoked_at = now() where issued_by = $1 and revoked_at is null",
    );
    with_timeout(query.bind(id.get()).execute(&mut *transaction)).await?;
    if caller.is_none() {
        return Ok(None);
    }
    let was_administrator = was_administrator.unwrap_or_default();
    let administration = Administration::after(transaction, was_administrator).await?;
    Ok(Some(administration))
}

/// Revokes all sessions of a caller. Returns their hashes, to be evicted from caches. Records them if another caller, the
/// `initiator`, ends them.
pub async fn revoke_sessions(
    transaction: &mut Connection,
    caller: CallerId,
    initiator: Option<&Initiator>,
) -> Result<Vec<SecretHash>, Error> {
    let query = sqlx::query_as(
        "update credentials set revoked_at = now()
         where caller_id = $1 and kind = 'session' and revoked_at is null and expires_at > now()
         returning id, hash",
    );
    let query = query.bind(caller.0).fetch_all(&mut *transaction);
    let revoked: Vec<(CredentialId, SecretHash)> = with_timeout(query).await?;
    if let Some(initiator) = initiator {
        let sessions = revoked.iter();
        let sessions = sessions.map(|(id, _)| (*id, CredentialKind::Session, caller));
        let sessions: Vec<_> = sessions.collect();
        record(transaction, &sessions, Action::Deleted, initiator).await?;
    }
    Ok(revoked.into_iter().map(|(_, hash)| hash).collect())
}

/// Records what was done to credentials: their identifiers, kinds and callers.
async fn record(
    transaction: &mut Connection,
    credentials: &[(CredentialId, CredentialKind, CallerId)],
    action: Action,
    initiator: &Initiator,
) -> Result<(), Error> {
    let credentials = credentials.iter();
    let records = credentials.filter_map(|(id, kind, caller)| {
        let record = Record::new(kind.recorded()?, id, action, initiator);
        Some(record.of_caller(*caller))
    });
    record::write(transaction, &records.collect::<Vec<_>>()).await
}

/// Returns true if any credential is stored, including revoked and expired ones.
pub async fn any_stored(connection: &mut Connection) -> Result<bool, Error> {
    let query = sqlx::query_scalar("select exists (select from credentials)");
    with_timeout(query.fetch_one(connection)).await
}
