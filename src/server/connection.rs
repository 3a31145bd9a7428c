//! Serves one connection, HTTP/1 or HTTP/2 with prior knowledge, with its timeouts and its graceful end.
//!
//! hyper-util's `auto` builder has no bound for the size of an HTTP/1 head but the read buffer, which lets a head of
//! 20 KB pass a bound of 16 KiB, and no timeout for the first bytes. Hence the look at the first bytes.

use std::{
    convert::Infallible,
    io,
    os::fd::AsRawFd as _,
    pin::pin,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use futures_util::FutureExt as _;
use http::{HeaderValue, Request, Response, header};
use http_body::Body;
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulConnection,
};
use nix::sys::socket::{MsgFlags, recv};
use tokio::{
    io::Interest,
    time::{sleep, timeout},
};
use tokio_util::either::Either;
use tower::Service;

use super::{
    client_stream::{ClientStream, RequestBody},
    listener::{Accepted, Stream},
    shutdown::Shutdown,
    streams::Streams,
};
use crate::{
    domain::address::{AddressKey, PeerAddress},
    limits::shares::Shares,
};

/// Client connection preface of HTTP/2 with prior knowledge (RFC 9113, section 3.4).
const HTTP2_PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Maximum number of concurrent streams of an HTTP/2 connection.
const MAX_STREAMS: u32 = 128;
/// Maximum size in bytes of the unsent part of a response on an HTTP/2 stream.
const MAX_SEND_BUFFER: usize = 64 << 10;
/// Maximum number of refused or reset HTTP/2 streams that are remembered.
const MAX_RESET_STREAMS: usize = 64;
/// Size in bytes of the buffers of an HTTP/1 connection, unless a request head needs more. hyper's default of 400 KiB is
/// larger than most bodies.
const BUFFER: usize = 32 << 10;
/// Maximum number of fields of a request head.
const MAX_HEADERS: usize = 100;
/// Time after the start of a graceful shutdown in which the next request of an HTTP/1 connection is awaited, to be
/// answered with `Connection: close`: a request that meets a connection just closed has failed.
const LAST_REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// Time that an idle HTTP/2 client has to close its connection after GOAWAY.
const GOAWAY_TIMEOUT: Duration = Duration::from_secs(1);

/// Bounds of the connections of a listener.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum time until a request head is complete, and between two requests of a connection.
    pub header_timeout: Duration,
    /// Maximum time for which a write makes no progress, and in which a piece of a response is sent on an HTTP/2 stream.
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
/// `shutdown`, until its requests have been answered or the forced stage starts. Its HTTP/2 streams count as `open` streams
/// of a client address.
pub(super) async fn serve<S: HttpService>(
    (stream, peer): (Accepted, PeerAddress),
    service: S,
    limits: Limits,
    open: (Shares, Option<AddressKey>),
    shutdown: &Shutdown,
) -> Result<(), BoxError> {
    let stream = stream.register()?;
    let last_requests = || {
        let last = || timeout(LAST_REQUEST_TIMEOUT, shutdown.forced());
        shutdown.graceful().then(move |()| last()).map(drop)
    };
    let is_http2 = tokio::select! {
        () = last_requests() => return Ok(()),
        is_http2 = timeout(limits.header_timeout, begins_http2(&stream)) => is_http2??,
    };
    let is_unread = Arc::new(AtomicBool::new(true));
    let stream = ClientStream::new(stream, limits.idle_timeout, Arc::clone(&is_unread));
    let stream = TokioIo::new(stream);
    let with_peer = move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        request.map(|body| RequestBody::new(body, Arc::clone(&is_unread)))
    };
    if is_http2 {
        let streams = Streams::new(limits.idle_timeout, open);
        let followed = streams.clone();
        let service = service_fn(move |request| {
            let streams = followed.clone();
            let handled = streams.handle();
            let handled = handled.map(|it| (it, service.clone().call(with_peer(request))));
            async move {
                // The client may send the request again (RFC 9113, section 8.7).
                let (handled, response) = handled.ok_or(h2::Reason::REFUSED_STREAM)?;
                let Ok(response) = response.await;
                drop(handled);
                Ok::<_, h2::Error>(response.map(|body| streams.follow(body)))
            }
        });
        let connection = http2::Builder::new(streams.clone())
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(u32::try_from(limits.max_header_size).unwrap_or(u32::MAX))
            .max_send_buf_size(MAX_SEND_BUFFER)
            .max_local_error_reset_streams(MAX_RESET_STREAMS)
            // Notices that the peer's host is gone.
            .keep_alive_interval(Duration::from_secs(20))
            .serve_connection(stream, service);
        let stop = async {
            tokio::select! {
                () = shutdown.graceful() => {}
                () = streams.idle() => {}
            }
        };
        let drained = async {
            tokio::select! {
                () = sleep(GOAWAY_TIMEOUT).then(|()| streams.idle()) => {}
                () = shutdown.forced() => {}
            }
        };
        tokio::select! {
            result = until(connection, stop, drained) => result?,
            () = streams.stalled() => {}
        }
        return Ok(());
    }
    // Behind one pointer, because a clone of a token takes a lock.
    let stopping = Arc::new(shutdown.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        // Its length may have been stated in two ways, of which hyper takes this one (RFC 9112, section 6.1): bytes after
        // the request must not be read as another one.
        let is_last = request.headers().contains_key(header::TRANSFER_ENCODING);
        let response = service.clone().call(with_peer(request));
        let stopping = Arc::clone(&stopping);
        async move {
            let mut response = response.await?;
            if is_last || stopping.is_graceful() {
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
    Ok(until(connection, last_requests(), shutdown.forced()).await?)
}

/// Serves a connection; after `stop`, until its requests have been answered, or until `end`.
async fn until<C: GracefulConnection>(
    connection: C,
    stop: impl Future<Output = ()>,
    end: impl Future<Output = ()>,
) -> Result<(), C::Error> {
    let mut connection = pin!(connection);
    tokio::select! {
        result = &mut connection => return result,
        () = stop => connection.as_mut().graceful_shutdown(),
    }
    tokio::select! {
        result = connection => result,
        () = end => Ok(()),
    }
}

/// True if the client speaks HTTP/2 from its first byte on. Does not consume the bytes.
async fn begins_http2(stream: &Stream) -> io::Result<bool> {
    let mut first = [0; HTTP2_PREFACE.len()];
    let mut pause = Duration::from_millis(1);
    loop {
        let length = match stream {
            Either::Left(tcp) => tcp.peek(&mut first).await?,
            Either::Right(unix) => {
                let mut peek = || Ok(recv(unix.as_raw_fd(), &mut first, MsgFlags::MSG_PEEK)?);
                unix.async_io(Interest::READABLE, &mut peek).await?
            }
        };
        if length == first.len() || !HTTP2_PREFACE.starts_with(&first[..length]) || length == 0 {
            return Ok(first == *HTTP2_PREFACE);
        }
        // A part of the preface: there is no way to wait for more bytes than there are.
        sleep(pause).await;
        pause *= 2;
    }
}
