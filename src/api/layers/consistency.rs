//! Lets requests read from standbys (`database.read_url`): a response to a change has a position, and a read that sends it back
//! may be served by a standby that has reached it.

use std::sync::Arc;

use axum::{
    extract::Request,
    http::{HeaderName, HeaderValue},
    response::Response,
};
use futures_util::FutureExt as _;

use super::{Middleware, Next, Passed, Reply};
use crate::db::position::{self, Position};

/// Position, opaque to clients: in responses to changes, and in requests that read.
pub const CONSISTENCY: HeaderName = HeaderName::from_static("pet-inventory-consistency");

/// Adds the position to responses to changes, and passes that of a read on to its statements.
#[derive(Debug)]
pub struct Consistency {
    /// True if there are standbys to read from.
    pub is_on: bool,
}

impl Middleware for Consistency {
    fn call<N: Next>(self: &Arc<Self>, request: Request, next: &N) -> impl Reply + use<N> {
        if !self.is_on {
            return Passed::Left(next.call(request));
        }
        if !request.method().is_safe() {
            let response = position::after(next.call(request));
            let response = response.map(|(response, position)| with_position(response, position));
            return Passed::Right(response.boxed());
        }
        // One that is not valid is ignored.
        let position = request.headers().get(CONSISTENCY);
        let position = position.and_then(|it| it.to_str().ok()?.parse().ok());
        let response = next.call(request);
        match position {
            Some(position) => Passed::Right(position::reading_after(position, response).boxed()),
            None => Passed::Left(response),
        }
    }
}

fn with_position(mut response: Response, position: Option<Position>) -> Response {
    if response.status().is_success() {
        let value = position.and_then(|it| HeaderValue::try_from(it.to_string()).ok());
        // Without a position, it replaces what the client has of earlier changes, and the next read goes to the primary.
        let value = value.unwrap_or(HeaderValue::from_static("primary"));
        response.headers_mut().insert(CONSISTENCY, value);
    }
    response
}
