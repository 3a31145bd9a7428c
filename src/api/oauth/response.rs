//! JSON responses of the OAuth endpoints.

use axum::{
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;

use crate::api::error::Error;

/// Returns a JSON response.
pub fn json_response(body: &impl Serialize) -> Response {
    match serde_json::to_vec(body) {
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => Error::Internal(error.into()).into_response(),
    }
}

/// Returns a JSON response that must not be stored (RFC 6749 §5.1).
pub fn no_store(body: &impl Serialize) -> Response {
    let mut response = json_response(body);
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::PRAGMA, HeaderValue::from_static("no-cache"));
    response
}
