//! `Idempotency-Key`: a POST sent again is answered as the first time and does nothing.
//!
//! The layer of that name reads the key and takes the request's fingerprint; [`Idempotency::run`], called
//! by the handler, does the work. Invariant: an answer is kept in the transaction that made the change, so
//! whatever crashes when, both are there or neither is. 5xx and 429 are not kept: trying again is what
//! the client should do.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::FromRequestParts,
    http::{HeaderName, HeaderValue, StatusCode, request::Parts},
    response::{IntoResponse, Response},
};
use http_body_util::BodyExt;
use serde::{Deserialize, Serialize};

use super::{error::Error, problem::Problem};
use crate::db::{self, Connection, Database};

/// On an answer that was kept from an earlier request.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// A request's key, if it has one.
#[derive(Debug, Clone, Default)]
pub struct Idempotency(pub(super) Option<Arc<Key>>);

#[derive(Debug)]
pub(super) struct Key {
    /// Whose key it is: another caller's same key is another.
    pub caller: String,
    /// What the client sent.
    pub text: String,
    /// SHA-256 of the request.
    pub fingerprint: Vec<u8>,
}

impl<S: Send + Sync> FromRequestParts<S> for Idempotency {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        Ok(parts.extensions.get().cloned().unwrap_or_default())
    }
}

impl Idempotency {
    /// Does `work` in a transaction and commits it, unless the request was answered before: then that
    /// answer is given again.
    ///
    /// # Errors
    /// What `work` fails with, after everything it did is undone; [`Error::IdempotencyKeyInUse`];
    /// [`Error::IdempotencyKeyReused`].
    pub async fn run<W>(self, database: &Database, work: W) -> Result<Response, Error>
    where
        W: AsyncFnOnce(&mut Connection) -> Result<Response, Error>,
    {
        let mut transaction = database.begin().await?;
        let Some(key) = self.0 else {
            let response = work(&mut transaction).await?;
            Database::commit(transaction).await?;
            return Ok(response);
        };
        if !db::idempotency::claim(&mut transaction, &key.caller, &key.text).await? {
            return Err(Error::IdempotencyKeyInUse);
        }
        if let Some(kept) = db::idempotency::find(&mut *transaction, &key.caller, &key.text).await?
        {
            if kept.fingerprint != key.fingerprint {
                return Err(Error::IdempotencyKeyReused);
            }
            return Answer::from_json(kept.answer)?.replay();
        }

        // A refusal is an answer too: it is kept, and what was done until then is undone.
        let mut attempt = Database::begin_nested(&mut transaction).await?;
        let response = match work(&mut attempt).await {
            Ok(response) => {
                Database::commit_nested(attempt).await?;
                response
            }
            Err(error) => {
                Database::rollback_nested(attempt).await?;
                error.into_response()
            }
        };
        if response.status().is_server_error() || response.status() == StatusCode::TOO_MANY_REQUESTS
        {
            return Ok(response);
        }
        let (answer, response) = Answer::of(response).await?;
        let kept = db::idempotency::Kept {
            fingerprint: key.fingerprint.clone(),
            answer: serde_json::to_value(&answer).map_err(|error| Error::Internal(error.into()))?,
        };
        db::idempotency::keep(&mut *transaction, &key.caller, &key.text, &kept).await?;
        Database::commit(transaction).await?;
        Ok(response)
    }
}

/// An answer as it is kept.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<Problem>,
    body: String,
}

impl Answer {
    async fn of(response: Response) -> Result<(Self, Response), Error> {
        let (parts, body) = response.into_parts();
        let body = body
            .collect()
            .await
            .map_err(|error| Error::Internal(error.into()))?
            .to_bytes();
        let answer = Self {
            status: parts.status.as_u16(),
            headers: parts
                .headers
                .iter()
                .filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.into())))
                .collect(),
            problem: parts.extensions.get().cloned(),
            body: String::from_utf8_lossy(&body).into_owned(),
        };
        Ok((answer, Response::from_parts(parts, Body::from(body))))
    }

    fn from_json(json: serde_json::Value) -> Result<Self, Error> {
        serde_json::from_value(json).map_err(|error| Error::Internal(error.into()))
    }

    fn replay(self) -> Result<Response, Error> {
        let mut response = Response::new(Body::from(self.body));
        *response.status_mut() =
            StatusCode::from_u16(self.status).map_err(|error| Error::Internal(error.into()))?;
        for (name, value) in self.headers {
            if let (Ok(name), Ok(value)) =
                (HeaderName::try_from(name), HeaderValue::try_from(value))
            {
                response.headers_mut().insert(name, value);
            }
        }
        if let Some(problem) = self.problem {
            response.extensions_mut().insert(problem);
        }
        response
            .headers_mut()
            .insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
        Ok(response)
    }
}
