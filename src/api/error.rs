//! API errors, and the table that maps them to statuses and problem details.
//!
//! Invariant: the client reads [`Problem`], the log [`Cause`]. No SQL, source chain or file path reaches a body.

use std::{error::Error as StdError, fmt::Display, sync::Arc, time::Duration};

use axum::{
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};

use super::problem::{AboutItsKey, CountedFailure, Problem, Violation};
use crate::{
    auth::{self, password, session},
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
    /// The resource has none of the versions in `If-Match`.
    #[error("the resource's ETag does not match If-Match")]
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
                "this would leave no administrator: a caller that is enabled, and has the scope admin and a valid key or \
                 client"
                    .to_owned(),
            )),
        }
    }

    /// Returns true if the cause is not logged per request: a failed fetch of keys is logged once, an unavailable
    /// PostgreSQL once a second, and an intended refusal not at all.
    const fn is_logged_elsewhere(&self) -> bool {
        matches!(
            self,
            Self::Stopping
                | Self::Overloaded
                | Self::OverloadedByClient
                | Self::IssuerUnavailable
                | Self::Database(
                    db::Error::Unavailable(_)
                        | db::Error::Overloaded
                        | db::Error::OverloadedByRequester
                )
        )
    }

    /// Returns the status and body of the response.
    fn problem(&self) -> Problem {
        use StatusCode as S;
        let refusal = |status| Problem::new(status, self.to_string());
        match self {
            Self::Invalid(violations) => Problem::invalid(violations.clone()),
            Self::Unauthenticated | Self::InvalidCredential(_) => refusal(S::UNAUTHORIZED),
            Self::Forbidden { .. } | Self::DemoKeyNotLocal | Self::SignUpClosed => {
                refusal(S::FORBIDDEN)
            }
            Self::NotFound(_) | Self::NoSuchRoute => refusal(S::NOT_FOUND),
            Self::MethodNotAllowed(_) => refusal(S::METHOD_NOT_ALLOWED),
            Self::BodyTimeout => refusal(S::REQUEST_TIMEOUT),
            Self::Conflict(_) | Self::IdempotencyKeyInUse => refusal(S::CONFLICT),
            Self::PreconditionFailed => refusal(S::PRECONDITION_FAILED),
            Self::BodyTooLarge(_) => refusal(S::PAYLOAD_TOO_LARGE),
            Self::UriTooLong(_) => refusal(S::URI_TOO_LONG),
            Self::UnsupportedMediaType(_) | Self::EncodedBody | Self::NotAnImage => {
                refusal(S::UNSUPPORTED_MEDIA_TYPE)
            }
            Self::RangeNotSatisfiable(_) => refusal(S::RANGE_NOT_SATISFIABLE),
            Self::IdempotencyKeyReused => refusal(S::UNPROCESSABLE_ENTITY),
            Self::UnknownPosition(oldest) => Problem::unknown_position(*oldest),
            Self::LimitExceeded {
                policies,
                retry_after,
            } => Problem::quota_exceeded(policies, seconds(*retry_after)),
            Self::IssuerUnavailable
            | Self::Overloaded
            | Self::OverloadedByClient
            | Self::Stopping
            | Self::Database(db::Error::OverloadedByRequester) => refusal(S::SERVICE_UNAVAILABLE),
            Self::TimedOut
            | Self::Database(db::Error::StatementTimedOut | db::Error::TotalTimedOut) => {
                Problem::new(S::SERVICE_UNAVAILABLE, "the request took too long")
            }
            Self::BlobStore(blob_store::Error::Full(_)) => {
                Problem::new(S::INSUFFICIENT_STORAGE, "the image store is full")
            }
            Self::BlobStore(blob_store::Error::Unavailable(_)) => Problem::new(
                S::SERVICE_UNAVAILABLE,
                "the image store is not available right now",
            ),
            Self::Database(db::Error::Overloaded) => {
                Problem::new(S::SERVICE_UNAVAILABLE, "the service is overloaded")
            }
            Self::Database(
                db::Error::Unavailable(_)
                | db::Error::TimedOut
                | db::Error::Locked(_)
                | db::Error::Contended(_),
            ) => Problem::new(
                S::SERVICE_UNAVAILABLE,
                "the database is not available right now",
            ),
            Self::Database(
                db::Error::Corrupt(_)
                | db::Error::EarlierSchema(_)
                | db::Error::Url(_)
                | db::Error::Migrate(_)
                | db::Error::Query(_),
            )
            | Self::BlobStore(blob_store::Error::Missing(_) | blob_store::Error::Config { .. })
            | Self::Internal(_) => Problem::new(
                S::INTERNAL_SERVER_ERROR,
                "internal server error; the log has the details under this request's id",
            ),
        }
    }

    /// Returns the header that goes with the status.
    fn header(&self, status: StatusCode) -> Option<(HeaderName, HeaderValue)> {
        let list = |names: &str| HeaderValue::from_str(&names.replace(" or ", ", ")).ok();
        Some(match self {
            Self::Unauthenticated | Self::InvalidCredential(_) | Self::Forbidden { .. } => {
                (header::WWW_AUTHENTICATE, challenge(self))
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
        match error {
            renderings::Error::Undecodable(_) => {
                Self::NotFound("a rendering of this image, which cannot be decoded,".into())
            }
            renderings::Error::Panicked(_) | renderings::Error::Thread(_) => Self::internal(error),
        }
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let problem = self.problem();
        let status = problem.status();
        let mut response = problem.into_response();
        if let Some((name, value)) = self.header(status) {
            response.headers_mut().insert(name, value);
        }
        if matches!(self, Self::IdempotencyKeyInUse | Self::IdempotencyKeyReused) {
            response.extensions_mut().insert(AboutItsKey);
        }
        if matches!(
            self,
            Self::TimedOut
                | Self::OverloadedByClient
                | Self::Database(
                    db::Error::OverloadedByRequester
                        | db::Error::StatementTimedOut
                        | db::Error::TotalTimedOut
                )
        ) {
            response.extensions_mut().insert(CountedFailure);
        }
        if status.is_server_error() && !self.is_logged_elsewhere() {
            response.extensions_mut().insert(Cause(Arc::new(self)));
        }
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

/// Error behind a 5xx response, passed to the layer that logs it once.
#[derive(Debug, Clone)]
pub struct Cause(pub Arc<Error>);
