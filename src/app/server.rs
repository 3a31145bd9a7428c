//! The accept loop around hyper, and its bounds.
//!
//! Not `axum::serve`: that has no timeout for a request's head, so connections that dribble a byte a
//! second stay for ever, and one half-sent head blocks a graceful stop for ever.

use std::{io, sync::Arc, time::Duration};

use axum::{Router, body::Body, http::Request};
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::graceful::{GracefulShutdown, Watcher},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use super::{wire::Guarded, workers::Workers};
use crate::{
    api::{self, middleware::client::Peer},
    shutdown::Shutdown,
};

/// The client connection preface of HTTP/2 with prior knowledge (RFC 9113 §3.4).
const HTTP2_PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Requests at once on one HTTP/2 connection.
const MAX_STREAMS: u32 = 128;
/// Fields of one request head.
const MAX_HEADERS: usize = 100;

/// What a connection may take.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Until a whole request head has come.
    pub header_timeout: Duration,
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
    let graceful = GracefulShutdown::new();
    let tasks = TaskTracker::new();
    while let Some((stream, permit)) = next(&listener, &connections, &shutdown).await {
        let (worker, router) = workers.deal();
        let Ok(stream) = stream.into_std() else {
            continue;
        };
        let (router, watcher, shutdown) = (router.clone(), graceful.watcher(), shutdown.clone());
        let served = async move {
            let gauge = metrics::gauge!("http_connections", "listener" => name);
            gauge.increment(1);
            tokio::select! {
                () = shutdown.hard() => {}
                result = connection(stream, router, bounds, watcher, &shutdown) => {
                    if let Err(error) = result {
                        tracing::debug!(%error, "connection ended");
                    }
                }
            }
            gauge.decrement(1);
            drop(permit);
        };
        worker.spawn(tasks.track_future(served));
    }
    // From here on the kernel refuses: a balancer tries the next replica.
    drop(listener);
    tokio::select! {
        () = graceful.shutdown() => {}
        () = shutdown.hard() => {}
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
    watcher: Watcher,
    shutdown: &Shutdown,
) -> Result<(), BoxError> {
    // From here on the worker's own runtime hears of it.
    let stream = TcpStream::from_std(stream)?;
    stream.set_nodelay(true)?;
    let peer = Peer(stream.peer_addr()?);
    let service = router.map_request(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        if let Some(uri) = api::without_trailing_slash(request.uri()) {
            *request.uri_mut() = uri;
        }
        request.map(Body::new)
    });
    let service = TowerToHyperService::new(service);

    let begins_http2 = tokio::select! {
        // Nothing has been asked yet, so nothing is owed.
        () = shutdown.soft() => return Ok(()),
        sniffed = tokio::time::timeout(bounds.header_timeout, begins_http2(&stream)) => sniffed??,
    };
    if begins_http2 {
        let size = u32::try_from(bounds.max_header_size).unwrap_or(u32::MAX);
        let connection = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(size)
            // A peer that is gone without a word is noticed.
            .keep_alive_interval(Duration::from_secs(20))
            .serve_connection(TokioIo::new(stream), service);
        watcher.watch(connection).await?;
    } else {
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(bounds.header_timeout)
            .max_headers(MAX_HEADERS)
            .max_header_size(bounds.max_header_size)
            .serve_connection(TokioIo::new(Guarded::new(stream)), service);
        watcher.watch(connection).await?;
    }
    Ok(())
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
