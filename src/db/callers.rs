//! Queries on callers.

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::{Map, Value, json};
use sqlx::{AssertSqlSafe, FromRow};
use utoipa::ToSchema;

use super::{
    administration::{Administration, is_administrator},
    codec::{self, SecretHash},
    connect::Connection,
    deadline::with_timeout,
    error::Error,
    record::{self, Record, recorded},
};
use crate::domain::{
    caller::{Caller, CallerId, CallerName, Scope, Scopes},
    change::{Action, Initiator, Kind},
    clock::serialize_time,
    end_of_prefix,
    plan::Plan,
    user::{UserId, Username, fold_username},
};

/// Caller, which owns credentials.
#[derive(Debug, Clone, FromRow, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Caller, example = json!({
    "id": 7,
    "name": "acme",
    "plan": "pro",
    "scopes": ["read:pets", "write:pets"],
    "disabled": false,
    "credentials": 1,
    "createdAt": "2026-01-31T12:00:00Z"
}))]
pub struct CallerRecord {
    /// Identifier.
    #[schema(value_type = i64, minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub id: CallerId,
    /// Name. Those of user accounts begin with `user:`, those of the subjects of an issuer with `jwt:`.
    #[schema(value_type = String, min_length = 1, max_length = 128, pattern = r"^[^\x00]*$")]
    pub name: CallerName,
    /// Plan.
    pub plan: Plan,
    /// Scopes, which limit those of its credentials.
    #[schema(value_type = Vec<Scope>, max_items = 16)]
    pub scopes: Scopes,
    /// True if all of its credentials are refused.
    pub disabled: bool,
    /// Number of its credentials that are neither revoked nor expired.
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    pub credentials: i64,
    /// Time of creation, in UTC.
    #[serde(serialize_with = "serialize_time")]
    #[schema(value_type = String, format = "date-time", max_length = 64)]
    pub created_at: DateTime<Utc>,
    /// Username, of the caller of a user account.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false, min_length = 1, max_length = 64, pattern = r"^[^\x00]*$")]
    pub username: Option<Username>,
}

/// Inserts a caller. Returns `None` if the name is taken. One statement: others that insert the same name wait for it.
pub async fn insert(
    connection: &mut Connection,
    name: &CallerName,
    plan: Plan,
    scopes: Scopes,
    initiator: &Initiator,
) -> Result<Option<CallerId>, Error> {
    let query = sqlx::query_scalar(concat!(
        "with inserted as (
             insert into callers (name, plan, scopes) values ($1, $2, $3)
             on conflict (name) do nothing
             returning id, plan
         ), ",
        recorded!(
            "select 'caller', id::text, 'created', null, null, $4, $5,
                    jsonb_build_object('plan', jsonb_build_array(null, plan), 'scopes', to_jsonb($3::text[]))
             from inserted"
        ),
        "
         select id from inserted"
    ))
    .bind(name.as_str())
    .bind(plan.as_str())
    .bind(codec::scope_names(scopes))
    .bind(initiator.actor())
    .bind(&initiator.request_id);
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

/// Returns the caller with this identifier, as listed for the operator.
pub async fn find_by_id(
    connection: &mut Connection,
    id: CallerId,
) -> Result<Option<CallerRecord>, Error> {
    let query = sqlx::query_as(AssertSqlSafe(format!("{RECORDS} where id = $1")));
    with_timeout(query.bind(id.0).fetch_optional(connection)).await
}

/// Returns the caller with this identifier, which is not deleted before the transaction ends.
pub async fn keep(
    transaction: &mut Connection,
    id: CallerId,
) -> Result<Option<CallerRecord>, Error> {
    let query = sqlx::query_as(AssertSqlSafe(format!(
        "{RECORDS} where id = $1 for key share of callers"
    )));
    with_timeout(query.bind(id.0).fetch_optional(transaction)).await
}

/// Returns the first `limit` callers after `after` with names, or usernames in any case, that begin with `prefix`, by name.
pub async fn list(
    connection: &mut Connection,
    prefix: &str,
    after: Option<&CallerName>,
    limit: usize,
) -> Result<Vec<CallerRecord>, Error> {
    let folded = fold_username(prefix);
    let query = sqlx::query_as(AssertSqlSafe(format!(
        "{RECORDS} where id in (
             (select id from callers
              where name collate \"C\" >= $1 and name collate \"C\" > $2
                and ($3::text is null or name collate \"C\" < $3)
              order by name collate \"C\" limit $4)
             union
             (select of_user.id from users join callers of_user on of_user.id = caller_id
              where $1 <> '' and folded collate \"C\" >= $5 and ($6::text is null or folded collate \"C\" < $6)
                and name collate \"C\" > $2
              order by name collate \"C\" limit $4)
         )
         order by name collate \"C\" limit $4"
    )))
    .bind(prefix)
    .bind(after.map_or("", CallerName::as_str))
    .bind(end_of_prefix(prefix))
    .bind(i64::try_from(limit).unwrap_or(i64::MAX))
    .bind(&folded)
    .bind(end_of_prefix(&folded));
    with_timeout(query.fetch_all(connection)).await
}

/// Returns the callers with these names, by name.
pub async fn list_named(
    connection: &mut Connection,
    names: &[String],
    after: Option<&CallerName>,
    limit: usize,
) -> Result<Vec<CallerRecord>, Error> {
    let query = sqlx::query_as(AssertSqlSafe(format!(
        "{RECORDS}
         where name = any ($1) and name collate \"C\" > $2
         order by name collate \"C\" limit $3"
    )))
    .bind(names)
    .bind(after.map_or("", CallerName::as_str))
    .bind(i64::try_from(limit).unwrap_or(i64::MAX));
    with_timeout(query.fetch_all(connection)).await
}

/// Query for callers, without its condition and order.
const RECORDS: &str = "
    select id, name, plan, scopes, created_at, disabled_at is not null as disabled,
           (select count(*) from credentials c
            where c.caller_id = callers.id and c.revoked_at is null
              and (c.expires_at is null or c.expires_at > now())) as credentials,
           (select username from users where caller_id = callers.id) as username
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

/// New values of a caller; `None` keeps the old one.
#[derive(Debug, Clone, Copy, Default)]
pub struct CallerChange {
    /// Plan.
    pub plan: Option<Plan>,
    /// Scopes, which limit those of its credentials.
    pub scopes: Option<Scopes>,
    /// True to refuse its credentials, false to accept them.
    pub is_disabled: Option<bool>,
}

/// Changes a caller. Returns `None` if there is no such caller.
pub async fn change(
    transaction: &mut Connection,
    id: CallerId,
    change: CallerChange,
    initiator: &Initiator,
) -> Result<Option<Administration>, Error> {
    let Some(was_one) = is_administrator(transaction, id).await? else {
        return Ok(None);
    };
    let query = sqlx::query_as(
        "update callers
         set plan = coalesce($2, callers.plan), scopes = coalesce($3, callers.scopes),
             disabled_at = case $4 when true then coalesce(callers.disabled_at, now())
                                   when false then null else callers.disabled_at end
         from (select * from callers where id = $1 for update) old
         where callers.id = old.id
         returning old.plan, old.scopes, old.disabled_at is not null",
    )
    .bind(id.0)
    .bind(change.plan.map(Plan::as_str))
    .bind(change.scopes.map(codec::scope_names))
    .bind(change.is_disabled);
    let old: Option<(Plan, Scopes, bool)> =
        with_timeout(query.fetch_optional(&mut *transaction)).await?;
    let Some((plan, scopes, is_disabled)) = old else {
        return Ok(None);
    };
    let facts = [
        (
            "plan",
            json!(plan.as_str()),
            change.plan.map(|plan| json!(plan.as_str())),
        ),
        (
            "scopes",
            json!(codec::scope_names(scopes)),
            change
                .scopes
                .map(|scopes| json!(codec::scope_names(scopes))),
        ),
        (
            "disabled",
            json!(is_disabled),
            change.is_disabled.map(Value::from),
        ),
    ];
    let changed = facts.into_iter().filter_map(|(name, old, new)| {
        let new = new.filter(|new| *new != old)?;
        Some((name.to_owned(), json!([old, new])))
    });
    let data: Map<_, _> = changed.collect();
    if !data.is_empty() {
        let record = Record::new(Kind::Caller, &id.0, Action::Changed, initiator);
        let record = record.with_data(Some(data));
        record::write(transaction, &[record]).await?;
    }
    let administration = Administration::after(transaction, was_one).await?;
    Ok(Some(administration))
}

/// Result of the deletion of a caller.
#[derive(Debug)]
pub struct Deleted {
    /// Hashes of its credentials, to be evicted from caches.
    pub hashes: Vec<SecretHash>,
    /// Whether an administrator is left.
    pub administration: Administration,
}

/// Deletes a caller with its credentials and, if it is the caller of a user, the account. Returns `None` if there is no such
/// caller.
pub async fn delete(
    transaction: &mut Connection,
    id: CallerId,
    initiator: &Initiator,
) -> Result<Option<Deleted>, Error> {
    // Before the caller, as a request that changes the account does: otherwise both could deadlock.
    let query = sqlx::query_scalar("delete from users where caller_id = $1 returning id");
    let account: Option<UserId> =
        with_timeout(query.bind(id.0).fetch_optional(&mut *transaction)).await?;
    // A credential that is being inserted is committed before this lock, and deleted by the next statement.
    let Some(was_one) = is_administrator(transaction, id).await? else {
        return Ok(None);
    };
    let query = sqlx::query_scalar(concat!(
        "with deleted as (
             delete from credentials where caller_id = $1 returning id, kind, revoked_at, hash
         ), ",
        recorded!(
            "select case kind when 'api_key' then 'key' when 'client_secret' then 'client' else kind end,
                    id::text, 'deleted', null, null, $2, $3, jsonb_build_object('caller', $1)
             from deleted where revoked_at is null and kind <> 'access_token'"
        ),
        "
         select hash from deleted"
    ));
    let query = query
        .bind(id.0)
        .bind(initiator.actor())
        .bind(&initiator.request_id);
    let hashes = with_timeout(query.fetch_all(&mut *transaction)).await?;
    let query = sqlx::query("delete from callers where id = $1");
    with_timeout(query.bind(id.0).execute(&mut *transaction)).await?;
    let deleted = |kind, id: i64| Record::new(kind, &id, Action::Deleted, initiator);
    let mut records = vec![deleted(Kind::Caller, id.0)];
    records.extend(account.map(|user| deleted(Kind::User, user.0).owned_by(Some(id))));
    record::write(transaction, &records).await?;
    let administration = Administration::after(transaction, was_one).await?;
    Ok(Some(Deleted {
        hashes,
        administration,
    }))
}
