//! Creates a database cluster in a directory and starts PostgreSQL on it.
//!
//! Invariants:
//! - The cluster is complete or absent.
//! - No PostgreSQL starts while another one, or an orphaned process of one, uses the same data.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::{self, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User, geteuid};

use super::find::{SearchPath, programs};
use super::launch::Postmaster;
use super::processes::{PidFile, has_proc, is_alive, residents};
use super::{Durability, Error};

/// Data directory, within the locked one.
pub(super) const DATA: &str = "postgres";
pub(super) const POLL: Duration = Duration::from_millis(5);
/// Time limit for startup, which may include recovery after a crash.
const READY: Duration = Duration::from_mins(1);
/// Time limit for an earlier PostgreSQL to end. After [`PEACE`], it gets SIGQUIT.
const SETTLED: Duration = Duration::from_secs(10);
const PEACE: Duration = Duration::from_secs(5);
const LONGEST_LOG: u64 = 10 * 1024 * 1024;

/// Prefix of the directory of a running `initdb`. The process id follows.
const UNFINISHED: &str = "postgres.unfinished-";

pub(super) struct Cluster {
    directory: PathBuf,
    pub(super) data: PathBuf,
    pub(super) programs: PathBuf,
    pub(super) durability: Durability,
    /// User and group of PostgreSQL if this process is root, which PostgreSQL refuses to run as.
    pub(super) owner: Option<(u32, u32)>,
}

impl Cluster {
    pub(super) fn find(
        directory: PathBuf,
        search: &SearchPath,
        durability: Durability,
    ) -> Result<Self, Error> {
        let data = directory.join(DATA);
        let made_by = fs::read_to_string(data.join("PG_VERSION")).ok();
        let programs = programs(
            search,
            made_by.and_then(|version| version.trim().parse().ok()),
        )?;
        let owner = owner(&data)?;
        Ok(Self {
            directory,
            data,
            programs,
            durability,
            owner,
        })
    }

    pub(super) fn log(&self) -> PathBuf {
        self.directory.join("postgres.log")
    }

    /// Creates the cluster if it is missing, and renames it to `postgres` once it is complete.
    pub(super) fn initialize(&self, socket: &Path) -> Result<(), Error> {
        self.remove_unfinished()?;
        let version = self.data.join("PG_VERSION");
        if version.try_exists().map_err(Error::io("read", &version))? {
            return Ok(());
        }
        let unfinished = self
            .directory
            .join(format!("{UNFINISHED}{}", process::id()));
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&unfinished)
            .map_err(Error::io("create", &unfinished))?;
        if let Some((user, group)) = self.owner {
            chown(&unfinished, Some(user), Some(group))
                .map_err(Error::io("change the owner of", &unfinished))?;
        }
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
        // If this process dies, an unfinished cluster is worthless, so no gentler signal is needed.
        let mut initdb = self.launch("initdb", "KILL", &unfinished, socket, &arguments)?;
        let outcome = loop {
            match initdb.ended() {
                Some(outcome) => break outcome,
                None => sleep(POLL),
            }
        };
        if !outcome.success() {
            let _ = fs::remove_dir_all(&unfinished);
            return Err(self.failed("initdb", outcome, from));
        }
        fs::rename(&unfinished, &self.data)
            .map_err(Error::io("move the new cluster to", &self.data))?;
        File::open(&self.directory)
            .and_then(|directory| directory.sync_all())
            .map_err(Error::io("sync", &self.directory))
    }

    /// Removes what a killed `initdb` left. It may still be dying and writing, so the removal is retried.
    fn remove_unfinished(&self) -> Result<(), Error> {
        let entries = fs::read_dir(&self.directory).map_err(Error::io("read", &self.directory))?;
        for entry in entries.flatten() {
            if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
                let begun = Instant::now();
                while let Err(error) = fs::remove_dir_all(entry.path()) {
                    if begun.elapsed() > PEACE {
                        return Err(Error::io("remove", &entry.path())(error));
                    }
                    sleep(POLL);
                }
            }
        }
        Ok(())
    }

    /// Starts PostgreSQL and returns when it accepts connections.
    pub(super) fn start(&self, socket: &Path) -> Result<Postmaster, Error> {
        if self.log_length() > LONGEST_LOG {
            File::create(self.log()).map_err(Error::io("empty", &self.log()))?;
        }
        let from = self.log_length();
        let begun = Instant::now();
        self.settle()?;
        let mut postmaster = self.launch_postgres(socket)?;
        loop {
            if let Some(outcome) = postmaster.ended() {
                // An earlier postmaster that was just starting when its parent was killed becomes visible only now.
                if residents(&self.data).is_empty() || begun.elapsed() > SETTLED {
                    return Err(self.failed("postgres", outcome, from));
                }
                self.settle()?;
                postmaster = self.launch_postgres(socket)?;
            }
            let pid = postmaster.pid();
            if PidFile::read(&self.data).is_some_and(|file| file.ready && file.pid == pid) {
                return Ok(postmaster);
            }
            if begun.elapsed() > READY {
                self.stop(postmaster)?;
                let (seconds, log) = (READY.as_secs(), self.log());
                return Err(Error::NotReady {
                    seconds,
                    log,
                    tail: self.tail(from),
                });
            }
            sleep(POLL);
        }
    }

    /// Ends all processes that use the data, and returns when they are gone. Only the holder of the lock may call this:
    /// any process found is an orphan.
    pub(super) fn settle(&self) -> Result<(), Error> {
        let begun = Instant::now();
        loop {
            let residents = residents(&self.data);
            let postmaster = PidFile::read(&self.data).map(|file| file.pid);
            if residents.is_empty() {
                if postmaster.is_some_and(is_alive) {
                    // The process id belongs to another program now, but PostgreSQL would believe the file.
                    let stale = self.data.join("postmaster.pid");
                    fs::remove_file(&stale).map_err(Error::io("remove", &stale))?;
                }
                return Ok(());
            }
            if begun.elapsed() > SETTLED {
                return Err(Error::Lingers {
                    folder: self.data.clone(),
                    pids: residents,
                });
            }
            let postmaster =
                postmaster.filter(|pid| residents.contains(pid) && begun.elapsed() < PEACE);
            // Without `/proc`, it is uncertain that the process is PostgreSQL, so it is not signalled.
            let (signal, receivers) = match postmaster {
                _ if !has_proc() => (None, Vec::new()),
                Some(postmaster) => (Some(Signal::SIGINT), vec![postmaster]),
                None => (Some(Signal::SIGQUIT), residents),
            };
            for pid in receivers {
                // Fails if the process has just ended.
                let _ = kill(Pid::from_raw(pid), signal);
            }
            sleep(POLL);
        }
    }

    fn log_length(&self) -> u64 {
        fs::metadata(self.log()).map_or(0, |log| log.len())
    }

    fn failed(&self, program: &'static str, outcome: ExitStatus, from: u64) -> Error {
        let tail = self.tail(from);
        // Exit code 126 of the shell: the program could not be executed.
        match (outcome.code(), self.owner) {
            (Some(126), Some((user, _))) => Error::NotRunnable {
                programs: self.programs.clone(),
                user,
                tail,
            },
            _ => Error::Failed {
                program,
                outcome,
                log: self.log(),
                tail,
            },
        }
    }

    /// Returns the last lines of the log, starting at `from` at the earliest.
    fn tail(&self, from: u64) -> String {
        let mut bytes = Vec::new();
        // A failure to read the log must not hide the error that the lines are for.
        let _ = File::open(self.log()).and_then(|mut log| {
            log.seek(SeekFrom::Start(
                from.max(self.log_length().saturating_sub(4096)),
            ))?;
            log.read_to_end(&mut bytes)
        });
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().collect();
        lines
            .get(lines.len().saturating_sub(10)..)
            .unwrap_or_default()
            .join("\n")
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
