//! Listening sockets, TCP or Unix.

use std::{
    fs::{self, Permissions},
    io,
    net::{SocketAddr, TcpStream as StdTcpStream},
    os::{
        fd::AsFd,
        unix::{
            fs::{FileTypeExt as _, PermissionsExt as _},
            net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream},
        },
    },
    path::{Path, PathBuf},
};

use listenfd::ListenFd;
use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};
use tokio_util::either::Either;

use crate::domain::address::{ListenAddress, PeerAddress};

/// Maximum number of response bytes that the kernel takes before it can send them. Its default is megabytes, also for
/// a client that reads nothing.
#[cfg(target_os = "linux")]
const MAX_UNSENT_BYTES: u32 = 128 << 10;
/// Maximum number of connections that wait in the kernel to be accepted.
const BACKLOG: u32 = 1_024;
/// Mode of the file of a Unix socket: the user and the group of the process may connect.
const SOCKET_MODE: u32 = 0o660;

/// Listening socket.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// Unix socket, and its path.
    Unix(UnixListener, PathBuf),
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
    /// Binds an address. With `reuse_port`, other processes of the same user may bind a port, too.
    pub fn bind(address: &ListenAddress, reuse_port: bool) -> io::Result<Self> {
        match address {
            ListenAddress::Tcp(address) => bind_tcp(*address, reuse_port).map(Self::Tcp),
            ListenAddress::Unix(path) => Ok(Self::Unix(bind_unix(path)?, path.clone())),
        }
    }

    /// Takes the sockets that a service manager has passed to this process, in their order (`sd_listen_fds(3)`). Fails for
    /// others than listening stream sockets, and for a Unix socket to which every user can connect.
    pub fn inherited() -> io::Result<Vec<Self>> {
        let mut passed = ListenFd::from_env();
        let count = passed.len();
        let listeners = (0..count).map(|index| {
            if let Ok(Some(socket)) = passed.take_tcp_listener(index) {
                check_inherited(&socket)?;
                socket.set_nonblocking(true)?;
                limit_unsent(&socket)?;
                return TcpListener::from_std(socket).map(Self::Tcp);
            }
            let socket = passed.take_unix_listener(index)?;
            let socket = socket.ok_or(io::ErrorKind::NotFound)?;
            check_inherited(&socket)?;
            let path = private_path(&socket)?;
            socket.set_nonblocking(true)?;
            Ok(Self::Unix(UnixListener::from_std(socket)?, path))
        });
        listeners.collect()
    }

    /// Returns the address that it is bound to.
    pub fn local_address(&self) -> io::Result<ListenAddress> {
        Ok(match self {
            Self::Tcp(listener) => ListenAddress::Tcp(listener.local_addr()?),
            Self::Unix(_, path) => ListenAddress::Unix(path.clone()),
        })
    }

    /// Accepts a connection.
    pub(super) async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Tcp(listener) => listener.accept().await?.0.into_std().map(Accepted::Tcp),
            Self::Unix(listener, _) => listener.accept().await?.0.into_std().map(Accepted::Unix),
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
            Self::Unix(listener, _) => (listener.into_std().map(Socket::from), |socket| {
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
    SockRef::from(socket).set_tcp_notsent_lowat(MAX_UNSENT_BYTES)?;
    Ok(())
}

/// Fails unless the socket accepts connections.
fn check_inherited(socket: &impl AsFd) -> io::Result<()> {
    let is_listener = SockRef::from(socket).is_listener()?;
    let listener = is_listener.then_some(());
    listener.ok_or_else(|| io::Error::other("a socket does not accept connections"))
}

/// Returns the path of a Unix socket. Fails if every user can connect to it: its peers are trusted proxies.
fn private_path(socket: &StdUnixListener) -> io::Result<PathBuf> {
    const OTHERS: u32 = 0o002;
    let address = socket.local_addr()?;
    let open = match address.as_pathname() {
        None => "an abstract socket".into(),
        Some(path) if fs::metadata(path)?.permissions().mode() & OTHERS != 0 => {
            path.to_string_lossy()
        }
        Some(path) => return Ok(path.to_owned()),
    };
    let problem = format!(
        "every user can connect to {open}, and could send any X-Forwarded-For; give the socket unit a path with \
         SocketMode=0660 and the proxy's group as SocketGroup="
    );
    Err(io::Error::other(problem))
}

/// Replaces the socket of a process that has ended. No other file is removed. The socket has its mode before it accepts
/// connections, so that no other user can connect. Of processes that start in the same millisecond, one may replace the socket of
/// another.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    refuse_open_folder(path)?;
    if is_socket(path).unwrap_or(false) && is_unused(path)? {
        fs::remove_file(path)?;
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    fs::set_permissions(path, Permissions::from_mode(SOCKET_MODE))?;
    socket.listen(BACKLOG.cast_signed())?;
    socket.set_nonblocking(true)?;
    UnixListener::from_std(socket.into())
}

fn is_socket(path: &Path) -> io::Result<bool> {
    fs::symlink_metadata(path).map(|it| it.file_type().is_socket())
}

/// Returns true if no process listens on the socket at `path`.
fn is_unused(path: &Path) -> io::Result<bool> {
    let probe = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // Does not wait for room in the queue of a process that is alive.
    probe.set_nonblocking(true)?;
    let connected = probe.connect(&SockAddr::unix(path)?);
    Ok(connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused))
}

/// Fails if every user can replace files in the folder of `path`, and with them the socket.
fn refuse_open_folder(path: &Path) -> io::Result<()> {
    const OTHERS: u32 = 0o002;
    const STICKY: u32 = 0o1000;
    let folder = path.parent().unwrap_or(path);
    let mode = fs::metadata(folder)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", folder.display())))?
        .permissions()
        .mode();
    if mode & OTHERS == 0 || mode & STICKY != 0 {
        return Ok(());
    }
    let folder = folder.display();
    Err(io::Error::other(format!(
        "every user can replace files in {folder}; take another folder, or: chmod o-w {folder}"
    )))
}
