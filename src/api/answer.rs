//! Successful answers in JSON, as every noun gives them.

use axum::{
    http::{HeaderValue, StatusCode, header},
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

/// The same for something new, which lies at a URL of its own.
///
/// # Errors
/// As [`json`] and [`located`].
pub fn created(location: String, body: &impl Serialize) -> Result<Response, Error> {
    located(location, json(StatusCode::CREATED, body)?)
}

/// An answer that says where what it shows lies.
///
/// # Errors
/// [`Error::Internal`] when the URL cannot stand in a header.
pub fn located(location: String, mut response: Response) -> Result<Response, Error> {
    let location =
        HeaderValue::try_from(location).map_err(|error| Error::Internal(error.into()))?;
    response.headers_mut().insert(header::LOCATION, location);
    Ok(response)
}

/// What was done, where nothing is left to be shown: Petstore's `ApiResponse`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"code": 200, "type": "deleted", "message": "1"}))]
pub struct ApiResponse {
    /// The HTTP status.
    #[schema(minimum = 200, maximum = 200)]
    pub code: u16,
    /// What was done.
    #[serde(rename = "type")]
    #[schema(max_length = 16, pattern = "^[a-z ]+$")]
    pub kind: &'static str,
    /// To what.
    #[schema(max_length = 255, pattern = r"^[^\x00]*$")]
    pub message: String,
}

impl ApiResponse {
    /// The answer to a deletion.
    ///
    /// # Errors
    /// As [`json`].
    pub fn deleted(what: &impl ToString) -> Result<Response, Error> {
        Self::done("deleted", what.to_string())
    }

    /// The answer to anything done.
    ///
    /// # Errors
    /// As [`json`].
    pub fn done(kind: &'static str, message: String) -> Result<Response, Error> {
        let body = Self {
            code: 200,
            kind,
            message,
        };
        json(StatusCode::OK, &body)
    }
}
