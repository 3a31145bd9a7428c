//! Queries on user accounts.
//!
//! Invariants:
//! - A transaction that locks the rows of an account and of its caller locks the account's row first.

use secrecy::{ExposeSecret, SecretString};
use sqlx::{FromRow, PgExecutor};

use super::{
    codec::{self, SecretHash},
    connect::Connection,
    deadline::with_timeout,
    error::Error,
};
use crate::domain::{
    caller::{CallerId, Scopes},
    plan::Plan,
    user::{self, Profile, Text, User, UserId, Username},
};

/// Account to be stored.
#[derive(Debug, Clone)]
pub struct NewAccount {
    /// Username.
    pub username: Username,
    /// Personal data.
    pub profile: Profile,
    /// Number with a meaning defined by the operator.
    pub status: i32,
    /// Hash of the password.
    pub password_hash: Option<SecretString>,
}

/// Account, with the plan and scopes of its caller.
#[derive(Debug, Clone)]
pub struct Account {
    /// Account.
    pub user: User,
    /// Plan of its caller.
    pub plan: Plan,
    /// Scopes of its caller.
    pub scopes: Scopes,
    /// Hash of the password; `None` if login is not possible.
    pub password_hash: Option<SecretString>,
}

#[derive(FromRow)]
struct Row {
    id: i64,
    caller_id: i64,
    username: String,
    first_name: Option<String>,
    last_name: Option<String>,
    email: Option<String>,
    phone: Option<String>,
    user_status: i32,
}

impl From<Row> for User {
    fn from(row: Row) -> Self {
        Self {
            id: UserId(row.id),
            caller: CallerId(row.caller_id),
            username: Username::from_stored(row.username),
            profile: Profile {
                first_name: row.first_name.map(Text::from_stored),
                last_name: row.last_name.map(Text::from_stored),
                email: row.email.map(Text::from_stored),
                phone: row.phone.map(Text::from_stored),
            },
            status: row.user_status,
        }
    }
}

/// Inserts accounts, each with a caller of its own on plan Free, and returns them in their order. If names are taken,
/// returns those instead; then the transaction must not be committed.
pub async fn insert(
    transaction: &mut Connection,
    accounts: &[NewAccount],
) -> Result<Result<Vec<User>, Vec<Username>>, Error> {
    let column = |field: fn(&Profile) -> &Option<Text>| -> Vec<Option<&str>> {
        let texts = accounts.iter().map(|account| field(&account.profile));
        texts.map(|text| text.as_ref().map(Text::as_str)).collect()
    };
    let names: Vec<_> = accounts
        .iter()
        .map(|account| account.username.as_str())
        .collect();
    let folded: Vec<_> = accounts
        .iter()
        .map(|account| account.username.folded())
        .collect();
    let statuses: Vec<_> = accounts.iter().map(|account| account.status).collect();
    let hashes: Vec<_> = accounts
        .iter()
        .map(|account| {
            account
                .password_hash
                .as_ref()
                .map(ExposeSecret::expose_secret)
        })
        .collect();
    // Ordered by name, so that two requests with the same names cannot deadlock.
    let stored: Vec<Row> = with_timeout(
        sqlx::query_as(
            "with fresh as (
                 select nextval('user_ids') as id, *
                 from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[],
                             $7::integer[], $8::text[])
                     as t (username, folded, first_name, last_name, email, phone, user_status,
                           password_hash)
             ), caller as (
                 insert into callers (name, plan, scopes)
                 select 'user:' || id, $9, $10 from fresh
                 returning id, name
             )
             insert into users (id, caller_id, username, folded, first_name, last_name, email, phone,
                                user_status, password_hash)
             select fresh.id, caller.id, username, folded, first_name, last_name, email, phone,
                    user_status, password_hash
             from fresh join caller on caller.name = 'user:' || fresh.id
             order by folded
             on conflict (folded) do nothing
             returning id, caller_id, username, first_name, last_name, email, phone, user_status",
        )
        .bind(names)
        .bind(&folded)
        .bind(column(|profile| &profile.first_name))
        .bind(column(|profile| &profile.last_name))
        .bind(column(|profile| &profile.email))
        .bind(column(|profile| &profile.phone))
        .bind(statuses)
        .bind(hashes)
        .bind(Plan::Free.as_str())
        .bind(codec::scope_names(user::scopes()))
        .fetch_all(transaction),
    )
    .await?;
    let mut users: Vec<User> = stored.into_iter().map(User::from).collect();
    let position = |user: &User| {
        let name = user.username.folded();
        folded.iter().position(|folded| *folded == name)
    };
    users.sort_by_cached_key(position);
    if users.len() == accounts.len() {
        return Ok(Ok(users));
    }
    let missing = accounts
        .iter()
        .map(|account| account.username.clone())
        .filter(|name| !users.iter().any(|user| user.username == *name));
    Ok(Err(missing.collect()))
}

/// Returns the names of these accounts that are taken, ignoring case.
pub async fn find_taken(
    executor: impl PgExecutor<'_>,
    accounts: &[NewAccount],
) -> Result<Vec<Username>, Error> {
    let names = accounts.iter().map(|account| &account.username);
    let folded: Vec<_> = names.clone().map(Username::folded).collect();
    let taken: Vec<String> = with_timeout(
        sqlx::query_scalar("select folded from users where folded = any ($1)")
            .bind(&folded)
            .fetch_all(executor),
    )
    .await?;
    let names = names.zip(folded);
    let names = names.filter(|(_, folded)| taken.contains(folded));
    Ok(names.map(|(name, _)| name.clone()).collect())
}

#[derive(FromRow)]
struct AccountRow {
    #[sqlx(flatten)]
    user: Row,
    plan: String,
    scopes: Vec<String>,
    password_hash: Option<String>,
}

/// Returns the account with this name, ignoring case.
pub async fn find(
    executor: impl PgExecutor<'_>,
    username: &Username,
) -> Result<Option<Account>, Error> {
    let row = with_timeout(
        sqlx::query_as::<_, AccountRow>(
            "select users.id, caller_id, username, first_name, last_name, email, phone, user_status,
                    password_hash, plan, scopes
             from users join callers on callers.id = caller_id
             where folded = $1",
        )
        .bind(username.folded())
        .fetch_optional(executor),
    )
    .await?;
    row.map(|row| {
        Ok(Account {
            user: row.user.into(),
            plan: codec::parse_plan(&row.plan)?,
            scopes: codec::parse_scopes(&row.scopes),
            password_hash: row.password_hash.map(SecretString::from),
        })
    })
    .transpose()
}

/// Outcome of an update.
#[derive(Debug)]
pub enum UpdateOutcome {
    /// The account was updated.
    Updated(User),
    /// Another account has the new name.
    UsernameTaken,
    /// The account no longer exists.
    NotFound,
}

/// Updates an account. Without a password hash, the password stays the same.
pub async fn update(
    transaction: &mut Connection,
    id: UserId,
    account: &NewAccount,
) -> Result<UpdateOutcome, Error> {
    let text = |text: &Option<Text>| text.as_ref().map(|text| text.as_str().to_owned());
    let NewAccount {
        username, profile, ..
    } = account;
    let stored = with_timeout(
        sqlx::query_as::<_, Row>(
            "update users
             set username = $2, folded = $3, first_name = $4, last_name = $5, email = $6, phone = $7,
                 user_status = $8, password_hash = coalesce($9, password_hash)
             where id = $1
             returning id, caller_id, username, first_name, last_name, email, phone, user_status",
        )
        .bind(id.0)
        .bind(username.as_str())
        .bind(username.folded())
        .bind(text(&profile.first_name))
        .bind(text(&profile.last_name))
        .bind(text(&profile.email))
        .bind(text(&profile.phone))
        .bind(account.status)
        .bind(account.password_hash.as_ref().map(ExposeSecret::expose_secret))
        .fetch_optional(transaction),
    )
    .await;
    match stored {
        Ok(Some(row)) => Ok(UpdateOutcome::Updated(row.into())),
        Ok(None) => Ok(UpdateOutcome::NotFound),
        Err(Error::Query(sqlx::Error::Database(error)))
            if error.constraint() == Some("users_username_unique") =>
        {
            Ok(UpdateOutcome::UsernameTaken)
        }
        Err(error) => Err(error),
    }
}

/// Replaces the stored hash `old` with `new`, a hash of the same password. Does nothing if the stored hash is another.
pub async fn renew_hash(
    transaction: &mut Connection,
    id: UserId,
    old: &SecretString,
    new: &SecretString,
) -> Result<(), Error> {
    with_timeout(
        sqlx::query("update users set password_hash = $3 where id = $1 and password_hash = $2")
            .bind(id.0)
            .bind(old.expose_secret())
            .bind(new.expose_secret())
            .execute(transaction),
    )
    .await?;
    Ok(())
}

/// Deletes an account with its caller and credentials. Returns the hashes of the credentials, to be evicted from
/// caches, or `None` if there is no such account.
pub async fn delete(
    transaction: &mut Connection,
    id: UserId,
) -> Result<Option<Vec<SecretHash>>, Error> {
    let caller: Option<i64> = with_timeout(
        sqlx::query_scalar("delete from users where id = $1 returning caller_id")
            .bind(id.0)
            .fetch_optional(&mut *transaction),
    )
    .await?;
    let Some(caller) = caller else {
        return Ok(None);
    };
    let hashes = with_timeout(
        sqlx::query_scalar("delete from credentials where caller_id = $1 returning hash")
            .bind(caller)
            .fetch_all(&mut *transaction),
    )
    .await?;
    with_timeout(
        sqlx::query("delete from callers where id = $1")
            .bind(caller)
            .execute(transaction),
    )
    .await?;
    Ok(Some(hashes))
}
