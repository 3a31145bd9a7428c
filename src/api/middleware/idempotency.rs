//! Handles `Idempotency-Key`: replays stored responses, and stores 4xx responses. See
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

/// Handles the key of a POST, and passes the request on to `next`. The body is buffered here only if there is a key.
///
/// # Errors
/// If the key is invalid, in use, or was used for another request.
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
    let (answer, response) = Answer::of(response).await?;
    let earlier = idempotency.keep(database, &answer).await?;
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
