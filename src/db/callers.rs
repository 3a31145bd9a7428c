//! Queries on callers.

use sqlx::{FromRow, PgExecutor};

use super::{codec, deadline::with_timeout, error::Error};
use crate::domain::{
    caller::{Caller, CallerId, CallerName, Scopes},
    plan::Plan,
};

/// Caller, as listed for the operator.
#[derive(Debug, Clone)]
pub struct CallerRecord {
    /// Identifier.
    pub id: CallerId,
    /// Name.
    pub name: String,
    /// Plan.
    pub plan: Plan,
    /// Granted scopes.
    pub scopes: Scopes,
    /// Number of credentials that are neither revoked nor expired.
    pub live_credentials: i64,
}

#[derive(FromRow)]
struct Row {
    id: i64,
    name: String,
    plan: String,
    scopes: Vec<String>,
    live_credentials: i64,
}

impl TryFrom<Row> for CallerRecord {
    type Error = Error;

    fn try_from(row: Row) -> Result<Self, Error> {
        Ok(Self {
            id: CallerId(row.id),
            plan: codec::parse_plan(&row.plan)?,
            scopes: codec::parse_scopes(&row.scopes),
            name: row.name,
            live_credentials: row.live_credentials,
        })
    }
}

/// Inserts a caller. Returns `None` if the name is taken.
pub async fn insert(
    executor: impl PgExecutor<'_>,
    name: &CallerName,
    plan: Plan,
    scopes: Scopes,
) -> Result<Option<CallerId>, Error> {
    let id = with_timeout(
        sqlx::query_scalar(
            "insert into callers (name, plan, scopes) values ($1, $2, $3)
             on conflict (name) do nothing
             returning id",
        )
        .bind(name.as_str())
        .bind(plan.as_str())
        .bind(codec::scope_names(scopes))
        .fetch_optional(executor),
    )
    .await?;
    Ok(id.map(CallerId))
}

/// Returns the caller with this name, as listed for the operator.
pub async fn find(
    executor: impl PgExecutor<'_>,
    name: &CallerName,
) -> Result<Option<CallerRecord>, Error> {
    with_timeout(
        sqlx::query_as::<_, Row>(
            "select id, name, plan, scopes,
                    (select count(*) from credentials c
                     where c.caller_id = callers.id and c.revoked_at is null
                       and (c.expires_at is null or c.expires_at > now())) as live_credentials
             from callers where name = $1",
        )
        .bind(name.as_str())
        .fetch_optional(executor),
    )
    .await?
    .map(CallerRecord::try_from)
    .transpose()
}

/// Returns the caller with this name, as its requests act, with all its scopes.
pub async fn get(
    executor: impl PgExecutor<'_>,
    name: &CallerName,
) -> Result<Option<Caller>, Error> {
    let row: Option<(i64, String, Vec<String>)> = with_timeout(
        sqlx::query_as("select id, plan, scopes from callers where name = $1")
            .bind(name.as_str())
            .fetch_optional(executor),
    )
    .await?;
    row.map(|(id, plan, scopes)| {
        Ok(Caller {
            id: Some(CallerId(id)),
            name: name.clone(),
            plan: codec::parse_plan(&plan)?,
            scopes: codec::parse_scopes(&scopes),
        })
    })
    .transpose()
}

/// Returns all callers, sorted by name.
pub async fn list(executor: impl PgExecutor<'_>) -> Result<Vec<CallerRecord>, Error> {
    with_timeout(
        sqlx::query_as::<_, Row>(
            "select id, name, plan, scopes,
                    (select count(*) from credentials c
                     where c.caller_id = callers.id and c.revoked_at is null
                       and (c.expires_at is null or c.expires_at > now())) as live_credentials
             from callers order by name",
        )
        .fetch_all(executor),
    )
    .await?
    .into_iter()
    .map(CallerRecord::try_from)
    .collect()
}

/// Sets the plan of a caller. Returns false if there is no caller with this name.
pub async fn set_plan(
    executor: impl PgExecutor<'_>,
    name: &CallerName,
    plan: Plan,
) -> Result<bool, Error> {
    let result = with_timeout(
        sqlx::query("update callers set plan = $2 where name = $1")
            .bind(name.as_str())
            .bind(plan.as_str())
            .execute(executor),
    )
    .await?;
    Ok(result.rows_affected() == 1)
}
