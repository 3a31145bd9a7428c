//! Handles `Idempotency-Key`: replays stored responses, and stores 4xx responses. See
//! [`crate::api::idempotency::Idempotency`].

use std::{fmt, sync::Arc};

use axum::{
    body::Body,
    extract::{MatchedPath, Request},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use futures_util::future::Either;
use http_body_util::BodyExt;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use sha2::{Digest, Sha256};

use super::{Inner, LayerFuture, Middleware, operation_path, respond};
use crate::{
    api::{
        access::AccessRules,
        body::LimitedBody,
        error::Error,
        extract::{invalid_json, require_media_type, require_plain},
        idempotency::{ClientKey, IDEMPOTENT_REPLAYED, Idempotency, PasswordHash, StoredBytes},
        openapi::BASE,
        problem::AboutItsKey,
        request_context::RequestContext,
        state::{AppState, BodyLimits, ConcurrencyLimits},
    },
    auth::password::{Passwords, Verification},
    db::Database,
    domain::user::Password,
};

/// Paths below the API's base to which passwords are sent.
const WITH_PASSWORDS: &str = "/user";
/// Path of sign-up. A repetition must have the same password.
const SIGN_UP: &str = "/user";
/// Statuses about the message itself, which are not stored: a corrected message may have the same key.
const ABOUT_MESSAGE: [StatusCode; 4] = [
    StatusCode::UNAUTHORIZED,
    StatusCode::TOO_MANY_REQUESTS,
    StatusCode::METHOD_NOT_ALLOWED,
    StatusCode::UNSUPPORTED_MEDIA_TYPE,
];

/// Layer that handles the key of a request if its operation takes one. It buffers the body only if there is a key.
#[derive(Clone)]
pub struct IdempotencyLayer {
    access: Arc<AccessRules>,
    limits: BodyLimits,
    database: Database,
    stored_bytes: StoredBytes,
    passwords: Passwords,
    concurrency: ConcurrencyLimits,
}

impl_layer!(IdempotencyLayer);

impl Middleware for IdempotencyLayer {
    type Future<S: Inner> = LayerFuture<S::Future>;

    fn call<S: Inner>(&self, inner: &mut S, request: Request) -> Self::Future<S> {
        let context = RequestContext::of(&request);
        let route = request.extensions().get().map(MatchedPath::as_str);
        if !route.is_some_and(|route| self.access.takes_key(request.method(), route)) {
            return Either::Left(inner.call(request));
        }
        match ClientKey::of(request.headers(), || context.caller_key()) {
            Ok(None) => Either::Left(inner.call(request)),
            Ok(Some(key)) => {
                let response = self.clone().handle(key, request, inner.clone());
                Either::Right(Box::pin(async {
                    Ok(response.await.unwrap_or_else(Error::into_response))
                }))
            }
            Err(error) => respond(error),
        }
    }
}

impl IdempotencyLayer {
    /// Creates the layer.
    pub fn new(state: &AppState) -> Self {
        Self {
            access: Arc::clone(&state.access),
            limits: state.body_limits,
            database: state.database.clone(),
            stored_bytes: state.stored_bytes.clone(),
            passwords: state.passwords.clone(),
            concurrency: state.concurrency.clone(),
        }
    }

    /// Handles a request with a key.
    async fn handle<S: Inner>(
        self,
        key: ClientKey,
        request: Request,
        inner: S,
    ) -> Result<Response, Error> {
        let context = RequestContext::of(&request).clone();
        let is_sign_up = operation_path(&request) == Some(SIGN_UP);
        let (parts, body) = request.into_parts();
        let body = LimitedBody::new(body, self.limits, 0)?.join().await?;
        let path = parts.uri.path();
        let path = path.strip_prefix(BASE).unwrap_or(path);
        let mut fingerprint = Sha256::new()
            .chain_update(path)
            .chain_update([0])
            .chain_update(parts.uri.query().unwrap_or_default())
            .chain_update([0]);
        if let Err(error) = hash_body(&mut fingerprint, path, &body) {
            // As the handler does, which may ignore what cannot be hashed.
            require_media_type(&parts.headers, "application/json")?;
            require_plain(&parts.headers)?;
            return Err(invalid_json(&error));
        }
        let idempotency = key.with_fingerprint(fingerprint.finalize().to_vec(), &self.stored_bytes);
        let request = Request::from_parts(parts, Body::from(body.clone()));
        let response = self.replay_or_call(&idempotency, request, inner).await?;
        let is_replayed = response.headers().contains_key(IDEMPOTENT_REPLAYED);
        if is_sign_up && is_replayed && response.status().is_success() {
            let hash = response.extensions().get().cloned();
            self.verify_password(hash, &body, &context).await?;
        }
        Ok(response)
    }

    /// Returns the stored response, or that of the handler, which is stored.
    async fn replay_or_call<S: Inner>(
        &self,
        idempotency: &Idempotency,
        request: Request,
        mut inner: S,
    ) -> Result<Response, Error> {
        if let Some(response) = idempotency.stored_response(&self.database).await? {
            return Ok(response);
        }
        let context = RequestContext::of(&request);
        let _ = context.idempotency.set(idempotency.clone());
        let Ok(response) = inner.call(request).await;

        let status = response.status();
        let is_refusal = status.is_client_error() && !ABOUT_MESSAGE.contains(&status);
        if !is_refusal || response.extensions().get::<AboutItsKey>().is_some() {
            return Ok(response);
        }
        let (parts, body) = response.into_parts();
        let body = body.collect().await.map_err(Error::internal)?.to_bytes();
        let stored = idempotency.clone().run(&self.database, async |_| {
            let (parts, body) = (parts.clone(), Body::from(body.clone()));
            Ok(Response::from_parts(parts, body))
        });
        stored.await
    }

    /// Fails with [`Error::IdempotencyKeyReused`] unless `hash`, that of the account that was created, is of the password in
    /// `body`, or neither has one.
    async fn verify_password(
        &self,
        hash: Option<PasswordHash>,
        body: &[u8],
        context: &RequestContext,
    ) -> Result<(), Error> {
        #[derive(Deserialize)]
        struct WithPassword {
            password: Option<String>,
        }
        let given = match serde_json::from_slice(body) {
            Ok(WithPassword { password }) => password.map(Password::claimed),
            Err(_) => Some(None),
        };
        let is_same = match (given, hash) {
            (None, None) => true,
            (Some(Some(given)), Some(PasswordHash(hash))) => {
                let _share = self
                    .concurrency
                    .password_hashes
                    .take(context.client_address(), 1)?;
                let verified = self.passwords.verify(given, Some(hash)).await?;
                matches!(verified, Verification::Match { .. })
            }
            _ => false,
        };
        is_same.then_some(()).ok_or(Error::IdempotencyKeyReused)
    }
}

/// Adds the body of a request to its fingerprint. With passwords, it fails unless it is JSON in which every number is in
/// the range of 64-bit floating point, every string is Unicode, and values are nested at most 127 deep.
fn hash_body(hash: &mut Sha256, path: &str, body: &[u8]) -> Result<(), serde_json::Error> {
    if !path.starts_with(WITH_PASSWORDS) {
        hash.update(body);
        return Ok(());
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    WithoutPasswords(hash).deserialize(&mut json)?;
    json.end()
}

/// Adds JSON to a hash while it is parsed, which takes no memory, without members named `password`: a fast hash is
/// stored, from which passwords could be guessed.
struct WithoutPasswords<'h>(&'h mut Sha256);

impl WithoutPasswords<'_> {
    /// Adds a value. No two values add the same bytes.
    fn add(self, kind: u8, value: &[u8]) {
        self.0.update([kind]);
        self.0.update(value.len().to_le_bytes());
        self.0.update(value);
    }
}

impl<'de> DeserializeSeed<'de> for WithoutPasswords<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for WithoutPasswords<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        self.add(b'n', &[]);
        Ok(())
    }

    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        self.add(b'b', &[u8::from(value)]);
        Ok(())
    }

    fn visit_i64<E>(self, value: i64) -> Result<(), E> {
        self.add(b'i', &value.to_le_bytes());
        Ok(())
    }

    fn visit_u64<E>(self, value: u64) -> Result<(), E> {
        self.add(b'u', &value.to_le_bytes());
        Ok(())
    }

    fn visit_f64<E>(self, value: f64) -> Result<(), E> {
        self.add(b'f', &value.to_le_bytes());
        Ok(())
    }

    fn visit_str<E>(self, value: &str) -> Result<(), E> {
        self.add(b's', value.as_bytes());
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        self.0.update(b"[");
        while elements
            .next_element_seed(WithoutPasswords(self.0))?
            .is_some()
        {}
        self.add(b']', &[]);
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        self.0.update(b"{");
        while let Some(name) = members.next_key::<String>()? {
            if name == "password" {
                members.next_value::<IgnoredAny>()?;
            } else {
                WithoutPasswords(self.0).add(b'm', name.as_bytes());
                members.next_value_seed(WithoutPasswords(self.0))?;
            }
        }
        self.add(b'}', &[]);
        Ok(())
    }
}
