//! A Postgres of our own, for a run without a database URL: made, started, watched and stopped
//! here.
//!
//! The invariant: a folder's Postgres runs only while a process of ours holds the folder's lock. It
//! listens on a Unix socket in a private directory and nowhere else, and it stops when its holder
//! ends, even by `kill -9`.
//!
//! In the folder: `postgres/` (the data), `postgres.log` (what `initdb` and Postgres say), `lock`
//! (who holds it).

#![expect(
    clippy::disallowed_methods,
    reason = "runs on threads of its own, and the name of a directory is no decision by time"
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

/// What a power cut may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Nothing that was committed.
    Durable,
    /// Everything: for tests, whose data ends with them.
    Throwaway,
}

/// A Postgres that this process runs. Dropped, it stops in the background; [`stop`](Self::stop)
/// waits for it.
#[derive(Debug)]
pub struct LocalPostgres {
    socket: PathBuf,
    /// Dropping it is what tells the supervisor to stop Postgres.
    running: mpsc::Sender<()>,
    supervisor: thread::JoinHandle<Result<(), Error>>,
}

impl LocalPostgres {
    /// Makes the folder and the database cluster in it if they are missing, and starts Postgres,
    /// for as long as this process lives. A folder that another process serves from is refused.
    ///
    /// # Errors
    /// [`Error::InUse`] when a server holds the folder, [`Error::Busy`] when a command holds it for too long, and
    /// whatever keeps Postgres from being found, made or started.
    pub async fn start(
        directory: &Path,
        search: &SearchPath,
        durability: Durability,
    ) -> Result<Self, Error> {
        match take(directory, search, Role::Server, durability).await? {
            Joined::Started(postgres) => Ok(postgres),
            // A server never joins another; should it, it must not go on as if it had started.
            Joined::Running(_) => Err(Error::Supervisor),
        }
    }

    /// How to reach it as its superuser; stays valid when Postgres dies and is started again.
    #[must_use]
    pub fn connect_options(&self) -> PgConnectOptions {
        connect_options(&self.socket)
    }

    /// Stops Postgres, which ends open connections, and returns when nothing of it is left but the
    /// data.
    ///
    /// # Errors
    /// [`Error::Unstoppable`] when it does not stop.
    pub async fn stop(self) -> Result<(), Error> {
        drop(self.running);
        let supervisor = self.supervisor;
        spawn_blocking(|| supervisor.join())
            .await
            .map_err(|_| Error::Supervisor)?
            .map_err(|_| Error::Supervisor)?
    }
}

/// The Postgres that a command works with: a running server's, or one started for the moment.
#[derive(Debug)]
pub enum Joined {
    /// A server runs it; its socket directory.
    Running(PathBuf),
    /// This process runs it.
    Started(LocalPostgres),
}

impl Joined {
    /// How to reach it as its superuser.
    #[must_use]
    pub fn connect_options(&self) -> PgConnectOptions {
        match self {
            Self::Running(socket) => connect_options(socket),
            Self::Started(postgres) => postgres.connect_options(),
        }
    }

    /// Stops it if this process started it.
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

/// For commands: joins the Postgres of the server that holds the folder, else starts it for the
/// moment. Commands on one folder take turns.
///
/// # Errors
/// As [`LocalPostgres::start`], but a server in the folder is none; [`Error::Busy`] when it does
/// not get ready.
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
    // A caller that stops waiting drops what is returned here, and so stops the Postgres that
    // nobody asks for.
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
    // Every field that the PG* variables of the environment could lead elsewhere.
    PgConnectOptions::new_without_pgpass()
        .socket(socket)
        .port(PORT)
        .username("postgres")
        .database("postgres")
        .ssl_mode(PgSslMode::Disable)
}

/// A private directory for the socket, gone when dropped. It lies in `/tmp` because a socket's path
/// must stay under about 100 bytes however deep the data lies.
struct SocketDirectory(PathBuf);

impl SocketDirectory {
    const PREFIX: &str = "/tmp/pet-inventory-";

    /// Its name is in the lock file before it exists, so that whoever holds the folder next can
    /// remove it.
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
        // Fails rather than follow a name that somebody else has put there.
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(Error::io("create", &path))?;
        let created = Self(path);
        if let Some((user, group)) = cluster.owner {
            chown(&created.0, Some(user), Some(group))
                .map_err(Error::io("give away", &created.0))?;
        }
        Ok(created)
    }

    /// What root removes recursively must not be up to the folder's owner.
    fn is_ours(path: &Path) -> bool {
        path.to_string_lossy().starts_with(Self::PREFIX) && path.parent() == Some(Path::new("/tmp"))
    }
}

impl Drop for SocketDirectory {
    fn drop(&mut self) {
        // Not there, or not ours: then there is nothing to remove.
        let _ = fs::remove_dir_all(&self.0);
    }
}
