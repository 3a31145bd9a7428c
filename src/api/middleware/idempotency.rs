//! Reads `Idempotency-Key`, answers what was answered before, and keeps refusals; see
//! [`crate::api::idempotency::Idempotency`].

use std::{borrow::Cow, sync::Arc};

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderName, HeaderValue, Method, StatusCode},
    middleware::Next,
    response::Response,
};
use serde_json::Value;
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
    limits::{address::AddressKey, bucket_name},
};

/// `draft-ietf-httpapi-idempotency-key-header`.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const MAX_KEY: usize = 255;

/// Handles the key of a POST. Only with one is the body buffered here.
pub async fn idempotency(
    State(limits): State<BodyLimits>,
    State(database): State<Database>,
    request: Request,
    next: Next,
) -> Result<Response, Error> {
    let extensions = request.extensions();
    // Without a caller there is no operation behind this either, and nobody whose key it could be.
    let (Some(value), Some(caller), &Method::POST) = (
        request.headers().get(IDEMPOTENCY_KEY),
        extensions.get::<Arc<Caller>>(),
        request.method(),
    ) else {
        return Ok(next.run(request).await);
    };
    let key = read_key(value)?;
    if request.headers().get_all(IDEMPOTENCY_KEY).iter().count() > 1 {
        return Err(invalid("must be given once"));
    }
    let address = extensions
        .get::<AddressKey>()
        .map_or_else(String::new, AddressKey::to_string);
    let caller = bucket_name(caller, &address);
    let (mut parts, body) = request.into_parts();
    let body = read_body(body, limits).await?;
    let fingerprint = Sha256::new()
        .chain_update(parts.uri.path())
        .chain_update([0])
        .chain_update(parts.uri.query().unwrap_or_default())
        .chain_update([0])
        .chain_update(without_passwords(parts.uri.path(), &body))
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
    let response = next.run(Request::from_parts(parts, Body::from(body))).await;

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
