//! Starts `initdb` and `postgres` so that they end when we do, and stops them.

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

/// It only names the socket's file: no port is opened.
pub(super) const PORT: u16 = 5432;

/// `initdb` or `postgres` replaces this shell; its child, the watcher, waits for the end of file
/// that our death is. A line says that the program has ended, and is for the case that its process
/// id is somebody else's by now. The watcher is orphaned on purpose: a postmaster takes the death
/// of a child that it does not know for a crash. It removes the socket directory when Postgres has
/// emptied it, and tries before the signal too, as SIGKILL ends the watcher along with `initdb`.
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

/// A running `postgres` (or `initdb`), stopped by the watcher when this is dropped.
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
            // Those of a process on dozens of cores, and a person's.
            "max_connections=300",
            // Taken page by page as there is data: a million pets have room.
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

    /// Postgres gets its folder as an open file, not as a path: so the folders above it may be
    /// closed to the user that it runs as, and the path may be longer than Postgres takes. Its
    /// working directory is `/` because it goes back to it by name when it has found its own
    /// program.
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
            // Out of the terminal's reach: on Ctrl-C the service drains first.
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

    /// Stops Postgres: fast, which ends its connections, and if that takes too long without the
    /// last checkpoint.
    pub(super) fn stop(&self, mut postmaster: Postmaster) -> Result<(), Error> {
        let pid = postmaster.pid();
        for (signal, patience) in [(Signal::SIGINT, 30), (Signal::SIGQUIT, 10)] {
            // Not reaped yet, so the number is still its own.
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

    /// How it ended, if it did.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        // A parent that ignored SIGCHLD has us inherit that, and then nobody learns how a child
        // ended.
        let unknown = || Some(ExitStatus::from_raw(255 << 8));
        let status = self.child.try_wait().unwrap_or_else(|_| unknown())?;
        // The watcher may have been killed along with what it watched.
        let _ = self.watcher.write_all(b"\n");
        Some(status)
    }
}
