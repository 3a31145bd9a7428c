//! The accept loop around hyper, and its bounds.
//!
//! Not `axum::serve`: that has no timeout for a request's head, so connections that dribble a byte a
//! second stay for ever, and one half-sent head blocks a graceful stop for ever.
//!
//! Invariants: no connection stays on which nothing happens; a stop fails no request: what is in the
//! listener's queue is served, and a client that uses its connection is told to close it rather than find it
//! closed.

use std::{convert::Infallible, io, pin::pin, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{HeaderValue, Request, header},
    response::Response,
};
use futures_util::{StreamExt, stream::FuturesUnordered};
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::graceful::GracefulConnection,
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_util::task::TaskTracker;
use tower::{Service, ServiceExt};

use super::{
    activity::Activity, awake::Work, listener, stall::Stall, wire::Guarded, workers::Workers,
};
use crate::{
    api::{
        self,
        middleware::{client::Peer, seen},
    },
    shutdown::Shutdown,
};

/// The client connection preface of HTTP/2 with prior knowledge (RFC 9113 §3.4).
const HTTP2_PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Requests at once on one HTTP/2 connection.
const MAX_STREAMS: u32 = 128;
/// Bytes of answers that wait on one HTTP/2 stream.
const MAX_SEND_BUFFER: usize = 64 << 10;
/// HTTP/2 streams that were refused or reset, and are remembered.
const MAX_RESET_STREAMS: usize = 64;
/// Fields of one request head.
const MAX_HEADERS: usize = 100;
/// How long after the beginning of a stop the next request on an HTTP/1 connection is waited for, to be
/// answered with `Connection: close`: a request that meets a connection just closed is a failed one.
const LAST_REQUESTS: Duration = Duration::from_secs(1);
/// How long an HTTP/2 connection on which nothing happens may take to end when it was told to.
const GOING_AWAY: Duration = Duration::from_secs(1);

/// What a connection may take.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Until a whole request head has come.
    pub header_timeout: Duration,
    /// Until something is taken of an answer, or anything happens on an HTTP/2 connection.
    pub idle_timeout: Duration,
    /// Bytes of a request head.
    pub max_header_size: usize,
    /// Connections open at once.
    pub max_connections: usize,
}

/// Serves what comes to `listener` by `workers` in turn until `shutdown`; returns once no connection is left.
/// `name` labels its metrics.
pub async fn serve(
    listener: TcpListener,
    workers: &Workers,
    bounds: Bounds,
    name: &'static str,
    shutdown: Shutdown,
) {
    let connections = Arc::new(Semaphore::new(bounds.max_connections));
    let tasks = TaskTracker::new();
    let begin = |stream: TcpStream, permit: Permit| {
        let (worker, router) = workers.deal();
        let Ok(stream) = stream.into_std() else {
            return;
        };
        let (router, shutdown) = (router.clone(), shutdown.for_one());
        let served = async move {
            let gauge = metrics::gauge!("http_connections", "listener" => name);
            gauge.increment(1);
            tokio::select! {
                () = seldom(shutdown.hard()) => {}
                result = connection(stream, router, bounds, &shutdown) => {
                    if let Err(error) = result {
                        tracing::debug!(%error, "connection ended");
                    }
                }
            }
            // A stop waits for this task, and not for the worker to sleep.
            seen::write_down();
            gauge.decrement(1);
            drop(permit);
        };
        worker.spawn(tasks.track_future(served));
    };
    while let Some((stream, permit)) = next(&listener, &connections, &shutdown).await {
        begin(stream, permit);
    }
    // From here on the kernel refuses: a balancer tries the next replica.
    for stream in listener::drain(listener) {
        if let Ok(permit) = Arc::clone(&connections).try_acquire_owned() {
            begin(stream, permit);
        }
    }
    tasks.close();
    tasks.wait().await;
}

type Permit = tokio::sync::OwnedSemaphorePermit;

/// The next connection, once there is room for it; `None` when it is time to stop.
async fn next(
    listener: &TcpListener,
    connections: &Arc<Semaphore>,
    shutdown: &Shutdown,
) -> Option<(TcpStream, Permit)> {
    let accept = async {
        let permit = Arc::clone(connections).acquire_owned().await.ok()?;
        loop {
            match listener.accept().await {
                Ok((stream, _)) => return Some((stream, permit)),
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    // Out of file descriptors, most likely: give the others time to end.
                    tracing::error!(%error, "cannot accept connections");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    };
    tokio::select! {
        () = shutdown.soft() => None,
        accepted = accept => accepted,
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind as E;
    matches!(
        error.kind(),
        E::ConnectionAborted | E::ConnectionReset | E::ConnectionRefused
    )
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

async fn connection(
    stream: std::net::TcpStream,
    router: Router,
    bounds: Bounds,
    shutdown: &Shutdown,
) -> Result<(), BoxError> {
    // From here on the worker's own runtime hears of it.
    let stream = TcpStream::from_std(stream)?;
    stream.set_nodelay(true)?;
    let peer = Peer(stream.peer_addr()?);
    let last_requests = seldom(async {
        shutdown.soft().await;
        tokio::time::sleep(LAST_REQUESTS).await;
    });
    let mut last_requests = pin!(last_requests);
    let begins_http2 = tokio::select! {
        // Nothing has been asked yet, so nothing is owed.
        () = &mut last_requests => return Ok(()),
        sniffed = tokio::time::timeout(bounds.header_timeout, begins_http2(&stream)) => sniffed??,
    };
    let stream = Stall::new(stream, bounds.idle_timeout);
    if begins_http2 {
        let router = router.map_request(move |request| from_peer(request, peer));
        http2(stream, router, bounds, shutdown).await?;
        return Ok(());
    }
    // Not tower's: that one is copied for each request.
    let service = service_fn(|request| {
        let work = Work::begin();
        let answer = router.clone().call(from_peer(request, peer));
        async move {
            let mut response: Response = answer.await?;
            // Till here it is in work: moved into what answers it.
            drop(work);
            if shutdown.is_soft() {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(header::CONNECTION, close);
            }
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.header_timeout)
        .max_headers(MAX_HEADERS)
        .max_header_size(bounds.max_header_size)
        .serve_connection(TokioIo::new(Guarded::new(stream)), service);
    until(connection, last_requests).await?;
    Ok(())
}

/// A request as the router takes it.
fn from_peer(mut request: Request<Incoming>, peer: Peer) -> Request<Body> {
    request.extensions_mut().insert(peer);
    if let Some(uri) = api::without_trailing_slash(request.uri()) {
        *request.uri_mut() = uri;
    }
    request.map(Body::new)
}

async fn http2<S>(
    stream: Stall<TcpStream>,
    service: S,
    bounds: Bounds,
    shutdown: &Shutdown,
) -> Result<(), BoxError>
where
    S: Service<Request<Incoming>, Response = Response> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
{
    let activity = Activity::new();
    let working = activity.clone();
    let service = tower::service_fn(move |request| {
        let (service, activity) = (service.clone(), working.clone());
        async move {
            let _in_work = (Work::begin(), activity.begin());
            let response = service.oneshot(request).await?;
            Ok::<_, S::Error>(response.map(|body| activity.follow(body)))
        }
    });
    let size = u32::try_from(bounds.max_header_size).unwrap_or(u32::MAX);
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(size)
        .max_send_buf_size(MAX_SEND_BUFFER)
        .max_local_error_reset_streams(MAX_RESET_STREAMS)
        // A peer that is gone without a word is noticed.
        .keep_alive_interval(Duration::from_secs(20))
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    let serve = until(connection, async {
        tokio::select! {
            // It tells the client that nothing new is taken, and serves what it has sent already.
            () = shutdown.soft() => {}
            () = activity.ceased(bounds.idle_timeout) => {}
        }
    });
    tokio::select! {
        served = serve => Ok(served?),
        // It was told to end, and does not.
        () = activity.ceased(bounds.idle_timeout + GOING_AWAY) => Ok(()),
    }
}

/// Serves a connection; once `stop` is there, until the requests on it are answered.
async fn until<C: GracefulConnection>(
    connection: C,
    stop: impl Future<Output = ()>,
) -> Result<(), C::Error> {
    let mut connection = pin!(connection);
    tokio::select! {
        result = &mut connection => return result,
        () = stop => connection.as_mut().graceful_shutdown(),
    }
    connection.await
}

/// The same, but looked at only once it has something to say: a connection does so at each step of a request.
async fn seldom(future: impl Future<Output = ()>) {
    FuturesUnordered::from_iter([future]).next().await;
}

/// Whether the client speaks HTTP/2 from its first byte on; looks without taking.
async fn begins_http2(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0; HTTP2_PREFACE.len()];
    let mut pause = Duration::from_millis(1);
    loop {
        let length = stream.peek(&mut first).await?;
        if length == first.len() || !HTTP2_PREFACE.starts_with(&first[..length]) || length == 0 {
            return Ok(first == *HTTP2_PREFACE);
        }
        // A piece of the preface; there is no way to wait for more than there is already. Who sends it in
        // pieces is in no hurry.
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
}
