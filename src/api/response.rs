//! Builds the JSON responses that all resources share.

use std::sync::Arc;

use axum::{
    body::Bytes,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use utoipa::ToSchema;

use super::error::Error;
use crate::limits::shares::Share;

/// Maximum size in bytes of a response that is not counted: the kernel takes it at once.
pub const MAX_UNCOUNTED: usize = 16 << 10;

/// Returns bytes that hold a share until they are dropped: those of a response have then been sent.
pub fn counted(bytes: impl Into<Bytes>, share: &Arc<Share>) -> Bytes {
    struct Counted {
        bytes: Bytes,
        _share: Arc<Share>,
    }

    impl AsRef<[u8]> for Counted {
        fn as_ref(&self) -> &[u8] {
            &self.bytes
        }
    }

    Bytes::from_owner(Counted {
        bytes: bytes.into(),
        _share: Arc::clone(share),
    })
}

/// Returns a response with `body` as compact JSON.
pub fn json(status: StatusCode, body: &impl Serialize) -> Result<Response, Error> {
    let body = serde_json::to_vec(body).map_err(Error::internal)?;
    let headers = [(header::CONTENT_TYPE, "application/json")];
    Ok((status, headers, body).into_response())
}

/// Returns a 201 response with `body`, and the URL of the new resource in `Location`.
pub fn created(location: String, body: &impl Serialize) -> Result<Response, Error> {
    located(location, json(StatusCode::CREATED, body)?)
}

/// Adds `Location` to a response.
pub fn located(location: String, mut response: Response) -> Result<Response, Error> {
    let location = HeaderValue::try_from(location).map_err(Error::internal)?;
    response.headers_mut().insert(header::LOCATION, location);
    Ok(response)
}

/// Result of an action that returns no resource: Petstore's `ApiResponse`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"code": 200, "type": "deleted", "message": "1"}))]
pub struct ApiResponse {
    /// HTTP status code.
    #[schema(minimum = 200, maximum = 200)]
    pub code: u16,
    /// The action, such as `deleted`.
    #[serde(rename = "type")]
    #[schema(max_length = 16, pattern = "^[a-z ]+$")]
    pub kind: &'static str,
    /// Details of the action, such as the deleted identifier.
    #[schema(max_length = 255, pattern = r"^[^\x00]*$")]
    pub message: String,
}

impl ApiResponse {
    /// Returns the response to a deletion.
    pub fn deleted(what: &impl ToString) -> Result<Response, Error> {
        Self::done("deleted", what.to_string())
    }

    /// Returns a 200 response for an action.
    pub fn done(kind: &'static str, message: String) -> Result<Response, Error> {
        let body = Self {
            code: 200,
            kind,
            message,
        };
        json(StatusCode::OK, &body)
    }
}
