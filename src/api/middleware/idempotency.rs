//! Reads `Idempotency-Key`, answers what was answered before, and keeps refusals; see
//! [`crate::api::idempotency::Idempotency`].

use std::borrow::Cow;

use axum::{
    body::Body,
    extract::Request,
    http::{Method, StatusCode},
    response::Response,
};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{
    api::{
        error::{AboutItsKey, Error},
        extract::read_body,
        idempotency::{Answer, ClientKey},
        openapi::BASE,
        state::BodyLimits,
    },
    db::Database,
};

/// Handles the key of a POST on its way to `next`. Only with one is the body buffered here.
///
/// # Errors
/// What is wrong with the key, or with the request that its answer was kept for.
pub async fn idempotency(
    limits: BodyLimits,
    database: &Database,
    request: Box<Request>,
    next: impl AsyncFnOnce(Box<Request>) -> Response,
) -> Result<Response, Error> {
    let key = match request.method() {
        &Method::POST => ClientKey::of(request.headers(), request.extensions())?,
        _ => None,
    };
    match key {
        // Boxed: a future is moved whole, and this one is large and seldom.
        Some(key) => Box::pin(keyed(limits, database, key, request, next)).await,
        None => Ok(next(request).await),
    }
}

async fn keyed(
    limits: BodyLimits,
    database: &Database,
    key: ClientKey,
    request: Box<Request>,
    next: impl AsyncFnOnce(Box<Request>) -> Response,
) -> Result<Response, Error> {
    let (mut parts, body) = request.into_parts();
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
    if let Some(answer) = idempotency.answered(database).await? {
        return Ok(answer);
    }
    parts.extensions.insert(idempotency.clone());
    let request = Request::from_parts(parts, Body::from(body));
    let response = next(Box::new(request)).await;

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
    let earlier = idempotency.keep(database, &answer).await?;
    Ok(earlier.unwrap_or(response))
}

/// The body of a request, but for the passwords in it: what is stored of it is a quick hash, and by that a
/// password could be guessed.
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
    // What is no JSON is refused; what it was does not matter then.
    let mut json = serde_json::from_slice(body).unwrap_or_default();
    blank(&mut json);
    json.to_string().into_bytes().into()
}

/// Where passwords are sent, below the API's base.
const WITH_PASSWORDS: &str = "/user";
