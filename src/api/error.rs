//! API errors, and the table that maps them to statuses and problem details.
//!
//! Invariant: the client reads [`Problem`], the log [`Error`]. No SQL, source chain or file path reaches a body.

use std::{error::Error as StdError, fmt::Display, sync::Arc, time::Duration};

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;

use super::problem::{Problem, Violation};
use crate::{
    auth::{self, oauth, password, session},
    blob_store,
    db::{self, Administration},
    domain::{
        caller::{Scope, Scopes},
        change::Position,
        clock::whole_seconds,
    },
    images::renderings,
    limits::{self, shares::Exhausted},
};

/// Failure of a request. The text of a refusal is for the client, that of a logged failure for the log.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Invalid input, with all violations.
    #[error("invalid input")]
    Invalid(Vec<Violation>),
    /// OAuth error: its code and its description (RFC 6749 §5.2).
    #[error("{0}: {1}")]
    OAuth(&'static str, &'static str),
    /// Missing credential.
    #[error(
        "a credential is required: an API key in the api_key header, or a token in Authorization: Bearer"
    )]
    Unauthenticated,
    /// Invalid credential; of two, the text names the header.
    #[error("{0}")]
    InvalidCredential(&'static str),
    /// Unverifiable token: its issuer does not respond.
    #[error("the signing keys of the token's issuer are not available right now")]
    IssuerUnavailable,
    /// Valid credential without a scope that the operation needs.
    #[error("the scope {missing} is required")]
    Forbidden {
        /// Scopes that the operation needs.
        needed: Scopes,
        /// Scope that is missing.
        missing: Scope,
    },
    /// Demo key in a request that may not come from this machine.
    #[error(
        "demo keys are accepted only from this machine, at http://localhost and without a proxy; create a key with: \
         pet-inventory keys create --caller NAME --plan pro"
    )]
    DemoKeyNotLocal,
    /// Unauthenticated clients may not create accounts.
    #[error("sign-up is closed; ask the operator of this service for an account")]
    SignUpClosed,
    /// No such resource: "pet 5".
    #[error("{0} does not exist")]
    NotFound(String),
    /// No route for the path.
    #[error("the path does not exist; /api/v3/openapi.json describes the API")]
    NoSuchRoute,
    /// Conflict with existing data, described for the client.
    #[error("{0}")]
    Conflict(String),
    /// A request with the same Idempotency-Key is in progress.
    #[error("the Idempotency-Key is already in use by a request in progress")]
    IdempotencyKeyInUse,
    /// The Idempotency-Key was used for another request.
    #[error("the Idempotency-Key was already used for a different request")]
    IdempotencyKeyReused,
    /// Refusal that was stored under the Idempotency-Key of an earlier request.
    #[error("a stored refusal")]
    Replayed(Box<Problem>),
    /// A condition of the request is false.
    #[error(
        "the resource's ETag does not meet If-Match or If-None-Match; If-Match matches no weak tag (W/\"…\"), which a proxy that \
         compresses makes"
    )]
    PreconditionFailed,
    /// The body did not arrive in time.
    #[error("the body did not arrive in time")]
    BodyTimeout,
    /// The body is larger than this number of bytes.
    #[error("the body is larger than {0} bytes")]
    BodyTooLarge(u64),
    /// The path and query are longer than this number of bytes.
    #[error("the path and query are longer than {0} bytes")]
    UriTooLong(usize),
    /// The body has another media type than these.
    #[error("the Content-Type of the body must be {0}")]
    UnsupportedMediaType(&'static str),
    /// The body is encoded, such as compressed.
    #[error("the body must be sent without a Content-Encoding")]
    EncodedBody,
    /// The body has another transfer coding than `chunked`.
    #[error("the Transfer-Encoding of the body must be chunked")]
    UnsupportedTransferCoding,
    /// The path has only these methods.
    #[error("the method must be {0}")]
    MethodNotAllowed(&'static str),
    /// The upload is not an image of a supported type.
    #[error(
        "the file must be a PNG, JPEG, GIF or WebP image; the type is detected from the content"
    )]
    NotAnImage,
    /// The range begins after the end of the content, which has this number of bytes.
    #[error("the range must begin within the {0} bytes of the content")]
    RangeNotSatisfiable(u64),
    /// The image store failed.
    #[error(transparent)]
    BlobStore(#[from] blob_store::Error),
    /// The position is not in the record of changes, which begins at this one.
    #[error("unknown position")]
    UnknownPosition(Position),
    /// The request exceeded its time limit.
    #[error("request timed out")]
    TimedOut,
    /// A rate limit is reached.
    #[error("limit reached: {}", .policies.join(" and "))]
    LimitExceeded {
        /// Names of the limits.
        policies: Vec<&'static str>,
        /// Time until the request would be admitted.
        retry_after: Duration,
    },
    /// Too many requests are in progress.
    #[error("the service is overloaded")]
    Overloaded,
    /// The client address uses its share. Counts against the limits of a caller, unlike other failures of the service.
    #[error(
        "the client address has too many requests in progress, or too many responses that it has not read"
    )]
    OverloadedByClient,
    /// The process is about to stop.
    #[error("the service is shutting down")]
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
    pub fn one_violation(field: impl Into<String>, reason: impl Display) -> Self {
        Self::Invalid(vec![Violation::new(field, reason)])
    }

    /// Creates the error of an OAuth request that is malformed.
    pub const fn invalid_request(why: &'static str) -> Self {
        Self::OAuth("invalid_request", why)
    }

    /// Creates the error of a bug.
    pub fn internal(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::Internal(error.into())
    }

    /// Creates the error of one limit.
    pub fn limit_exceeded(policy: &'static str, retry_after: Duration) -> Self {
        Self::LimitExceeded {
            policies: vec![policy],
            retry_after,
        }
    }

    /// Creates the error of a client address over its failed-authentication limit.
    pub fn too_many_failures(retry_after: Duration) -> Self {
        Self::limit_exceeded("failed-authentication", retry_after)
    }

    /// Fails with a conflict if a change takes away the last administrator.
    pub fn keep_administrator(administration: Administration) -> Result<(), Self> {
        match administration {
            Administration::Kept => Ok(()),
            Administration::Lost => Err(Self::Conflict(
                "this would leave no administrator: a caller that is enabled, and has the scope admin and a key or \
                 client that stays valid for a day"
                    .to_owned(),
            )),
        }
    }

    /// Returns the error that a response stands for, if it is one of this service.
    pub fn of(response: &Response) -> Option<&Self> {
        response.extensions().get::<Arc<Self>>().map(Arc::as_ref)
    }

    /// Returns true if the cause is logged for each request. It is not for refusals; a failed fetch of keys is logged once, and
    /// an unavailable PostgreSQL once a second.
    pub fn is_logged(&self) -> bool {
        let is_logged_elsewhere = matches!(
            self,
            Self::UnsupportedTransferCoding
                | Self::Stopping
                | Self::Overloaded
                | Self::OverloadedByClient
                | Self::IssuerUnavailable
                | Self::Database(db::Error::Unavailable(_) | db::Error::Overloaded)
        );
        self.status().is_server_error() && !is_logged_elsewhere
    }

    /// Returns true if PostgreSQL did not do the work in time, as during a planned switchover, and the request may be repeated.
    /// That is logged as a warning.
    pub fn is_database_outage(&self) -> bool {
        let is_of_database = matches!(self, Self::TimedOut | Self::Database(_));
        is_of_database && self.status() == StatusCode::SERVICE_UNAVAILABLE
    }

    /// Returns true for a 5xx response that is due to the request or its client, so that it counts against the limits of the
    /// caller.
    pub const fn is_counted(&self) -> bool {
        matches!(
            self,
            Self::TimedOut
                | Self::OverloadedByClient
                | Self::Database(db::Error::StatementTimedOut | db::Error::TotalTimedOut)
        )
    }

    /// Returns true for a refusal that is due to the Idempotency-Key, and so must not be stored as the response to the request.
    pub const fn is_about_key(&self) -> bool {
        matches!(self, Self::IdempotencyKeyInUse | Self::IdempotencyKeyReused)
    }

    /// Returns the status of the response.
    fn status(&self) -> StatusCode {
        use StatusCode as S;
        match self {
            Self::Invalid(_) => S::BAD_REQUEST,
            Self::OAuth(code, _) if *code == INVALID_CLIENT => S::UNAUTHORIZED,
            Self::OAuth(..) => S::BAD_REQUEST,
            Self::Unauthenticated | Self::InvalidCredential(_) => S::UNAUTHORIZED,
            Self::Forbidden { .. } | Self::DemoKeyNotLocal | Self::SignUpClosed => S::FORBIDDEN,
            Self::NotFound(_) | Self::NoSuchRoute => S::NOT_FOUND,
            Self::MethodNotAllowed(_) => S::METHOD_NOT_ALLOWED,
            Self::UnsupportedTransferCoding => S::NOT_IMPLEMENTED,
            Self::BodyTimeout => S::REQUEST_TIMEOUT,
            Self::Conflict(_) | Self::IdempotencyKeyInUse => S::CONFLICT,
            Self::UnknownPosition(_) => S::GONE,
            Self::PreconditionFailed => S::PRECONDITION_FAILED,
            Self::BodyTooLarge(_) => S::PAYLOAD_TOO_LARGE,
            Self::UriTooLong(_) => S::URI_TOO_LONG,
            Self::UnsupportedMediaType(_) | Self::EncodedBody | Self::NotAnImage => {
                S::UNSUPPORTED_MEDIA_TYPE
            }
            Self::RangeNotSatisfiable(_) => S::RANGE_NOT_SATISFIABLE,
            Self::IdempotencyKeyReused => S::UNPROCESSABLE_ENTITY,
            Self::LimitExceeded { .. } => S::TOO_MANY_REQUESTS,
            Self::Replayed(problem) => problem.status(),
            Self::BlobStore(blob_store::Error::Full(_)) => S::INSUFFICIENT_STORAGE,
            Self::IssuerUnavailable
            | Self::Overloaded
            | Self::OverloadedByClient
            | Self::Stopping
            | Self::TimedOut
            | Self::BlobStore(blob_store::Error::Unavailable(_))
            | Self::Database(
                db::Error::Overloaded
                | db::Error::StatementTimedOut
                | db::Error::TotalTimedOut
                | db::Error::Unavailable(_)
                | db::Error::TimedOut
                | db::Error::Locked(_)
                | db::Error::Contended(_),
            ) => S::SERVICE_UNAVAILABLE,
            Self::Database(
                db::Error::Corrupt(_)
                | db::Error::Unmet(_)
                | db::Error::Url(_)
                | db::Error::Migrate(_)
                | db::Error::Query(_),
            )
            | Self::BlobStore(
                blob_store::Error::Missing(_)
                | blob_store::Error::Damaged(_)
                | blob_store::Error::Config { .. },
            )
            | Self::Internal(_) => S::INTERNAL_SERVER_ERROR,
        }
    }

    /// Returns the problem that the client reads. The text of a failure of the service is for the log.
    pub fn problem(&self) -> Problem {
        let status = self.status();
        let text = match self {
            Self::Invalid(violations) => return Problem::invalid(violations.clone()),
            Self::UnknownPosition(oldest) => return Problem::unknown_position(*oldest),
            Self::LimitExceeded {
                policies,
                retry_after,
            } => return Problem::quota_exceeded(policies, seconds(*retry_after)),
            Self::Replayed(problem) => return Problem::clone(problem),
            Self::TimedOut
            | Self::Database(db::Error::StatementTimedOut | db::Error::TotalTimedOut) => {
                "the request took too long"
            }
            Self::Database(db::Error::Overloaded) => "the service is overloaded",
            Self::Database(_) if status == StatusCode::SERVICE_UNAVAILABLE => {
                "the database is not available right now"
            }
            Self::BlobStore(blob_store::Error::Full(_)) => "the image store is full",
            Self::BlobStore(blob_store::Error::Unavailable(_)) => {
                "the image store is not available right now"
            }
            Self::Database(_) | Self::BlobStore(_) | Self::Internal(_) => {
                "internal server error; the log has the details under this request's id"
            }
            refusal => return Problem::new(status, refusal.to_string()),
        };
        Problem::new(status, text)
    }

    /// Returns the media type and the bytes of an error response. Of one that the framework made, only the status is known.
    pub fn body(
        error: Option<&Self>,
        status: StatusCode,
        request_id: &str,
    ) -> (&'static str, Vec<u8>) {
        match error {
            Some(Self::OAuth(error, description)) => {
                let body = json!({"error": error, "error_description": description});
                ("application/json", body.to_string().into_bytes())
            }
            Some(error) => (Problem::MEDIA_TYPE, error.problem().into_json(request_id)),
            None => {
                let problem = Problem::of_status(status);
                (Problem::MEDIA_TYPE, problem.into_json(request_id))
            }
        }
    }

    /// Returns the header that goes with the status.
    fn header(&self, status: StatusCode) -> Option<(HeaderName, HeaderValue)> {
        let list = |names: &str| HeaderValue::from_str(&names.replace(" or ", ", ")).ok();
        Some(match self {
            Self::Unauthenticated | Self::InvalidCredential(_) | Self::Forbidden { .. } => {
                (header::WWW_AUTHENTICATE, challenge(self))
            }
            Self::OAuth(..) if status == StatusCode::UNAUTHORIZED => {
                let challenge = r#"Basic realm="pet-inventory""#;
                (
                    header::WWW_AUTHENTICATE,
                    HeaderValue::from_static(challenge),
                )
            }
            Self::LimitExceeded { retry_after, .. } => {
                (header::RETRY_AFTER, seconds(*retry_after).into())
            }
            Self::IdempotencyKeyInUse => (header::RETRY_AFTER, 1.into()),
            _ if status == StatusCode::SERVICE_UNAVAILABLE => (header::RETRY_AFTER, 1.into()),
            // RFC 9110 §15.5.16: the accepted types.
            Self::UnsupportedMediaType(accepted) => (header::ACCEPT, list(accepted)?),
            Self::NotAnImage => {
                let types = "image/png, image/jpeg, image/gif, image/webp";
                (header::ACCEPT, HeaderValue::from_static(types))
            }
            // RFC 7694 §3: shows that the coding is unsupported, not the media type.
            Self::EncodedBody => (
                header::ACCEPT_ENCODING,
                HeaderValue::from_static("identity"),
            ),
            Self::MethodNotAllowed(allowed) => (header::ALLOW, list(allowed)?),
            // RFC 9110 §15.5.17: the size of the content.
            Self::RangeNotSatisfiable(size) => {
                let range = HeaderValue::try_from(format!("bytes */{size}"));
                (header::CONTENT_RANGE, range.ok()?)
            }
            _ => return None,
        })
    }
}

impl From<limits::Error> for Error {
    fn from(error: limits::Error) -> Self {
        match error {
            limits::Error::Exceeded(limits, retry_after) => Self::LimitExceeded {
                policies: limits.iter().map(|limit| limit.as_str()).collect(),
                retry_after,
            },
            limits::Error::Database(error) => Self::Database(error),
        }
    }
}

impl From<auth::Error> for Error {
    fn from(error: auth::Error) -> Self {
        match error {
            auth::Error::Invalid => Self::InvalidCredential("the credential is not valid"),
            auth::Error::InvalidApiKey => {
                Self::InvalidCredential("the credential in api_key is not valid")
            }
            auth::Error::InvalidBearer => {
                Self::InvalidCredential("the credential in Authorization is not valid")
            }
            auth::Error::DifferentCallers => Self::InvalidCredential(
                "the credentials in api_key and Authorization belong to different callers",
            ),
            auth::Error::IssuerUnavailable => Self::IssuerUnavailable,
            auth::Error::Database(error) => Self::Database(error),
        }
    }
}

impl db::AsDatabaseError for Error {
    fn database_error(&self) -> Option<&db::Error> {
        match self {
            Self::Database(error) => Some(error),
            _ => None,
        }
    }
}

/// Headers of OAuth responses, which must not be stored (RFC 6749 §5.1).
pub const NO_STORE: [(HeaderName, HeaderValue); 2] = [
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (header::PRAGMA, HeaderValue::from_static("no-cache")),
];
/// Code of the error of a client that is not authenticated.
const INVALID_CLIENT: &str = "invalid_client";

impl From<oauth::Error> for Error {
    fn from(error: oauth::Error) -> Self {
        match error {
            oauth::Error::InvalidClient => Self::OAuth(
                INVALID_CLIENT,
                "the client is unknown or its secret is missing or wrong",
            ),
            oauth::Error::InvalidScope => Self::OAuth(
                "invalid_scope",
                "a requested scope does not exist or is not granted to the client",
            ),
            oauth::Error::UnauthorizedClient => Self::OAuth(
                "unauthorized_client",
                "the token was not issued to this client",
            ),
            oauth::Error::Random(error) => Self::internal(error),
            oauth::Error::Database(error) => error.into(),
        }
    }
}

impl From<password::Error> for Error {
    fn from(error: password::Error) -> Self {
        Self::internal(error)
    }
}

impl From<session::Error> for Error {
    fn from(error: session::Error) -> Self {
        match error {
            session::Error::InvalidCredentials => {
                Self::one_violation("username", "or password is incorrect")
            }
            session::Error::Password(error) => error.into(),
            session::Error::Random(error) => Self::internal(error),
            session::Error::Database(error) => error.into(),
        }
    }
}

impl From<Exhausted> for Error {
    fn from(exhausted: Exhausted) -> Self {
        metrics::counter!("http_server_shed_requests_total").increment(1);
        match exhausted {
            Exhausted::ByClient => Self::OverloadedByClient,
            Exhausted::InTotal => Self::Overloaded,
        }
    }
}

impl From<renderings::Error> for Error {
    fn from(error: renderings::Error) -> Self {
        Self::internal(error)
    }
}

/// Leaves the body to the layer [`ErrorBody`](super::layers::errors::ErrorBody), which knows the request id. The error is an
/// extension of the response.
impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let status = self.status();
        let mut response = Response::new(Body::empty());
        *response.status_mut() = status;
        let headers = response.headers_mut();
        // As many as a 429 response has, since a refusal must be cheap.
        headers.reserve(9);
        if let Some((name, value)) = self.header(status) {
            headers.insert(name, value);
        }
        if matches!(self, Self::OAuth(..)) {
            headers.extend(NO_STORE);
        }
        response.extensions_mut().insert(Arc::new(self));
        response
    }
}

/// Whole seconds in `Retry-After`.
fn seconds(retry_after: Duration) -> u64 {
    whole_seconds(retry_after).max(1)
}

/// Returns the value of `WWW-Authenticate` (RFC 6750 §3).
fn challenge(error: &Error) -> HeaderValue {
    let detail = match error {
        Error::Forbidden { needed, .. } => {
            format!(r#", error="insufficient_scope", scope="{needed}""#)
        }
        Error::InvalidCredential(_) => r#", error="invalid_token""#.to_owned(),
        _ => String::new(),
    };
    let challenge = format!(r#"Bearer realm="pet-inventory"{detail}"#);
    HeaderValue::try_from(challenge).unwrap_or(HeaderValue::from_static("Bearer"))
}
