//! Handles `Idempotency-Key`: replays stored responses, and stores 4xx responses. See
//! [`crate::api::idempotency::Idempotency`].

use std::borrow::Cow;

use axum::{
    body::Body,
    extract::Request,
    http::{Method, StatusCode},
    response::{IntoResponse, Response},
};
use futures_util::future::Either;
use http_body_util::BodyExt;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{Inner, LayerFuture, Middleware, operation_path, respond};
use crate::{
    api::{
        error::{AboutItsKey, Error},
        extract::read_body,
        idempotency::ClientKey,
        openapi::BASE,
        request_context::RequestContext,
        state::{AppState, BodyLimits},
    },
    db::{Connection, Database},
};

/// Paths below the API's base to which passwords are sent.
const WITH_PASSWORDS: &str = "/user";
/// Statuses about the message itself, which are not stored: a corrected message may have the same key.
const ABOUT_MESSAGE: [StatusCode; 4] = [
    StatusCode::UNAUTHORIZED,
    StatusCode::TOO_MANY_REQUESTS,
    StatusCode::METHOD_NOT_ALLOWED,
    StatusCode::UNSUPPORTED_MEDIA_TYPE,
];

/// Layer that handles the key of a POST. It buffers the body only if there is a key.
#[derive(Clone)]
pub struct IdempotencyLayer {
    limits: BodyLimits,
    database: Database,
}

impl_layer!(IdempotencyLayer);

impl Middleware for IdempotencyLayer {
    type Future<S: Inner> = LayerFuture<S::Future>;

    fn call<S: Inner>(&self, inner: &mut S, request: Request) -> Self::Future<S> {
        let context = RequestContext::of(&request);
        // The response to a login is a secret, and not stored; that to a sign-up is, without a caller.
        let is_stored = context.caller.get().is_some() || operation_path(&request) == Some("/user");
        if request.method() != Method::POST || !is_stored {
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
            limits: state.body_limits,
            database: state.database.clone(),
        }
    }

    /// Handles a request with a key.
    async fn handle<S: Inner>(
        self,
        key: ClientKey,
        request: Request,
        mut inner: S,
    ) -> Result<Response, Error> {
        let context = RequestContext::of(&request).clone();
        let (parts, body) = request.into_parts();
        let body = read_body(body, self.limits).await?;
        let path = parts.uri.path();
        let path = path.strip_prefix(BASE).unwrap_or(path);
        let fingerprint = Sha256::new()
            .chain_update(path)
            .chain_update([0])
            .chain_update(parts.uri.query().unwrap_or_default())
            .chain_update([0])
            .chain_update(without_passwords(path, &body))
            .finalize()
            .to_vec();
        let idempotency = key.with_fingerprint(fingerprint);
        if let Some(response) = idempotency.stored_response(&self.database).await? {
            return Ok(response);
        }
        let _ = context.idempotency.set(idempotency.clone());
        let request = Request::from_parts(parts, Body::from(body));
        let Ok(response) = inner.call(request).await;

        let status = response.status();
        let is_refusal = status.is_client_error() && !ABOUT_MESSAGE.contains(&status);
        if !is_refusal || response.extensions().get::<AboutItsKey>().is_some() {
            return Ok(response);
        }
        let (parts, body) = response.into_parts();
        let body = body.collect().await.map_err(Error::internal)?.to_bytes();
        let refusal = || Response::from_parts(parts.clone(), Body::from(body.clone()));
        let store = async |_: &mut Connection| Ok(refusal());
        idempotency.run(&self.database, store).await
    }
}

/// The body of a request without its passwords: a fast hash of it is stored, from which passwords could be guessed.
fn without_passwords<'a>(path: &str, body: &'a [u8]) -> Cow<'a, [u8]> {
    fn blank(value: &mut Value) {
        match value {
            Value::Object(members) => members.retain(|name, member| {
                blank(member);
                name != "password"
            }),
            Value::Array(elements) => elements.iter_mut().for_each(blank),
            _ => {}
        }
    }
    if !path.starts_with(WITH_PASSWORDS) {
        return body.into();
    }
    // Invalid JSON is rejected later.
    let mut json = serde_json::from_slice(body).unwrap_or_default();
    blank(&mut json);
    json.to_string().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::http::HeaderValue;
    use tower::{Layer, ServiceExt, service_fn};

    use super::*;
    use crate::{
        api::{
            idempotency::IDEMPOTENCY_KEY,
            layers::testing::{ok, request_of, unreachable_database},
        },
        domain::plan::Plan,
    };

    #[tokio::test]
    async fn only_a_post_with_a_key_needs_stored_responses() {
        let limits = BodyLimits {
            max_size: 64,
            timeout: Duration::from_secs(1),
        };
        let (database, _) = unreachable_database();
        let service = IdempotencyLayer { limits, database }.layer(service_fn(ok));
        for (method, key, status) in [
            (Method::GET, Some("a"), StatusCode::OK),
            (Method::POST, None, StatusCode::OK),
            (Method::POST, Some(""), StatusCode::BAD_REQUEST),
            (Method::POST, Some("a"), StatusCode::SERVICE_UNAVAILABLE),
        ] {
            let mut request = request_of(Some(Plan::Free));
            *request.method_mut() = method.clone();
            if let Some(key) = key {
                let key = HeaderValue::from_static(key);
                request.headers_mut().insert(IDEMPOTENCY_KEY, key);
            }
            let Ok(response) = service.clone().oneshot(request).await;
            assert_eq!(response.status(), status, "{method} {key:?}");
        }
    }
}
