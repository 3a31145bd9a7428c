//! `Idempotency-Key`: a repeated POST gets the first response again and has no further effect.
//!
//! The layer of this name reads the key, computes the fingerprint of the request and replays a stored response.
//! For a new request, the handler calls [`Idempotency::run`].
//!
//! Invariants:
//! - The response to a change is stored in the transaction of the change, so a crash loses both or neither.
//! - The layer stores refusals, which changed nothing, under the same claim, so no key has two responses. If another
//!   response was stored in the meantime, that one is returned, since the order of the two requests is unknown.
//! - 5xx and 429 responses are not stored: the client should retry.
//! - A caller stores a limited number of bytes in 24 hours ([`StoredBytes`]). Stored responses are replayed beyond it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    body::Body,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode},
    response::{IntoResponse as _, Response},
};
use http_body_util::BodyExt;
use moka::sync::Cache;
use serde::{Deserialize, Serialize};

use super::{error::Error, problem::Problem};
use crate::{
    db::{self, Connection, Database, idempotency::StoredResponse},
    domain::caller::CallerKey,
};

/// Request header of `draft-ietf-httpapi-idempotency-key-header`.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
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
    /// Reads the key of a request of `owner`. Rejects a malformed or repeated header.
    pub fn of(
        headers: &HeaderMap,
        owner: impl FnOnce() -> CallerKey,
    ) -> Result<Option<Self>, Error> {
        let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
        let Some(value) = values.next() else {
            return Ok(None);
        };
        let text = parse_key(value)
            .and_then(|key| match values.next() {
                None => Ok(key),
                Some(_) => Err("must be given once"),
            })
            .map_err(|reason| Error::one_violation("Idempotency-Key", reason))?;
        Ok(Some(Self {
            caller: owner().to_string(),
            text: text.to_owned(),
        }))
    }

    /// Adds the fingerprint, which is the SHA-256 of the request, and the limit.
    pub fn with_fingerprint(self, fingerprint: Vec<u8>, stored_bytes: &StoredBytes) -> Idempotency {
        Idempotency(Some(Arc::new(Key {
            client: self,
            fingerprint,
            stored_bytes: stored_bytes.clone(),
        })))
    }
}

/// Limit of the bytes of responses that a caller stores in 24 hours. The use is kept in memory per replica, and read from the
/// database each hour, which adds what other replicas have stored. Clones share it.
#[derive(Debug, Clone)]
pub struct StoredBytes {
    max: u64,
    callers: Cache<String, Use>,
}

/// Use of a caller.
#[derive(Debug, Clone)]
enum Use {
    Bytes(Arc<AtomicU64>),
    /// All is used until then.
    All(Instant),
}

impl StoredBytes {
    /// Maximum number of callers in memory. The use of another caller is read at its next key.
    const CALLERS: u64 = 10_000;
    const READ_EACH: Duration = Duration::from_hours(1);

    /// Creates a limit of `max` bytes.
    pub fn new(max: u64) -> Self {
        let callers = Cache::builder().max_capacity(Self::CALLERS);
        let callers = callers.time_to_live(Self::READ_EACH).build();
        Self { max, callers }
    }

    /// Returns the use of a caller, or fails with 429 if nothing is left.
    async fn admit(&self, database: &Database, caller: &str) -> Result<Arc<AtomicU64>, Error> {
        let now = Instant::now();
        let exceeded = |until| {
            let retry_after = Instant::saturating_duration_since(&until, now);
            Error::limit_exceeded("idempotency-bytes", retry_after)
        };
        match self.callers.get(caller) {
            Some(Use::Bytes(used)) if used.load(Ordering::Relaxed) < self.max => return Ok(used),
            Some(Use::All(until)) if until > now => return Err(exceeded(until)),
            _ => {}
        }
        let (used, frees_in) = database
            .run(async |connection| db::idempotency::stored_bytes(connection, caller).await)
            .await?;
        if used >= self.max {
            let until = now + frees_in;
            self.callers.insert(caller.to_owned(), Use::All(until));
            return Err(exceeded(until));
        }
        let used = Arc::new(AtomicU64::new(used));
        let known = Use::Bytes(Arc::clone(&used));
        self.callers.insert(caller.to_owned(), known);
        Ok(used)
    }
}

/// Parses a key, bare or as a quoted string (RFC 8941 §3.3.3).
fn parse_key(value: &HeaderValue) -> Result<&str, &'static str> {
    const MAX_KEY: usize = 255;
    const UNPRINTABLE: &str = "must be printable ASCII characters";
    let text = value.to_str().map_err(|_| UNPRINTABLE)?.trim();
    let key = match text.strip_prefix('"') {
        Some(open) => open
            .strip_suffix('"')
            .ok_or("must have a closing quote if it begins with a quote")?,
        None => text,
    };
    match key.len() {
        _ if key.contains('\t') => Err(UNPRINTABLE),
        1..=MAX_KEY => Ok(key),
        _ => Err("must be 1 to 255 characters"),
    }
}

impl Idempotency {
    /// Returns true if the request has a key. Without one, its change and its response need not share a transaction.
    pub const fn has_key(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the stored response to the same request, if any. Fails with [`Error::IdempotencyKeyReused`] if the key was
    /// used for another request.
    pub async fn stored_response(&self, database: &Database) -> Result<Option<Response>, Error> {
        match &self.0 {
            Some(key) => {
                database
                    .run(async |connection| key.find(connection).await)
                    .await
            }
            None => Ok(None),
        }
    }

    /// Runs `work` in a transaction that also stores its response, or returns the response stored before. Fails with the
    /// error of `work`, which is rolled back, [`Error::IdempotencyKeyInUse`] or [`Error::IdempotencyKeyReused`]; or with 429,
    /// without an effect, if the caller may not store more.
    pub async fn run<W>(self, database: &Database, work: W) -> Result<Response, Error>
    where
        W: AsyncFnOnce(&mut Connection) -> Result<Response, Error> + Clone,
    {
        let Some(key) = &self.0 else {
            return database.transact(work).await;
        };
        let used = key.stored_bytes.admit(database, &key.client.caller);
        let used = used.await?;
        database
            .transact(async |transaction: &mut Connection| {
                if let Some(earlier) = key.claim(transaction).await? {
                    return Ok(earlier);
                }
                let response = work(transaction).await?;
                let (serialized, response) = SerializedResponse::of(response).await?;
                let size = key.store(transaction, &serialized).await?;
                used.fetch_add(size, Ordering::Relaxed);
                Ok(response)
            })
            .await
    }
}

#[derive(Debug)]
struct Key {
    client: ClientKey,
    fingerprint: Vec<u8>,
    stored_bytes: StoredBytes,
}

impl Key {
    /// Claims the key until the transaction ends and returns the stored response, if any. Only the holder of the claim
    /// can rely on there being none.
    async fn claim(&self, transaction: &mut Connection) -> Result<Option<Response>, Error> {
        let ClientKey { caller, text } = &self.client;
        if !db::idempotency::claim(transaction, caller, text).await? {
            return Err(Error::IdempotencyKeyInUse);
        }
        self.find(transaction).await
    }

    /// Returns the stored response, if any, to be replayed.
    async fn find(&self, connection: &mut Connection) -> Result<Option<Response>, Error> {
        let ClientKey { caller, text } = &self.client;
        let Some(stored) = db::idempotency::find(connection, caller, text).await? else {
            return Ok(None);
        };
        if stored.fingerprint != self.fingerprint {
            return Err(Error::IdempotencyKeyReused);
        }
        metrics::counter!("idempotent_replays_total").increment(1);
        let serialized: SerializedResponse =
            serde_json::from_value(stored.response).map_err(Error::internal)?;
        serialized.into_response().map(Some)
    }

    /// Stores a response, unless there is one. Returns its size.
    async fn store(
        &self,
        transaction: &mut Connection,
        response: &SerializedResponse,
    ) -> Result<u64, Error> {
        let ClientKey { caller, text } = &self.client;
        let stored = StoredResponse {
            fingerprint: self.fingerprint.clone(),
            response: serde_json::to_value(response).map_err(Error::internal)?,
        };
        Ok(db::idempotency::store(transaction, caller, text, &stored).await?)
    }
}

/// Response as it is stored.
#[derive(Debug, Serialize, Deserialize)]
struct SerializedResponse {
    status: u16,
    headers: Vec<(String, String)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<Problem>,
    body: String,
}

impl SerializedResponse {
    /// Returns the parts of a response that are stored, and the response.
    async fn of(response: Response) -> Result<(Self, Response), Error> {
        let problem = Error::of(&response).map(Error::problem);
        let (parts, body) = response.into_parts();
        let body = body.collect().await.map_err(Error::internal)?.to_bytes();
        let headers = parts
            .headers
            .iter()
            .filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.to_owned())));
        let serialized = Self {
            status: parts.status.as_u16(),
            headers: headers.collect(),
            problem,
            body: String::from_utf8_lossy(&body).into_owned(),
        };
        Ok((serialized, Response::from_parts(parts, Body::from(body))))
    }

    fn into_response(self) -> Result<Response, Error> {
        let status = StatusCode::from_u16(self.status).map_err(Error::internal)?;
        let mut response = match self.problem {
            Some(problem) => Error::Replayed(Box::new(problem)).into_response(),
            None => (status, self.body).into_response(),
        };
        let headers = response.headers_mut();
        for (name, value) in self.headers {
            if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.parse()) {
                headers.insert(name, value);
            }
        }
        headers.insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
        Ok(response)
    }
}
