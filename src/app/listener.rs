//! The socket that connections come in by.
//!
//! Invariant: whoever was let into its queue is served; closing it resets nobody.

use std::{io, net::SocketAddr};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::Error;
use crate::config::Config;

/// Bytes of an answer that the kernel takes from us before it can send them. Without a bound it takes
/// megabytes for a client that reads none of them.
#[cfg(target_os = "linux")]
const UNSENT: u32 = 128 << 10;
/// Connections that wait in the kernel to be accepted.
const BACKLOG: u32 = 1_024;
/// Files that are open beside the connections of clients.
const OTHER_FILES: u64 = 256;

/// Which of the two.
#[derive(Clone, Copy)]
pub enum Listener {
    /// Clients'.
    Api,
    /// The operator's.
    Operations,
}

/// Binds one of the listeners. On our own PostgreSQL, so for a first look, a default port that is taken
/// is no reason not to start: another one does.
///
/// # Errors
/// [`Error::Listen`].
pub fn listen(
    config: &Config,
    listener: Listener,
    own: bool,
) -> Result<(TcpListener, SocketAddr), Error> {
    let of = |config: &Config| match listener {
        Listener::Api => config.server.listen,
        Listener::Operations => config.operations.listen,
    };
    let (key, variable) = match listener {
        Listener::Api => ("server.listen", "PET_INVENTORY__SERVER__LISTEN"),
        Listener::Operations => ("operations.listen", "PET_INVENTORY__OPERATIONS__LISTEN"),
    };
    let address = of(config);
    let failed = |source| Error::Listen {
        address,
        key,
        variable,
        source,
    };
    let reuse_port = config.server.reuse_port;
    let bound = match bind(address, reuse_port) {
        Err(error)
            if own
                && error.kind() == io::ErrorKind::AddrInUse
                && address == of(&Config::defaults()?) =>
        {
            tracing::warn!(%address, key, "taken by another program: listening on a free port instead");
            bind(SocketAddr::new(address.ip(), 0), reuse_port)
        }
        bound => bound,
    };
    let bound = bound.map_err(failed)?;
    let address = bound.local_addr().map_err(failed)?;
    Ok((bound, address))
}

/// Binds an address. With `reuse_port` another process of the same user may be bound to it as well.
///
/// # Errors
/// The operating system's reason.
fn bind(address: SocketAddr, reuse_port: bool) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // Connections of the process before us that are not quite over do not keep the port.
    socket.set_reuseaddr(true)?;
    if reuse_port {
        socket.set_reuseport(true)?;
    }
    // What is accepted inherits it.
    #[cfg(target_os = "linux")]
    socket2::SockRef::from(&socket).set_tcp_notsent_lowat(UNSENT)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Takes what is in a listener's queue, and closes it. Asks the kernel itself: the runtime hears of a
/// connection a little later. (One whose handshake is under way is lost all the same, unless the kernel hands
/// it to another listener on the port: `net.ipv4.tcp_migrate_req`.)
pub fn drain(listener: TcpListener) -> Vec<TcpStream> {
    let Ok(listener) = listener.into_std() else {
        return Vec::new();
    };
    let mut waiting = Vec::new();
    loop {
        match listener.accept() {
            Ok((stream, _)) => waiting.push(stream),
            // Gone again; the next one may not be.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(_) => break,
        }
    }
    drop(listener);
    waiting
        .into_iter()
        .filter_map(|stream| {
            stream.set_nonblocking(true).ok()?;
            TcpStream::from_std(stream).ok()
        })
        .collect()
}

/// Lets this process open as many files as it ever may, since each connection is one. The lower limit that
/// it starts with is for programs that cannot count further.
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
                "fewer files may be open (RLIMIT_NOFILE) than server.max_connections needs"
            );
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "cannot raise the limit of open files"),
    }
}
