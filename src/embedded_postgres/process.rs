//! Running `initdb` or `postgres`, with a watcher that ends it when this process ends.
//!
//! Invariant: a data directory is locked while a process that uses it runs. All of them, and the watcher, inherit the
//! lock.

use std::fs::{self, File, TryLockError};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::error::Error;

/// Time limit for the processes of an earlier PostgreSQL to end. It exceeds the 20 s of [`UNDER_WATCH`].
const SETTLED: Duration = Duration::from_secs(30);

/// Shell script that becomes `initdb` or `postgres` (`exec`). Its standard output is the locked data directory, which
/// becomes file 3. Its child, the watcher, signals the program at end of file on standard input: this process died or
/// dropped the [`Process`]. After 20 s, it sends SIGQUIT, which skips the last checkpoint. Finally, it removes the
/// socket directory. It signals its own process group, so the id cannot have been reused. It is orphaned on purpose: a
/// postmaster takes the death of an unknown child for a crash.
pub(super) const UNDER_WATCH: &str = r#"
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

/// Running `postgres` or `initdb`. When it is dropped, its standard input closes, and the watcher stops it.
pub(super) struct Process(pub(super) Child);

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

/// Returns the process id of the PostgreSQL on a data directory, and its socket directory if it accepts connections, by
/// its `postmaster.pid`. A killed PostgreSQL leaves that file.
pub(super) fn postmaster(data: &Path) -> Option<(u32, Option<PathBuf>)> {
    let text = fs::read_to_string(data.join("postmaster.pid")).ok()?;
    let lines: Vec<_> = text.lines().map(str::trim_end).collect();
    // In single-user mode, the id is negative.
    let id = lines.first()?.parse::<i32>().ok()?.unsigned_abs();
    let is_ready = lines.get(7) == Some(&"ready");
    Some((id, is_ready.then(|| lines[4].into())))
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
