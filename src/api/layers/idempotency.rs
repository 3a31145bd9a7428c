//! Handles `Idempotency-Key`: replays stored responses, and stores 4xx responses. See
//! [`crate::api::idempotency::Idempotency`].

use std::{
    borrow::Cow,
    convert::Infallible,
    task::{Context, Poll},
};

use axum::{
    body::Body,
    extract::Request,
    http::{Method, StatusCode},
    response::{IntoResponse, Response},
};
use futures_util::future::Either;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tower::{Layer, Service};

use super::{Inner, LayerFuture, operation_path, refuse};
use crate::{
    api::{
        error::{AboutItsKey, Error},
        extract::read_body,
        idempotency::{ClientKey, SerializedResponse},
        openapi::BASE,
        request_context::RequestContext,
        state::{AppState, BodyLimits},
    },
    db::Database,
};

/// Layer that handles the key of a POST. It buffers the body only if there is a key.
#[derive(Clone)]
pub struct IdempotencyLayer {
    limits: BodyLimits,
    database: Database,
}

impl IdempotencyLayer {
    /// Creates the layer.
    #[must_use]
    pub fn new(state: &AppState) -> Self {
        Self {
            limits: state.body_limits,
            database: state.database.clone(),
        }
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = IdempotencyService<S>;

    fn layer(&self, inner: S) -> IdempotencyService<S> {
        IdempotencyService {
            inner,
            layer: self.clone(),
        }
    }
}

/// Service of an [`IdempotencyLayer`].
#[derive(Clone)]
pub struct IdempotencyService<S> {
    inner: S,
    layer: IdempotencyLayer,
}

impl<S: Inner> Service<Request> for IdempotencyService<S> {
    type Response = Response;
    type Error = Infallible;
    type Future = LayerFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let context = RequestContext::of(&request);
        // The response to a login is a secret, and not stored.
        let has_owner = context.caller().is_some() || is_sign_up(&request);
        if request.method() != Method::POST || !has_owner {
            return Either::Left(self.inner.call(request));
        }
        match ClientKey::of(request.headers(), || context.caller_key()) {
            Ok(None) => Either::Left(self.inner.call(request)),
            Ok(Some(key)) => {
                let (layer, inner) = (self.layer.clone(), self.inner.clone());
                let context = context.clone();
                Either::Right(Box::pin(async move {
                    let response = keyed(layer, context, key, request, inner).await;
                    Ok(response.unwrap_or_else(Error::into_response))
                }))
            }
            Err(error) => refuse(error),
        }
    }
}

fn is_sign_up(request: &Request) -> bool {
    operation_path(request) == Some("/user")
}

async fn keyed(
    IdempotencyLayer { limits, database }: IdempotencyLayer,
    context: RequestContext,
    key: ClientKey,
    request: Request,
    mut inner: impl Inner,
) -> Result<Response, Error> {
    let (parts, body) = request.into_parts();
    let body = read_body(body, limits).await?;
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
    if let Some(response) = idempotency.stored_response(&database).await? {
        return Ok(response);
    }
    context.set_idempotency(idempotency.clone());
    let request = Request::from_parts(parts, Body::from(body));
    let Ok(response) = inner.call(request).await;

    // Errors of the message itself are not stored: a corrected message may have the same key.
    let about_message = [
        StatusCode::TOO_MANY_REQUESTS,
        StatusCode::METHOD_NOT_ALLOWED,
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
    ];
    let refused = response.status().is_client_error()
        && !about_message.contains(&response.status())
        && response.extensions().get::<AboutItsKey>().is_none();
    if !refused {
        return Ok(response);
    }
    let (serialized, response) = SerializedResponse::of(response).await?;
    let earlier = idempotency.store(&database, &serialized).await?;
    Ok(earlier.unwrap_or(response))
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

/// Paths below the API's base to which passwords are sent.
const WITH_PASSWORDS: &str = "/user";

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use tower::{ServiceExt, service_fn};

    use super::*;
    use crate::{
        api::{idempotency::IDEMPOTENCY_KEY, request_id::RequestId},
        config::Config,
        db::ConnectOptions,
        domain::{
            caller::{Caller, Scopes},
            plan::Plan,
        },
    };

    /// Sends a request of a caller through the layer, while stored responses cannot be reached.
    async fn respond(method: Method, key: Option<&str>) -> StatusCode {
        let config = Config::defaults().expect("the defaults");
        // A reserved port.
        let options = ConnectOptions::new_without_pgpass()
            .host("127.0.0.1")
            .port(1);
        let layer = IdempotencyLayer {
            limits: BodyLimits {
                max_size: 64,
                timeout: Duration::from_secs(1),
            },
            database: Database::new(options, &config.database),
        };
        let handler = service_fn(async |_: Request| Ok::<_, Infallible>(Response::default()));
        let mut request = Request::builder().method(method);
        if let Some(key) = key {
            request = request.header(IDEMPOTENCY_KEY, key);
        }
        let mut request = request.body(Body::from("{}")).expect("a request");
        let context = RequestContext::new(RequestId::of(request.headers()));
        context.set_caller(Arc::new(Caller {
            id: None,
            name: "acme".parse().expect("a name"),
            plan: Plan::Free,
            scopes: Scopes::all(),
        }));
        request.extensions_mut().insert(context);
        let response = layer.layer(handler).oneshot(request).await;
        response.expect("a response").status()
    }

    #[tokio::test]
    async fn only_a_post_with_a_key_needs_stored_responses() {
        for (method, key, status) in [
            (Method::GET, Some("a"), StatusCode::OK),
            (Method::POST, None, StatusCode::OK),
            (Method::POST, Some(""), StatusCode::BAD_REQUEST),
            (Method::POST, Some("a"), StatusCode::SERVICE_UNAVAILABLE),
        ] {
            let response = respond(method.clone(), key).await;
            assert_eq!(response, status, "{method} {key:?}");
        }
    }
}
