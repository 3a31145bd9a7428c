//! Converts the errors of lower layers to API errors.

use super::Error;
use crate::{
    auth::{self, password, session},
    db,
    images::renderings,
    limits,
};

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
            auth::Error::Invalid => Self::InvalidCredential,
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
        match error {
            password::Error::Busy => Self::Overloaded,
            password::Error::Random(_)
            | password::Error::Hash(_)
            | password::Error::Argon2(_)
            | password::Error::Interrupted(_) => Self::Internal(error.into()),
        }
    }
}

impl From<session::Error> for Error {
    fn from(error: session::Error) -> Self {
        match error {
            session::Error::InvalidCredentials => {
                Self::one_violation("username", "or password is incorrect")
            }
            session::Error::Password(error) => error.into(),
            session::Error::Random(error) => Self::Internal(error.into()),
            session::Error::Database(error) => error.into(),
        }
    }
}

impl From<renderings::Error> for Error {
    fn from(error: renderings::Error) -> Self {
        match error {
            renderings::Error::Busy => Self::Overloaded,
            renderings::Error::Undecodable(_) => {
                Self::NotFound("a rendering of this image, which cannot be decoded,".into())
            }
            renderings::Error::Panicked(_) => Self::Internal(error.into()),
        }
    }
}
