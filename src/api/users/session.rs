//! Logs users in and out.

use axum::{
    extract::{FromRef, FromRequest, FromRequestParts, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header},
    response::Response,
};
use chrono::SecondsFormat;
use serde::Deserialize;
use utoipa::ToSchema;

use super::body::UsernameText;
use crate::{
    api::{
        credentials::credentials,
        error::Error,
        extract::{Form, Json, Parameters, Query, has_media_type},
        fields::{Field, FieldType, Kind, Violations},
        response::{self, ApiResponse},
        state::{AppState, SessionLifetime},
    },
    auth::{
        Authenticator, Credentials,
        password::Passwords,
        session::{self, NewSession},
    },
    config::Plans,
    db::Database,
    domain::user::{Password, Username},
    limits::token_buckets::Logins,
};

/// Petstore's header for the requests per hour that the plan admits.
const X_RATE_LIMIT: HeaderName = HeaderName::from_static("x-rate-limit");
/// Petstore's header for the expiry time of the session.
const X_EXPIRES_AFTER: HeaderName = HeaderName::from_static("x-expires-after");

/// Username and password.
// Without `Debug`: it holds a password.
#[derive(Default, Deserialize, ToSchema)]
#[schema(as = Login)]
struct LoginBody {
    /// Username, in any case.
    #[serde(default)]
    #[schema(value_type = UsernameText, required = true)]
    username: Field<String>,
    /// Password.
    #[serde(default)]
    #[schema(value_type = String, required = true, format = Password, min_length = 8, max_length = 128)]
    password: Field<String>,
}

impl FieldType for LoginBody {
    const KIND: Kind = Kind::Object;
}

/// Session token.
#[derive(ToSchema)]
#[schema(value_type = String, min_length = 42, max_length = 42, pattern = "^pis_[0-9A-Za-z]{38}$")]
#[expect(dead_code, reason = "describes a response that is written as text")]
struct TokenText(String);

/// Username and password, read from JSON, from a form, or from the query.
pub(super) struct Login {
    username: String,
    password: String,
}

impl FromRequest<AppState> for Login {
    type Rejection = Error;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, Error> {
        let (mut parts, body) = request.into_parts();
        let Query(query) = Query::from_request_parts(&mut parts, state).await?;
        let is_json = has_media_type(&parts.headers, "application/json");
        let is_post = parts.method == Method::POST;
        let request = Request::from_parts(parts, body);
        let mut violations = Violations::default();
        let body = if is_post && is_json {
            Json::<LoginBody>::from_request(request, state).await?.0
        } else {
            let given = if is_post {
                Form::from_request(request, state).await?.0.and(query)
            } else {
                query
            };
            LoginBody {
                username: parameter(&mut violations, &given, "username"),
                password: parameter(&mut violations, &given, "password"),
            }
        };
        let username = violations.required("username", body.username, Ok);
        let password = violations.required("password", body.password, Ok);
        violations.finish(
            username
                .zip(password)
                .map(|(username, password)| Self { username, password }),
        )
    }
}

fn parameter(violations: &mut Violations, given: &Parameters, name: &str) -> Field<String> {
    let text = given.optional(violations, name, |text| Ok(text.to_owned()));
    match text {
        Some(text) => Field::Value(text),
        None => Field::Absent,
    }
}

/// State that is needed to log in.
pub(super) struct LoginState {
    database: Database,
    passwords: Passwords,
    logins: Logins,
    plans: Plans,
    lifetime: SessionLifetime,
}

impl FromRef<AppState> for LoginState {
    fn from_ref(state: &AppState) -> Self {
        Self {
            database: state.database.clone(),
            passwords: state.passwords.clone(),
            logins: state.logins.clone(),
            plans: state.plans.clone(),
            lifetime: state.session_lifetime,
        }
    }
}

/// Log in
///
/// Returns a token to send as `Authorization: Bearer …`. A refusal does not reveal if the account exists.
#[utoipa::path(
    post, path = "/user/login", operation_id = "logIn", tag = "user", security(()),
    request_body(content((LoginBody = "application/x-www-form-urlencoded"), (LoginBody = "application/json"))),
    responses(
        (status = 200, description = "The session's token.", body = inline(TokenText), content_type = "application/json",
            headers(("X-Rate-Limit"),
                    ("X-Expires-After"),
                    ("Cache-Control" = String, description = "`no-store`."))),
    ),
)]
pub(super) async fn log_in(
    State(state): State<LoginState>,
    login: Login,
) -> Result<Response, Error> {
    state.log_in(login).await
}

/// Log in with query parameters
///
/// Kept for Petstore clients. Use `POST` instead: URLs are often logged, with the password in them.
#[utoipa::path(
    get, path = "/user/login", operation_id = "loginUser", tag = "user", security(()),
    params(
        ("username" = inline(UsernameText), Query, description = "Username of the account, in any case."),
        ("password" = String, Query, description = "Password of the account.", format = Password, min_length = 8, max_length = 128),
    ),
    responses(
        (status = 200, description = "The session's token.", body = inline(TokenText), content_type = "application/json",
            headers(("X-Rate-Limit"),
                    ("X-Expires-After"),
                    ("Cache-Control" = String, description = "`no-store`."))),
    ),
)]
#[deprecated = "a password in the query"]
pub(super) async fn log_in_by_query(
    State(state): State<LoginState>,
    login: Login,
) -> Result<Response, Error> {
    state.log_in(login).await
}

impl LoginState {
    async fn log_in(self, login: Login) -> Result<Response, Error> {
        let response = self.open_session(login).await;
        let result = match &response {
            Ok(_) => "ok",
            Err(Error::Invalid(_)) => "wrong",
            Err(Error::LimitExceeded { .. }) => "limited",
            Err(_) => "failed",
        };
        metrics::counter!("logins_total", "result" => result).increment(1);
        response
    }

    async fn open_session(self, login: Login) -> Result<Response, Error> {
        let wrong = || Error::from(session::Error::InvalidCredentials);
        // Values that no account can have are rejected before a hash is computed.
        let username: Username = login.username.parse().map_err(|_| wrong())?;
        let password = Password::claimed(login.password).ok_or_else(wrong)?;
        self.logins
            .take(&username.folded())
            .map_err(|retry_after| Error::limit_exceeded("logins", retry_after))?;
        let SessionLifetime(lifetime) = self.lifetime;
        let NewSession {
            token,
            expires_at,
            plan,
        } = session::open(
            &self.database,
            &self.passwords,
            &username,
            password,
            lifetime,
        )
        .await?;
        let mut response = response::json(StatusCode::OK, &token.expose())?;
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        let expires = expires_at.to_rfc3339_opts(SecondsFormat::Secs, true);
        let expires = HeaderValue::try_from(expires).map_err(|e| Error::Internal(e.into()))?;
        headers.insert(X_EXPIRES_AFTER, expires);
        if let Some(calls) = self.plans.limits(plan).per_hour() {
            headers.insert(X_RATE_LIMIT, calls.into());
        }
        Ok(response)
    }
}

/// Log out
///
/// Ends the session of the token that is sent. API keys and other tokens stay valid.
#[utoipa::path(
    get, path = "/user/logout", operation_id = "logoutUser", tag = "user",
    security(("api_key" = []), ("bearer" = [])),
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
    let mut has_ended = false;
    for token in tokens {
        if let Some(hash) = session::close(&database, token).await? {
            authenticator.invalidate(&[hash]);
            has_ended = true;
        }
    }
    let message = if has_ended {
        "the session has ended"
    } else {
        "the request has no session token"
    };
    ApiResponse::done("logged out", message.to_owned())
}
