//! Queries on callers.

use chrono::{DateTime, Utc};
use sqlx::{AssertSqlSafe, FromRow, Postgres, postgres::PgArguments, query::Query};

use super::{codec, connect::Connection, deadline::with_timeout, error::Error};
use crate::domain::{
    caller::{Caller, CallerId, CallerName, Scopes},
    plan::Plan,
};

/// Caller, as listed for the operator.
#[derive(Debug, Clone, FromRow)]
pub struct CallerRecord {
    /// Identifier.
    pub id: CallerId,
    /// Name.
    pub name: String,
    /// Plan.
    pub plan: Plan,
    /// Granted scopes.
    pub scopes: Scopes,
    /// Time at which the caller was disabled; `None` if it is enabled.
    pub disabled_at: Option<DateTime<Utc>>,
    /// Number of credentials that are neither revoked nor expired.
    pub live_credentials: i64,
}

/// Inserts a caller. Returns `None` if the name is taken.
pub async fn insert(
    connection: &mut Connection,
    name: &CallerName,
    plan: Plan,
    scopes: Scopes,
) -> Result<Option<CallerId>, Error> {
    let query = sqlx::query_scalar(
        "insert into callers (name, plan, scopes) values ($1, $2, $3)
         on conflict (name) do nothing
         returning id",
    )
    .bind(name.as_str())
    .bind(plan.as_str())
    .bind(codec::scope_names(scopes));
    with_timeout(query.fetch_optional(connection)).await
}

/// Returns the caller with this name, as listed for the operator.
pub async fn find(
    connection: &mut Connection,
    name: &CallerName,
) -> Result<Option<CallerRecord>, Error> {
    let query = sqlx::query_as(AssertSqlSafe(format!("{RECORDS} where name = $1")));
    with_timeout(query.bind(name.as_str()).fetch_optional(connection)).await
}

/// Returns all callers, sorted by name.
pub async fn list(connection: &mut Connection) -> Result<Vec<CallerRecord>, Error> {
    let query = sqlx::query_as(AssertSqlSafe(format!("{RECORDS} order by name")));
    with_timeout(query.fetch_all(connection)).await
}

/// Query for callers, without its condition and order.
const RECORDS: &str = "
    select id, name, plan, scopes, disabled_at,
           (select count(*) from credentials c
            where c.caller_id = callers.id and c.revoked_at is null
              and (c.expires_at is null or c.expires_at > now())) as live_credentials
    from callers";

/// Returns the caller with this name, as its requests act, with all its scopes, and true if it is disabled.
pub async fn get(
    connection: &mut Connection,
    name: &CallerName,
) -> Result<Option<(Caller, bool)>, Error> {
    let query = sqlx::query_as(
        "select id, plan, scopes, disabled_at is not null from callers where name = $1",
    );
    let row = with_timeout(query.bind(name.as_str()).fetch_optional(connection)).await?;
    Ok(row.map(|(id, plan, scopes, is_disabled)| {
        let caller = Caller {
            id: Some(id),
            name: name.clone(),
            plan,
            scopes,
        };
        (caller, is_disabled)
    }))
}

/// Sets the plan of a caller. Returns false if there is no caller with this name.
pub async fn set_plan(
    connection: &mut Connection,
    name: &CallerName,
    plan: Plan,
) -> Result<bool, Error> {
    let query = sqlx::query("update callers set plan = $2 where name = $1")
        .bind(name.as_str())
        .bind(plan.as_str());
    affects_one(connection, query).await
}

/// Sets the scopes of a caller, which limit those of its credentials. Returns false if there is no caller with this name.
pub async fn set_scopes(
    connection: &mut Connection,
    name: &CallerName,
    scopes: Scopes,
) -> Result<bool, Error> {
    let query = sqlx::query("update callers set scopes = $2 where name = $1")
        .bind(name.as_str())
        .bind(codec::scope_names(scopes));
    affects_one(connection, query).await
}

/// Disables or enables a caller. Returns false if there is no caller with this name.
pub async fn set_disabled(
    connection: &mut Connection,
    name: &CallerName,
    is_disabled: bool,
) -> Result<bool, Error> {
    let query = sqlx::query(
        "update callers set disabled_at = case when $2 then coalesce(disabled_at, now()) end
         where name = $1",
    )
    .bind(name.as_str())
    .bind(is_disabled);
    affects_one(connection, query).await
}

/// Deletes a caller with its credentials and, if it is the caller of a user, the account. Returns false if there is no
/// caller with this name.
pub async fn delete(transaction: &mut Connection, name: &CallerName) -> Result<bool, Error> {
    // Before the caller, as a request that deletes the account does: otherwise both could deadlock.
    let account =
        sqlx::query("delete from users where caller_id = (select id from callers where name = $1)");
    with_timeout(account.bind(name.as_str()).execute(&mut *transaction)).await?;
    let caller = sqlx::query("delete from callers where name = $1").bind(name.as_str());
    affects_one(transaction, caller).await
}

async fn affects_one(
    connection: &mut Connection,
    query: Query<'_, Postgres, PgArguments>,
) -> Result<bool, Error> {
    Ok(with_timeout(query.execute(connection))
        .await?
        .rows_affected()
        == 1)
}
