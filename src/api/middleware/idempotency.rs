//! Reads `Idempotency-Key`, answers what was answered before, and keeps refusals; see
//! [`crate::api::idempotency::Idempotency`].

use axum::{
    body::Body,
    extract::{Request, State},
    http::{Method, StatusCode},
    middleware::Next,
    response::Response,
};
use sha2::{Digest, Sha256};

use crate::{
    api::{
        error::{AboutItsKey, Error},
        extract::read_body,
        idempotency::{Answer, ClientKey},
        state::BodyLimits,
    },
    db::Database,
};

/// Handles the key of a POST. Only with one is the body buffered here.
pub async fn idempotency(
    State(limits): State<BodyLimits>,
    State(database): State<Database>,
    request: Request,
    next: Next,
) -> Result<Response, Error> {
    let key = match request.method() {
        &Method::POST => ClientKey::of(request.headers(), request.extensions())?,
        _ => None,
    };
    let Some(key) = key else {
        return Ok(next.run(request).await);
    };
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
    let idempotency = key.with_fingerprint(fingerprint);
    if let Some(answer) = idempotency.answered(&database).await? {
        return Ok(answer);
    }
    parts.extensions.insert(idempotency.clone());
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
    idempotency.keep(&database, &answer).await?;
    Ok(response)
}
