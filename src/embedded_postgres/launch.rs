//! Starts `initdb` and `postgres` so that they end when this process does.
//!
//! Invariants:
//! - A data directory is locked while a process that uses it runs. All of them, and the watcher, inherit the lock.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::error::Error;

/// Time limit for the processes of an earlier PostgreSQL to end. It exceeds the 20 s of [`UNDER_WATCH`].
const SETTLED: Duration = Duration::from_secs(30);

/// Shell script that becomes `initdb` or `postgres` (`exec`). Its child, the watcher, signals the program at end of
/// file on standard input: this process died or dropped the [`Process`]. After 20 s, it sends SIGQUIT, which skips the
/// last checkpoint. Finally, it removes the socket directory. It signals its own process group, so the id cannot have
/// been reused. It is orphaned on purpose: a postmaster takes the death of an unknown child for a crash.
const UNDER_WATCH: &str = r#"
signal=$1 socket=$2
shift 2
exec 3<&1 4<&0 >&2 </dev/null
(
    {
        trap '' HUP INT QUIT TERM
        read -r _ <&4
        kill -s "$signal" -- "-$$"
        tries=0
        while kill -0 "$$" && [ $((tries += 1)) -lt 200 ]; do
            sleep 0.1
        done
        kill -s QUIT -- "-$$"
        rm -rf "$socket"
    } 2>/dev/null &
)
exec "$@" 4<&-
"#;

/// Locks a data directory for the next process that uses it, after those of an earlier PostgreSQL have ended. Their
/// watcher stops them.
pub(super) fn lock_data(path: &Path) -> Result<File, Error> {
    let file = File::open(path).map_err(Error::io("open", path))?;
    let locked = poll(SETTLED, || match file.try_lock() {
        Err(TryLockError::WouldBlock) => None,
        result => Some(result),
    });
    match locked {
        Some(Ok(())) => Ok(file),
        Some(Err(error)) => Err(Error::io("lock", path)(error.into())),
        None => Err(Error::Lingers {
            folder: path.to_owned(),
            seconds: SETTLED.as_secs(),
        }),
    }
}

/// Programs of PostgreSQL.
pub(super) struct Launcher {
    pub(super) programs: PathBuf,
    /// User and group to run them as if this process is root, which they refuse to run as.
    pub(super) owner: Option<(u32, u32)>,
    /// File for their output.
    pub(super) log: PathBuf,
}

impl Launcher {
    /// Starts a program on `data`: `postgres` with a socket directory, `initdb` without.
    ///
    /// The program gets the data directory as an open file, not as a path: its user may have no access to the parent
    /// directories, and the path may be longer than PostgreSQL allows. The working directory is `/` because PostgreSQL
    /// returns to it by name after it has found its executable.
    pub(super) fn launch(
        &self,
        program: &'static str,
        data: &Path,
        socket: Option<&Path>,
        arguments: &[&str],
    ) -> Result<Process, Error> {
        let locked = lock_data(data)?;
        let log = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&self.log)
            .map_err(Error::io("open", &self.log))?;
        // An unfinished cluster is worthless, so `initdb` needs no gentler signal.
        let (signal, socket) = socket.map_or(("KILL", Path::new("")), |socket| ("INT", socket));
        let handed_down = Path::new("/proc/self/fd/3");
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", UNDER_WATCH, "pet-inventory", signal])
            .arg(socket)
            .arg(self.programs.join(program))
            .arg("-D")
            .arg(if has_proc() { handed_down } else { data })
            .args(arguments)
            .current_dir("/")
            // Ctrl-C in the terminal must not reach PostgreSQL, because the service drains first.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(locked)
            .stderr(log);
        if let Some((user, group)) = self.owner {
            command.uid(user).gid(group);
        }
        command
            .spawn()
            .map(Process)
            .map_err(Error::io("run /bin/sh for", data))
    }
}

/// Returns false on macOS.
pub(super) fn has_proc() -> bool {
    Path::new("/proc/self/fd").exists()
}

/// Running `postgres` or `initdb`. When it is dropped, its standard input closes, and the watcher stops it.
pub(super) struct Process(Child);

impl Process {
    pub(super) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Returns the exit status if the process has ended. It is unknown if this process inherited an ignored SIGCHLD.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.0.try_wait();
        status.unwrap_or_else(|_| Some(ExitStatus::from_raw(255 << 8)))
    }

    /// Makes the watcher stop the process, and waits until it has ended.
    pub(super) fn stop(mut self) {
        drop(self.0.stdin.take());
        // The watcher may have been killed. The child has not been waited for, so the id is still its own.
        if self.ended().is_none() {
            let _ = kill(Pid::from_raw(self.id().cast_signed()), Signal::SIGINT);
        }
        // Fetches the exit status, for which the watcher waits.
        poll(SETTLED, || self.ended());
    }
}

/// Repeats `attempt` until it returns a value, or returns `None` after `limit`.
pub(super) fn poll<T>(limit: Duration, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    let begun = Instant::now();
    loop {
        let result = attempt();
        if result.is_some() || begun.elapsed() > limit {
            return result;
        }
        thread::sleep(Duration::from_millis(5));
    }
}
