//! Creates a database cluster in a directory and starts PostgreSQL on it.
//!
//! Invariants:
//! - The cluster is complete or absent.

use std::fs::{self, DirBuilder, File, Permissions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use nix::unistd::{User, geteuid};
use tempfile::TempDir;

use super::error::Error;
use super::find::{SearchPath, programs};
use super::launch::{Launcher, Process, has_proc, lock_data, poll};
use super::lock::SOCKET_PREFIX;

/// Part of the socket's file name. No TCP port is opened.
pub(super) const PORT: u16 = 5432;
/// Time limit for startup, which may include recovery after a crash.
const READY: Duration = Duration::from_mins(1);
const LONGEST_LOG: usize = 10 * 1024 * 1024;

/// Data loss that a power failure may cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Nothing that was committed.
    Durable,
    /// All data: for tests.
    Throwaway,
}

const SETTINGS: [&str; 9] = [
    "port=5432",
    "listen_addresses=",
    // Enough for a process on dozens of cores and for interactive use.
    "max_connections=300",
    // Allocated page by page as data grows. It holds a million pets.
    "shared_buffers=512MB",
    "cluster_name=pet-inventory",
    "timezone=UTC",
    "log_timezone=UTC",
    "log_destination=stderr",
    "logging_collector=off",
];
const THROWAWAY_SETTINGS: [&str; 3] = [
    "fsync=off",
    "synchronous_commit=off",
    "full_page_writes=off",
];

pub(super) struct Cluster {
    directory: PathBuf,
    data: PathBuf,
    pub(super) launcher: Launcher,
    durability: Durability,
}

impl Cluster {
    pub(super) fn find(
        directory: PathBuf,
        search: &SearchPath,
        durability: Durability,
    ) -> Result<Self, Error> {
        let data = directory.join("postgres");
        let made_by = fs::read_to_string(data.join("PG_VERSION")).ok();
        let made_by = made_by.and_then(|version| version.trim().parse().ok());
        let launcher = Launcher {
            programs: programs(search, made_by)?,
            owner: owner(&data)?,
            log: directory.join("postgres.log"),
        };
        Ok(Self {
            directory,
            data,
            launcher,
            durability,
        })
    }

    /// Creates the cluster if it is missing, and renames it to `postgres` once it is complete.
    pub(super) fn initialize(&self) -> Result<(), Error> {
        let unfinished = self.directory.join("postgres.unfinished");
        if unfinished.exists() {
            // A killed `initdb` may still be writing.
            drop(lock_data(&unfinished)?);
            fs::remove_dir_all(&unfinished).map_err(Error::io("remove", &unfinished))?;
        }
        let version = self.data.join("PG_VERSION");
        if version.try_exists().map_err(Error::io("read", &version))? {
            return Ok(());
        }
        DirBuilder::new()
            .mode(0o700)
            .create(&unfinished)
            .map_err(Error::io("create", &unfinished))?;
        self.give_to_owner(&unfinished)?;
        let mut arguments = vec![
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--username=postgres",
        ];
        if self.durability == Durability::Throwaway {
            arguments.push("--no-sync");
        }
        let from = self.log_length();
        let mut initdb = self
            .launcher
            .launch("initdb", &unfinished, None, &arguments)?;
        if let Some(outcome) = poll(Duration::MAX, || initdb.ended())
            && !outcome.success()
        {
            return Err(self.failed("initdb", Some(outcome), from));
        }
        fs::rename(&unfinished, &self.data)
            .map_err(Error::io("move the new cluster to", &self.data))?;
        File::open(&self.directory)
            .and_then(|directory| directory.sync_all())
            .map_err(Error::io("sync", &self.directory))
    }

    /// Creates a private directory for the socket. It is in `/tmp` because the path of a socket must stay under about
    /// 100 bytes, even if that of the data is long.
    pub(super) fn create_socket_directory(&self) -> Result<TempDir, Error> {
        let created = tempfile::Builder::new()
            .prefix(SOCKET_PREFIX)
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in("/tmp")
            .map_err(Error::io("create a directory in", Path::new("/tmp")))?;
        self.give_to_owner(created.path())?;
        Ok(created)
    }

    /// Starts PostgreSQL and returns when it accepts connections.
    pub(super) fn start(&self, socket: &Path) -> Result<Process, Error> {
        let log = &self.launcher.log;
        if self.log_length() > LONGEST_LOG {
            File::create(log).map_err(Error::io("empty", log))?;
        }
        let from = self.log_length();
        drop(lock_data(&self.data)?);
        self.remove_stale_pid_file()?;
        let sockets = format!("unix_socket_directories={}", socket.display());
        let mut settings = vec![sockets.as_str()];
        settings.extend(SETTINGS);
        if self.durability == Durability::Throwaway {
            settings.extend(THROWAWAY_SETTINGS);
        }
        let arguments: Vec<_> = settings.into_iter().flat_map(|it| ["-c", it]).collect();
        let mut postgres =
            self.launcher
                .launch("postgres", &self.data, Some(socket), &arguments)?;
        let id = postgres.id().to_string();
        let mut outcome = None;
        let is_ready = poll(READY, || {
            outcome = postgres.ended();
            (outcome.is_some() || self.is_ready(&id)).then_some(outcome.is_none())
        });
        if is_ready == Some(true) {
            return Ok(postgres);
        }
        self.stop(postgres)?;
        Err(self.failed("postgres", outcome, from))
    }

    /// Stops PostgreSQL, and waits until its processes and the watcher have ended.
    pub(super) fn stop(&self, postgres: Process) -> Result<(), Error> {
        postgres.stop();
        lock_data(&self.data).map(drop)
    }

    fn pid_file(&self) -> PathBuf {
        self.data.join("postmaster.pid")
    }

    /// Returns true if PostgreSQL accepts connections. Line 1 of the file is its process id, line 8 its status.
    fn is_ready(&self, id: &str) -> bool {
        let text = fs::read_to_string(self.pid_file()).unwrap_or_default();
        let mut lines = text.lines().map(str::trim_end);
        lines.next() == Some(id) && lines.nth(6) == Some("ready")
    }

    /// Removes the `postmaster.pid` of a killed PostgreSQL. Its process id may belong to another program now, which
    /// PostgreSQL would take for itself. If the process works in the data directory, it is a PostgreSQL that another
    /// program started; then PostgreSQL reports it.
    fn remove_stale_pid_file(&self) -> Result<(), Error> {
        let file = self.pid_file();
        let text = fs::read_to_string(&file).unwrap_or_default();
        let Some(id) = text.lines().next().filter(|_| has_proc()) else {
            return Ok(());
        };
        let inode = |path: &Path| fs::metadata(path).ok().map(|it| (it.dev(), it.ino()));
        // The id of a single-user session is negative.
        let process = PathBuf::from(format!("/proc/{}", id.trim().trim_start_matches('-')));
        // PostgreSQL itself removes the file of a dead process, once it has checked the shared memory.
        if !process.exists() || inode(&process.join("cwd")) == inode(&self.data) {
            return Ok(());
        }
        fs::remove_file(&file).map_err(Error::io("remove", &file))
    }

    fn give_to_owner(&self, path: &Path) -> Result<(), Error> {
        let Some((user, group)) = self.launcher.owner else {
            return Ok(());
        };
        chown(path, Some(user), Some(group)).map_err(Error::io("change the owner of", path))
    }

    fn log_length(&self) -> usize {
        fs::metadata(&self.launcher.log).map_or(0, |log| usize::try_from(log.len()).unwrap_or(0))
    }

    /// Returns the error for a program that ended with `outcome`, or was not ready in time. Its output starts at `from`.
    fn failed(&self, program: &'static str, outcome: Option<ExitStatus>, from: usize) -> Error {
        let log = self.launcher.log.clone();
        // A failure to read the log must not hide the error that its last lines are for.
        let text = fs::read(&log).unwrap_or_default();
        let text = String::from_utf8_lossy(text.get(from..).unwrap_or_default());
        let mut lines: Vec<_> = text.lines().rev().take(10).collect();
        lines.reverse();
        let tail = lines.join("\n");
        let code = outcome.and_then(|outcome| outcome.code());
        match (code, self.launcher.owner) {
            // Of the shell: the program could not be executed.
            (Some(126), Some((user, _))) => Error::NotRunnable {
                programs: self.launcher.programs.clone(),
                user,
                tail,
            },
            _ => Error::Failed {
                program,
                problem: outcome.map_or_else(
                    || format!("not ready after {READY:?}; recovery continues at the next start"),
                    |outcome| outcome.to_string(),
                ),
                log,
                tail,
            },
        }
    }
}

/// Returns the user and group to run PostgreSQL as. Existing data determines them.
fn owner(data: &Path) -> Result<Option<(u32, u32)>, Error> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    if let Ok(data) = fs::metadata(data)
        && data.uid() != 0
    {
        return Ok(Some((data.uid(), data.gid())));
    }
    let user = ["postgres", "nobody"]
        .into_iter()
        .find_map(|name| User::from_name(name).ok().flatten());
    user.map(|user| Some((user.uid.as_raw(), user.gid.as_raw())))
        .ok_or(Error::NoUser)
}
