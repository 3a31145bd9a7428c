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
mod lock;
mod process;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgSslMode};
use tokio::task::spawn_blocking;

use cluster::{Cluster, PORT};
use lock::{Role, Taken};
use process::Process;

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
    /// Creates the directory and the cluster in it if they are missing, and starts PostgreSQL. Fails with
    /// [`Error::InUse`] if a server holds the directory, and [`Error::Busy`] if a command holds it for too long.
    pub async fn start(
        directory: &Path,
        search: &SearchPath,
        durability: Durability,
    ) -> Result<Self, Error> {
        Self::open(directory, search, durability, Role::Server).await
    }

    /// Joins the PostgreSQL of the server that holds the directory, or starts one temporarily. Commands take turns. Fails
    /// with [`Error::Busy`] if another command holds the directory for too long, or the server does not become ready.
    pub async fn join_or_start(directory: &Path, search: &SearchPath) -> Result<Self, Error> {
        Self::open(directory, search, Durability::Durable, Role::Command).await
    }

    async fn open(
        directory: &Path,
        search: &SearchPath,
        durability: Durability,
        role: Role,
    ) -> Result<Self, Error> {
        let directory = std::path::absolute(directory).map_err(Error::io("find", directory))?;
        let search = search.clone();
        // If the caller stops waiting, the result is dropped, which stops PostgreSQL.
        spawn_blocking(move || {
            fs::create_dir_all(&directory).map_err(Error::io("create", &directory))?;
            let (socket, running) = match lock::take(&directory, role)? {
                Taken::Served(socket) => (socket, None),
                Taken::Ours(lock) => {
                    let cluster = Cluster::find(directory, &search, durability)?;
                    cluster.initialize()?;
                    let (postgres, sockets) = cluster.start()?;
                    let path = sockets.path().to_owned();
                    // If this fails, commands that would join wait, and then report that the directory is in use.
                    let _ = lock::sign(&lock, role, Some(postgres.id()));
                    let (stop, stopped) = mpsc::channel();
                    let thread = thread::Builder::new()
                        .name("embedded-postgres".into())
                        .spawn(move || {
                            // Dropped in the reverse order after `run`: the lock is released last.
                            let lock = lock;
                            let _sockets = sockets;
                            run(&cluster, postgres, &stopped, || {
                                let _ = lock::sign(&lock, role, None);
                            })
                        })
                        .map_err(|_| Error::Thread)?;
                    (path, Some((stop, thread)))
                }
            };
            Ok(Self { socket, running })
        })
        .await
        .map_err(|_| Error::Thread)?
    }

    /// Returns true if another process runs PostgreSQL.
    pub const fn is_joined(&self) -> bool {
        self.running.is_none()
    }

    /// Returns options to connect as superuser.
    pub fn connect_options(&self) -> PgConnectOptions {
        // Sets every field that the PG* environment variables could change, but for PGOPTIONS, which the program leaves out.
        PgConnectOptions::new_without_pgpass()
            .socket(&self.socket)
            .port(PORT)
            .username("postgres")
            .database("postgres")
            .ssl_mode(PgSslMode::Disable)
    }

    /// Stops PostgreSQL, which ends open connections, and returns when only the data is left. Has no effect on a
    /// PostgreSQL that another process runs.
    pub async fn stop(self) -> Result<(), Error> {
        let Some((stop, thread)) = self.running else {
            return Ok(());
        };
        drop(stop);
        let joined = spawn_blocking(|| thread.join()).await;
        joined.ok().and_then(Result::ok).ok_or(Error::Thread)?
    }
}

/// Stops PostgreSQL on request, even if it ended before. Calls `not_ready` when commands must not join it any more.
fn run(
    cluster: &Cluster,
    mut postgres: Process,
    stop: &Receiver<()>,
    not_ready: impl Fn(),
) -> Result<(), Error> {
    while stop.recv_timeout(Duration::from_millis(100)) == Err(RecvTimeoutError::Timeout) {
        if let Some(outcome) = postgres.ended() {
            not_ready();
            tracing::error!(
                %outcome,
                log = %cluster.log.display(),
                "lost the embedded PostgreSQL, which ended unexpectedly; requests that need it get 503 until you \
                 restart pet-inventory"
            );
            let _ = stop.recv();
        }
    }
    not_ready();
    cluster.stop(postgres)
}
