//! The real program, in a folder of its own.

use std::{
    ffi::OsStr,
    fs::{self, File},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Output, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use reqwest::{Client, Method, RequestBuilder};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
};

use super::client;

/// How long anything may take that should be quick.
pub const SOON: Duration = Duration::from_secs(15);

/// A folder that the program works in, with nothing of the machine's environment but what finds PostgreSQL.
pub struct Home {
    folder: tempfile::TempDir,
}

impl Home {
    /// A new, empty one.
    pub fn new() -> Self {
        Self {
            folder: tempfile::tempdir().expect("a folder"),
        }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The program, to be run in here on free ports.
    #[allow(
        clippy::disallowed_methods,
        reason = "the program gets its environment from here"
    )]
    pub fn command<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pet-inventory"));
        command
            .args(arguments)
            .current_dir(self.path())
            .env_clear()
            .envs(
                std::env::vars_os()
                    .filter(|(name, _)| name == "PATH" || name == "POSTGRES_BIN_DIR"),
            )
            .env("PET_INVENTORY__SERVER__LISTEN", "127.0.0.1:0")
            .env("PET_INVENTORY__OPERATIONS__LISTEN", "127.0.0.1:0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Runs a command to its end.
    pub async fn run(&self, arguments: &[&str]) -> Said {
        Said::by(self.command(arguments)).await
    }

    /// Starts the service and waits until it is ready.
    pub async fn serve(&self) -> Service {
        Service::start(self, self.command(["serve"])).await
    }

    /// Waits until no process works in this folder any more.
    pub async fn nothing_runs(&self) {
        let begun = Instant::now();
        loop {
            let users = users_of(self.path());
            if users.is_empty() {
                return;
            }
            assert!(begun.elapsed() < SOON, "{users:?} still run");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// The processes, but for this one, that work in a folder or have something open in it, each with its name.
pub fn users_of(folder: &Path) -> Vec<(i32, String)> {
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    numbers
        .filter(|pid| pid.cast_unsigned() != std::process::id())
        .filter(|pid| {
            let open = fs::read_dir(format!("/proc/{pid}/fd"))
                .into_iter()
                .flatten()
                .flatten();
            let files = open.map(|entry| entry.path());
            files
                .chain([PathBuf::from(format!("/proc/{pid}/cwd"))])
                .filter_map(|link| fs::read_link(link).ok())
                .any(|target| target.starts_with(folder))
        })
        .map(|pid| {
            (
                pid,
                fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default(),
            )
        })
        .collect()
}

/// What a command said.
#[derive(Debug)]
pub struct Said {
    /// Its exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// What it was asked for.
    pub stdout: String,
    /// Everything else.
    pub stderr: String,
}

impl Said {
    /// Runs a command to its end.
    pub async fn by(mut command: Command) -> Self {
        let output = tokio::time::timeout(SOON, command.output()).await;
        let output: Output = output.expect("it ends").expect("the program");
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).expect("text"),
            stderr: String::from_utf8(output.stderr).expect("text"),
        }
    }

    /// Checks the exit code.
    #[track_caller]
    pub fn is(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }
}

/// The running service; killed when dropped.
pub struct Service {
    child: Child,
    log: PathBuf,
    /// What it said when it was ready.
    pub greeting: String,
    /// Where the API is.
    pub address: SocketAddr,
    /// Where the metrics are.
    pub operations: SocketAddr,
    client: Client,
}

impl Service {
    /// Starts it and waits until it is ready.
    pub async fn start(home: &Home, mut command: Command) -> Self {
        let log = home.path().join("service.log");
        command.stderr(
            File::options()
                .create(true)
                .append(true)
                .open(&log)
                .expect("a log"),
        );
        let mut child = command.spawn().expect("the program");
        let stdout = child.stdout.take().expect("piped");
        let mut lines = BufReader::new(stdout).lines();
        let mut greeting = String::new();
        while !["  Try ", "  Keys "]
            .iter()
            .any(|last| greeting.contains(last))
        {
            let line = tokio::time::timeout(SOON, lines.next_line()).await;
            let Some(line) = line.expect("it is ready soon").expect("text") else {
                panic!(
                    "it ended: {greeting}{}",
                    fs::read_to_string(&log).unwrap_or_default()
                );
            };
            greeting = format!("{greeting}{line}\n");
        }
        let address = |name: &str| {
            let url = greeting
                .lines()
                .find_map(|line| {
                    line.trim_start()
                        .strip_prefix(name)?
                        .trim()
                        .strip_prefix("http://")
                })
                .unwrap_or_else(|| panic!("no {name} in {greeting}"));
            let host = url.split('/').next().unwrap_or_default();
            host.parse()
                .unwrap_or_else(|error| panic!("{host}: {error}"))
        };
        Self {
            address: address("API"),
            operations: address("Metrics"),
            child,
            log,
            greeting,
            client: client(),
        }
    }

    /// Its process.
    pub fn pid(&self) -> Pid {
        let pid = self.child.id().expect("it runs");
        Pid::from_raw(pid.cast_signed())
    }

    /// A request with a key.
    pub fn request(&self, method: Method, path: &str, key: &str) -> RequestBuilder {
        let url = format!("http://{}/api/v3{path}", self.address);
        self.client.request(method, url).header("api_key", key)
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("it runs");
    }

    /// Waits for its end and gives its exit code.
    pub async fn ended(&mut self) -> Option<i32> {
        let status = tokio::time::timeout(SOON, self.child.wait()).await;
        let status = status.unwrap_or_else(|_| panic!("it does not end: {}", self.log()));
        status.expect("its status").code()
    }

    /// What it logged.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Stops it as an operator does.
    pub async fn stop(mut self) {
        self.signal(Signal::SIGTERM);
        let code = self.ended().await;
        assert_eq!(code, Some(0), "{}", self.log());
    }
}
