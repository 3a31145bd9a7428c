//! Keeps the last administrator: statements that make changes of callers and credentials say if one is left.

use super::{connect::Connection, deadline::with_timeout, error::Error};
use crate::domain::caller::CallerId;

/// Whether the service still has an administrator: a caller that is enabled, and has the scope `admin` and a key or client with it
/// that stays valid for a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Administration {
    /// It has one, or this change takes none away.
    Kept,
    /// This change takes away the last one.
    Lost,
}

/// Key of the advisory lock: an arbitrary number that never changes and has no other use.
const LOCK_KEY: i64 = 0x7065_7473_6164_6d69;

/// Condition that a row of `callers` is an administrator.
macro_rules! administrator {
    () => {
        "scopes @> '{admin}' and disabled_at is null and exists (
             select from credentials
             where caller_id = callers.id and kind in ('api_key', 'client_secret')
               and (credentials.scopes is null or credentials.scopes @> '{admin}')
               and revoked_at is null and (expires_at is null or expires_at > now() + interval '1 day')
         )"
    };
}

impl Administration {
    /// Returns the state after a change in this transaction of a caller that was an administrator before, or not. Until the
    /// transaction ends, others wait here, so that two cannot take away the last two.
    pub(super) async fn after(
        transaction: &mut Connection,
        was_administrator: bool,
    ) -> Result<Self, Error> {
        if !was_administrator {
            return Ok(Self::Kept);
        }
        // A statement of its own, so that the next one sees what others have committed meanwhile.
        let lock = sqlx::query("select pg_advisory_xact_lock($1)").bind(LOCK_KEY);
        with_timeout(lock.execute(&mut *transaction)).await?;
        let query = sqlx::query_scalar(concat!(
            "select exists (select from callers where ",
            administrator!(),
            ")"
        ));
        let has_one = with_timeout(query.fetch_one(transaction)).await?;
        Ok(if has_one { Self::Kept } else { Self::Lost })
    }
}

/// Returns true if there are callers with the scope `admin`, but their keys and clients have expired, or will within a day.
pub async fn is_ending(connection: &mut Connection) -> Result<bool, Error> {
    let query = sqlx::query_scalar(concat!(
        "select exists (select from callers where scopes @> '{admin}' and disabled_at is null)
             and not exists (select from callers where ",
        administrator!(),
        ")"
    ));
    with_timeout(query.fetch_one(connection)).await
}

/// Returns true if the caller is an administrator, or `None` if there is no such caller. It is not changed before the
/// transaction ends, and gets no key or client.
pub(super) async fn is_administrator(
    transaction: &mut Connection,
    id: CallerId,
) -> Result<Option<bool>, Error> {
    // A statement of its own, so that the next one sees a key that was added meanwhile.
    let lock = sqlx::query("select from callers where id = $1 for update").bind(id.0);
    with_timeout(lock.execute(&mut *transaction)).await?;
    let query = sqlx::query_scalar(concat!(
        "select ",
        administrator!(),
        " from callers where id = $1"
    ));
    with_timeout(query.bind(id.0).fetch_optional(transaction)).await
}
