//! HTTP/2 connection for tests of flow control and GOAWAY, which reqwest handles by itself.

use std::net::SocketAddr;

use bytes::Bytes;
pub use h2::SendStream;
use h2::{
    Ping, PingPong, RecvStream,
    client::{Builder, ResponseFuture, SendRequest},
};
use http::{Method, Request, Response};
use tokio::{task::JoinHandle, time::timeout};

use crate::{PATIENCE, eventually, raw::connect_from};

/// HTTP/2 connection with prior knowledge.
pub struct Http2 {
    requests: SendRequest<Bytes>,
    ping_pong: PingPong,
    connection: JoinHandle<Result<(), h2::Error>>,
}

impl Http2 {
    /// Opens a connection. `window` is the initial window size of its streams in bytes.
    pub async fn connect(address: SocketAddr, window: u32) -> Self {
        Self::connect_from("127.0.0.1", address, window).await
    }

    /// Opens a connection from a loopback address.
    pub async fn connect_from(client: &str, address: SocketAddr, window: u32) -> Self {
        let stream = connect_from(client, address).await;
        let mut builder = Builder::new();
        let handshake = builder.initial_window_size(window).handshake(stream);
        let (requests, mut connection) = handshake.await.expect("a handshake");
        Self {
            requests,
            ping_pong: connection.ping_pong().expect("the first call"),
            connection: tokio::spawn(connection),
        }
    }

    /// Sends the head of a request with an API key and returns the stream for its body.
    pub async fn open(
        &self,
        method: Method,
        path: &str,
        key: &str,
    ) -> (ResponseFuture, SendStream<Bytes>) {
        let request = Request::builder()
            .method(method)
            .uri(format!("http://localhost{path}"))
            .header("api_key", key)
            .header("content-type", "application/json")
            .body(())
            .expect("a request");
        let ready = self.requests.clone().ready().await;
        let mut requests = ready.expect("an open connection");
        requests.send_request(request, false).expect("a stream")
    }

    /// Sends a request without a body, as it is, and returns the response head with the stream of the response body.
    pub async fn send(&self, request: Request<()>) -> Response<RecvStream> {
        let ready = self.requests.clone().ready().await;
        let mut requests = ready.expect("an open connection");
        let (response, _) = requests.send_request(request, true).expect("a stream");
        let response = timeout(PATIENCE, response).await.expect("in time");
        response.expect("a response")
    }

    /// Sends a request without a body and returns the response head with the stream of the response body.
    pub async fn fetch(&self, method: Method, path: &str, key: &str) -> Response<RecvStream> {
        let (response, mut body) = self.open(method, path, key).await;
        // Fails if the server has refused the request before its end.
        let _ = body.send_data(Bytes::new(), true);
        let response = timeout(PATIENCE, response).await.expect("in time");
        response.expect("a response")
    }

    /// Sends a request without a body; returns the response head, or `None` if the connection is closed.
    pub async fn try_fetch(
        &self,
        method: Method,
        path: &str,
        key: &str,
    ) -> Option<Response<RecvStream>> {
        let ready = self.requests.clone().ready().await;
        ready.ok()?;
        let (response, mut body) = self.open(method, path, key).await;
        let _ = body.send_data(Bytes::new(), true);
        timeout(PATIENCE, response).await.ok()?.ok()
    }

    /// Waits until the server has received all frames sent so far.
    pub async fn ping(&mut self) {
        let pong = timeout(PATIENCE, self.ping_pong.ping(Ping::opaque())).await;
        pong.expect("in time").expect("a pong");
    }

    /// Waits for GOAWAY, after which no stream can be opened.
    pub async fn goaway(&self) {
        eventually(async || {
            let ready = self.requests.clone().ready().await;
            ready.is_err_and(|error| error.is_go_away())
        })
        .await;
    }

    /// Waits until the server has closed the connection without an error.
    pub async fn closed(self) {
        let closed = timeout(PATIENCE, self.connection).await.expect("in time");
        closed.expect("no panic").expect("no error");
    }
}
