//! Queries on user sessions, which are rows of `credentials`.

use std::{num::NonZeroU32, time::Duration};

use chrono::{DateTime, Utc};
use secrecy::{ExposeSecret, SecretString};

use super::{codec::SecretHash, connect::Connection, deadline::with_timeout, error::Error};
use crate::domain::user::UserId;

/// Inserts a session of a user and returns its expiry. Returns `None` if the user is gone, has another password hash, or
/// is a disabled caller.
///
/// Locks the row of the user, so that a change of the password waits and then ends this session too, and another login
/// waits and then counts this session.
pub async fn insert(
    transaction: &mut Connection,
    user: UserId,
    password_hash: &SecretString,
    (hash, hint, lifetime): (&SecretHash, &str, Duration),
) -> Result<Option<DateTime<Utc>>, Error> {
    let query = sqlx::query_scalar(
        "insert into credentials (caller_id, kind, hash, hint, expires_at)
         select caller_id, 'session', $3, $4, now() + make_interval(secs => $5)
         from users
         where id = $1 and password_hash = $2
           and not exists (select from callers where id = caller_id and disabled_at is not null)
         for no key update
         returning expires_at",
    )
    .bind(user.0)
    .bind(password_hash.expose_secret())
    .bind(hash)
    .bind(hint)
    .bind(lifetime.as_secs_f64());
    with_timeout(query.fetch_optional(transaction)).await
}

/// Ends the oldest sessions of a user, so that `max` remain. Returns their hashes, to be evicted from caches.
///
/// Must follow an [`insert`] in the same transaction, which locks the row of the user.
pub async fn revoke_oldest(
    transaction: &mut Connection,
    user: UserId,
    max: NonZeroU32,
) -> Result<Vec<SecretHash>, Error> {
    let query = sqlx::query_scalar(
        "update credentials set revoked_at = now()
         where id = any (array(
             select id from credentials
             where caller_id = (select caller_id from users where id = $1)
               and kind = 'session' and revoked_at is null and expires_at > now()
             order by id desc
             offset $2
         ))
         returning hash",
    )
    .bind(user.0)
    .bind(i64::from(max.get()));
    with_timeout(query.fetch_all(transaction)).await
}

/// Ends a session. Returns false if there is none to end.
pub async fn revoke(connection: &mut Connection, hash: &SecretHash) -> Result<bool, Error> {
    let query = sqlx::query(
        "update credentials set revoked_at = now()
         where hash = $1 and kind = 'session' and revoked_at is null",
    );
    let revoked = with_timeout(query.bind(hash).execute(connection)).await?;
    Ok(revoked.rows_affected() == 1)
}

/// Deletes up to 1,000 sessions that expired over an hour ago, and returns their number. Skips locked rows.
pub async fn purge_expired(connection: &mut Connection) -> Result<u64, Error> {
    let query = sqlx::query(
        "delete from credentials
         where id = any (array(
             select id from credentials
             where kind = 'session' and expires_at < now() - interval '1 hour'
             limit 1000
             for update skip locked
         ))",
    );
    let deleted = with_timeout(query.execute(connection)).await?;
    Ok(deleted.rows_affected())
}
