//! Serves one connection of HTTP/1.1, with its timeouts and its graceful end.

use std::{convert::Infallible, pin::pin, sync::Arc, time::Duration};

use http::{HeaderValue, Request, Response, header};
use http_body::Body;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::time::timeout;
use tower::Service;

use super::{
    client_stream::{ClientStream, RequestBody, Unread},
    listener::Accepted,
    shutdown::Shutdown,
};
use crate::domain::address::PeerAddress;

/// Size in bytes of the buffers of a connection, unless a request head needs more. hyper's default of 400 KiB is
/// larger than most bodies.
const BUFFER: usize = 32 << 10;
/// Maximum number of fields of a request head.
const MAX_HEADERS: usize = 100;
/// Time after the start of a graceful shutdown in which the next request of a connection is awaited, to be
/// answered with `Connection: close`: a request that meets a connection just closed has failed.
const LAST_REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// Bounds of the connections of a listener.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum time until a request head is complete, and between two requests of a connection.
    pub header_timeout: Duration,
    /// Maximum time for which a write makes no progress.
    pub idle_timeout: Duration,
    /// Maximum size of a request head in bytes.
    pub max_header_size: usize,
}

/// A service that responds to each request, and is always ready. Each connection gets a clone.
pub trait HttpService:
    Service<Request<RequestBody>, Response = Response<Self::Body>, Error = Infallible, Future: Send>
    + Clone
    + Send
    + 'static
{
    /// Body of a response.
    type Body: Body<Data: Send, Error: Into<BoxError>> + Send + Unpin + 'static;
}

impl<S, B> HttpService for S
where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static,
    B: Body<Data: Send, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    type Body = B;
}

/// Any error.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Serves a connection until the client closes it, a timeout expires, or, after the start of the graceful stage of
/// `shutdown`, until its request has been answered or the forced stage starts.
pub(super) async fn serve<S: HttpService>(
    (stream, peer): (Accepted, PeerAddress),
    service: S,
    limits: Limits,
    shutdown: &Shutdown,
) -> Result<(), BoxError> {
    let stream = stream.register()?;
    let last_requests = async {
        shutdown.graceful().await;
        let _ = timeout(LAST_REQUEST_TIMEOUT, shutdown.forced()).await;
    };
    let unread = Arc::<Unread>::default();
    let stream = ClientStream::new(stream, limits.idle_timeout, Arc::clone(&unread));
    let stream = TokioIo::new(stream);
    // Behind one pointer, because a clone of a token takes a lock.
    let stopping = Arc::new(shutdown.clone());
    let service = service_fn(move |mut request: Request<Incoming>| {
        // Its length may have been stated in two ways, of which hyper takes this one (RFC 9112, section 6.1): bytes after
        // the request must not be read as another one.
        let is_last = request.headers().contains_key(header::TRANSFER_ENCODING);
        // To read its body would ask the client for it.
        let is_expecting = request.headers().contains_key(header::EXPECT);
        request.extensions_mut().insert(peer);
        let request = request.map(|body| RequestBody::new(body, Arc::clone(&unread)));
        let response = service.clone().call(request);
        let (stopping, unread) = (Arc::clone(&stopping), Arc::clone(&unread));
        async move {
            let mut response = response.await?;
            let is_read = unread.is_read(!is_last && !is_expecting).await;
            if is_last || !is_read || stopping.is_graceful() {
                let headers = response.headers_mut();
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_headers(MAX_HEADERS)
        .max_header_size(limits.max_header_size)
        .max_buf_size(limits.max_header_size.max(BUFFER))
        .serve_connection(stream, service);
    let mut connection = pin!(connection);
    tokio::select! {
        result = &mut connection => return Ok(result?),
        () = last_requests => connection.as_mut().graceful_shutdown(),
    }
    tokio::select! {
        result = connection => Ok(result?),
        () = shutdown.forced() => Ok(()),
    }
}
