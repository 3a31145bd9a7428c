//! Reads `Idempotency-Key`, for [`Idempotency`] to keep.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderName, HeaderValue, Method},
    middleware::Next,
    response::Response,
};
use sha2::{Digest, Sha256};

use crate::{
    api::{
        error::Error,
        extract::read_body,
        idempotency::{Idempotency, Key},
        problem::Violation,
        state::BodyLimits,
    },
    domain::caller::Caller,
};

/// `draft-ietf-httpapi-idempotency-key-header`.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const MAX_KEY: usize = 255;

/// Reads the key of a POST. Only with one is the body buffered here.
pub async fn idempotency(
    State(limits): State<BodyLimits>,
    request: Request,
    next: Next,
) -> Result<Response, Error> {
    let Some(value) = request.headers().get(IDEMPOTENCY_KEY) else {
        return Ok(next.run(request).await);
    };
    if request.method() != Method::POST {
        return Ok(next.run(request).await);
    }
    let key = read_key(value)?;
    if request.headers().get_all(IDEMPOTENCY_KEY).iter().count() > 1 {
        return Err(invalid("must be given once"));
    }
    let caller = request
        .extensions()
        .get::<Arc<Caller>>()
        .map_or_else(String::new, |caller| caller.name.to_string());
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
    parts.extensions.insert(Idempotency(Some(Arc::new(Key {
        caller,
        text: key,
        fingerprint,
    }))));
    Ok(next.run(Request::from_parts(parts, Body::from(body))).await)
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
