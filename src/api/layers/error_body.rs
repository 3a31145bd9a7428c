//! Writes the body of each error response.
//!
//! Invariant: every 4xx and 5xx response is a problem document or, from the OAuth endpoints, of the form that their RFCs
//! define.

use axum::{
    body::Body,
    http::{HeaderValue, header},
    response::Response,
};

use super::{Incoming, Middleware, Next};
use crate::api::{error::Error, request_context::RequestContext};

/// Writes the body of an [`Error`], which handlers and the layers inside leave in an extension of the response.
#[derive(Debug)]
pub struct ErrorBody;

impl Middleware for ErrorBody {
    async fn call(&self, request: Incoming<'_>, next: &impl Next) -> Response {
        let context = RequestContext::of(&request).clone();
        let mut response = next.call(request).await;
        let status = response.status();
        if status.is_client_error() || status.is_server_error() {
            let error = Error::of(&response);
            let (media_type, body) = Error::body(error, status, context.id.as_str());
            let headers = response.headers_mut();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
            headers.insert(header::CONTENT_LENGTH, body.len().into());
            *response.body_mut() = Body::from(body);
        }
        response
    }
}
