//! Starts `initdb` and `postgres` so that they end when this process does, and stops them.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::cluster::{Cluster, POLL};
use super::processes::has_proc;
use super::{Durability, Error};

/// Part of the socket's file name. No TCP port is opened.
pub(super) const PORT: u16 = 5432;

/// Shell script that becomes `initdb` or `postgres` (`exec`). Its child, the watcher, signals the program at end of
/// file on standard input: this process died or dropped the [`Postmaster`]. A line of input means instead that the
/// program has ended and its process id may have been reused. The watcher is orphaned on purpose: a postmaster takes
/// the death of an unknown child for a crash. It removes the socket directory once PostgreSQL has emptied it, and also
/// tries before the signal, as SIGKILL ends the watcher along with `initdb`.
const UNDER_WATCH: &str = r#"
signal=$1 socket=$2
shift 2
exec 3<&1 4<&0 >&2 </dev/null
(
    {
        trap '' INT
        read -r _ <&4 && exit
        rmdir "$socket"
        kill -s "$signal" -- "-$$"
        tries=0
        while [ -e "$socket" ] && [ $((tries += 1)) -lt 300 ]; do
            sleep 0.1
            rmdir "$socket"
        done
    } 2>/dev/null &
)
exec "$@" 4<&-
"#;

/// Running `postgres` or `initdb`. When dropped, the watcher stops it.
pub(super) struct Postmaster {
    child: Child,
    watcher: ChildStdin,
}

impl Cluster {
    pub(super) fn launch_postgres(&self, socket: &Path) -> Result<Postmaster, Error> {
        let sockets = format!("unix_socket_directories={}", socket.display());
        let port = format!("port={PORT}");
        let mut arguments = Vec::new();
        for setting in [
            sockets.as_str(),
            port.as_str(),
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
        ] {
            arguments.extend(["-c", setting]);
        }
        if self.durability == Durability::Throwaway {
            for setting in [
                "fsync=off",
                "synchronous_commit=off",
                "full_page_writes=off",
            ] {
                arguments.extend(["-c", setting]);
            }
        }
        self.launch("postgres", "INT", &self.data, socket, &arguments)
    }

    /// Starts a program on `data`. PostgreSQL gets the directory as an open file, not as a path: its user may have no
    /// access to the parent directories, and the path may be longer than PostgreSQL allows. The working directory is
    /// `/` because PostgreSQL returns to it by name after it has found its executable.
    pub(super) fn launch(
        &self,
        program: &'static str,
        signal: &str,
        data: &Path,
        socket: &Path,
        arguments: &[&str],
    ) -> Result<Postmaster, Error> {
        let folder = File::open(data).map_err(Error::io("open", data))?;
        let log = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(self.log())
            .map_err(Error::io("open", &self.log()))?;
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
            .stdout(folder)
            .stderr(log);
        if let Some((user, group)) = self.owner {
            command.uid(user).gid(group);
        }
        let mut child = command
            .spawn()
            .map_err(Error::io("run /bin/sh for", data))?;
        let watcher = child.stdin.take().ok_or(Error::Supervisor)?;
        Ok(Postmaster { child, watcher })
    }

    /// Stops PostgreSQL in fast mode, which ends its connections, or after 30 s without the last checkpoint.
    pub(super) fn stop(&self, mut postmaster: Postmaster) -> Result<(), Error> {
        let pid = postmaster.pid();
        for (signal, patience) in [(Signal::SIGINT, 30), (Signal::SIGQUIT, 10)] {
            // The process has not been reaped, so its id has not been reused.
            let _ = kill(Pid::from_raw(pid), signal);
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_secs(patience) {
                if postmaster.ended().is_some() {
                    return Ok(());
                }
                sleep(POLL);
            }
        }
        Err(Error::Unstoppable {
            folder: self.data.clone(),
            pid,
        })
    }
}

impl Postmaster {
    pub(super) fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Returns the exit status if the process has ended.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        // This process inherits an ignored SIGCHLD from its parent, and then exit statuses are unknown.
        let unknown = || Some(ExitStatus::from_raw(255 << 8));
        let status = self.child.try_wait().unwrap_or_else(|_| unknown())?;
        // Fails if the watcher was killed along with the program.
        let _ = self.watcher.write_all(b"\n");
        Some(status)
    }
}
