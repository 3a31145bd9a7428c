//! HTTP requests that are sent by `.await`.

use std::{
    fmt::{Debug, Display},
    pin::Pin,
    time::Duration,
};

use reqwest::{
    Body, Request, RequestBuilder,
    header::{HeaderName, HeaderValue},
};
use serde_json::Value;

use crate::{RequestExt, Response};

/// Sends requests concurrently and returns their responses in the same order.
pub async fn send_all(calls: impl IntoIterator<Item = Call>) -> Vec<Response> {
    let sent: Vec<_> = calls
        .into_iter()
        .map(|call| tokio::spawn(call.into_future()))
        .collect();
    let mut responses = Vec::new();
    for response in sent {
        responses.push(response.await.expect("a response"));
    }
    responses
}

/// Sends requests concurrently and returns the statuses of their responses in ascending order.
pub async fn statuses_of(calls: impl IntoIterator<Item = Call>) -> Vec<u16> {
    let responses = send_all(calls).await;
    let mut statuses: Vec<u16> = responses.iter().map(|response| response.status).collect();
    statuses.sort_unstable();
    statuses
}

/// Request that is being built. Awaiting it sends it, and returns the response with its whole body.
#[derive(Debug)]
#[must_use = "a request is sent when it is awaited"]
pub struct Call(RequestBuilder);

impl From<RequestBuilder> for Call {
    fn from(request: RequestBuilder) -> Self {
        Self(request)
    }
}

impl IntoFuture for Call {
    type Output = Response;
    type IntoFuture = Pin<Box<dyn Future<Output = Response> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.0.response())
    }
}

impl Clone for Call {
    fn clone(&self) -> Self {
        Self(self.0.try_clone().expect("a body in memory"))
    }
}

impl Call {
    /// Sends the request and returns the response, which must have this status.
    pub async fn is(self, status: u16) -> Response {
        self.await.is(status)
    }

    /// Sends the request and returns reqwest's response, whose body is still to be read.
    pub async fn send(self) -> reqwest::Result<reqwest::Response> {
        self.0.send().await
    }

    /// Returns the request as it would be sent.
    pub fn build(self) -> Request {
        self.0.build().expect("a request")
    }

    /// Adds a header.
    pub fn header(
        self,
        name: impl TryInto<HeaderName, Error: Debug>,
        value: impl TryInto<HeaderValue, Error: Debug>,
    ) -> Self {
        let name = name.try_into().expect("the name of a header");
        let value = value.try_into().expect("the value of a header");
        Self(self.0.header(name, value))
    }

    /// Adds a bearer token.
    pub fn bearer_auth(self, token: impl Display) -> Self {
        Self(self.0.bearer_auth(token))
    }

    /// Adds a name and a password.
    pub fn basic_auth(self, name: impl Display, password: Option<impl Display>) -> Self {
        Self(self.0.basic_auth(name, password))
    }

    /// Adds parameters to the query.
    pub fn query(self, parameters: &[(&str, impl ToString)]) -> Self {
        let parameters: Vec<_> = parameters
            .iter()
            .map(|(name, value)| (name, value.to_string()))
            .collect();
        Self(self.0.query(&parameters))
    }

    /// Sets the body.
    pub fn body(self, body: impl Into<Body>) -> Self {
        Self(self.0.body(body))
    }

    /// Sets a body of JSON.
    pub fn json(self, body: &Value) -> Self {
        Self(self.0.json(body))
    }

    /// Sets a body of form fields.
    pub fn form(self, fields: &[(&str, &str)]) -> Self {
        Self(self.0.form(fields))
    }

    /// Sets the time after which the client gives up.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self(self.0.timeout(timeout))
    }
}
