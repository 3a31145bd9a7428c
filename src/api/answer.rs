//! Successful answers in JSON, as every noun gives them.

use std::fmt::Display;

use axum::{
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use utoipa::ToSchema;

use super::error::Error;

/// A body as compact JSON.
///
/// # Errors
/// [`Error::Internal`] when it has no JSON.
pub fn json(status: StatusCode, body: &impl Serialize) -> Result<Response, Error> {
    let body = serde_json::to_vec(body).map_err(|error| Error::Internal(error.into()))?;
    let headers = [(header::CONTENT_TYPE, "application/json")];
    Ok((status, headers, body).into_response())
}

/// What was done, where nothing is left to be shown: Petstore's `ApiResponse`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"code": 200, "type": "deleted", "message": "1"}))]
pub struct ApiResponse {
    /// The HTTP status.
    pub code: u16,
    /// What was done.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// To what.
    pub message: String,
}

impl ApiResponse {
    /// The answer to a deletion.
    ///
    /// # Errors
    /// As [`json`].
    pub fn deleted(what: &impl Display) -> Result<Response, Error> {
        let body = Self {
            code: 200,
            kind: "deleted",
            message: what.to_string(),
        };
        json(StatusCode::OK, &body)
    }
}
