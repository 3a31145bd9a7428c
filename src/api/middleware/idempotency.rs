//! Reads `Idempotency-Key`, answers what was answered before, and keeps refusals; see
//! [`crate::api::idempotency::Idempotency`].

use std::sync::Arc;

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderName, HeaderValue, Method, StatusCode},
    response::Response,
};
use sha2::{Digest, Sha256};

use crate::{
    api::{
        error::{AboutItsKey, Error},
        extract::read_body,
        idempotency::{Answer, Idempotency, Key},
        problem::Violation,
        state::BodyLimits,
    },
    db::{self, Database},
    domain::caller::Caller,
    limits::bucket_name,
};

/// `draft-ietf-httpapi-idempotency-key-header`.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const MAX_KEY: usize = 255;

/// Handles the key of a POST on its way to `next`. Only with one is the body buffered here.
///
/// # Errors
/// What is wrong with the key, or with the request that its answer was kept for.
pub async fn idempotency(
    limits: BodyLimits,
    database: &Database,
    request: Request,
    next: impl AsyncFnOnce(Request) -> Response,
) -> Result<Response, Error> {
    // Without a caller there is no operation behind this either, and nobody whose key it could be.
    let caller = request.extensions().get::<Arc<Caller>>().cloned();
    match (request.headers().get(IDEMPOTENCY_KEY).cloned(), caller) {
        (Some(value), Some(caller)) if request.method() == Method::POST => {
            // Boxed: a future is moved whole, and this one is large and seldom.
            Box::pin(keyed(limits, database, &value, &caller, request, next)).await
        }
        _ => Ok(next(request).await),
    }
}

async fn keyed(
    limits: BodyLimits,
    database: &Database,
    value: &HeaderValue,
    caller: &Caller,
    request: Request,
    next: impl AsyncFnOnce(Request) -> Response,
) -> Result<Response, Error> {
    let key = read_key(value)?;
    if request.headers().get_all(IDEMPOTENCY_KEY).iter().count() > 1 {
        return Err(invalid("must be given once"));
    }
    let caller = bucket_name(caller, request.extensions().get().copied());
    let (mut parts, body) = request.into_parts();
    let body = read_body(body, limits).await?;
    let fingerprint = Sha256::new()
        .chain_update(parts.uri.path())
        .chain_update([0])
        .chain_update(parts.uri.query().unwrap_or_default())
        .chain_update([0])
        .chain_update(&body)
        .finalize()
        .to_vec();
    let key = Arc::new(Key {
        caller,
        text: key,
        fingerprint,
    });
    if let Some(kept) = db::idempotency::find(database.pool(), &key.caller, &key.text).await? {
        return key.replay(kept);
    }
    parts.extensions.insert(Idempotency(Some(Arc::clone(&key))));
    let response = next(Request::from_parts(parts, Body::from(body))).await;

    // What is wrong with the message, rather than with what it asks, is no answer to it.
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
    let (answer, response) = Answer::of(response).await?;
    key.keep(database.pool(), &answer).await?;
    Ok(response)
}

/// The key, bare or as a quoted string (RFC 8941 §3.3.3).
fn read_key(value: &HeaderValue) -> Result<String, Error> {
    let text = value
        .to_str()
        .map_err(|_| invalid("must be ASCII characters"))?
        .trim();
    let key = text
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'))
        .unwrap_or(text);
    if key.is_empty() || key.len() > MAX_KEY {
        return Err(invalid("must be 1 to 255 characters"));
    }
    Ok(key.to_owned())
}

fn invalid(reason: &str) -> Error {
    Error::Invalid(vec![Violation::new("Idempotency-Key", reason)])
}
