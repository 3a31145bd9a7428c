//! Locks the directory of an embedded PostgreSQL and records the holder.
//!
//! Invariants:
//! - The lock file has one line: role, process id and socket directory of the holder. It is valid only while the lock
//!   is held, which the kernel releases at the holder's death.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{io, process, thread};

use super::Error;
use super::cluster::DATA;
use super::processes::PidFile;

/// Wait of a server for another server, which may have just been killed or may not have written its line yet.
const GRACE: Duration = Duration::from_millis(250);
/// Wait of a server for a command, and of a command for a server's PostgreSQL to be ready.
const WAIT: Duration = Duration::from_secs(10);
/// Wait of a command for other commands, of which several may queue.
const TURN: Duration = Duration::from_mins(1);

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
}

struct Holder {
    role: Role,
    pid: u32,
    socket: PathBuf,
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
                Ok(()) => return Ok(Taken::Ours(Self { file, path })),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(source)) => return Err(Error::io("lock", &path)(source)),
            }
            let holder = Holder::read(&file);
            let patience = match (role, &holder) {
                (
                    Role::Server,
                    Some(Holder {
                        role: Role::Server, ..
                    }),
                ) => GRACE,
                (
                    Role::Command,
                    Some(Holder {
                        role: Role::Command,
                        ..
                    }),
                ) => TURN,
                _ => WAIT,
            };
            if role == Role::Command
                && let Some(Holder {
                    role: Role::Server,
                    socket,
                    ..
                }) = &holder
                && PidFile::read(&directory.join(DATA))
                    .is_some_and(|postgres| postgres.serves(socket))
            {
                return Ok(Taken::Served(socket.clone()));
            }
            if begun.elapsed() > patience {
                let directory = directory.to_owned();
                return Err(match (role, holder) {
                    (
                        Role::Server,
                        Some(Holder {
                            role: Role::Server,
                            pid,
                            ..
                        }),
                    ) => Error::InUse { pid, directory },
                    (_, Some(Holder { role, pid, .. })) => Error::Busy {
                        role: role.name(),
                        pid,
                        directory,
                        seconds: patience.as_secs(),
                    },
                    (_, None) => Error::Held {
                        path,
                        seconds: patience.as_secs(),
                    },
                });
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the socket directory of the previous holder, which may still exist.
    pub(super) fn left_behind(&self) -> Option<PathBuf> {
        Holder::read(&self.file).map(|holder| holder.socket)
    }

    /// Writes this process and its future socket directory to the lock file.
    pub(super) fn sign(&self, role: Role, socket: &Path) -> Result<(), Error> {
        let line = format!("{} {} {}\n", role.name(), process::id(), socket.display());
        self.overwrite(&line)
            .map_err(Error::io("write", &self.path))
    }

    fn overwrite(&self, line: &str) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.write_all_at(line.as_bytes(), 0)
    }
}

impl Holder {
    /// Returns `None` while the line is missing or incomplete.
    fn read(file: &File) -> Option<Self> {
        let mut bytes = [0; 200];
        let length = file.read_at(&mut bytes, 0).ok()?;
        let line = str::from_utf8(bytes.get(..length)?)
            .ok()?
            .strip_suffix('\n')?;
        let mut words = line.splitn(3, ' ');
        let role = match words.next()? {
            "server" => Role::Server,
            "command" => Role::Command,
            _ => return None,
        };
        Some(Self {
            role,
            pid: words.next()?.parse().ok()?,
            socket: words.next()?.into(),
        })
    }
}
