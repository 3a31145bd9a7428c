//! API errors, and the table that maps them to statuses and problem details.
//!
//! Invariant: the client reads [`Problem`], the log [`Cause`]. No SQL, source chain or file path reaches a body.

mod from;

use std::{error::Error as StdError, sync::Arc, time::Duration};

use axum::{
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};

use super::problem::{Problem, Violation};
use crate::{
    blob_store, db,
    domain::{
        Invalid,
        caller::{Scope, Scopes},
        clock::whole_seconds,
    },
};

/// Failure of a request.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Invalid input, with all violations.
    #[error("invalid input")]
    Invalid(Vec<Violation>),
    /// Missing credential.
    #[error("no credential")]
    Unauthenticated,
    /// Invalid credential.
    #[error("invalid credential")]
    InvalidCredential,
    /// Unverifiable token: its issuer does not respond.
    #[error("issuer unavailable")]
    IssuerUnavailable,
    /// Valid credential without a scope that the operation needs.
    #[error("scope missing")]
    Forbidden {
        /// Scopes that the operation needs.
        needed: Scopes,
        /// Scope that is missing.
        missing: Scope,
    },
    /// Unauthenticated clients may not create accounts.
    #[error("sign-up closed")]
    SignUpClosed,
    /// No such resource: "pet 5".
    #[error("{0} not found")]
    NotFound(String),
    /// No route for the path.
    #[error("no such route")]
    NoSuchRoute,
    /// Conflict with existing data, described for the client.
    #[error("conflict: {0}")]
    Conflict(String),
    /// A request with the same Idempotency-Key is in progress.
    #[error("idempotency key in use")]
    IdempotencyKeyInUse,
    /// The Idempotency-Key was used for another request.
    #[error("idempotency key reused")]
    IdempotencyKeyReused,
    /// The resource has none of the versions in `If-Match`.
    #[error("precondition failed")]
    PreconditionFailed,
    /// The body did not arrive in time.
    #[error("request body too slow")]
    BodyTimeout,
    /// The body is larger than this number of bytes.
    #[error("body too large")]
    BodyTooLarge(u64),
    /// The path and query are longer than this number of bytes.
    #[error("URI too long")]
    UriTooLong(usize),
    /// The body has another media type than these.
    #[error("unsupported media type")]
    UnsupportedMediaType(&'static str),
    /// The body is encoded, such as compressed.
    #[error("encoded body")]
    EncodedBody,
    /// The path has only these methods.
    #[error("method not allowed")]
    MethodNotAllowed(&'static str),
    /// The upload is not an image of a supported type.
    #[error("not an image")]
    NotAnImage,
    /// The range begins after the end of the content, which has this number of bytes.
    #[error("range not satisfiable")]
    RangeNotSatisfiable(u64),
    /// The image store failed.
    #[error(transparent)]
    BlobStore(#[from] blob_store::Error),
    /// The request exceeded its time limit.
    #[error("request timed out")]
    TimedOut,
    /// A rate limit is reached.
    #[error("limit exceeded: {policies:?}")]
    LimitExceeded {
        /// Names of the limits.
        policies: Vec<&'static str>,
        /// Time until the request would be admitted.
        retry_after: Duration,
    },
    /// Too many requests are in progress.
    #[error("overloaded")]
    Overloaded,
    /// The process is about to stop.
    #[error("stopping")]
    Stopping,
    /// The database failed.
    #[error(transparent)]
    Database(#[from] db::Error),
    /// A bug in this program.
    #[error("internal error: {0}")]
    Internal(#[source] Box<dyn StdError + Send + Sync>),
}

impl Error {
    /// Creates an error with one violation.
    pub fn invalid(field: impl Into<String>, reason: &Invalid) -> Self {
        Self::Invalid(vec![Violation::new(field, reason)])
    }

    /// Creates the error of one limit.
    #[must_use]
    pub fn limit_exceeded(policy: &'static str, retry_after: Duration) -> Self {
        Self::LimitExceeded {
            policies: vec![policy],
            retry_after,
        }
    }

    /// Creates the error of a client address over its failed-authentication limit.
    #[must_use]
    pub fn too_many_failures(retry_after: Duration) -> Self {
        Self::limit_exceeded("failed-authentication", retry_after)
    }

    /// Creates an error with one violation of a rule that no domain type checks.
    #[must_use]
    pub fn one_violation(field: &str, reason: &'static str) -> Self {
        Self::Invalid(vec![Violation::new(field, reason)])
    }

    /// Returns true if the cause is not logged per request: a failed fetch of keys is logged once, an unavailable
    /// PostgreSQL once a second, and an intended refusal not at all.
    const fn is_logged_elsewhere(&self) -> bool {
        matches!(
            self,
            Self::Stopping
                | Self::Overloaded
                | Self::IssuerUnavailable
                | Self::Database(db::Error::Unavailable(_) | db::Error::Overloaded)
        )
    }

    /// Default of `Retry-After`, in seconds.
    const RETRY_AFTER: u64 = 1;

    #[expect(clippy::too_many_lines, reason = "a table is as long as its rows")]
    fn problem(&self) -> Problem {
        use StatusCode as S;
        let (status, detail) = match self {
            Self::Invalid(violations) => (S::BAD_REQUEST, summary(violations)),
            Self::Unauthenticated => (
                S::UNAUTHORIZED,
                "a credential is required: an API key in the api_key header, or a token in \
                 Authorization: Bearer"
                    .into(),
            ),
            Self::InvalidCredential => (S::UNAUTHORIZED, "the credential is not valid".into()),
            Self::IssuerUnavailable => (
                S::SERVICE_UNAVAILABLE,
                "the signing keys of the token's issuer are not available right now".into(),
            ),
            Self::Forbidden { missing, .. } => {
                (S::FORBIDDEN, format!("the scope {missing} is required"))
            }
            Self::SignUpClosed => (
                S::FORBIDDEN,
                "sign-up is closed; ask the operator of this service for an account".into(),
            ),
            Self::NotFound(what) => (S::NOT_FOUND, format!("{what} does not exist")),
            Self::NoSuchRoute => (
                S::NOT_FOUND,
                "the path does not exist; /api/v3/openapi.json describes the API".into(),
            ),
            Self::Conflict(detail) => (S::CONFLICT, detail.clone()),
            Self::IdempotencyKeyInUse => (
                S::CONFLICT,
                "the Idempotency-Key is already in use by a request in progress".into(),
            ),
            Self::IdempotencyKeyReused => (
                S::UNPROCESSABLE_ENTITY,
                "the Idempotency-Key was already used for a different request".into(),
            ),
            Self::PreconditionFailed => (
                S::PRECONDITION_FAILED,
                "the resource's ETag does not match If-Match".into(),
            ),
            Self::BodyTimeout => (S::REQUEST_TIMEOUT, "the body did not arrive in time".into()),
            Self::BodyTooLarge(limit) => (
                S::PAYLOAD_TOO_LARGE,
                format!("the body is larger than {limit} bytes"),
            ),
            Self::UriTooLong(limit) => (
                S::URI_TOO_LONG,
                format!("the path and query are longer than {limit} bytes"),
            ),
            Self::UnsupportedMediaType(accepted) => (
                S::UNSUPPORTED_MEDIA_TYPE,
                format!("the Content-Type of the body must be {accepted}"),
            ),
            Self::EncodedBody => (
                S::UNSUPPORTED_MEDIA_TYPE,
                "the body must be sent without a Content-Encoding".into(),
            ),
            Self::MethodNotAllowed(allowed) => (
                S::METHOD_NOT_ALLOWED,
                format!("the method must be {allowed}"),
            ),
            Self::NotAnImage => (
                S::UNSUPPORTED_MEDIA_TYPE,
                "the file must be a PNG, JPEG, GIF or WebP image; the type is detected from the \
                 content"
                    .into(),
            ),
            Self::RangeNotSatisfiable(size) => (
                S::RANGE_NOT_SATISFIABLE,
                format!("the range must begin within the {size} bytes of the content"),
            ),
            Self::BlobStore(blob_store::Error::Full(_)) => {
                (S::INSUFFICIENT_STORAGE, "the image store is full".into())
            }
            Self::BlobStore(blob_store::Error::Unavailable(_)) => (
                S::SERVICE_UNAVAILABLE,
                "the image store is not available right now".into(),
            ),
            Self::TimedOut => (S::SERVICE_UNAVAILABLE, "the request took too long".into()),
            Self::LimitExceeded {
                policies,
                retry_after,
            } => {
                let detail = format!(
                    "limit reached: {}; retry in {} s",
                    policies.join(" and "),
                    whole_seconds(*retry_after).max(1)
                );
                return Problem::quota_exceeded(policies, detail);
            }
            Self::Overloaded | Self::Database(db::Error::Overloaded) => {
                (S::SERVICE_UNAVAILABLE, "the service is overloaded".into())
            }
            Self::Stopping => (
                S::SERVICE_UNAVAILABLE,
                "the service is shutting down".into(),
            ),
            Self::Database(
                db::Error::Unavailable(_)
                | db::Error::TimedOut
                | db::Error::Locked(_)
                | db::Error::Contended(_),
            ) => (
                S::SERVICE_UNAVAILABLE,
                "the database is not available right now".into(),
            ),
            Self::Database(
                db::Error::Corrupt(_)
                | db::Error::Url(_)
                | db::Error::Migrate(_)
                | db::Error::Query(_),
            )
            | Self::BlobStore(blob_store::Error::Missing(_) | blob_store::Error::Config { .. })
            | Self::Internal(_) => (
                S::INTERNAL_SERVER_ERROR,
                "internal server error; the log has the details under this request's id".into(),
            ),
        };
        let errors = match self {
            Self::Invalid(violations) => violations.clone(),
            _ => Vec::new(),
        };
        Problem::new(status, detail, errors)
    }
}

/// Summarizes the violations in one sentence, for clients that read only `message`.
fn summary(violations: &[Violation]) -> String {
    match violations {
        [only] => format!("{} {}", only.field, only.reason),
        many => {
            let fields: Vec<_> = many
                .iter()
                .map(|violation| violation.field.as_str())
                .collect();
            format!("{} fields are invalid: {}", many.len(), fields.join(", "))
        }
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let problem = self.problem();
        let status = problem.status();
        let mut response = problem.into_response();
        let headers = response.headers_mut();
        match &self {
            Self::Unauthenticated | Self::InvalidCredential | Self::Forbidden { .. } => {
                headers.insert(header::WWW_AUTHENTICATE, challenge(&self));
            }
            Self::LimitExceeded { retry_after, .. } => {
                headers.insert(
                    header::RETRY_AFTER,
                    whole_seconds(*retry_after).max(1).into(),
                );
            }
            Self::IdempotencyKeyInUse => {
                headers.insert(header::RETRY_AFTER, Self::RETRY_AFTER.into());
            }
            _ if status == StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, Self::RETRY_AFTER.into());
            }
            Self::UnsupportedMediaType(accepted) => {
                // RFC 9110 §15.5.16: the accepted types.
                if let Ok(value) = HeaderValue::from_str(&accepted.replace(" or ", ", ")) {
                    headers.insert(header::ACCEPT, value);
                }
            }
            Self::EncodedBody => {
                // RFC 7694 §3: shows that the coding is unsupported, not the media type.
                let coding = HeaderValue::from_static("identity");
                headers.insert(header::ACCEPT_ENCODING, coding);
            }
            Self::MethodNotAllowed(allowed) => {
                if let Ok(value) = HeaderValue::from_str(&allowed.replace(" or ", ", ")) {
                    headers.insert(header::ALLOW, value);
                }
            }
            Self::NotAnImage => {
                let types = "image/png, image/jpeg, image/gif, image/webp";
                headers.insert(header::ACCEPT, HeaderValue::from_static(types));
            }
            Self::RangeNotSatisfiable(size) => {
                // RFC 9110 §15.5.17: the size of the content.
                if let Ok(value) = HeaderValue::try_from(format!("bytes */{size}")) {
                    headers.insert(header::CONTENT_RANGE, value);
                }
            }
            _ => {}
        }
        if matches!(self, Self::IdempotencyKeyInUse | Self::IdempotencyKeyReused) {
            response.extensions_mut().insert(AboutItsKey);
        }
        if status.is_server_error() && !self.is_logged_elsewhere() {
            response.extensions_mut().insert(Cause(Arc::new(self)));
        }
        response
    }
}

/// Returns the value of `WWW-Authenticate` (RFC 6750 §3).
fn challenge(error: &Error) -> HeaderValue {
    let text = match error {
        Error::Forbidden { needed, .. } => {
            format!(r#"Bearer realm="pet-inventory", error="insufficient_scope", scope="{needed}""#)
        }
        Error::InvalidCredential => {
            r#"Bearer realm="pet-inventory", error="invalid_token""#.to_owned()
        }
        _ => r#"Bearer realm="pet-inventory""#.to_owned(),
    };
    HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("Bearer"))
}

/// Marks an error response with a body in the format of its own RFC, in place of a problem.
#[derive(Debug, Clone, Copy)]
pub struct OAuthErrorBody;

/// Marks a refusal that is due to the Idempotency-Key, and so must not be stored as the response to the request.
#[derive(Debug, Clone, Copy)]
pub struct AboutItsKey;

/// Error behind a 5xx response, passed to the layer that logs it once.
#[derive(Debug, Clone)]
pub struct Cause(pub Arc<Error>);

/// Header of the request id.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
