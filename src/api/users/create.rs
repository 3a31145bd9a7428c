//! Making accounts: one's own, or many at once.

use std::slice;

use axum::{extract::State, http::StatusCode, response::Response};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::body::{
    NewUser, NewUserBody, NewUsers, UserBody, UserDetailsBody, Users, into_new_users,
};
use crate::{
    api::{
        answer,
        error::Error,
        extract::Json,
        fields::Field,
        idempotency::Idempotency,
        openapi::BASE,
        state::{Links, SignUp},
    },
    auth::password::Passwords,
    db::{self, Connection, Database, users::NewAccount},
    domain::user::{User, Username},
};

/// Sign up
///
/// Needs no credential. The account is on plan Free and may read pets and its orders, and order; log in to
/// it to use it. The operator can close sign-up. The password is no part of what makes a request with an
/// `Idempotency-Key` the same.
#[utoipa::path(
    post, path = "/user", operation_id = "createUser", tag = "user", security(()),
    request_body(content = NewUserBody, description = "The account to make."),
    responses(
        (status = 201, description = "Made: the account as it is stored.", body = UserBody<'static>,
            headers(("Location" = String, description = "URL of the account."))),
        (status = 403, description = "The operator has closed sign-up."),
        (status = 409, description = "The name is taken, or a request with this `Idempotency-Key` is being worked on."),
    ),
)]
pub(super) async fn sign_up(
    State(database): State<Database>,
    State(passwords): State<Passwords>,
    State(links): State<Links>,
    State(SignUp(is_open)): State<SignUp>,
    idempotency: Idempotency,
    Json(body): Json<UserDetailsBody>,
) -> Result<Response, Error> {
    if !is_open {
        return Err(Error::SignUpClosed);
    }
    let NewUser {
        mut account,
        password,
    } = body.into_new_user()?;
    refuse_taken(&database, slice::from_ref(&account)).await?;
    if let Some(password) = password {
        account.password_hash = Some(passwords.hash(password).await?);
    }
    let work = async |transaction: &mut Connection| {
        let users = insert(transaction, &[account]).await?;
        let user = users
            .first()
            .ok_or_else(|| Error::Internal("no account was made".into()))?;
        let name = utf8_percent_encode(user.username.as_str(), RESERVED);
        let location = links.url(&format!("{BASE}/user/{name}"));
        answer::created(location, &UserBody::from(user))
    };
    idempotency.run(&database, work).await
}

/// All but the unreserved characters of RFC 3986 §2.3.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Make many accounts
///
/// Up to 1,000, all or none. Hashing that many passwords takes its time, so this operation has four times as
/// long as others. Passwords are no part of what makes a request with an `Idempotency-Key` the same.
#[utoipa::path(
    post, path = "/user/createWithList", operation_id = "createUsersWithListInput", tag = "user",
    security(("api_key" = ["admin"]), ("bearer" = ["admin"])),
    request_body(content = inline(NewUsers), description = "The accounts to make."),
    responses(
        (status = 200, description = "Made: the accounts as they are stored, in the same order.", body = inline(Users)),
        (status = 409, description = "A name is taken, and none is made; or a request with this `Idempotency-Key` is being worked on."),
    ),
)]
pub(super) async fn with_list(
    State(database): State<Database>,
    State(passwords): State<Passwords>,
    idempotency: Idempotency,
    Json(list): Json<Vec<Field<UserDetailsBody>>>,
) -> Result<Response, Error> {
    let users = into_new_users(list)?.into_iter();
    let (mut accounts, chosen): (Vec<_>, Vec<_>) =
        users.map(|user| (user.account, user.password)).unzip();
    refuse_taken(&database, &accounts).await?;
    // Outside of the transaction, which would wait for it.
    for (account, hash) in accounts.iter_mut().zip(passwords.hash_all(chosen).await?) {
        account.password_hash = hash;
    }
    let work = async |transaction: &mut Connection| {
        let users = insert(transaction, &accounts).await?;
        let bodies: Vec<_> = users.iter().map(UserBody::from).collect();
        answer::json(StatusCode::OK, &bodies)
    };
    idempotency.run(&database, work).await
}

/// Refuses names that are taken already, before their passwords are hashed for nothing.
async fn refuse_taken(database: &Database, accounts: &[NewAccount]) -> Result<(), Error> {
    let names = db::users::find_taken(database.pool(), accounts).await?;
    if names.is_empty() {
        return Ok(());
    }
    Err(taken(&names))
}

async fn insert(transaction: &mut Connection, accounts: &[NewAccount]) -> Result<Vec<User>, Error> {
    db::users::insert(transaction, accounts)
        .await?
        .map_err(|names| taken(&names))
}

/// The answer to names that are in use.
pub(super) fn taken(names: &[Username]) -> Error {
    const SHOWN: usize = 10;
    let shown: Vec<_> = names.iter().take(SHOWN).map(Username::as_str).collect();
    let more = match names.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Error::Conflict(format!("taken: the username {}{more}", shown.join(", ")))
}
