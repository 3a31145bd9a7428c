//! `/user`: user accounts and their sessions.
//!
//! Invariants:
//! - Only its own caller and administrators see an account. To others it does not exist.
//! - No response contains a password.
//! - Changing the password and deleting the account end its sessions in the same transaction.

mod body;
mod create;
mod session;

use std::slice;

use axum::{extract::State, http::StatusCode, response::Response};
use utoipa_axum::{router::UtoipaMethodRouter, routes};

pub use self::body::{NewUsersBody, UserDetailsBody};
use super::{
    error::Error,
    extract::{Json, Path},
    operations::{Facts, Keys, Operations},
    request_context::{CurrentCaller, RequestContext},
    response::{self, ApiResponse},
    state::AppState,
};
use crate::{
    auth::Authenticator,
    db::{
        self, Database,
        users::{Account, NewAccount, UpdateOutcome},
    },
    domain::{
        caller::{Caller, Scope},
        change::Initiator,
        user::{User, Username},
    },
};

/// Returns the operations. Sign-up and login need no credential.
#[expect(deprecated, reason = "kept for Petstore clients")]
pub fn router() -> Operations {
    // A thousand passwords take half a minute to hash on one core.
    let with_list = Facts {
        keys: Keys::Ignored,
        timeout_factor: 4,
        ..Facts::OPERATION
    };
    let log_in = routes!(session::log_in, session::log_in_by_query);
    Operations::new()
        .routes_with(Facts::OPEN, routes!(create::sign_up))
        .routes_with(with_list, routes!(create::with_list))
        .routes_with(Facts::OPEN, acting(log_in, "GET or POST"))
        .routes(acting(routes!(session::log_out), "GET"))
        .routes(routes!(get, replace, delete))
}

/// Rejects HEAD on routes with a GET that changes state, which Petstore requires. HEAD is safe (RFC 9110 §9.2.1), but
/// axum would route it to that GET.
fn acting(
    (schemas, paths, methods): UtoipaMethodRouter<AppState>,
    allowed: &'static str,
) -> UtoipaMethodRouter<AppState> {
    let refuse = async move || Error::MethodNotAllowed(allowed);
    (schemas, paths, methods.head(refuse).fallback(refuse))
}

/// Get an account
///
/// Your own or, with the scope `admin`, any account. To other callers, the account does not exist.
#[utoipa::path(
    get, path = "/user/{username}", operation_id = "getUserByName", tag = "user", security(("bearer" = [])),
    responses((status = 200, description = "The account.", body = User)),
)]
async fn get(
    State(database): State<Database>,
    CurrentCaller(caller): CurrentCaller,
    Path(username): Path<Username>,
) -> Result<Response, Error> {
    let account = find(&database, &username, &caller).await?;
    response::json(StatusCode::OK, &account.user)
}

/// Change an account
///
/// Your own or, with the scope `admin`, any account. Missing fields are cleared, except `username`, `password` and
/// `userStatus`. A new password ends all sessions of the account.
#[utoipa::path(
    put, path = "/user/{username}", operation_id = "updateUser", tag = "user", security(("bearer" = [])),
    request_body(content = UserDetailsBody, description = "The new values of the account."),
    responses(
        (status = 200, description = "The changed account.", body = User),
        (status = 409, description = "The new username is taken."),
    ),
)]
async fn replace(
    State(state): State<AppState>,
    context: RequestContext,
    initiator: Initiator,
    CurrentCaller(caller): CurrentCaller,
    Path(username): Path<Username>,
    Json(body): Json<UserDetailsBody>,
) -> Result<Response, Error> {
    let Account { user, .. } = find(&state.database, &username, &caller).await?;
    let details = body.into_change(&user.username)?;
    let password_hash = match details.password {
        Some(password) => {
            let hashes = &state.concurrency.password_hashes;
            let _share = hashes.take(context.client_address(), 1)?;
            Some(
                state
                    .passwords
                    .hash(context.client_address(), password)
                    .await?,
            )
        }
        None => None,
    };
    let status = details.status;
    let status = status.filter(|_| caller.scopes.contains(Scope::Admin));
    let change = NewAccount {
        username: details.username.unwrap_or(user.username),
        profile: details.profile,
        status: status.unwrap_or(user.status),
        password_hash,
    };
    let changed = state.database.transact(async |transaction| {
        let changed = match db::users::update(transaction, user.id, &change, &initiator).await? {
            UpdateOutcome::Updated(user) => user,
            UpdateOutcome::UsernameTaken => {
                return Err(create::taken(slice::from_ref(&change.username)));
            }
            UpdateOutcome::NotFound => return Err(no_such_user()),
        };
        let ended = match change.password_hash {
            Some(_) => {
                let by_another = (caller.id != Some(changed.caller)).then_some(&initiator);
                db::credentials::revoke_sessions(transaction, changed.caller, by_another).await?
            }
            None => Vec::new(),
        };
        Ok((changed, ended))
    });
    let (changed, ended) = changed.await?;
    state.authenticator.invalidate(&ended);
    response::json(StatusCode::OK, &changed)
}

/// Delete an account
///
/// Your own or, with the scope `admin`, any account. Ends all of its sessions and keys. Administrators still see its
/// orders.
#[utoipa::path(
    delete, path = "/user/{username}", operation_id = "deleteUser", tag = "user", security(("bearer" = [])),
    responses(
        (status = 200, description = "Deleted.", body = ApiResponse),
        (status = 409, description = "No administrator would be left."),
    ),
)]
async fn delete(
    State(database): State<Database>,
    State(authenticator): State<Authenticator>,
    initiator: Initiator,
    CurrentCaller(caller): CurrentCaller,
    Path(username): Path<Username>,
) -> Result<Response, Error> {
    let Account { user, .. } = find(&database, &username, &caller).await?;
    let hashes = database.transact(async |transaction| {
        let deleted = db::callers::delete(transaction, user.caller, &initiator).await?;
        let deleted = deleted.ok_or_else(no_such_user)?;
        Error::keep_administrator(deleted.administration)?;
        Ok::<_, Error>(deleted.hashes)
    });
    authenticator.invalidate(&hashes.await?);
    ApiResponse::deleted(&user.username.as_str())
}

/// Returns the account of that name if the caller owns it or is an administrator.
async fn find(database: &Database, username: &Username, caller: &Caller) -> Result<Account, Error> {
    let account = database
        .run(async |connection| db::users::find(connection, username).await)
        .await?;
    let account = account.ok_or_else(no_such_user)?;
    if caller.scopes.contains(Scope::Admin) {
        return Ok(account);
    }
    if caller.id != Some(account.user.caller) {
        return Err(no_such_user());
    }
    // Otherwise a credential with fewer scopes than the account could set its password and log in with all of them.
    let needed = account.scopes;
    match needed.iter().find(|scope| !caller.scopes.contains(*scope)) {
        Some(missing) => Err(Error::Forbidden { needed, missing }),
        None => Ok(account),
    }
}

fn no_such_user() -> Error {
    Error::NotFound("the user".to_owned())
}
