//! `/user`: accounts of people, and their sessions.
//!
//! Invariants: an account is its own and the admins' alone, and for everybody else it is not there; no
//! password leaves in an answer; whoever changes a password, or deletes an account, ends its sessions in the
//! same transaction.

mod body;
mod create;
mod session;

use std::{slice, sync::Arc};

use axum::{Extension, extract::State, http::StatusCode, response::Response};
use utoipa_axum::{router::UtoipaMethodRouter, routes};

use self::body::{UserBody, UserDetailsBody, UsernameText};
use super::{
    answer::{self, ApiResponse},
    error::Error,
    extract::{Json, Path},
    operations::Operations,
    state::AppState,
};
use crate::{
    auth::{Authenticator, password::Passwords},
    db::{
        self, Connection, Database,
        users::{Account, Changed, NewAccount},
    },
    domain::{
        caller::{Caller, Scope},
        user::Username,
    },
};

/// The operations of callers.
pub fn router() -> Operations {
    Operations::new()
        .routes(routes!(create::with_list))
        .routes(acting(routes!(session::log_out), "GET"))
        .routes(routes!(get, replace, delete))
}

/// The operations of strangers, which no credential is needed for.
#[expect(
    deprecated,
    reason = "kept for Petstore's clients, and marked so for all others"
)]
pub fn open_router() -> Operations {
    Operations::new()
        .routes(routes!(create::sign_up))
        .routes(acting(
            routes!(session::log_in, session::log_in_by_query),
            "GET or POST",
        ))
}

/// Operations of which a GET, as Petstore has it, acts. A HEAD is safe (RFC 9110 §9.2.1), and axum would hand
/// it to that GET.
fn acting(
    (schemas, paths, methods): UtoipaMethodRouter<AppState>,
    allowed: &'static str,
) -> UtoipaMethodRouter<AppState> {
    let refuse = async move || Error::MethodNotAllowed(allowed);
    (schemas, paths, methods.head(refuse).fallback(refuse))
}

/// Get an account
///
/// One's own; with the scope `admin`, anybody's. For everybody else it is not there.
#[utoipa::path(
    get, path = "/user/{username}", operation_id = "getUserByName", tag = "user",
    security(("api_key" = []), ("bearer" = [])),
    params(("username" = inline(UsernameText), Path, description = "Name of the account, in any case.", example = "ada")),
    responses(
        (status = 200, description = "The account.", body = UserBody<'static>),
        (status = 404, description = "There is no such account, or it is another's."),
    ),
)]
async fn get(
    State(database): State<Database>,
    Extension(caller): Extension<Arc<Caller>>,
    Path(username): Path<Username>,
) -> Result<Response, Error> {
    let account = find(&database, &username, &caller).await?;
    answer::json(StatusCode::OK, &UserBody::from(&account.user))
}

/// Change an account
///
/// One's own; with the scope `admin`, anybody's. What the body leaves out is emptied, but for `username` and
/// `password`, which stay. A new password ends all sessions of the account.
#[utoipa::path(
    put, path = "/user/{username}", operation_id = "updateUser", tag = "user",
    security(("api_key" = []), ("bearer" = [])),
    params(("username" = inline(UsernameText), Path, description = "Name of the account, in any case.", example = "ada")),
    request_body(content = UserDetailsBody, description = "The account as it shall be."),
    responses(
        (status = 200, description = "Changed: the account as it is stored.", body = UserBody<'static>),
        (status = 404, description = "There is no such account, or it is another's."),
        (status = 409, description = "The new name is taken."),
    ),
)]
async fn replace(
    State(database): State<Database>,
    State(passwords): State<Passwords>,
    State(authenticator): State<Authenticator>,
    Extension(caller): Extension<Arc<Caller>>,
    Path(username): Path<Username>,
    Json(body): Json<UserDetailsBody>,
) -> Result<Response, Error> {
    let said = body.into_change()?;
    let Account { user, .. } = find(&database, &username, &caller).await?;
    let password_hash = match said.password {
        Some(password) => Some(passwords.hash(password).await?),
        None => None,
    };
    let ends_sessions = password_hash.is_some();
    let status = said.status.filter(|_| caller.scopes.contains(Scope::Admin));
    let change = NewAccount {
        username: said.username.unwrap_or(user.username),
        profile: said.profile,
        status: status.unwrap_or(user.status),
        password_hash,
    };
    let work = async |transaction: &mut Connection| {
        let changed = match db::users::update(transaction, user.id, &change).await? {
            Changed::Done(user) => user,
            Changed::Taken => return Err(create::taken(slice::from_ref(&change.username))),
            Changed::Gone => return Err(no_such_user()),
        };
        let ended = if ends_sessions {
            db::sessions::revoke_all(transaction, changed.caller).await?
        } else {
            Vec::new()
        };
        Ok((changed, ended))
    };
    let (changed, ended) = database.transact(work).await?;
    authenticator.forget(&ended);
    answer::json(StatusCode::OK, &UserBody::from(&changed))
}

/// Delete an account
///
/// One's own; with the scope `admin`, anybody's. All its sessions and keys end. Its orders stay, for the
/// admins to see.
#[utoipa::path(
    delete, path = "/user/{username}", operation_id = "deleteUser", tag = "user",
    security(("api_key" = []), ("bearer" = [])),
    params(("username" = inline(UsernameText), Path, description = "Name of the account, in any case.", example = "ada")),
    responses(
        (status = 200, description = "Deleted.", body = ApiResponse),
        (status = 404, description = "There is no such account, or it is another's."),
    ),
)]
async fn delete(
    State(database): State<Database>,
    State(authenticator): State<Authenticator>,
    Extension(caller): Extension<Arc<Caller>>,
    Path(username): Path<Username>,
) -> Result<Response, Error> {
    let Account { user, .. } = find(&database, &username, &caller).await?;
    let work = async |transaction: &mut Connection| {
        let ended = db::users::delete(transaction, user.id).await?;
        ended.ok_or_else(no_such_user)
    };
    authenticator.forget(&database.transact(work).await?);
    ApiResponse::deleted(&user.username.as_str())
}

/// The account of that name, if it is the caller's or the caller is an admin.
async fn find(database: &Database, username: &Username, caller: &Caller) -> Result<Account, Error> {
    let account = db::users::find(database.pool(), username)
        .await?
        .ok_or_else(no_such_user)?;
    if caller.scopes.contains(Scope::Admin) {
        return Ok(account);
    }
    if caller.id != Some(account.user.caller) {
        return Err(no_such_user());
    }
    // A credential that may do less than the account must not get at its password, and so at all of it.
    match account
        .scopes
        .iter()
        .find(|scope| !caller.scopes.contains(*scope))
    {
        Some(missing) => Err(Error::Forbidden {
            needed: account.scopes,
            missing,
        }),
        None => Ok(account),
    }
}

fn no_such_user() -> Error {
    Error::NotFound("the user".to_owned())
}
