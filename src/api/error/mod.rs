//! What a client is told when something is wrong: the one table from failures to statuses.
//!
//! Invariant: what the client reads ([`Problem`]) and what the log reads ([`Cause`]) are different
//! fields. No SQL, no source chain, no path reaches a body.

mod from;

use std::{error::Error as StdError, sync::Arc, time::Duration};

use axum::{
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};

use super::problem::{Problem, Violation};
use crate::{
    blobs, db,
    domain::{
        Invalid,
        caller::{Scope, Scopes},
        clock::whole_seconds,
    },
};

/// A failed request.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Input that breaks a rule; every break at once.
    #[error("invalid input")]
    Invalid(Vec<Violation>),
    /// No credential, where one is needed.
    #[error("no credential")]
    Unauthenticated,
    /// A credential that is no good.
    #[error("invalid credential")]
    InvalidCredential,
    /// A token of an issuer that does not answer, so that nobody can say whether it is good.
    #[error("issuer unavailable")]
    IssuerUnavailable,
    /// A credential that is good for other things.
    #[error("scope missing")]
    Forbidden {
        /// What the operation needs.
        needed: Scopes,
        /// What of it is missing.
        missing: Scope,
    },
    /// Strangers may not make accounts.
    #[error("sign-up closed")]
    SignUpClosed,
    /// No such thing: "pet 5".
    #[error("{0} not found")]
    NotFound(String),
    /// No such path.
    #[error("no such route")]
    NoSuchRoute,
    /// The thing is there already, or in the way: a sentence for the client.
    #[error("conflict: {0}")]
    Conflict(String),
    /// The same Idempotency-Key is being worked on.
    #[error("idempotency key in use")]
    IdempotencyKeyInUse,
    /// The same Idempotency-Key came with another request.
    #[error("idempotency key reused")]
    IdempotencyKeyReused,
    /// `If-Match` names none of the versions there are.
    #[error("precondition failed")]
    PreconditionFailed,
    /// The client took too long to send its request.
    #[error("request body too slow")]
    BodyTimeout,
    /// The body is larger than so many bytes.
    #[error("body too large")]
    BodyTooLarge(u64),
    /// The path and query are longer than so many bytes.
    #[error("URI too long")]
    UriTooLong(usize),
    /// The body is of another media type than these.
    #[error("unsupported media type")]
    UnsupportedMediaType(&'static str),
    /// The body is encoded, as in compressed.
    #[error("encoded body")]
    EncodedBody,
    /// The path has other methods: these.
    #[error("method not allowed")]
    MethodNotAllowed(&'static str),
    /// An upload that is no image of a type that is taken.
    #[error("not an image")]
    NotAnImage,
    /// The range begins behind the last of so many bytes.
    #[error("range not satisfiable")]
    RangeNotSatisfiable(u64),
    /// The place of images failed.
    #[error(transparent)]
    Blobs(#[from] blobs::Error),
    /// We took too long to answer.
    #[error("request timed out")]
    TimedOut,
    /// A limit is reached.
    #[error("limit exceeded: {policies:?}")]
    LimitExceeded {
        /// Which.
        policies: Vec<&'static str>,
        /// Until the request would be admitted.
        retry_after: Duration,
    },
    /// As many requests as there are places are being answered.
    #[error("overloaded")]
    Overloaded,
    /// The process is about to stop.
    #[error("stopping")]
    Stopping,
    /// The database failed.
    #[error(transparent)]
    Database(#[from] db::Error),
    /// Our bug.
    #[error("internal error: {0}")]
    Internal(#[source] Box<dyn StdError + Send + Sync>),
}

impl Error {
    /// One broken rule.
    pub fn invalid(field: impl Into<String>, reason: &Invalid) -> Self {
        Self::Invalid(vec![Violation::new(field, reason)])
    }

    /// One broken rule that no type of the domain keeps.
    #[must_use]
    pub fn one_violation(field: &str, reason: &'static str) -> Self {
        Self::Invalid(vec![Violation::new(field, reason)])
    }

    /// Whether its line in the log is not this request's: one a fetch of keys, one a second of a PostgreSQL
    /// that fails everybody, none for what we do on purpose.
    const fn is_told_elsewhere(&self) -> bool {
        matches!(
            self,
            Self::Stopping
                | Self::Overloaded
                | Self::IssuerUnavailable
                | Self::Database(db::Error::Unavailable(_) | db::Error::Overloaded)
        )
    }

    /// How soon another try is worth it, in seconds, where nobody knows better.
    const RETRY_AFTER: u64 = 1;

    #[expect(clippy::too_many_lines, reason = "a table is as long as its rows")]
    fn problem(&self) -> Problem {
        use StatusCode as S;
        let (status, detail) = match self {
            Self::Invalid(violations) => (S::BAD_REQUEST, summary(violations)),
            Self::Unauthenticated => (
                S::UNAUTHORIZED,
                "a credential is needed: an API key in the header api_key, or a token in \
                 Authorization: Bearer"
                    .into(),
            ),
            Self::InvalidCredential => (S::UNAUTHORIZED, "the credential is not valid".into()),
            Self::IssuerUnavailable => (
                S::SERVICE_UNAVAILABLE,
                "the issuer of this token cannot be asked for its keys right now".into(),
            ),
            Self::Forbidden { missing, .. } => {
                (S::FORBIDDEN, format!("the scope {missing} is needed"))
            }
            Self::SignUpClosed => (
                S::FORBIDDEN,
                "sign-up is closed: ask whoever runs this service for an account".into(),
            ),
            Self::NotFound(what) => (S::NOT_FOUND, format!("{what} does not exist")),
            Self::NoSuchRoute => (
                S::NOT_FOUND,
                "there is nothing at this path; the API is described at /api/v3/openapi.json"
                    .into(),
            ),
            Self::Conflict(detail) => (S::CONFLICT, detail.clone()),
            Self::IdempotencyKeyInUse => (
                S::CONFLICT,
                "a request with this Idempotency-Key is being worked on".into(),
            ),
            Self::IdempotencyKeyReused => (
                S::UNPROCESSABLE_ENTITY,
                "this Idempotency-Key was used for another request".into(),
            ),
            Self::PreconditionFailed => (
                S::PRECONDITION_FAILED,
                "the resource is not in a state that If-Match names: get it again".into(),
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
                format!("the body must be {accepted}, and Content-Type must say so"),
            ),
            Self::EncodedBody => (
                S::UNSUPPORTED_MEDIA_TYPE,
                "the body must be sent as it is, without a Content-Encoding".into(),
            ),
            Self::MethodNotAllowed(allowed) => (
                S::METHOD_NOT_ALLOWED,
                format!("the method must be {allowed}"),
            ),
            Self::NotAnImage => (
                S::UNSUPPORTED_MEDIA_TYPE,
                "the file must be a PNG, JPEG, GIF or WebP image; its content tells, not its name or \
                 Content-Type"
                    .into(),
            ),
            Self::RangeNotSatisfiable(size) => (
                S::RANGE_NOT_SATISFIABLE,
                format!("the range must begin within the {size} bytes that there are"),
            ),
            Self::Blobs(blobs::Error::Full(_)) => (
                S::INSUFFICIENT_STORAGE,
                "there is no room left for images".into(),
            ),
            Self::Blobs(blobs::Error::Unavailable(_)) => (
                S::SERVICE_UNAVAILABLE,
                "the place of images is not available right now".into(),
            ),
            Self::TimedOut => (S::SERVICE_UNAVAILABLE, "the request took too long".into()),
            Self::LimitExceeded {
                policies,
                retry_after,
            } => {
                let detail = format!(
                    "limit reached: {}; the request is admitted in {} s",
                    policies.join(" and "),
                    whole_seconds(*retry_after).max(1)
                );
                return Problem::quota_exceeded(policies, detail);
            }
            Self::Overloaded | Self::Database(db::Error::Overloaded) => (
                S::SERVICE_UNAVAILABLE,
                "more requests than can be answered right now".into(),
            ),
            Self::Stopping => (
                S::SERVICE_UNAVAILABLE,
                "the process is about to stop".into(),
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
            | Self::Blobs(blobs::Error::Missing(_) | blobs::Error::Config { .. })
            | Self::Internal(_) => (
                S::INTERNAL_SERVER_ERROR,
                "something went wrong on our side; the log has it under this request's id".into(),
            ),
        };
        let errors = match self {
            Self::Invalid(violations) => violations.clone(),
            _ => Vec::new(),
        };
        Problem::new(status, detail, errors)
    }
}

/// One sentence for people, and for clients that read nothing but `message`.
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
                // RFC 9110 §15.5.16: what would have been accepted.
                if let Ok(value) = HeaderValue::from_str(&accepted.replace(" or ", ", ")) {
                    headers.insert(header::ACCEPT, value);
                }
            }
            Self::EncodedBody => {
                // RFC 7694 §3: that it is the coding, not the type.
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
                // RFC 9110 §15.5.17: how much there is.
                if let Ok(value) = HeaderValue::try_from(format!("bytes */{size}")) {
                    headers.insert(header::CONTENT_RANGE, value);
                }
            }
            _ => {}
        }
        if matches!(self, Self::IdempotencyKeyInUse | Self::IdempotencyKeyReused) {
            response.extensions_mut().insert(AboutItsKey);
        }
        if status.is_server_error() && !self.is_told_elsewhere() {
            response.extensions_mut().insert(Cause(Arc::new(self)));
        }
        response
    }
}

/// `WWW-Authenticate` (RFC 6750 §3).
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

/// On an error whose body has the form that its own RFC wants, instead of a problem's.
#[derive(Debug, Clone, Copy)]
pub struct InOwnForm;

/// On a refusal for the sake of the request's Idempotency-Key: it is no answer to the request itself.
#[derive(Debug, Clone, Copy)]
pub struct AboutItsKey;

/// The inner failure behind a 5xx, riding the response up to where it is logged, once.
#[derive(Debug, Clone)]
pub struct Cause(pub Arc<Error>);

/// A header name that the `http` crate does not know.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
