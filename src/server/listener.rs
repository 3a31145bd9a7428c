//! Listening sockets, and the limit of open files.

use std::{
    io,
    net::{SocketAddr, TcpStream},
};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpSocket};

/// Maximum number of response bytes that the kernel takes before it can send them. Its default is megabytes, also for
/// a client that reads nothing.
#[cfg(target_os = "linux")]
const MAX_UNSENT_BYTES: u32 = 128 << 10;
/// Maximum number of connections that wait in the kernel to be accepted.
const BACKLOG: u32 = 1_024;
/// Number of open files beside client connections.
const OTHER_FILES: u64 = 256;

/// Binds an address. With `reuse_port`, other processes of the same user may bind it, too.
pub fn bind(address: SocketAddr, reuse_port: bool) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // The port is free although connections of the previous process are in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    if reuse_port {
        socket.set_reuseport(true)?;
    }
    // Accepted connections inherit it.
    #[cfg(target_os = "linux")]
    socket2::SockRef::from(&socket).set_tcp_notsent_lowat(MAX_UNSENT_BYTES)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Accepts the connections in a listener's queue, then closes it: closing it alone would reset them. Asks the kernel,
/// because the runtime learns of a connection later. (A connection in its handshake is lost, unless the kernel passes it
/// to another listener on the port: `net.ipv4.tcp_migrate_req`.)
pub(super) fn drain(listener: TcpListener) -> Vec<TcpStream> {
    let Ok(listener) = listener.into_std() else {
        return Vec::new();
    };
    let mut waiting = Vec::new();
    loop {
        match listener.accept() {
            Ok((stream, _)) if stream.set_nonblocking(true).is_ok() => waiting.push(stream),
            Ok(_) => {}
            // The client closed it; others may follow.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(_) => return waiting,
        }
    }
}

/// Raises the soft limit of open files to the hard limit, since each connection is a file. Logs a warning when that is
/// less than `max_connections` needs.
pub fn raise_file_limit(max_connections: usize) {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        if soft < hard {
            setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
        }
        Ok(hard)
    });
    let wanted = (max_connections as u64).saturating_add(OTHER_FILES);
    match raised {
        Ok(limit) if limit < wanted => {
            tracing::warn!(
                limit,
                wanted,
                "limit of open files (RLIMIT_NOFILE) is below what server.max_connections needs; raise it, or lower max_connections"
            );
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "failed to raise the limit of open files"),
    }
}
