//! The kind of service that [`serve`](super::serve) runs.

use std::convert::Infallible;

use http::{Request, Response};
use http_body::Body;
use tower::Service;

use super::request_body::RequestBody;

/// A service that responds to each request, and is always ready. Each connection gets a clone.
pub trait HttpService:
    Service<Request<RequestBody>, Response = Response<Self::Body>, Error = Infallible, Future: Send>
    + Clone
    + Send
    + 'static
{
    /// Body of a response.
    type Body: Body<Data: Send, Error: Into<BoxError>> + Send + 'static;
}

impl<S, B> HttpService for S
where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static,
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    type Body = B;
}

/// Any error.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
