//! Responses of the OAuth endpoints, and their errors (RFC 6749 §5.2).

use axum::{
    Extension,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use utoipa::{IntoResponses, ToSchema};

use crate::{
    api::{error::Error, problem::OAuthErrorBody, response},
    auth::oauth,
};

/// OAuth error (RFC 6749 §5.2).
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OAuthError, example = json!({"error": "invalid_request", "error_description": "grant_type is required"}))]
pub struct ErrorBody {
    /// Error code of RFC 6749.
    #[schema(max_length = 32, pattern = "^[a-z_]+$")]
    error: &'static str,
    /// Description of the error.
    #[schema(max_length = 255, pattern = "^[ -~]*$")]
    error_description: &'static str,
}

/// Error responses of the operations that authenticate a client.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "describes what OAuthError writes")]
pub enum ErrorResponses {
    /// The request is invalid; `error` has the reason.
    #[response(status = 400)]
    Invalid(ErrorBody),
    /// The client is unknown or its secret is wrong.
    #[response(status = 401)]
    Unauthenticated(ErrorBody),
}

/// Failure of an OAuth request.
pub enum OAuthError {
    /// Error code of RFC 6749, and its description.
    Code(&'static str, &'static str),
    /// Any other error, sent as problem details.
    Other(Error),
}

impl OAuthError {
    /// Creates an `invalid_request` error.
    pub const fn invalid_request(why: &'static str) -> Self {
        Self::Code("invalid_request", why)
    }
}

impl From<Error> for OAuthError {
    fn from(error: Error) -> Self {
        match error {
            Error::Invalid(_) => Self::invalid_request("the form is malformed"),
            Error::UnsupportedMediaType(_) => {
                Self::invalid_request("the body must be application/x-www-form-urlencoded")
            }
            Error::EncodedBody => {
                Self::invalid_request("the body must be sent without a Content-Encoding")
            }
            other => Self::Other(other),
        }
    }
}

impl From<oauth::Error> for OAuthError {
    fn from(error: oauth::Error) -> Self {
        let (code, description) = match error {
            oauth::Error::InvalidClient => (
                "invalid_client",
                "the client is unknown or its secret is missing or wrong",
            ),
            oauth::Error::InvalidScope => (
                "invalid_scope",
                "a requested scope does not exist or is not granted to the client",
            ),
            oauth::Error::UnauthorizedClient => (
                "unauthorized_client",
                "the token was not issued to this client",
            ),
            oauth::Error::Random(error) => return Self::Other(Error::internal(error)),
            oauth::Error::Database(error) => return Self::Other(error.into()),
        };
        Self::Code(code, description)
    }
}

impl IntoResponse for OAuthError {
    fn into_response(self) -> Response {
        let (error, error_description) = match self {
            Self::Code(error, description) => (error, description),
            Self::Other(error) => return error.into_response(),
        };
        let (status, challenge) = if error == "invalid_client" {
            let challenge = [(header::WWW_AUTHENTICATE, r#"Basic realm="pet-inventory""#)];
            (StatusCode::UNAUTHORIZED, Some(challenge))
        } else {
            (StatusCode::BAD_REQUEST, None)
        };
        let body = ErrorBody {
            error,
            error_description,
        };
        let marker = Extension(OAuthErrorBody);
        (marker, challenge, no_store(status, &body)).into_response()
    }
}

/// Returns a JSON response that must not be stored (RFC 6749 §5.1).
pub fn no_store(status: StatusCode, body: &impl Serialize) -> Response {
    let headers = [
        (header::CACHE_CONTROL, "no-store"),
        (header::PRAGMA, "no-cache"),
    ];
    (headers, response::json(status, body)).into_response()
}
