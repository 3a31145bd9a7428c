//! Creates user accounts: one by sign-up, or many at once.

use std::slice;

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode, Uri, Version},
    response::Response,
};

use super::body::{NewUserBody, NewUsers, NewUsersBody, UserDetailsBody, Users};
use crate::{
    api::{
        credentials::{credentials, find_caller, has_demo_key},
        error::Error,
        extract::{Json, is_local, percent_encode},
        operations::BASE,
        request_context::RequestContext,
        response,
        state::AppState,
    },
    auth::password::Passwords,
    db::{self, Connection, Database, users::NewAccount},
    domain::{
        caller::Scope,
        change::Initiator,
        user::{User, Username},
    },
};

/// Sign up
///
/// Needs no credential. The account has the Free plan and can read pets and its own orders, and place orders; log in to
/// use it. The operator can close sign-up. `userStatus` needs a credential with the scope `admin`. An `Idempotency-Key` is
/// ignored: a repetition gets 409, since the username is taken.
#[utoipa::path(
    post, path = "/user", operation_id = "createUser", tag = "user", security(()),
    request_body(content = NewUserBody, description = "The account to create."),
    responses(
        (status = 201, description = "The created account.", body = User,
            headers(("Location" = String, description = "URL of the account."))),
        (status = 401, description = "The credential that was sent with `userStatus` is not valid."),
        (status = 403, description = "The operator has closed sign-up."),
        (status = 409, description = "The username is taken."),
    ),
)]
pub(super) async fn sign_up(
    State(state): State<AppState>,
    context: RequestContext,
    initiator: Initiator,
    (version, uri, headers): (Version, Uri, HeaderMap),
    Json(body): Json<UserDetailsBody>,
) -> Result<Response, Error> {
    if !state.sign_up {
        return Err(Error::SignUpClosed);
    }
    let (mut account, password) = body.into_new_user()?;
    if account.status != 0 {
        let is_local = is_local(version, &uri, &headers);
        if !is_administrator(&state, &context, &headers, is_local).await? {
            account.status = 0;
        }
    }
    refuse_taken(&state.database, slice::from_ref(&account)).await?;
    if let Some(password) = password {
        let hashes = &state.concurrency.password_hashes;
        let _share = hashes.take(context.client_address(), 1)?;
        account.password_hash = Some(
            state
                .passwords
                .hash(context.client_address(), password)
                .await?,
        );
    }
    let users = insert(&state.database, slice::from_ref(&account), &initiator).await?;
    let user = users
        .first()
        .ok_or_else(|| Error::internal("the insert of the account returned no row"))?;
    let name = percent_encode(user.username.as_str());
    let location = state.links.url(&format!("{BASE}/user/{name}"));
    response::created(location, user)
}

/// Returns true if a request that needs no credential has that of an administrator. Fails if it has one that is not valid, or a
/// demo key and is not local. A malformed one, such as that of a proxy, counts as none.
async fn is_administrator(
    state: &AppState,
    context: &RequestContext,
    headers: &HeaderMap,
    is_local: bool,
) -> Result<bool, Error> {
    let Ok(Some(_)) = credentials(headers) else {
        return Ok(false);
    };
    if !is_local && has_demo_key(headers, state.demo_keys) {
        return Err(Error::DemoKeyNotLocal);
    }
    let caller = find_caller(state, headers, context.client_address()).await?;
    Ok(caller.scopes.contains(Scope::Admin))
}

/// Create many accounts
///
/// Up to 1,000, all or none. Hashing the passwords takes time, so the time limit is four times that of other
/// operations. An `Idempotency-Key` is ignored: a repetition gets 409, since the usernames are taken.
#[utoipa::path(
    post, path = "/user/createWithList", operation_id = "createUsersWithListInput", tag = "user",
    security(("bearer" = ["admin"])),
    request_body(content = inline(NewUsers), description = "The accounts to create."),
    responses(
        (status = 200, description = "The created accounts, in the same order.", body = inline(Users)),
        (status = 409, description = "A username is taken, and no account was created."),
    ),
)]
pub(super) async fn with_list(
    State(database): State<Database>,
    State(passwords): State<Passwords>,
    context: RequestContext,
    initiator: Initiator,
    Json(list): Json<NewUsersBody>,
) -> Result<Response, Error> {
    let (mut accounts, chosen): (Vec<_>, Vec<_>) = list.into_new_users()?.into_iter().unzip();
    refuse_taken(&database, &accounts).await?;
    // Hashed outside of the transaction, which would stay open meanwhile.
    let hashes = passwords.hash_all(context.client_address(), chosen);
    for (account, hash) in accounts.iter_mut().zip(hashes.await?) {
        account.password_hash = hash;
    }
    let users = insert(&database, &accounts, &initiator).await?;
    response::json(StatusCode::OK, &Users(users))
}

/// Rejects taken names before their passwords are hashed in vain.
async fn refuse_taken(database: &Database, accounts: &[NewAccount]) -> Result<(), Error> {
    let taken_names = database
        .run(async |connection| db::users::find_taken(connection, accounts).await)
        .await?;
    match taken_names {
        names if names.is_empty() => Ok(()),
        names => Err(taken(&names)),
    }
}

async fn insert(
    database: &Database,
    accounts: &[NewAccount],
    initiator: &Initiator,
) -> Result<Vec<User>, Error> {
    let inserted = database.transact(async |transaction: &mut Connection| {
        db::users::insert(transaction, accounts, initiator)
            .await?
            .map_err(|names| taken(&names))
    });
    inserted.await
}

/// Returns the error for taken names.
pub(super) fn taken(names: &[Username]) -> Error {
    const SHOWN: usize = 10;
    let shown: Vec<_> = names.iter().take(SHOWN).map(Username::as_str).collect();
    let more = match names.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let shown = shown.join(", ");
    Error::Conflict(format!("username already taken: {shown}{more}"))
}
