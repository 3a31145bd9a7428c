//! Listening sockets, TCP or Unix, and the limit of open files.

use std::{
    fs::{self, Permissions},
    io,
    net::{SocketAddr, TcpStream as StdTcpStream},
    os::{
        fd::AsFd,
        unix::{
            fs::{FileTypeExt as _, PermissionsExt as _},
            net::UnixStream as StdUnixStream,
        },
    },
    path::Path,
};

use listenfd::ListenFd;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};
use tokio_util::either::Either;

use crate::domain::address::{ListenAddress, PeerAddress};

/// Maximum number of response bytes that the kernel takes before it can send them. Its default is megabytes, also for
/// a client that reads nothing.
#[cfg(target_os = "linux")]
const MAX_UNSENT_BYTES: u32 = 128 << 10;
/// Maximum number of connections that wait in the kernel to be accepted.
const BACKLOG: u32 = 1_024;
/// Number of open files beside client connections.
const OTHER_FILES: u64 = 256;
/// Mode of the file of a Unix socket: the user and the group of the process may connect.
const SOCKET_MODE: u32 = 0o660;

/// Listening socket.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// Unix socket.
    Unix(UnixListener),
}

/// Client connection.
pub(super) type Stream = Either<TcpStream, UnixStream>;

/// Client connection that no runtime knows yet.
pub(super) enum Accepted {
    /// TCP.
    Tcp(StdTcpStream),
    /// Unix socket.
    Unix(StdUnixStream),
}

impl Accepted {
    /// Returns the address of the client. Fails if the connection is closed already.
    pub fn peer(&self) -> io::Result<PeerAddress> {
        Ok(PeerAddress(match self {
            Self::Tcp(stream) => Some(stream.peer_addr()?),
            Self::Unix(_) => None,
        }))
    }

    /// Registers it with the runtime of the current thread.
    pub fn register(self) -> io::Result<Stream> {
        Ok(match self {
            Self::Tcp(stream) => {
                let stream = TcpStream::from_std(stream)?;
                stream.set_nodelay(true)?;
                Either::Left(stream)
            }
            Self::Unix(stream) => Either::Right(UnixStream::from_std(stream)?),
        })
    }
}

impl Listener {
    /// Binds an address. With `reuse_port`, other processes of the same user may bind it, too; of a Unix socket, the last
    /// one gets all new connections.
    pub fn bind(address: &ListenAddress, reuse_port: bool) -> io::Result<Self> {
        match address {
            ListenAddress::Tcp(address) => bind_tcp(*address, reuse_port).map(Self::Tcp),
            ListenAddress::Unix(path) => bind_unix(path, reuse_port).map(Self::Unix),
        }
    }

    /// Takes the sockets that a service manager has passed to this process, in their order (`sd_listen_fds(3)`).
    pub fn inherited() -> io::Result<Vec<Self>> {
        let mut passed = ListenFd::from_env();
        let count = passed.len();
        let take = |index| {
            if let Ok(Some(socket)) = passed.take_tcp_listener(index) {
                socket.set_nonblocking(true)?;
                limit_unsent(&socket)?;
                return TcpListener::from_std(socket).map(Self::Tcp);
            }
            let socket = passed.take_unix_listener(index)?;
            let socket = socket.ok_or(io::ErrorKind::NotFound)?;
            socket.set_nonblocking(true)?;
            UnixListener::from_std(socket).map(Self::Unix)
        };
        (0..count).map(take).collect()
    }

    /// Returns the address that it is bound to.
    pub fn local_address(&self) -> io::Result<ListenAddress> {
        Ok(match self {
            Self::Tcp(listener) => ListenAddress::Tcp(listener.local_addr()?),
            Self::Unix(listener) => {
                let address = listener.local_addr()?;
                // An abstract socket, which only a service manager can pass, has no path.
                ListenAddress::Unix(address.as_pathname().unwrap_or(Path::new("@")).to_owned())
            }
        })
    }

    /// Accepts a connection.
    pub(super) async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Tcp(listener) => listener.accept().await?.0.into_std().map(Accepted::Tcp),
            Self::Unix(listener) => listener.accept().await?.0.into_std().map(Accepted::Unix),
        }
    }

    /// Accepts the connections in the queue, then closes the socket: closing it alone would reset them. Asks the kernel,
    /// because the runtime learns of a connection later. (A connection in its handshake is lost, unless the kernel passes
    /// it to another listener on the port: `net.ipv4.tcp_migrate_req`.)
    pub(super) fn drain(self) -> Vec<Accepted> {
        let (listener, accepted): (_, fn(Socket) -> Accepted) = match self {
            Self::Tcp(listener) => (listener.into_std().map(Socket::from), |socket| {
                Accepted::Tcp(socket.into())
            }),
            Self::Unix(listener) => (listener.into_std().map(Socket::from), |socket| {
                Accepted::Unix(socket.into())
            }),
        };
        let Ok(listener) = listener else {
            return Vec::new();
        };
        let mut waiting = Vec::new();
        loop {
            match listener.accept() {
                Ok((socket, _)) if socket.set_nonblocking(true).is_ok() => {
                    waiting.push(accepted(socket));
                }
                Ok(_) => {}
                // The client closed it; others may follow.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(_) => return waiting,
            }
        }
    }
}

fn bind_tcp(address: SocketAddr, reuse_port: bool) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // The port is free although connections of the previous process are in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    if reuse_port {
        socket.set_reuseport(true)?;
    }
    limit_unsent(&socket)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Bounds the memory of the kernel for each connection, which inherits it.
#[cfg_attr(
    not(target_os = "linux"),
    expect(unused_variables, reason = "for Linux")
)]
fn limit_unsent(socket: &impl AsFd) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    socket2::SockRef::from(socket).set_tcp_notsent_lowat(MAX_UNSENT_BYTES)?;
    Ok(())
}

/// Replaces the file of a process that has ended, or of any if `reuse`. No other file is removed.
fn bind_unix(path: &Path, reuse: bool) -> io::Result<UnixListener> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    // Does not wait for room in the queue of a process that is alive.
    let is_unused = || -> io::Result<bool> {
        let probe = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        probe.set_nonblocking(true)?;
        let connected = probe.connect(&SockAddr::unix(path)?);
        Ok(connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused))
    };
    if is_socket && (reuse || is_unused()?) {
        fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(SOCKET_MODE))?;
    Ok(listener)
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
