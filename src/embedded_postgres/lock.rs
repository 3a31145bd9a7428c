//! Locks the directory of an embedded PostgreSQL and records the holder.
//!
//! Invariants:
//! - The lock file has one line: role and process id of the holder, and its socket directory while PostgreSQL is ready.
//!   It is valid only while the lock is held, which the kernel releases at the holder's death.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{process, thread};

use super::error::Error;

/// Wait of a server for another server, which may have just been killed or may not have written its line yet.
const GRACE: Duration = Duration::from_millis(250);
/// Wait of a server for a command, and of a command for a server's PostgreSQL to be ready.
const WAIT: Duration = Duration::from_secs(10);
/// Wait of a command for other commands, of which several may queue.
const TURN: Duration = Duration::from_mins(1);

/// Prefix of the names of socket directories, which are in `/tmp`.
pub(super) const SOCKET_PREFIX: &str = "pet-inventory-";

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
    /// The lock is acquired, and held until it is dropped.
    Ours(Lock),
    /// A server holds the lock. Its PostgreSQL is ready at this socket directory.
    Served(PathBuf),
}

pub(super) struct Lock {
    file: File,
    path: PathBuf,
    role: Role,
}

struct Holder {
    role: Role,
    pid: u32,
    socket: Option<PathBuf>,
}

impl Lock {
    /// Acquires the lock, or joins the server that holds it if `role` is a command.
    pub(super) fn take(directory: &Path, role: Role) -> Result<Taken, Error> {
        let path = directory.join("lock");
        // Rust opens files close-on-exec, so no child process can keep the lock.
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(Error::io("open", &path))?;
        let begun = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => {
                    let stale = Holder::read(&file).and_then(|holder| holder.socket);
                    let lock = Self { file, path, role };
                    lock.sign(None)?;
                    remove_stale_socket(stale.as_deref());
                    return Ok(Taken::Ours(lock));
                }
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(source)) => return Err(Error::io("lock", &path)(source)),
            }
            let holder = Holder::read(&file);
            let limit = match (role, holder.as_ref().map(|holder| holder.role)) {
                (Role::Server, Some(Role::Server)) => GRACE,
                (Role::Command, Some(Role::Command)) => TURN,
                _ => WAIT,
            };
            match (role, holder) {
                (
                    Role::Command,
                    Some(Holder {
                        role: Role::Server,
                        socket: Some(socket),
                        ..
                    }),
                ) => return Ok(Taken::Served(socket)),
                _ if begun.elapsed() <= limit => thread::sleep(Duration::from_millis(20)),
                (_, Some(Holder { pid, .. })) if limit == GRACE => {
                    let directory = directory.to_owned();
                    return Err(Error::InUse { pid, directory });
                }
                (_, holder) => {
                    let holder =
                        holder.map(|it| format!("{} (process {})", it.role.name(), it.pid));
                    return Err(Error::Busy {
                        holder: holder.unwrap_or_else(|| "unknown process".to_owned()),
                        directory: directory.to_owned(),
                        seconds: limit.as_secs(),
                    });
                }
            }
        }
    }

    /// Writes this process to the lock file, with its socket directory if PostgreSQL is ready.
    pub(super) fn sign(&self, socket: Option<&Path>) -> Result<(), Error> {
        let socket = socket.unwrap_or(Path::new("")).display();
        let line = format!("{} {} {socket}\n", self.role.name(), process::id());
        self.file
            .set_len(0)
            .and_then(|()| self.file.write_all_at(line.as_bytes(), 0))
            .map_err(Error::io("write", &self.path))
    }
}

impl Holder {
    /// Returns `None` while the line is missing or incomplete.
    fn read(file: &File) -> Option<Self> {
        let mut bytes = [0; 200];
        let length = file.read_at(&mut bytes, 0).ok()?;
        let line = str::from_utf8(bytes.get(..length)?).ok()?;
        let mut words = line.strip_suffix('\n')?.splitn(3, ' ');
        let role = match words.next()? {
            "server" => Role::Server,
            "command" => Role::Command,
            _ => return None,
        };
        Some(Self {
            role,
            pid: words.next()?.parse().ok()?,
            socket: words.next().filter(|it| !it.is_empty()).map(PathBuf::from),
        })
    }
}

/// Removes a socket directory if the watcher was killed before it could. Root must not remove any path that the
/// directory's owner writes to the lock file.
fn remove_stale_socket(path: Option<&Path>) {
    if let Some(path) = path
        && path.parent() == Some(Path::new("/tmp"))
        && path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with(SOCKET_PREFIX))
    {
        // Fails if it is gone or belongs to another user. Then there is nothing to remove.
        let _ = fs::remove_dir_all(path);
    }
}
