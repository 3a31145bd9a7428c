//! Finds the processes that use a cluster's data.
//!
//! Invariants:
//! - Where there is `/proc`, a process id from a file is verified, as it may have been reused.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

/// Content of PostgreSQL's `postmaster.pid`.
pub(super) struct PidFile {
    pub(super) pid: i32,
    socket: PathBuf,
    pub(super) ready: bool,
}

impl PidFile {
    /// Returns `None` if the file is missing or incomplete.
    pub(super) fn read(data: &Path) -> Option<Self> {
        let text = fs::read_to_string(data.join("postmaster.pid")).ok()?;
        let mut lines = text.lines();
        Some(Self {
            pid: lines.next()?.trim().parse().ok()?,
            socket: lines.nth(3).unwrap_or_default().into(),
            ready: lines.nth(2).is_some_and(|status| status.trim() == "ready"),
        })
    }

    /// Returns true if PostgreSQL is alive, ready, and was started with this socket directory.
    pub(super) fn serves(&self, socket: &Path) -> bool {
        self.ready && self.socket == socket && is_alive(self.pid)
    }
}

/// Returns the PostgreSQL processes with the data directory as working directory. Without `/proc`, returns the one that
/// `postmaster.pid` names.
pub(super) fn residents(data: &Path) -> Vec<i32> {
    if !has_proc() {
        let named = PidFile::read(data).map(|file| file.pid);
        return named.into_iter().filter(|pid| is_alive(*pid)).collect();
    }
    let Ok(home) = fs::metadata(data) else {
        return Vec::new();
    };
    let lives_here = |pid: &i32| {
        fs::metadata(format!("/proc/{pid}/cwd"))
            .is_ok_and(|folder| (folder.dev(), folder.ino()) == (home.dev(), home.ino()))
            // A shell may also have this working directory.
            && fs::read_to_string(format!("/proc/{pid}/comm"))
                .is_ok_and(|name| name.trim() == "postgres")
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(lives_here)
        .collect()
}

/// Returns true on Linux. macOS has no `/proc`.
pub(super) fn has_proc() -> bool {
    Path::new("/proc/self/fd").exists()
}

pub(super) fn is_alive(pid: i32) -> bool {
    kill(Pid::from_raw(pid), None) != Err(Errno::ESRCH)
}
