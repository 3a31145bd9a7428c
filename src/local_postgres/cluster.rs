//! The database cluster in a folder: made whole or not at all, and started under a watcher that outlives us.
//! Nothing here starts a Postgres while another one, or an orphan of one, is at work in the same data.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Child, ChildStdin, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User, geteuid};

use super::find::{SearchPath, programs};
use super::{Durability, Error};

/// It only names the socket's file: no port is opened.
pub(super) const PORT: u16 = 5432;

const POLL: Duration = Duration::from_millis(5);
/// Recovery after a crash can take a while; Postgres that is at it is not broken.
const READY: Duration = Duration::from_mins(1);
/// How long an earlier Postgres may take to end, and how long it may do so in peace.
const SETTLED: Duration = Duration::from_secs(10);
const PEACE: Duration = Duration::from_secs(5);
const LONGEST_LOG: u64 = 10 * 1024 * 1024;

/// The folder of an `initdb` at work: this and the process id.
const UNFINISHED: &str = "postgres.unfinished-";

/// `initdb` or `postgres` replaces this shell; its child, the watcher, waits for the end of file that our death is.
/// A line says that the program has ended, and is for the case that its process id is somebody else's by now. The
/// watcher is orphaned on purpose: a postmaster takes the death of a child that it does not know for a crash.
const UNDER_WATCH: &str = r#"
signal=$1 socket=$2
shift 2
exec 3<&1 4<&0 >&2 </dev/null
(
    {
        trap '' INT
        read -r _ <&4 && exit
        kill -s "$signal" -- "-$$"
        tries=0
        while kill -0 "$$" && [ $((tries += 1)) -lt 100 ]; do sleep 0.1; done
        rmdir "$socket"
    } 2>/dev/null &
)
exec "$@" 4<&-
"#;

pub(super) struct Cluster {
    directory: PathBuf,
    data: PathBuf,
    programs: PathBuf,
    durability: Durability,
    /// Whom Postgres runs as when we are root, which it refuses to run as; else it runs as we do.
    pub(super) owner: Option<(u32, u32)>,
}

/// A running `postgres` (or `initdb`), stopped by the watcher when this is dropped.
pub(super) struct Postmaster {
    child: Child,
    watcher: ChildStdin,
}

impl Cluster {
    pub(super) fn find(
        directory: PathBuf,
        search: &SearchPath,
        durability: Durability,
    ) -> Result<Self, Error> {
        let data = directory.join("postgres");
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

    /// Makes the cluster unless it is there. It is made under another name: a folder called `postgres` is complete.
    pub(super) fn initialize(&self) -> Result<(), Error> {
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
                .map_err(Error::io("give away", &unfinished))?;
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
        // Nothing of an `initdb` without us is worth keeping, hence no gentler signal.
        let mut initdb = self.launch("initdb", "KILL", &unfinished, Path::new(""), &arguments)?;
        let status = loop {
            match initdb
                .child
                .try_wait()
                .map_err(Error::io("wait for initdb in", &unfinished))?
            {
                Some(status) => break status,
                None => sleep(POLL),
            }
        };
        initdb.dismiss_watcher();
        if !status.success() {
            let _ = fs::remove_dir_all(&unfinished);
            return Err(self.failed("initdb", format!("failed ({status})"), from));
        }
        fs::rename(&unfinished, &self.data)
            .map_err(Error::io("put a new database at", &self.data))?;
        File::open(&self.directory)
            .and_then(|directory| directory.sync_all())
            .map_err(Error::io("sync", &self.directory))
    }

    /// Removes what an `initdb` left that was killed halfway. It may be dying just now and still write.
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

    /// Starts Postgres and returns when it takes connections.
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
                // An earlier postmaster whose holder was killed as it began shows itself only now.
                if self.residents().is_empty() || begun.elapsed() > SETTLED {
                    return Err(self.failed(
                        "postgres",
                        format!("did not start ({outcome})"),
                        from,
                    ));
                }
                self.settle()?;
                postmaster = self.launch_postgres(socket)?;
            }
            let pid = postmaster.pid();
            if PidFile::read(&self.directory).is_some_and(|file| file.ready && file.pid == pid) {
                return Ok(postmaster);
            }
            if begun.elapsed() > READY {
                self.stop(postmaster)?;
                let outcome = format!("was not ready after {} s and was stopped", READY.as_secs());
                return Err(self.failed("postgres", outcome, from));
            }
            sleep(POLL);
        }
    }

    pub(super) fn launch_postgres(&self, socket: &Path) -> Result<Postmaster, Error> {
        let sockets = format!("unix_socket_directories={}", socket.display());
        let port = format!("port={PORT}");
        let mut arguments = Vec::new();
        for setting in [
            sockets.as_str(),
            port.as_str(),
            "listen_addresses=",
            "max_connections=100",
            "shared_buffers=128MB",
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

    /// Postgres gets its folder as an open file, not as a path: so the folders above it may be closed to the user
    /// that it runs as, and the path may be longer than Postgres takes. Its working directory is `/` because it goes
    /// back to it by name when it has found its own program.
    fn launch(
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

    /// Stops Postgres: fast, which ends its connections, and if that takes too long without the last checkpoint.
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

    /// Returns when nothing works in the data any more. Only the holder of the folder's lock may call it: whatever is
    /// found has lost its holder, and is ended.
    pub(super) fn settle(&self) -> Result<(), Error> {
        let begun = Instant::now();
        loop {
            let residents = self.residents();
            let postmaster = PidFile::read(&self.directory).map(|file| file.pid);
            if residents.is_empty() {
                if postmaster.is_some_and(is_alive) {
                    // Somebody else's process by now, but Postgres would believe the file.
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
            // A process that we only suspect is left alone.
            let (signal, receivers) = match postmaster {
                _ if !has_proc() => (None, Vec::new()),
                Some(postmaster) => (Some(Signal::SIGINT), vec![postmaster]),
                None => (Some(Signal::SIGQUIT), residents),
            };
            for pid in receivers {
                // It may end this moment.
                let _ = kill(Pid::from_raw(pid), signal);
            }
            sleep(POLL);
        }
    }

    /// The processes of Postgres whose home is this data: each works in the data's folder. Without `/proc`, the one
    /// that the data itself names.
    fn residents(&self) -> Vec<i32> {
        if !has_proc() {
            return PidFile::read(&self.directory)
                .map(|file| file.pid)
                .filter(|pid| is_alive(*pid))
                .into_iter()
                .collect();
        }
        let Ok(home) = fs::metadata(&self.data) else {
            return Vec::new();
        };
        let lives_here = |pid: &i32| {
            fs::metadata(format!("/proc/{pid}/cwd"))
                .is_ok_and(|folder| (folder.dev(), folder.ino()) == (home.dev(), home.ino()))
                && fs::read_to_string(format!("/proc/{pid}/comm"))
                    .is_ok_and(|name| name.trim() == "postgres")
        };
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        processes
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(lives_here)
            .collect()
    }

    fn log_length(&self) -> u64 {
        fs::metadata(self.log()).map_or(0, |log| log.len())
    }

    fn failed(&self, program: &'static str, outcome: String, from: u64) -> Error {
        let log = self.log();
        let mut bytes = Vec::new();
        let _ = File::open(&log).and_then(|mut file| {
            let start = from.max(self.log_length().saturating_sub(4096));
            file.seek(SeekFrom::Start(start))
                .and_then(|_| file.read_to_end(&mut bytes))
        });
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines
            .get(lines.len().saturating_sub(10)..)
            .unwrap_or_default()
            .join("\n");
        Error::Failed {
            program,
            outcome,
            log,
            tail,
        }
    }
}

impl Postmaster {
    fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// How it ended, if it did.
    pub(super) fn ended(&mut self) -> Option<String> {
        let outcome = match self.child.try_wait() {
            Ok(status) => status?.to_string(),
            Err(error) => error.to_string(),
        };
        self.dismiss_watcher();
        Some(outcome)
    }

    fn dismiss_watcher(&mut self) {
        // It may have been killed along with what it watched.
        let _ = self.watcher.write_all(b"\n");
    }
}

/// What Postgres says of itself in `postmaster.pid`.
pub(super) struct PidFile {
    pid: i32,
    socket: PathBuf,
    ready: bool,
}

impl PidFile {
    /// `None` when it is missing or not complete yet.
    pub(super) fn read(directory: &Path) -> Option<Self> {
        let text = fs::read_to_string(directory.join("postgres/postmaster.pid")).ok()?;
        let mut lines = text.lines();
        Some(Self {
            pid: lines.next()?.trim().parse().ok()?,
            socket: lines.nth(3).unwrap_or_default().into(),
            ready: lines.nth(2).is_some_and(|status| status.trim() == "ready"),
        })
    }

    /// Whether it is alive, ready, and the one that was started with this socket directory.
    pub(super) fn serves(&self, socket: &Path) -> bool {
        self.ready && self.socket == socket && is_alive(self.pid)
    }
}

fn has_proc() -> bool {
    Path::new("/proc/self/fd").exists()
}

fn is_alive(pid: i32) -> bool {
    kill(Pid::from_raw(pid), None) != Err(nix::errno::Errno::ESRCH)
}

/// Data that is there belongs to whoever ran it before.
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
