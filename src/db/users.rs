//! Queries on user accounts.
//!
//! Invariant: a transaction that locks the rows of an account and of its caller locks the account's row first.

use secrecy::{ExposeSecret, SecretString};
use serde_json::json;
use sqlx::{FromRow, Row as _, postgres::PgRow};

use super::{
    codec,
    connect::Connection,
    deadline::with_timeout,
    error::Error,
    record::{self, Record},
};
use crate::domain::{
    Text,
    caller::Scopes,
    change::{Action, Initiator, Kind},
    plan::Plan,
    user::{self, Profile, User, UserId, Username},
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

impl NewAccount {
    fn password_hash(&self) -> Option<&str> {
        self.password_hash.as_ref().map(ExposeSecret::expose_secret)
    }
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

impl FromRow<'_, PgRow> for User {
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: row.try_get("id")?,
            caller: row.try_get("caller_id")?,
            username: row.try_get("username")?,
            profile: Profile {
                first_name: row.try_get("first_name")?,
                last_name: row.try_get("last_name")?,
                email: row.try_get("email")?,
                phone: row.try_get("phone")?,
            },
            status: row.try_get("user_status")?,
        })
    }
}

/// Inserts accounts, each with a caller of its own on plan Free, and returns them in their order. If names are taken,
/// returns those instead; then the transaction must not be committed.
pub async fn insert(
    transaction: &mut Connection,
    accounts: &[NewAccount],
    initiator: &Initiator,
) -> Result<Result<Vec<User>, Vec<Username>>, Error> {
    let folded = folded_names(accounts);
    let column =
        |field: fn(&NewAccount) -> Option<&str>| -> Vec<_> { accounts.iter().map(field).collect() };
    let statuses: Vec<_> = accounts.iter().map(|account| account.status).collect();
    // Ordered by name, so that two requests with the same names cannot deadlock.
    let query = sqlx::query_as(
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
    .bind(column(|it| Some(it.username.as_str())))
    .bind(&folded)
    .bind(column(|it| {
        it.profile.first_name.as_ref().map(Text::as_str)
    }))
    .bind(column(|it| it.profile.last_name.as_ref().map(Text::as_str)))
    .bind(column(|it| it.profile.email.as_ref().map(Text::as_str)))
    .bind(column(|it| it.profile.phone.as_ref().map(Text::as_str)))
    .bind(statuses)
    .bind(column(NewAccount::password_hash))
    .bind(Plan::Free.as_str())
    .bind(codec::scope_names(user::scopes()));
    let mut users: Vec<User> = with_timeout(query.fetch_all(&mut *transaction)).await?;
    users.sort_by_cached_key(|user| {
        let name = user.username.folded();
        folded.iter().position(|folded| *folded == name)
    });
    if users.len() == accounts.len() {
        let records = users.iter().flat_map(|user| {
            let caller = Record::of_new_caller(user.caller, Plan::Free, user::scopes(), initiator);
            let has_password = accounts.iter().any(|account| {
                account.username == user.username && account.password_hash.is_some()
            });
            let account = of_account(user, Action::Created, has_password, initiator);
            [caller, account]
        });
        record::write(transaction, &records.collect::<Vec<_>>()).await?;
        return Ok(Ok(users));
    }
    let names = accounts.iter().map(|account| account.username.clone());
    let missing = names.filter(|name| !users.iter().any(|user| user.username == *name));
    Ok(Err(missing.collect()))
}

fn of_account<'a>(
    user: &User,
    action: Action,
    has_new_password: bool,
    initiator: &'a Initiator,
) -> Record<'a> {
    Record::new(Kind::User, &user.id.0, action, initiator)
        .owned_by(Some(user.caller))
        .with_data(has_new_password.then(|| json!({"password": true})))
}

/// Returns the names of these accounts that are taken, ignoring case.
pub async fn find_taken(
    connection: &mut Connection,
    accounts: &[NewAccount],
) -> Result<Vec<Username>, Error> {
    let query = sqlx::query_scalar("select folded from users where folded = any ($1)")
        .bind(folded_names(accounts));
    let taken: Vec<String> = with_timeout(query.fetch_all(connection)).await?;
    let names = accounts.iter().map(|account| account.username.clone());
    Ok(names
        .filter(|name| taken.contains(&name.folded()))
        .collect())
}

fn folded_names(accounts: &[NewAccount]) -> Vec<String> {
    accounts
        .iter()
        .map(|account| account.username.folded())
        .collect()
}

/// Returns the account with this name, ignoring case and, unless an account has the name as it is, its form.
pub async fn find(
    connection: &mut Connection,
    username: &Username,
) -> Result<Option<Account>, Error> {
    let query = sqlx::query(
        "select users.id, caller_id, username, first_name, last_name, email, phone, user_status,
                password_hash, plan, scopes
         from users join callers on callers.id = caller_id
         where folded = any ($1)
         order by folded <> ($1)[1]
         limit 1",
    );
    let account = query.bind(username.candidates()).try_map(|row: PgRow| {
        let password_hash: Option<String> = row.try_get("password_hash")?;
        Ok(Account {
            user: User::from_row(&row)?,
            plan: row.try_get("plan")?,
            scopes: row.try_get("scopes")?,
            password_hash: password_hash.map(SecretString::from),
        })
    });
    with_timeout(account.fetch_optional(connection)).await
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

/// Updates an account. Without a password hash, the password stays the same. An account that is as before is not
/// recorded. An unchanged name of an earlier release keeps
/// its folded form.
pub async fn update(
    transaction: &mut Connection,
    id: UserId,
    account: &NewAccount,
    initiator: &Initiator,
) -> Result<UpdateOutcome, Error> {
    let NewAccount {
        username, profile, ..
    } = account;
    let query = sqlx::query(
        "update users
         set username = $2, folded = case when users.username = $2 then users.folded else $3 end,
             first_name = $4, last_name = $5, email = $6, phone = $7, user_status = $8,
             password_hash = coalesce($9, users.password_hash)
         from (select * from users where id = $1 for update) old
         where users.id = old.id
         returning users.id, users.caller_id, users.username, users.first_name, users.last_name, users.email, users.phone,
             users.user_status,
             $9 is not null
             or (old.username, old.first_name, old.last_name, old.email, old.phone, old.user_status) is distinct from
                (users.username, users.first_name, users.last_name, users.email, users.phone, users.user_status) as is_altered",
    )
    .bind(id.0)
    .bind(username.as_str())
    .bind(username.folded())
    .bind(profile.first_name.as_ref().map(Text::as_str))
    .bind(profile.last_name.as_ref().map(Text::as_str))
    .bind(profile.email.as_ref().map(Text::as_str))
    .bind(profile.phone.as_ref().map(Text::as_str))
    .bind(account.status)
    .bind(account.password_hash());
    match with_timeout(query.fetch_optional(&mut *transaction)).await {
        Ok(Some(row)) => {
            let user = User::from_row(&row)?;
            if row.try_get("is_altered")? {
                let has_password = account.password_hash.is_some();
                let record = of_account(&user, Action::Changed, has_password, initiator);
                record::write(transaction, &[record]).await?;
            }
            Ok(UpdateOutcome::Updated(user))
        }
        Ok(None) => Ok(UpdateOutcome::NotFound),
        Err(error) if error.constraint() == Some("users_username_unique") => {
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
    let query =
        sqlx::query("update users set password_hash = $3 where id = $1 and password_hash = $2")
            .bind(id.0)
            .bind(old.expose_secret())
            .bind(new.expose_secret());
    with_timeout(query.execute(transaction)).await.map(drop)
}
