//! Handles `Idempotency-Key`: replays stored responses, and stores 4xx responses. See
//! [`crate::api::idempotency::Idempotency`].

use std::mem;

use axum::{
    body::Body,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use http_body_util::BodyExt;
use sha2::{Digest, Sha256};

use super::{Incoming, Middleware, Next};
use crate::api::{
    body::LimitedBody,
    error::Error,
    idempotency::{ClientKey, IDEMPOTENCY_KEY, Idempotency},
    operations::{BASE, Keys},
    request_context::RequestContext,
    state::AppState,
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
    async fn call(&self, request: Incoming<'_>, next: &impl Next) -> Response {
        let context = RequestContext::of(&request);
        let key = match context.facts.keys {
            Keys::Ignored | Keys::StoredByHandler => Ok(None),
            Keys::Refused if request.headers().contains_key(IDEMPOTENCY_KEY) => {
                let reason = "is not possible here: the response has a secret, which is not stored";
                Err(Error::one_violation("Idempotency-Key", reason))
            }
            Keys::Refused => Ok(None),
            Keys::Stored => ClientKey::of(request.headers(), || context.caller_key()),
        };
        let response = match key {
            Ok(None) => return next.call(request).await,
            Ok(Some(key)) => Box::pin(self.handle(key, request, next)).await,
            Err(error) => Err(error),
        };
        response.unwrap_or_else(Error::into_response)
    }
}

impl IdempotencyKeys {
    /// Handles a request with a key.
    async fn handle(
        &self,
        key: ClientKey,
        mut request: Incoming<'_>,
        next: &impl Next,
    ) -> Result<Response, Error> {
        let Self(state) = self;
        let body = mem::take(request.body_mut());
        let body = LimitedBody::new(body, state.body_limits, 0)?.join().await?;
        let path = request.uri().path();
        let path = path.strip_prefix(BASE).unwrap_or(path);
        let fingerprint = Sha256::new()
            .chain_update(path)
            .chain_update([0])
            .chain_update(request.uri().query().unwrap_or_default())
            .chain_update([0])
            .chain_update(&body);
        let idempotency =
            key.with_fingerprint(fingerprint.finalize().to_vec(), &state.stored_bytes);
        *request.body_mut() = Body::from(body);
        self.replay_or_call(&idempotency, request, next).await
    }

    /// Returns the stored response, or that of the handler, which is stored.
    async fn replay_or_call(
        &self,
        idempotency: &Idempotency,
        request: Incoming<'_>,
        next: &impl Next,
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
}
