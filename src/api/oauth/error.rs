//! Converts errors to OAuth error responses (RFC 6749 §5.2).

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use utoipa::ToSchema;

use super::response::no_store;
use crate::{
    api::error::{Error, OAuthErrorBody},
    auth::oauth,
};

/// OAuth error (RFC 6749 §5.2).
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OAuthError)]
pub struct ErrorBody {
    /// Error code of RFC 6749.
    #[schema(max_length = 32, pattern = "^[a-z_]+$")]
    error: &'static str,
    /// Description of the error.
    #[schema(max_length = 255, pattern = "^[ -~]*$")]
    error_description: &'static str,
}

/// Failure of an OAuth request.
pub enum OAuthError {
    /// `invalid_request`, with its description.
    InvalidRequest(&'static str),
    InvalidClient,
    InvalidScope,
    UnauthorizedClient,
    UnsupportedGrantType,
    /// Any other error, sent as problem details.
    Other(Error),
}

impl From<Error> for OAuthError {
    fn from(error: Error) -> Self {
        match error {
            Error::Invalid(_) => Self::InvalidRequest("the form is malformed"),
            other => Self::Other(other),
        }
    }
}

impl From<oauth::Error> for OAuthError {
    fn from(error: oauth::Error) -> Self {
        match error {
            oauth::Error::InvalidClient => Self::InvalidClient,
            oauth::Error::InvalidScope => Self::InvalidScope,
            oauth::Error::UnauthorizedClient => Self::UnauthorizedClient,
            oauth::Error::Random(error) => Self::Other(Error::Internal(error.into())),
            oauth::Error::Database(error) => Self::Other(error.into()),
        }
    }
}

impl IntoResponse for OAuthError {
    fn into_response(self) -> Response {
        let (status, error, error_description) = match self {
            Self::InvalidRequest(why) => (StatusCode::BAD_REQUEST, "invalid_request", why),
            Self::InvalidClient => (
                StatusCode::UNAUTHORIZED,
                "invalid_client",
                "the client is unknown or its secret is missing or wrong",
            ),
            Self::InvalidScope => (
                StatusCode::BAD_REQUEST,
                "invalid_scope",
                "a requested scope does not exist or is not granted to the client",
            ),
            Self::UnauthorizedClient => (
                StatusCode::BAD_REQUEST,
                "unauthorized_client",
                "the token was not issued to this client",
            ),
            Self::UnsupportedGrantType => (
                StatusCode::BAD_REQUEST,
                "unsupported_grant_type",
                "grant_type must be client_credentials",
            ),
            Self::Other(error) => return error.into_response(),
        };
        let mut response = no_store(&ErrorBody {
            error,
            error_description,
        });
        *response.status_mut() = status;
        if status == StatusCode::UNAUTHORIZED {
            let challenge = HeaderValue::from_static(r#"Basic realm="pet-inventory""#);
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, challenge);
        }
        response.extensions_mut().insert(OAuthErrorBody);
        response
    }
}
