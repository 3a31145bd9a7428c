//! Locks the directory of an embedded PostgreSQL.
//!
//! Invariant: the lock file has one line, with role and process id of the holder, and with the process id of its
//! PostgreSQL while that is ready. It is valid only while the lock is held, which the kernel releases at the holder's
//! death.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{io, process, thread};

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
                sign(&file, role, None).map_err(Error::io("write", &path))?;
                return Ok(Taken::Ours(file));
            }
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(source)) => return Err(Error::io("lock", &path)(source)),
        }
        let holder = holder(&path);
        let limit = match (role, holder) {
            (Role::Server, Some((Role::Server, ..))) => SECOND_SERVER_TIMEOUT,
            (Role::Command, Some((Role::Command, ..))) => COMMAND_QUEUE_TIMEOUT,
            _ => LOCK_TIMEOUT,
        };
        // The socket directory of a killed PostgreSQL may belong to another user by now.
        if let (Role::Command, Some((Role::Server, _, Some(ready)))) = (role, holder)
            && let Some((id, Some(socket))) = postmaster(&directory.join("postgres"))
            && id == ready
        {
            return Ok(Taken::Served(socket));
        }
        if begun.elapsed() <= limit {
            thread::sleep(Duration::from_millis(20));
            continue;
        }
        let directory = directory.to_owned();
        return Err(match (role, holder) {
            (Role::Server, Some((Role::Server, pid, _))) => Error::InUse { pid, directory },
            _ => Error::Busy {
                holder: holder.map_or_else(
                    || "unknown process".to_owned(),
                    |(role, pid, _)| format!("{} (process {pid})", role.name()),
                ),
                directory,
                seconds: limit.as_secs(),
            },
        });
    }
}

/// Writes this process to the lock file, with the process id of its PostgreSQL if that is ready.
pub(super) fn sign(file: &File, role: Role, ready: Option<u32>) -> io::Result<()> {
    let ready = ready.map_or_else(String::new, |id| format!(" {id}"));
    let line = format!("{} {}{ready}\n", role.name(), process::id());
    file.set_len(0)?;
    file.write_all_at(line.as_bytes(), 0)
}

/// Returns role and process id of the holder, and the process id of its PostgreSQL if that is ready; `None` while the
/// line is missing or incomplete.
fn holder(path: &Path) -> Option<(Role, u32, Option<u32>)> {
    let text = fs::read_to_string(path).ok()?;
    let mut words = text.strip_suffix('\n')?.split(' ');
    let role = words.next()?;
    let mut roles = [Role::Server, Role::Command].into_iter();
    let role = roles.find(|it| it.name() == role)?;
    let pid = words.next()?.parse().ok()?;
    let ready = words.next().and_then(|id| id.parse().ok());
    Some((role, pid, ready))
}
