//! Logging in and out.

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
        answer::{self, ApiResponse},
        error::Error,
        extract::{Form, Json, Parameters, Query, has_media_type},
        fields::{Field, FieldType, Kind, Violations},
        presented::presented,
        state::{AppState, SessionLifetime},
    },
    auth::{
        Authenticator, Presented,
        password::Passwords,
        session::{self, Opened},
    },
    config::Plans,
    db::Database,
    domain::user::{Password, Username},
    limits::token_buckets::Logins,
};

/// Petstore's: requests an hour that the session's plan admits.
const X_RATE_LIMIT: HeaderName = HeaderName::from_static("x-rate-limit");
/// Petstore's: when the session ends.
const X_EXPIRES_AFTER: HeaderName = HeaderName::from_static("x-expires-after");

/// A name and a password, as somebody says they belong together.
// Without `Debug`: it holds a password.
#[derive(Default, Deserialize, ToSchema)]
#[schema(as = Login)]
struct PairBody {
    /// Name of the account, in any case.
    #[serde(default)]
    #[schema(value_type = UsernameText, required = true)]
    username: Field<String>,
    /// Its password.
    #[serde(default)]
    #[schema(value_type = String, required = true, format = Password, min_length = 8, max_length = 128)]
    password: Field<String>,
}

impl FieldType for PairBody {
    const KIND: Kind = Kind::Object;
}

/// A session's token.
#[derive(ToSchema)]
#[schema(value_type = String, min_length = 42, max_length = 42, pattern = "^pis_[0-9A-Za-z]{38}$")]
#[expect(dead_code, reason = "describes an answer that is written as text")]
struct TokenText(String);

/// The same, read: from a form or JSON, or, where there is neither, from the query.
pub(super) struct Pair {
    username: String,
    password: String,
}

impl FromRequest<AppState> for Pair {
    type Rejection = Error;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, Error> {
        let (mut parts, body) = request.into_parts();
        let Query(query) = Query::from_request_parts(&mut parts, state).await?;
        let is_json = has_media_type(&parts.headers, "application/json");
        let is_post = parts.method == Method::POST;
        let request = Request::from_parts(parts, body);
        let mut violations = Violations::default();
        let body = if is_post && is_json {
            Json::<PairBody>::from_request(request, state).await?.0
        } else {
            let given = if is_post {
                Form::from_request(request, state).await?.0.and(query)
            } else {
                query
            };
            PairBody {
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

/// What it takes to log somebody in.
pub(super) struct Door {
    database: Database,
    passwords: Passwords,
    logins: Logins,
    plans: Plans,
    lifetime: SessionLifetime,
}

impl FromRef<AppState> for Door {
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
/// The answer is a token, to be sent as `Authorization: Bearer …`. Whether there is an account of that name
/// cannot be told from a refusal.
#[utoipa::path(
    post, path = "/user/login", operation_id = "logIn", tag = "user", security(()),
    request_body(content((PairBody = "application/x-www-form-urlencoded"), (PairBody = "application/json"))),
    responses(
        (status = 200, description = "The session's token.", body = inline(TokenText), content_type = "application/json",
            headers(("X-Rate-Limit" = Option<i64>, description = "Requests an hour that the account's plan admits, unless it is unlimited."),
                    ("X-Expires-After" = String, description = "When the session ends by itself (RFC 3339)."),
                    ("Cache-Control" = String, description = "`no-store`."))),
    ),
)]
pub(super) async fn log_in(State(door): State<Door>, pair: Pair) -> Result<Response, Error> {
    door.let_in(pair).await
}

/// Log in by the query
///
/// Petstore's way, kept for its clients. A query ends up in places where a password should not be: `POST` it.
#[utoipa::path(
    get, path = "/user/login", operation_id = "loginUser", tag = "user", security(()),
    params(
        ("username" = inline(UsernameText), Query, description = "Name of the account, in any case."),
        ("password" = String, Query, description = "Its password.", format = Password, min_length = 8, max_length = 128),
    ),
    responses(
        (status = 200, description = "The session's token.", body = inline(TokenText), content_type = "application/json",
            headers(("X-Rate-Limit" = Option<i64>, description = "Requests an hour that the account's plan admits, unless it is unlimited."),
                    ("X-Expires-After" = String, description = "When the session ends by itself (RFC 3339)."),
                    ("Cache-Control" = String, description = "`no-store`."))),
    ),
)]
#[deprecated = "a password in the query"]
pub(super) async fn log_in_by_query(
    State(door): State<Door>,
    pair: Pair,
) -> Result<Response, Error> {
    door.let_in(pair).await
}

impl Door {
    async fn let_in(self, pair: Pair) -> Result<Response, Error> {
        let answer = self.answer(pair).await;
        let result = match &answer {
            Ok(_) => "ok",
            Err(Error::Invalid(_)) => "wrong",
            Err(Error::LimitExceeded { .. }) => "limited",
            Err(_) => "failed",
        };
        metrics::counter!("logins_total", "result" => result).increment(1);
        answer
    }

    async fn answer(self, pair: Pair) -> Result<Response, Error> {
        let wrong = || Error::from(session::Error::WrongPair);
        // What can be nobody's name or password costs no hash.
        let username: Username = pair.username.parse().map_err(|_| wrong())?;
        let password = Password::claimed(pair.password).ok_or_else(wrong)?;
        self.logins
            .take(&username.folded())
            .map_err(|retry_after| Error::LimitExceeded {
                policies: vec!["logins"],
                retry_after,
            })?;
        let SessionLifetime(lifetime) = self.lifetime;
        let Opened {
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
        let mut response = answer::json(StatusCode::OK, &token.expose())?;
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
/// Ends the session whose token is sent. A key, or a token of another kind, stays good.
#[utoipa::path(
    get, path = "/user/logout", operation_id = "logoutUser", tag = "user",
    security(("api_key" = []), ("bearer" = [])),
    responses((status = 200, description = "The session is over, if one was sent.", body = ApiResponse)),
)]
pub(super) async fn log_out(
    State(database): State<Database>,
    State(authenticator): State<Authenticator>,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let shown = match presented(&headers)? {
        None => vec![],
        Some(Presented::ApiKey(one) | Presented::Bearer(one)) => vec![one],
        Some(Presented::Both { api_key, bearer }) => vec![api_key, bearer],
    };
    let mut over = false;
    for token in shown {
        if let Some(hash) = session::close(&database, token).await? {
            authenticator.forget(&[hash]);
            over = true;
        }
    }
    let message = if over {
        "the session is over"
    } else {
        "no session was sent"
    };
    ApiResponse::done("logged out", message.to_owned())
}
