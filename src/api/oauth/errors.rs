//! Descriptions of the errors of the OAuth endpoints (RFC 6749 §5.2).

use utoipa::{IntoResponses, ToSchema};

/// OAuth error (RFC 6749 §5.2).
#[derive(ToSchema)]
#[schema(as = OAuthError, example = json!({"error": "invalid_request", "error_description": "grant_type is required"}))]
#[expect(dead_code, reason = "describes what is written for Error::OAuth")]
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
#[expect(dead_code, reason = "describes what Error::OAuth writes")]
pub enum ErrorResponses {
    /// The request is invalid; `error` has the reason.
    #[response(status = 400)]
    Invalid(ErrorBody),
    /// The client is unknown or its secret is wrong.
    #[response(status = 401)]
    Unauthenticated(ErrorBody),
}
