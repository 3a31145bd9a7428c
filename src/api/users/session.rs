//! Logs users in and out.

use axum::{
    RequestExt,
    extract::{FromRequest, Request, State},
    http::{HeaderMap, HeaderName, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use utoipa::ToSchema;

use crate::{
    api::{
        credentials::credentials,
        error::Error,
        extract::{Form, Json, Query, has_media_type},
        fields::{Field, Input as _, Object, Violations},
        request_context::RequestContext,
        response::{self, ApiResponse},
        state::AppState,
    },
    auth::{Authenticator, Credentials, session},
    db::Database,
    domain::{
        address::AddressKey,
        clock::rfc3339,
        user::{Password, Username},
    },
};

/// Petstore's header for the requests per hour that the plan admits.
const X_RATE_LIMIT: HeaderName = HeaderName::from_static("x-rate-limit");
/// Petstore's header for the expiry time of the session.
const X_EXPIRES_AFTER: HeaderName = HeaderName::from_static("x-expires-after");

/// Username and password.
// Without `Debug`: it holds a password.
#[derive(Deserialize, ToSchema)]
#[schema(as = Login, example = json!({"username": "ada", "password": "correct horse battery staple"}))]
struct LoginBody {
    /// Username, in any case.
    #[schema(value_type = String, required = true, example = "ada", min_length = 1, max_length = 64, pattern = r"^[^\x00-\x1f\x7f]+$")]
    username: Field<String>,
    /// Password.
    #[schema(value_type = String, required = true, format = Password, min_length = 8, max_length = 128)]
    password: Field<String>,
}

impl Object for LoginBody {}

/// Session token.
#[derive(ToSchema)]
#[schema(value_type = String, min_length = 42, max_length = 42, pattern = "^pis_[0-9A-Za-z]{38}$", example = "pis_0123456789ABCDEFGHIJabcdefghij01234567")]
#[expect(dead_code, reason = "describes a response that is written as text")]
struct TokenText(String);

/// Username and password, read from JSON, from a form, or from the query.
pub(super) struct Login {
    username: String,
    password: String,
}

impl FromRequest<AppState> for Login {
    type Rejection = Error;

    async fn from_request(mut request: Request, state: &AppState) -> Result<Self, Error> {
        let Query(query) = request.extract_parts::<Query>().await?;
        let is_json = has_media_type(request.headers(), "application/json");
        let is_post = *request.method() == Method::POST;
        let body = if is_post && is_json {
            Json::<LoginBody>::from_request(request, state).await?.0
        } else {
            let given = if is_post {
                Form::from_request(request, state).await?.0.and(query)
            } else {
                query
            };
            LoginBody {
                username: given.field("username", String::from_text),
                password: given.field("password", String::from_text),
            }
        };
        let mut violations = Violations::default();
        let username = violations.required("username", body.username);
        let password = violations.required("password", body.password);
        let both = username.zip(password);
        violations.finish(both.map(|(username, password)| Self { username, password }))
    }
}

/// Log in
///
/// Returns a token to send as `Authorization: Bearer …`. If the account has too many sessions, the oldest ends. A refusal
/// does not reveal if the account exists.
#[utoipa::path(
    post, path = "/user/login", operation_id = "createSession", tag = "user", security(()),
    request_body(content = LoginBody, description = "The username and password. A form (`application/x-www-form-urlencoded`) is accepted, too."),
    responses((status = 200, description = "The session's token.", body = inline(TokenText), content_type = "application/json",
        headers(("X-Rate-Limit"), ("X-Expires-After"), ("Cache-Control")))),
)]
pub(super) async fn log_in(
    State(state): State<AppState>,
    context: RequestContext,
    login: Login,
) -> Result<Response, Error> {
    login.counted(&state, &context).await
}

/// Log in with query parameters
///
/// Kept for Petstore clients. Use `POST` instead: URLs are often logged, with the password in them.
#[utoipa::path(
    get, path = "/user/login", operation_id = "loginUser", tag = "user", security(()),
    params(
        ("username" = String, Query, description = "Username of the account, in any case.", example = "ada", min_length = 1, max_length = 64, pattern = r"^[^\x00-\x1f\x7f]+$"),
        ("password" = String, Query, description = "Password of the account.", example = "correct horse battery staple", format = Password, min_length = 8, max_length = 128),
    ),
    responses((status = 200, description = "The session's token.", body = inline(TokenText), content_type = "application/json",
        headers(("X-Rate-Limit"), ("X-Expires-After"), ("Cache-Control")))),
)]
#[deprecated = "a password in the query"]
pub(super) async fn log_in_by_query(
    State(state): State<AppState>,
    context: RequestContext,
    login: Login,
) -> Result<Response, Error> {
    login.counted(&state, &context).await
}

impl Login {
    /// Opens a session and counts the attempt.
    async fn counted(self, state: &AppState, context: &RequestContext) -> Result<Response, Error> {
        let response = self.open_session(state, context.client_address()).await;
        let result = match &response {
            Ok(_) => "ok",
            Err(Error::Invalid(_)) => "wrong",
            Err(Error::LimitExceeded { .. }) => "limited",
            Err(_) => "failed",
        };
        metrics::counter!("logins_total", "result" => result).increment(1);
        response
    }

    async fn open_session(
        self,
        state: &AppState,
        client: Option<AddressKey>,
    ) -> Result<Response, Error> {
        const WRONG: session::Error = session::Error::InvalidCredentials;
        // Values that no account can have are rejected before a hash is computed.
        let username: Username = self.username.parse().map_err(|_| WRONG)?;
        let password = Password::claimed(self.password).ok_or(WRONG)?;
        let admitted = state.logins.admit(username.folded(), client);
        admitted
            .await
            .map_err(|retry_after| Error::limit_exceeded("logins", retry_after))?;
        let _share = state.concurrency.password_hashes.take(client, 1)?;
        let (database, passwords) = (&state.database, &state.passwords);
        let (lifetime, max) = (state.session_lifetime, state.max_sessions);
        let opened = session::open(
            database, passwords, client, &username, password, lifetime, max,
        )
        .await?;
        state.authenticator.invalidate(&opened.ended);
        let caching = [(header::CACHE_CONTROL, "no-store")];
        let expires = rfc3339(opened.expires_at);
        let calls = state.plans.limits(opened.plan).per_hour();
        let calls = calls.map(|calls| [(X_RATE_LIMIT, calls)]);
        let body = response::json(StatusCode::OK, &opened.token.expose())?;
        Ok((caching, [(X_EXPIRES_AFTER, expires)], calls, body).into_response())
    }
}

/// Log out
///
/// Ends the session of the token that is sent. API keys and other tokens stay valid.
#[utoipa::path(
    get, path = "/user/logout", operation_id = "logoutUser", tag = "user", security(("bearer" = [])),
    responses((status = 200, description = "The session has ended, if the request had a session token.", body = ApiResponse)),
)]
pub(super) async fn log_out(
    State(database): State<Database>,
    State(authenticator): State<Authenticator>,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let tokens = match credentials(&headers)? {
        None => vec![],
        Some(Credentials::ApiKey(one) | Credentials::Bearer(one)) => vec![one],
        Some(Credentials::Both { api_key, bearer }) => vec![api_key, bearer],
    };
    let mut message = "the request has no session token";
    for token in tokens {
        if let Some(hash) = session::close(&database, token).await? {
            authenticator.invalidate(&[hash]);
            message = "the session has ended";
        }
    }
    ApiResponse::done("logged out", message.to_owned())
}
