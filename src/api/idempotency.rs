//! `Idempotency-Key`: a repeated POST gets the first response again and has no further effect.
//!
//! The layer of this name reads the key, computes the fingerprint of the request and replays a stored response.
//! For a new request, the handler calls [`Idempotency::run`].
//!
//! Invariants:
//! - The response to a change is stored in the transaction of the change, so a crash loses both or neither.
//! - The layer stores refusals, which changed nothing, under the same claim, so no key has two responses.
//! - 5xx and 429 responses are not stored: the client should retry.

use std::sync::Arc;

use axum::{
    body::Body,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode},
    response::Response,
};
use http_body_util::BodyExt;
use serde::{Deserialize, Serialize};

use super::{
    error::Error,
    problem::{Problem, Violation},
};
use crate::{
    db::{self, Connection, Database, idempotency::StoredResponse},
    domain::caller::CallerKey,
};

/// Request header of `draft-ietf-httpapi-idempotency-key-header`.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const MAX_KEY: usize = 255;

/// Header of a replayed response.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Key and fingerprint of a request, if it has a key.
#[derive(Debug, Clone, Default)]
pub struct Idempotency(Option<Arc<Key>>);

/// Key of a request, without its fingerprint.
#[derive(Debug)]
pub struct ClientKey {
    /// Owner: the same key of another caller is a different key.
    caller: String,
    text: String,
}

impl ClientKey {
    /// Reads the key of a request of `owner`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the key is malformed or given twice.
    pub fn of(
        headers: &HeaderMap,
        owner: impl FnOnce() -> CallerKey,
    ) -> Result<Option<Self>, Error> {
        let Some(value) = headers.get(IDEMPOTENCY_KEY) else {
            return Ok(None);
        };
        let text = read_key(value)?;
        if headers.get_all(IDEMPOTENCY_KEY).iter().count() > 1 {
            return Err(invalid("must be given once"));
        }
        let caller = owner().to_string();
        Ok(Some(Self { caller, text }))
    }

    /// Adds the fingerprint: the SHA-256 of the request.
    #[must_use]
    pub fn with_fingerprint(self, fingerprint: Vec<u8>) -> Idempotency {
        Idempotency(Some(Arc::new(Key {
            caller: self.caller,
            text: self.text,
            fingerprint,
        })))
    }
}

/// Reads a key, bare or as a quoted string (RFC 8941 §3.3.3).
fn read_key(value: &HeaderValue) -> Result<String, Error> {
    let text = value
        .to_str()
        .map_err(|_| invalid("must be printable ASCII characters"))?
        .trim();
    let key = match text.strip_prefix('"') {
        Some(open) => open
            .strip_suffix('"')
            .ok_or_else(|| invalid("must have a closing quote if it begins with a quote"))?,
        None => text,
    };
    if key.contains('\t') {
        return Err(invalid("must be printable ASCII characters"));
    }
    if key.is_empty() || key.len() > MAX_KEY {
        return Err(invalid("must be 1 to 255 characters"));
    }
    Ok(key.to_owned())
}

fn invalid(reason: &str) -> Error {
    Error::Invalid(vec![Violation::new("Idempotency-Key", reason)])
}

#[derive(Debug)]
struct Key {
    caller: String,
    text: String,
    fingerprint: Vec<u8>,
}

impl Idempotency {
    /// Returns true if the request has a key. Without one, its change and its response need not share a transaction.
    #[must_use]
    pub const fn has_key(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the stored response to the same request, if any.
    ///
    /// # Errors
    /// [`Error::IdempotencyKeyReused`] if the key was used for another request.
    pub async fn stored_response(&self, database: &Database) -> Result<Option<Response>, Error> {
        let Some(key) = &self.0 else {
            return Ok(None);
        };
        let stored = db::idempotency::find(database.pool(), &key.caller, &key.text).await?;
        stored.map(|stored| key.replay(stored)).transpose()
    }

    /// Stores the response to a request that changed nothing. Returns the response to the same request that was stored
    /// in the meantime, if any, since the order of the two requests is unknown.
    pub(super) async fn store(
        &self,
        database: &Database,
        response: &SerializedResponse,
    ) -> Result<Option<Response>, Error> {
        let Some(key) = &self.0 else {
            return Ok(None);
        };
        database
            .transact(async |transaction: &mut Connection| {
                let earlier = key.claim(transaction).await?;
                if earlier.is_none() {
                    key.store(transaction, response).await?;
                }
                Ok(earlier)
            })
            .await
    }

    /// Runs `work` in a transaction that also stores its response, or returns the response stored before.
    ///
    /// # Errors
    /// The error of `work`, which is rolled back; [`Error::IdempotencyKeyInUse`]; [`Error::IdempotencyKeyReused`].
    pub async fn run<W>(self, database: &Database, work: W) -> Result<Response, Error>
    where
        W: AsyncFnOnce(&mut Connection) -> Result<Response, Error> + Clone,
    {
        database
            .transact(async |transaction: &mut Connection| match &self.0 {
                None => work(transaction).await,
                Some(key) => key.run(transaction, work).await,
            })
            .await
    }
}

impl Key {
    async fn run<W>(&self, transaction: &mut Connection, work: W) -> Result<Response, Error>
    where
        W: AsyncFnOnce(&mut Connection) -> Result<Response, Error>,
    {
        if let Some(earlier) = self.claim(transaction).await? {
            return Ok(earlier);
        }
        let (serialized, response) = SerializedResponse::of(work(transaction).await?).await?;
        self.store(transaction, &serialized).await?;
        Ok(response)
    }

    /// Claims the key until the transaction ends and returns the stored response, if any. Only the holder of the claim
    /// can rely on there being none.
    async fn claim(&self, transaction: &mut Connection) -> Result<Option<Response>, Error> {
        if !db::idempotency::claim(transaction, &self.caller, &self.text).await? {
            return Err(Error::IdempotencyKeyInUse);
        }
        let stored = db::idempotency::find(transaction, &self.caller, &self.text).await?;
        stored.map(|stored| self.replay(stored)).transpose()
    }

    /// Returns the stored response if it belongs to the same request.
    fn replay(&self, stored: StoredResponse) -> Result<Response, Error> {
        if stored.fingerprint != self.fingerprint {
            return Err(Error::IdempotencyKeyReused);
        }
        metrics::counter!("idempotent_replays_total").increment(1);
        let serialized: SerializedResponse = serde_json::from_value(stored.response)
            .map_err(|error| Error::Internal(error.into()))?;
        serialized.into_response()
    }

    /// Stores a response, unless there is one.
    async fn store(
        &self,
        transaction: &mut Connection,
        response: &SerializedResponse,
    ) -> Result<(), Error> {
        let stored = StoredResponse {
            fingerprint: self.fingerprint.clone(),
            response: serde_json::to_value(response)
                .map_err(|error| Error::Internal(error.into()))?,
        };
        Ok(db::idempotency::store(transaction, &self.caller, &self.text, &stored).await?)
    }
}

/// Response as it is stored.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SerializedResponse {
    status: u16,
    headers: Vec<(String, String)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<Problem>,
    body: String,
}

impl SerializedResponse {
    /// Returns the parts of a response that are stored, and the response.
    pub(super) async fn of(response: Response) -> Result<(Self, Response), Error> {
        let (parts, body) = response.into_parts();
        let body = body
            .collect()
            .await
            .map_err(|error| Error::Internal(error.into()))?
            .to_bytes();
        let serialized = Self {
            status: parts.status.as_u16(),
            headers: parts
                .headers
                .iter()
                .filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.into())))
                .collect(),
            problem: parts.extensions.get().cloned(),
            body: String::from_utf8_lossy(&body).into_owned(),
        };
        Ok((serialized, Response::from_parts(parts, Body::from(body))))
    }

    fn into_response(self) -> Result<Response, Error> {
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
