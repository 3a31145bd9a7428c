//! Serves HTTP/1.1 on a TCP or Unix socket, with any tower service.
//!
//! `axum::serve` has no timeout for a request head: a client that sends one byte a second keeps its connection for
//! ever, and half a head blocks a graceful shutdown. Hence this accept loop on hyper-util. Invariants:
//! - Every wait for a client has a timeout ([`Limits`]).
//! - A graceful shutdown fails no request: connections in the kernel's queue are served, and a client that uses its
//!   connection is told to close it before it is closed.

mod client_stream;
mod connection;
pub mod listener;
mod shutdown;
mod workers;

use std::{io, sync::Arc, time::Duration};

use ipnet::IpNet;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

pub use self::{
    client_stream::RequestBody,
    connection::{HttpService, Limits},
    listener::Listener,
    shutdown::Shutdown,
    workers::{Hooks, Workers},
};

use self::listener::Accepted;
use crate::{
    domain::address::{AddressKey, PeerAddress},
    limits::shares::Shares,
};

/// Errors of `accept` that concern one connection.
const OF_ONE_CONNECTION: [io::ErrorKind; 3] = [
    io::ErrorKind::ConnectionAborted,
    io::ErrorKind::ConnectionReset,
    io::ErrorKind::ConnectionRefused,
];

/// Bounds of the number of open connections of a listener.
#[derive(Debug, Clone)]
pub struct Admission {
    /// Maximum number of open connections; more wait in the kernel's queue.
    pub max_connections: usize,
    /// Maximum number of them from one client address; more are closed at once.
    pub max_per_address: usize,
    /// Networks to which the maxima per address do not apply; nor do they to Unix sockets.
    pub exempt: Arc<[IpNet]>,
}

/// Serves the connections of `listener` by `workers` in turn until `shutdown`; returns when the last one is closed.
/// `name` labels the metrics.
pub async fn serve<S: HttpService>(
    listener: Listener,
    workers: &Workers<S>,
    limits: Limits,
    admission: Admission,
    name: &'static str,
    shutdown: Shutdown,
) {
    let Admission {
        max_connections,
        max_per_address,
        exempt,
    } = admission;
    let max = u32::try_from(max_connections).unwrap_or(u32::MAX);
    metrics::gauge!("http_server_open_connections_max", "listener" => name).set(max);
    let connections = Arc::new(Semaphore::new(max_connections));
    // The semaphore bounds the total.
    let shares = Shares::new(usize::MAX, max_per_address);
    let tasks = TaskTracker::new();
    let begin = |stream: Accepted, permit: OwnedSemaphorePermit| {
        let Ok(peer) = stream.peer() else {
            return;
        };
        let address = counted_address(peer, &exempt);
        let Ok(share) = shares.take(address, 1) else {
            metrics::counter!("http_server_refused_connections_total", "listener" => name)
                .increment(1);
            return;
        };
        let (runtime, service) = workers.next();
        let (service, shutdown) = (service.clone(), shutdown.child());
        let on_park = workers.hooks.on_park;
        runtime.spawn(tasks.track_future(async move {
            let gauge = metrics::gauge!("http_server_open_connections", "listener" => name);
            gauge.increment(1);
            let served = connection::serve((stream, peer), service, limits, &shutdown);
            if let Err(error) = served.await {
                tracing::debug!(%error, "connection failed");
            }
            on_park();
            gauge.decrement(1);
            drop((permit, share));
        }));
    };
    while let Some((stream, permit)) = accept(&listener, &connections, &shutdown).await {
        begin(stream, permit);
    }
    // From here on the kernel refuses connections: a load balancer tries the next replica.
    for stream in listener.drain() {
        if let Ok(permit) = Arc::clone(&connections).try_acquire_owned() {
            begin(stream, permit);
        }
    }
    tasks.close();
    tasks.wait().await;
}

/// Returns the client address of a connection, or `None` if there are no maxima for it.
fn counted_address(PeerAddress(peer): PeerAddress, exempt: &[IpNet]) -> Option<AddressKey> {
    let address = peer?.ip().to_canonical();
    let is_exempt = exempt.iter().any(|network| network.contains(&address));
    (!is_exempt).then(|| address.into())
}

/// Accepts a connection when there is a permit for it; `None` at shutdown.
async fn accept(
    listener: &Listener,
    connections: &Arc<Semaphore>,
    shutdown: &Shutdown,
) -> Option<(Accepted, OwnedSemaphorePermit)> {
    let accept = async {
        let permit = Arc::clone(connections).acquire_owned().await.ok()?;
        loop {
            match listener.accept().await {
                Ok(stream) => return Some((stream, permit)),
                Err(error) if OF_ONE_CONNECTION.contains(&error.kind()) => {}
                Err(error) => {
                    // Most likely out of file descriptors: other connections have to end first.
                    tracing::error!(%error, "failed to accept a connection; retrying in 0.1 s");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    };
    tokio::select! {
        () = shutdown.graceful() => None,
        accepted = accept => accepted,
    }
}
