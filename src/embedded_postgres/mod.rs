//! Runs an embedded PostgreSQL if no database URL is configured: creates its data, starts and stops it.
//!
//! Its directory holds `postgres/` (data), `postgres.log` (output of `initdb` and PostgreSQL) and `lock` (the holder).
//!
//! Invariants:
//! - PostgreSQL runs only while a pet-inventory process holds the lock, and stops when that ends, even by `kill -9`.
//! - It listens only on a Unix socket in a private directory.
//! - If it ends unexpectedly, this is logged, and it is not restarted. The next start of pet-inventory recovers the data.

#![expect(
    clippy::disallowed_methods,
    reason = "sleeps only on threads for blocking work"
)]

mod cluster;
mod error;
mod find;
mod launch;
mod lock;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgSslMode};
use tokio::task::spawn_blocking;

use cluster::{Cluster, PORT};
use launch::Process;
use lock::{Lock, Role, Taken};

pub use cluster::Durability;
pub use error::Error;
pub use find::SearchPath;

/// Embedded PostgreSQL. Dropping it stops the server in the background; [`stop`](Self::stop) waits for it.
#[derive(Debug)]
pub struct EmbeddedPostgres {
    /// Socket directory.
    socket: PathBuf,
    /// Thread that runs it, and a channel that tells the thread to stop when dropped. `None` if another process does.
    running: Option<(mpsc::Sender<()>, Thread)>,
}

type Thread = thread::JoinHandle<Result<(), Error>>;

impl EmbeddedPostgres {
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
        Self::open(directory, search, durability, Role::Server).await
    }

    /// Joins the PostgreSQL of the server that holds the directory, or starts one temporarily. Commands take turns.
    ///
    /// # Errors
    /// As [`start`](Self::start), except [`Error::InUse`]; [`Error::Busy`] if the server does not become ready.
    pub async fn join_or_start(directory: &Path, search: &SearchPath) -> Result<Self, Error> {
        Self::open(directory, search, Durability::Durable, Role::Command).await
    }

    async fn open(
        directory: &Path,
        search: &SearchPath,
        durability: Durability,
        role: Role,
    ) -> Result<Self, Error> {
        let (directory, search) = (directory.to_owned(), search.clone());
        // If the caller stops waiting, the result is dropped, which stops PostgreSQL.
        spawn_blocking(move || Self::open_blocking(&directory, &search, durability, role))
            .await
            .map_err(|_| Error::Thread)?
    }

    fn open_blocking(
        directory: &Path,
        search: &SearchPath,
        durability: Durability,
        role: Role,
    ) -> Result<Self, Error> {
        let directory = std::path::absolute(directory).map_err(Error::io("find", directory))?;
        fs::create_dir_all(&directory).map_err(Error::io("create", &directory))?;
        let lock = match Lock::take(&directory, role)? {
            Taken::Ours(lock) => lock,
            Taken::Served(socket) => {
                return Ok(Self {
                    socket,
                    running: None,
                });
            }
        };
        let cluster = Cluster::find(directory, search, durability)?;
        cluster.initialize()?;
        let socket = cluster.create_socket_directory()?;
        let path = socket.path().to_owned();
        let postgres = cluster.start(&path)?;
        lock.sign(Some(&path))?;

        let (stop, stopped) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("embedded-postgres".into())
            .spawn(move || {
                let result = run(&cluster, postgres, &lock, &stopped);
                drop(socket);
                result
            })
            .map_err(|_| Error::Thread)?;
        Ok(Self {
            socket: path,
            running: Some((stop, thread)),
        })
    }

    /// Returns true if another process runs PostgreSQL.
    #[must_use]
    pub const fn is_joined(&self) -> bool {
        self.running.is_none()
    }

    /// Returns options to connect as superuser.
    #[must_use]
    pub fn connect_options(&self) -> PgConnectOptions {
        // Sets every field that the PG* environment variables could change.
        PgConnectOptions::new_without_pgpass()
            .socket(&self.socket)
            .port(PORT)
            .username("postgres")
            .database("postgres")
            .ssl_mode(PgSslMode::Disable)
    }

    /// Stops PostgreSQL, which ends open connections, and returns when only the data is left. Has no effect on a
    /// PostgreSQL that another process runs.
    ///
    /// # Errors
    /// [`Error::Lingers`] if it does not stop.
    pub async fn stop(self) -> Result<(), Error> {
        let Some((stop, thread)) = self.running else {
            return Ok(());
        };
        drop(stop);
        spawn_blocking(|| thread.join())
            .await
            .map_err(|_| Error::Thread)?
            .map_err(|_| Error::Thread)?
    }
}

/// Stops PostgreSQL on request. The directory stays locked until then, even if PostgreSQL ends before.
fn run(
    cluster: &Cluster,
    mut postgres: Process,
    lock: &Lock,
    stop: &Receiver<()>,
) -> Result<(), Error> {
    while stop.recv_timeout(Duration::from_millis(100)) == Err(RecvTimeoutError::Timeout) {
        if let Some(outcome) = postgres.ended() {
            tracing::error!(
                %outcome,
                log = %cluster.launcher.log.display(),
                "lost the embedded PostgreSQL, which ended unexpectedly; requests that need it get 503 until you \
                 restart pet-inventory"
            );
            let _ = lock.sign(None);
            let _ = stop.recv();
        }
    }
    // Commands must not join it any more. If this fails, they report that they cannot connect.
    let _ = lock.sign(None);
    cluster.stop(postgres)
}
