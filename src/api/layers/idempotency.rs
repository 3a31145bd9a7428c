//! Handles `Idempotency-Key`: replays stored responses, and stores 4xx responses. See
//! [`crate::api::idempotency::Idempotency`].

use std::{fmt, sync::Arc};

use axum::{
    body::Body,
    extract::Request,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use futures_util::{FutureExt as _, future::Either};
use http_body_util::BodyExt;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use sha2::{Digest, Sha256};

use super::{Middleware, Next, Reply, respond};
use crate::{
    api::{
        body::LimitedBody,
        error::Error,
        extract::{invalid_json, require_media_type, require_plain, without_byte_order_mark},
        idempotency::{ClientKey, IDEMPOTENCY_KEY, IDEMPOTENT_REPLAYED, Idempotency, PasswordHash},
        operations::{BASE, Keys},
        request_context::RequestContext,
        state::AppState,
    },
    auth::password::Verification,
    domain::user::Password,
};

/// Statuses about the message itself, which are not stored: a corrected message may have the same key.
const ABOUT_MESSAGE: [StatusCode; 4] = [
    StatusCode::UNAUTHORIZED,
    StatusCode::TOO_MANY_REQUESTS,
    StatusCode::METHOD_NOT_ALLOWED,
    StatusCode::UNSUPPORTED_MEDIA_TYPE,
];

/// Handles the key of a request if its operation takes one. Buffers the body only if there is a key.
pub struct IdempotencyKeys(pub AppState);

impl Middleware for IdempotencyKeys {
    fn call<N: Next>(self: &Arc<Self>, request: Request, next: &N) -> impl Reply + use<N> {
        let context = RequestContext::of(&request);
        if matches!(context.facts.keys, Keys::Ignored | Keys::StoredByHandler) {
            return Either::Left(next.call(request));
        }
        if context.facts.keys == Keys::Refused {
            return if request.headers().contains_key(IDEMPOTENCY_KEY) {
                let reason = "is not possible here: the response has a secret, which is not stored";
                respond(Error::one_violation("Idempotency-Key", reason))
            } else {
                Either::Left(next.call(request))
            };
        }
        match ClientKey::of(request.headers(), || context.caller_key()) {
            Ok(None) => Either::Left(next.call(request)),
            Ok(Some(key)) => {
                let (layer, next) = (Arc::clone(self), next.clone());
                let response = async move { layer.handle(key, request, next).await };
                let response = response.map(|it| it.unwrap_or_else(Error::into_response));
                Either::Right(response.boxed())
            }
            Err(error) => respond(error),
        }
    }
}

impl IdempotencyKeys {
    /// Handles a request with a key.
    async fn handle(
        &self,
        key: ClientKey,
        request: Request,
        next: impl Next,
    ) -> Result<Response, Error> {
        let Self(state) = self;
        let context = RequestContext::of(&request).clone();
        let keys = context.facts.keys;
        let (parts, body) = request.into_parts();
        let body = LimitedBody::new(body, state.body_limits, 0)?.join().await?;
        let path = parts.uri.path();
        let path = path.strip_prefix(BASE).unwrap_or(path);
        let mut fingerprint = Sha256::new()
            .chain_update(path)
            .chain_update([0])
            .chain_update(parts.uri.query().unwrap_or_default())
            .chain_update([0]);
        if let Err(error) = hash_body(&mut fingerprint, keys, &body) {
            // As the handler does, which may ignore what cannot be hashed.
            require_media_type(&parts.headers, "application/json")?;
            require_plain(&parts.headers)?;
            return Err(invalid_json(&error));
        }
        let idempotency =
            key.with_fingerprint(fingerprint.finalize().to_vec(), &state.stored_bytes);
        let request = Request::from_parts(parts, Body::from(body.clone()));
        let response = self.replay_or_call(&idempotency, request, next).await?;
        let is_replayed = response.headers().contains_key(IDEMPOTENT_REPLAYED);
        if keys == Keys::StoredForAccount && is_replayed && response.status().is_success() {
            let hash = response.extensions().get().cloned();
            self.verify_password(hash, &body, &context).await?;
        }
        Ok(response)
    }

    /// Returns the stored response, or that of the handler, which is stored.
    async fn replay_or_call(
        &self,
        idempotency: &Idempotency,
        request: Request,
        next: impl Next,
    ) -> Result<Response, Error> {
        let database = &self.0.database;
        if let Some(response) = idempotency.stored_response(database).await? {
            return Ok(response);
        }
        let context = RequestContext::of(&request);
        let _ = context.idempotency.set(idempotency.clone());
        let response = next.call(request).await;

        let status = response.status();
        let is_refusal = status.is_client_error() && !ABOUT_MESSAGE.contains(&status);
        if !is_refusal || Error::of(&response).is_some_and(Error::is_about_key) {
            return Ok(response);
        }
        let (parts, body) = response.into_parts();
        let body = body.collect().await.map_err(Error::internal)?.to_bytes();
        let stored = idempotency.clone().run(database, async |_| {
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
        let given = match serde_json::from_slice(without_byte_order_mark(body)) {
            Ok(WithPassword { password }) => password.map(Password::claimed),
            Err(_) => Some(None),
        };
        let is_same = match (given, hash) {
            (None, None) => true,
            (Some(Some(given)), Some(PasswordHash(hash))) => {
                let Self(state) = self;
                let hashes = &state.concurrency.password_hashes;
                let _share = hashes.take(context.client_address(), 1)?;
                let verified = state.passwords.verify(given, Some(hash)).await?;
                matches!(verified, Verification::Match { .. })
            }
            _ => false,
        };
        is_same.then_some(()).ok_or(Error::IdempotencyKeyReused)
    }
}

/// Adds the body of a request to its fingerprint. With passwords, it fails unless it is JSON in which every number is in
/// the range of 64-bit floating point, every string is Unicode, and values are nested at most 127 deep.
fn hash_body(hash: &mut Sha256, keys: Keys, body: &[u8]) -> Result<(), serde_json::Error> {
    if keys == Keys::Stored {
        hash.update(body);
        return Ok(());
    }
    let mut json = serde_json::Deserializer::from_slice(without_byte_order_mark(body));
    WithoutPasswords(hash).deserialize(&mut json)?;
    json.end()
}

/// Adds JSON to a hash without members named `password`: from a fast hash, which is stored, they could be guessed.
/// Values are hashed as they are read and not kept: 1 MB of JSON can be 100 MB of values.
struct WithoutPasswords<'a>(&'a mut Sha256);

impl WithoutPasswords<'_> {
    /// Adds a value in a form that is not the beginning of another.
    fn add(&mut self, kind: u8, value: &[u8]) {
        self.0.update([kind]);
        self.0.update(value.len().to_be_bytes());
        self.0.update(value);
    }
}

impl<'de> DeserializeSeed<'de> for WithoutPasswords<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<(), D::Error> {
        value.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for WithoutPasswords<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(mut self) -> Result<(), E> {
        self.add(b'n', b"");
        Ok(())
    }

    fn visit_bool<E>(mut self, value: bool) -> Result<(), E> {
        self.add(b'b', &[value.into()]);
        Ok(())
    }

    fn visit_i64<E>(mut self, value: i64) -> Result<(), E> {
        self.add(b'i', &value.to_be_bytes());
        Ok(())
    }

    fn visit_u64<E>(mut self, value: u64) -> Result<(), E> {
        self.add(b'u', &value.to_be_bytes());
        Ok(())
    }

    fn visit_f64<E>(mut self, value: f64) -> Result<(), E> {
        self.add(b'f', &value.to_be_bytes());
        Ok(())
    }

    fn visit_str<E>(mut self, value: &str) -> Result<(), E> {
        self.add(b's', value.as_bytes());
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        self.0.update(b"[");
        while let Some(()) = elements.next_element_seed(WithoutPasswords(self.0))? {}
        self.0.update(b"]");
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut members: A) -> Result<(), A::Error> {
        self.0.update(b"{");
        while let Some(name) = members.next_key::<String>()? {
            if name == "password" {
                members.next_value::<IgnoredAny>()?;
            } else {
                self.add(b's', name.as_bytes());
                members.next_value_seed(WithoutPasswords(self.0))?;
            }
        }
        self.0.update(b"}");
        Ok(())
    }
}
