//! Creates a database cluster in a directory and starts PostgreSQL on it.
//!
//! Invariant: the cluster is complete or absent.

use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::unistd::{User, geteuid};
use tempfile::TempDir;

use super::error::Error;
use super::find::{SearchPath, programs};
use super::process::{Process, UNDER_WATCH, lock_data, poll, postmaster};

/// Part of the socket's file name. No TCP port is opened.
pub(super) const PORT: u16 = 5432;
/// Time limit for startup, which may include recovery after a crash.
const READY: Duration = Duration::from_mins(1);
const MAX_LOG: usize = 10 * 1024 * 1024;

/// Data loss that a power failure may cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Nothing that was committed, also if the power fails.
    Durable,
    /// All data: for tests.
    Throwaway,
}

const SETTINGS: [&str; 9] = [
    "port=5432",
    "listen_addresses=",
    // Enough for a process on dozens of cores and for interactive use.
    "max_connections=500",
    // Allocated page by page as data grows. It holds a million pets.
    "shared_buffers=512MB",
    "cluster_name=pet-inventory",
    "timezone=UTC",
    "log_timezone=UTC",
    // To standard error, whatever an edited postgresql.conf says: errors here quote its end.
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
    pub(super) log: PathBuf,
    /// Directory of `initdb` and `postgres`.
    programs: PathBuf,
    /// User and group to run them as if this process is root, which they refuse to run as.
    owner: Option<(u32, u32)>,
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
        Ok(Self {
            log: directory.join("postgres.log"),
            programs: programs(search, made_by)?,
            owner: owner(&data)?,
            directory,
            data,
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
        fs::create_dir(&unfinished).map_err(Error::io("create", &unfinished))?;
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
        let mut initdb = self.launch("initdb", &unfinished, None, &arguments)?;
        let outcome = poll(Duration::MAX, || initdb.ended());
        if outcome.is_some_and(|outcome| !outcome.success()) {
            return Err(self.failed("initdb", outcome, from));
        }
        fs::rename(&unfinished, &self.data)
            .map_err(Error::io("move the new cluster to", &self.data))?;
        File::open(&self.directory)
            .and_then(|directory| directory.sync_all())
            .map_err(Error::io("sync", &self.directory))
    }

    /// Starts PostgreSQL and returns when it accepts connections in the private directory for its socket, which is in
    /// `/tmp` because the path of a socket must stay under about 100 bytes, even if that of the data is long.
    pub(super) fn start(&self) -> Result<(Process, TempDir), Error> {
        let sockets = tempfile::Builder::new()
            .prefix("pet-inventory-")
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in("/tmp")
            .map_err(Error::io("create a directory in", Path::new("/tmp")))?;
        self.give_to_owner(sockets.path())?;
        if self.log_length() > MAX_LOG {
            File::create(&self.log).map_err(Error::io("empty", &self.log))?;
        }
        let from = self.log_length();
        let path = sockets.path();
        let directories = format!("unix_socket_directories={}", path.display());
        let mut settings = vec![directories.as_str()];
        settings.extend(SETTINGS);
        if self.durability == Durability::Throwaway {
            settings.extend(THROWAWAY_SETTINGS);
        }
        let arguments: Vec<_> = settings.into_iter().flat_map(|it| ["-c", it]).collect();
        let mut postgres = self.launch("postgres", &self.data, Some(path), &arguments)?;
        let outcome = poll(READY, || match postgres.ended() {
            Some(outcome) => Some(Err(outcome)),
            None => match postmaster(&self.data)? {
                (id, Some(_)) if id == postgres.id() => Some(Ok(())),
                _ => None,
            },
        });
        if outcome == Some(Ok(())) {
            return Ok((postgres, sockets));
        }
        self.stop(postgres)?;
        Err(self.failed("postgres", outcome.and_then(Result::err), from))
    }

    /// Stops PostgreSQL, and waits until its processes and the watcher have ended.
    pub(super) fn stop(&self, postgres: Process) -> Result<(), Error> {
        postgres.stop();
        lock_data(&self.data).map(drop)
    }

    /// Starts a program on `data`: `postgres` with a socket directory, `initdb` without.
    ///
    /// On Linux, the program gets the data directory as an open file, not as a path: its user may have no access to the
    /// parent directories, and the path may be longer than PostgreSQL allows. The working directory is `/` because
    /// PostgreSQL returns to it by name after it has found its executable.
    fn launch(
        &self,
        program: &str,
        data: &Path,
        socket: Option<&Path>,
        arguments: &[&str],
    ) -> Result<Process, Error> {
        let locked = lock_data(data)?;
        let output = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&self.log)
            .map_err(Error::io("open", &self.log))?;
        // An unfinished cluster is worthless, so `initdb` needs no gentler signal.
        let (signal, socket) = socket.map_or(("KILL", Path::new("")), |socket| ("INT", socket));
        let has_proc = Path::new("/proc/self/fd").exists();
        let inherited = Path::new("/proc/self/fd/3");
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", UNDER_WATCH, "pet-inventory", signal])
            .args([socket, &self.programs.join(program)])
            .arg("-D")
            .arg(if has_proc { inherited } else { data })
            .args(arguments)
            .current_dir("/")
            // PostgreSQL must not tell the service manager that this service is ready.
            .env_remove("NOTIFY_SOCKET")
            // Ctrl-C in the terminal must not reach PostgreSQL, because the service drains first.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(locked)
            .stderr(output);
        // The id that a killed PostgreSQL left may belong to another process now. `pg_ctl` sets this variable for an id
        // that PostgreSQL must not take for a running server. PostgreSQL still refuses to start if the shared memory of
        // the data is in use, as by a server that another program started.
        if let Some((id, _)) = postmaster(data) {
            command.env("PG_GRANDPARENT_PID", id.to_string());
        }
        if let Some((user, group)) = self.owner {
            command.uid(user).gid(group);
        }
        command
            .spawn()
            .map(Process)
            .map_err(Error::io("run /bin/sh for", data))
    }

    fn give_to_owner(&self, path: &Path) -> Result<(), Error> {
        let (user, group) = self.owner.unzip();
        chown(path, user, group).map_err(Error::io("change the owner of", path))
    }

    fn log_length(&self) -> usize {
        fs::metadata(&self.log).map_or(0, |log| usize::try_from(log.len()).unwrap_or(0))
    }

    /// Returns the error for a program that ended with `outcome`, or was not ready in time. Its output starts at `from`.
    fn failed(&self, program: &'static str, outcome: Option<ExitStatus>, from: usize) -> Error {
        // A failure to read the log must not hide the error that its last lines are for.
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(text.get(from..).unwrap_or_default());
        let lines: Vec<_> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(10)..].join("\n");
        // 126 is the shell's code for a program that it cannot execute.
        if let (Some(126), Some((user, _))) = (outcome.and_then(|it| it.code()), self.owner) {
            let programs = self.programs.clone();
            return Error::NotRunnable {
                programs,
                user,
                tail,
            };
        }
        Error::Failed {
            program,
            problem: outcome.map_or_else(
                || format!("not ready after {READY:?}; recovery continues at the next start"),
                |outcome| outcome.to_string(),
            ),
            log: self.log.clone(),
            tail,
        }
    }
}

/// Returns the user and group to run PostgreSQL as. Existing data determines them.
fn owner(data: &Path) -> Result<Option<(u32, u32)>, Error> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    if let Some(data) = fs::metadata(data).ok().filter(|data| data.uid() != 0) {
        return Ok(Some((data.uid(), data.gid())));
    }
    let user = ["postgres", "nobody"]
        .into_iter()
        .find_map(|name| User::from_name(name).ok().flatten())
        .ok_or(Error::NoUser)?;
    Ok(Some((user.uid.as_raw(), user.gid.as_raw())))
}
