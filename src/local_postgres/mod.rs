//! Runs an embedded PostgreSQL if no database URL is configured: creates, starts, supervises and stops it.
//!
//! Its directory holds `postgres/` (data), `postgres.log` (output of `initdb` and PostgreSQL) and `lock` (the holder).
//!
//! Invariants:
//! - PostgreSQL runs only while a pet-inventory process holds the lock, and stops when that ends, even by `kill -9`.
//! - It listens only on a Unix socket in a private directory.

#![expect(
    clippy::disallowed_methods,
    reason = "runs on dedicated threads, and uses the time only to name a directory"
)]

mod cluster;
mod error;
mod find;
mod launch;
mod lock;
mod processes;
mod supervise;

use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fs, process, thread};

use sqlx::postgres::{PgConnectOptions, PgSslMode};
use tokio::task::spawn_blocking;

use cluster::Cluster;
use launch::PORT;
use lock::{Lock, Role, Taken};

pub use error::Error;
pub use find::SearchPath;

/// Data loss that a power failure may cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Nothing that was committed.
    Durable,
    /// All data: for tests.
    Throwaway,
}

/// Embedded PostgreSQL. Dropping it stops the server in the background; [`stop`](Self::stop) waits for it.
#[derive(Debug)]
pub struct LocalPostgres {
    socket: PathBuf,
    /// Dropping it tells the supervisor to stop PostgreSQL.
    running: mpsc::Sender<()>,
    supervisor: thread::JoinHandle<Result<(), Error>>,
}

impl LocalPostgres {
    /// Creates the directory and the cluster in it if they are missing, and starts PostgreSQL.
    ///
    /// # Errors
    /// [`Error::InUse`] if a server holds the directory, [`Error::Busy`] if a command holds it for too long, and other
    /// variants if PostgreSQL cannot be found, created or started.
    pub async fn start(
        directory: &Path,
        search: &SearchPath,
        durability: Durability,
    ) -> Result<Self, Error> {
        match take(directory, search, Role::Server, durability).await? {
            Joined::Started(postgres) => Ok(postgres),
            // A server never joins another. If it did, it must not continue as if it had started one.
            Joined::Running(_) => Err(Error::Supervisor),
        }
    }

    /// Returns options to connect as superuser. They remain valid when PostgreSQL is restarted after a crash.
    #[must_use]
    pub fn connect_options(&self) -> PgConnectOptions {
        connect_options(&self.socket)
    }

    /// Stops PostgreSQL, which ends open connections, and returns when only the data is left.
    ///
    /// # Errors
    /// [`Error::Unstoppable`] if it does not stop.
    pub async fn stop(self) -> Result<(), Error> {
        drop(self.running);
        let supervisor = self.supervisor;
        spawn_blocking(|| supervisor.join())
            .await
            .map_err(|_| Error::Supervisor)?
            .map_err(|_| Error::Supervisor)?
    }
}

/// PostgreSQL for a command: that of a running server, or one started temporarily.
#[derive(Debug)]
pub enum Joined {
    /// Run by a server, with this socket directory.
    Running(PathBuf),
    /// Run by this process.
    Started(LocalPostgres),
}

impl Joined {
    /// Returns options to connect as superuser.
    #[must_use]
    pub fn connect_options(&self) -> PgConnectOptions {
        match self {
            Self::Running(socket) => connect_options(socket),
            Self::Started(postgres) => postgres.connect_options(),
        }
    }

    /// Stops PostgreSQL if this process started it.
    ///
    /// # Errors
    /// As [`LocalPostgres::stop`].
    pub async fn stop(self) -> Result<(), Error> {
        match self {
            Self::Running(_) => Ok(()),
            Self::Started(postgres) => postgres.stop().await,
        }
    }
}

/// Joins the PostgreSQL of the server that holds the directory, or starts one temporarily. Commands take turns.
///
/// # Errors
/// As [`LocalPostgres::start`], except that a server in the directory is none; [`Error::Busy`] if it does not get
/// ready.
pub async fn join_or_start(directory: &Path, search: &SearchPath) -> Result<Joined, Error> {
    take(directory, search, Role::Command, Durability::Durable).await
}

async fn take(
    directory: &Path,
    search: &SearchPath,
    role: Role,
    durability: Durability,
) -> Result<Joined, Error> {
    let (directory, search) = (directory.to_owned(), search.clone());
    // If the caller stops waiting, the result is dropped, which stops PostgreSQL.
    spawn_blocking(move || take_blocking(&directory, &search, role, durability))
        .await
        .map_err(|_| Error::Supervisor)?
}

fn take_blocking(
    directory: &Path,
    search: &SearchPath,
    role: Role,
    durability: Durability,
) -> Result<Joined, Error> {
    let directory = std::path::absolute(directory).map_err(Error::io("find", directory))?;
    fs::create_dir_all(&directory).map_err(Error::io("create", &directory))?;
    let lock = match Lock::take(&directory, role)? {
        Taken::Served(socket) => return Ok(Joined::Running(socket)),
        Taken::Ours(lock) => lock,
    };
    let cluster = Cluster::find(directory, search, durability)?;
    let socket = SocketDirectory::create(&lock, role, &cluster)?;
    cluster.initialize(&socket.0)?;
    let postgres = cluster.start(&socket.0)?;

    let (running, stop) = mpsc::channel();
    let path = socket.0.clone();
    let supervisor = thread::Builder::new()
        .name("local-postgres".into())
        .spawn(move || supervise::supervise(&cluster, postgres, &socket, &stop, &lock))
        .map_err(|_| Error::Supervisor)?;
    Ok(Joined::Started(LocalPostgres {
        socket: path,
        running,
        supervisor,
    }))
}

fn connect_options(socket: &Path) -> PgConnectOptions {
    // Sets every field that the PG* environment variables could change.
    PgConnectOptions::new_without_pgpass()
        .socket(socket)
        .port(PORT)
        .username("postgres")
        .database("postgres")
        .ssl_mode(PgSslMode::Disable)
}

/// Private directory for the socket, removed when dropped. It is in `/tmp` because the path of a socket must stay under
/// about 100 bytes, even if that of the data is long.
struct SocketDirectory(PathBuf);

impl SocketDirectory {
    const PREFIX: &str = "/tmp/pet-inventory-";

    /// Creates the directory, after writing its name to the lock file, so that the next holder can remove it.
    fn create(lock: &Lock, role: Role, cluster: &Cluster) -> Result<Self, Error> {
        if let Some(stale) = lock.left_behind()
            && Self::is_ours(&stale)
        {
            cluster.settle()?;
            drop(Self(stale));
        }
        let moment = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_nanos();
        let path = PathBuf::from(format!("{}{}-{moment:x}", Self::PREFIX, process::id()));
        lock.sign(role, &path)?;
        // Fails if the name exists: another user may have created it.
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(Error::io("create", &path))?;
        let created = Self(path);
        if let Some((user, group)) = cluster.owner {
            chown(&created.0, Some(user), Some(group))
                .map_err(Error::io("change the owner of", &created.0))?;
        }
        Ok(created)
    }

    /// Returns true if this program made the path. Root must not remove any path that the directory's owner writes
    /// there.
    fn is_ours(path: &Path) -> bool {
        path.to_string_lossy().starts_with(Self::PREFIX) && path.parent() == Some(Path::new("/tmp"))
    }
}

impl Drop for SocketDirectory {
    fn drop(&mut self) {
        // Fails if it is gone or belongs to another user. Then there is nothing to remove.
        let _ = fs::remove_dir_all(&self.0);
    }
}
