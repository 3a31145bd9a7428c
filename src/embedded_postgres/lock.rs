//! Locks the directory of an embedded PostgreSQL.
//!
//! Invariant: the lock file has one line, with role and process id of the holder. It is valid only while the lock is
//! held, which the kernel releases at the holder's death.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{process, thread};

use super::error::Error;
use super::process::postmaster;

/// Time that a server waits for another server, which may have just been killed or may not have written its line yet.
const SECOND_SERVER_TIMEOUT: Duration = Duration::from_millis(250);
/// Time that a server waits for a command, and a command for a server's PostgreSQL to be ready.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// Time that a command waits for other commands, of which several may queue.
const COMMAND_QUEUE_TIMEOUT: Duration = Duration::from_mins(1);

/// Kind of holder: `serve`, or a command that needs the directory temporarily.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Server,
    Command,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Command => "command",
        }
    }
}

pub(super) enum Taken {
    /// The lock is acquired, and held until the file is closed.
    Ours(File),
    /// A server holds the lock. Its PostgreSQL is ready at this socket directory.
    Served(PathBuf),
}

/// Acquires the lock, or joins the server that holds it if `role` is a command.
pub(super) fn take(directory: &Path, role: Role) -> Result<Taken, Error> {
    let path = directory.join("lock");
    // Rust opens files close-on-exec, so no child process can keep the lock.
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(Error::io("open", &path))?;
    let begun = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => {
                let line = format!("{} {}\n", role.name(), process::id());
                file.set_len(0)
                    .and_then(|()| file.write_all_at(line.as_bytes(), 0))
                    .map_err(Error::io("write", &path))?;
                return Ok(Taken::Ours(file));
            }
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(source)) => return Err(Error::io("lock", &path)(source)),
        }
        let holder = holder(&path);
        let limit = match (role, holder) {
            (Role::Server, Some((Role::Server, _))) => SECOND_SERVER_TIMEOUT,
            (Role::Command, Some((Role::Command, _))) => COMMAND_QUEUE_TIMEOUT,
            _ => LOCK_TIMEOUT,
        };
        if let (Role::Command, Some((Role::Server, _))) = (role, holder)
            && let Some((_, Some(socket))) = postmaster(&directory.join("postgres"))
        {
            return Ok(Taken::Served(socket));
        }
        if begun.elapsed() <= limit {
            thread::sleep(Duration::from_millis(20));
            continue;
        }
        let directory = directory.to_owned();
        return Err(match (role, holder) {
            (Role::Server, Some((Role::Server, pid))) => Error::InUse { pid, directory },
            _ => Error::Busy {
                holder: holder.map_or_else(
                    || "unknown process".to_owned(),
                    |(role, pid)| format!("{} (process {pid})", role.name()),
                ),
                directory,
                seconds: limit.as_secs(),
            },
        });
    }
}

/// Returns role and process id of the holder, or `None` while the line is missing or incomplete.
fn holder(path: &Path) -> Option<(Role, u32)> {
    let text = fs::read_to_string(path).ok()?;
    let mut words = text.strip_suffix('\n')?.split(' ');
    let role = words.next()?;
    let mut roles = [Role::Server, Role::Command].into_iter();
    let role = roles.find(|it| it.name() == role)?;
    Some((role, words.next()?.parse().ok()?))
}
