//! Runs the program in its own folder.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use reqwest::{Client, Method};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
};

use crate::{Call, PATIENCE, RequestExt as _, client};

/// Working folder of the program, which gets only `PATH` and `POSTGRES_BIN_DIR` of the environment.
pub struct Home {
    folder: tempfile::TempDir,
    variables: Vec<(&'static str, String)>,
}

impl Default for Home {
    fn default() -> Self {
        Self {
            folder: tempfile::tempdir().expect("a folder"),
            variables: Vec::new(),
        }
    }
}

impl Home {
    /// Creates an empty folder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty folder for commands on a database.
    pub fn on(database_url: String) -> Self {
        Self::default().with("DATABASE_URL", database_url)
    }

    /// Adds an environment variable of all commands.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: String) -> Self {
        self.variables.push((name, value));
        self
    }

    /// Writes a file of the folder.
    pub fn write(&self, name: &str, content: &(impl AsRef<[u8]> + ?Sized)) {
        fs::write(self.path().join(name), content).expect("a file");
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the command that runs the program in this folder on free ports.
    #[expect(
        clippy::disallowed_methods,
        reason = "the program gets its environment from here"
    )]
    pub fn command<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(program());
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
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Returns the command that runs a script with this command's program, arguments and environment as its own.
    pub fn in_shell<A: AsRef<OsStr>>(
        &self,
        script: &str,
        arguments: impl IntoIterator<Item = A>,
    ) -> Command {
        let inner = self.command(arguments);
        let inner = inner.as_std();
        let variables = inner.get_envs();
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", script])
            .arg(inner.get_program())
            .args(inner.get_args())
            .current_dir(self.path())
            .env_clear()
            .envs(variables.filter_map(|(name, value)| Some((name, value?))))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Runs a command to its end.
    pub async fn run(&self, arguments: &[&str]) -> Output {
        self.run_with(arguments, &[]).await
    }

    /// Runs a command to its end, with more environment variables.
    pub async fn run_with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
        let mut command = self.command(arguments);
        command.envs(variables.iter().copied());
        Output::of(command).await
    }

    /// Runs a command, which must exit with 1 and print a text on standard error.
    pub async fn refuses(&self, arguments: &[&str], text: &str) {
        self.run(arguments).await.is(1).stderr_has(text);
    }

    /// Starts the service and waits until it is ready.
    pub async fn serve(&self) -> Service {
        self.serve_with(&[]).await
    }

    /// Starts the service with more environment variables, and waits until it is ready.
    pub async fn serve_with(&self, variables: &[(&str, &str)]) -> Service {
        let mut command = self.command(["serve"]);
        command.envs(variables.iter().copied());
        Service::start(self, command).await
    }

    /// Waits until no process uses this folder.
    pub async fn wait_until_unused(&self) {
        let started = Instant::now();
        loop {
            let users = processes_using(self.path());
            if users.is_empty() {
                return;
            }
            assert!(started.elapsed() < PATIENCE, "{users:?} still run");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Returns the path of the program. Cargo builds it before a test binary and sets this variable while it runs one.
#[expect(
    clippy::disallowed_methods,
    reason = "a test has no configuration that could tell"
)]
fn program() -> OsString {
    ["", "-under-test"]
        .into_iter()
        .find_map(|suffix| std::env::var_os(format!("CARGO_BIN_EXE_pet-inventory{suffix}")))
        .expect("run the tests with cargo")
}

/// Returns a free address of this machine. The port is not reserved.
pub fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address")
}

/// Returns the id and name of each other process that works in a folder or has a file open in it.
pub fn processes_using(folder: &Path) -> Vec<(i32, String)> {
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

/// Output of a command.
#[derive(Debug)]
pub struct Output {
    /// Exit code, or `None` if a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Output {
    /// Runs a command to its end.
    pub async fn of(mut command: Command) -> Self {
        let output = tokio::time::timeout(PATIENCE, command.output()).await;
        let output = output.expect("it ends").expect("the program");
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

    /// Checks that a text is in standard output.
    #[track_caller]
    pub fn stdout_has(&self, text: &str) {
        assert!(self.stdout.contains(text), "no {text} in {self:?}");
    }

    /// Checks that a text is in standard error.
    #[track_caller]
    pub fn stderr_has(&self, text: &str) {
        assert!(self.stderr.contains(text), "no {text} in {self:?}");
    }
}

/// Running service; killed when dropped.
pub struct Service {
    child: Child,
    log: PathBuf,
    /// Standard output until the service was ready.
    pub startup_output: String,
    /// Address of the API.
    pub address: SocketAddr,
    /// Address of the operations listener.
    pub operations: SocketAddr,
    client: Client,
}

impl Service {
    /// Starts the service and waits until it is ready.
    pub async fn start(home: &Home, command: Command) -> Self {
        let log = home.path().join("service.log");
        let log = File::options().create(true).append(true).open(log);
        Self::start_with_log(home, command, log.expect("a log").into()).await
    }

    /// Starts the service with a place for its log lines, and waits until it is ready.
    pub async fn start_with_log(home: &Home, mut command: Command, lines: Stdio) -> Self {
        let log = home.path().join("service.log");
        command.stderr(lines);
        let mut child = command.spawn().expect("the program");
        let stdout = child.stdout.take().expect("piped");
        let mut lines = BufReader::new(stdout).lines();
        let mut startup_output = String::new();
        while !["  Try ", "  Keys "]
            .iter()
            .any(|last| startup_output.contains(last))
        {
            let line = tokio::time::timeout(PATIENCE, lines.next_line()).await;
            let Some(line) = line.expect("it is ready soon").expect("text") else {
                panic!(
                    "it ended: {startup_output}{}",
                    fs::read_to_string(&log).unwrap_or_default()
                );
            };
            startup_output = format!("{startup_output}{line}\n");
        }
        let address = |name: &str| {
            let url = startup_output
                .lines()
                .find_map(|line| {
                    line.trim_start()
                        .strip_prefix(name)?
                        .trim()
                        .strip_prefix("http://")
                })
                .unwrap_or_else(|| panic!("no {name} in {startup_output}"));
            let host = url.split('/').next().unwrap_or_default();
            host.parse()
                .unwrap_or_else(|error| panic!("{host}: {error}"))
        };
        Self {
            address: address("API"),
            operations: address("Metrics"),
            child,
            log,
            startup_output,
            client: client(),
        }
    }

    /// Returns the process id.
    pub fn pid(&self) -> Pid {
        let pid = self.child.id().expect("it runs");
        Pid::from_raw(pid.cast_signed())
    }

    /// Builds a request to a path of the API, with a key.
    pub fn request(&self, method: Method, path: &str, key: &str) -> Call {
        let url = format!("http://{}/api/v3{path}", self.address);
        let request = self.client.request(method, url);
        Call::from(request).header("api_key", key)
    }

    /// Returns the text of the metrics.
    pub async fn metrics(&self) -> String {
        let url = format!("http://{}/metrics", self.operations);
        self.client.get(url).is(200).await.text()
    }

    /// Returns the value of a series in the metrics, or `None` if there is none.
    pub async fn sample(&self, series: &str) -> Option<u64> {
        let metrics = self.metrics().await;
        let mut lines = metrics.lines();
        let value = lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
        Some(value.parse().expect("a whole number"))
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("it runs");
    }

    /// Waits for the exit and returns the exit code.
    pub async fn wait_for_exit(&mut self) -> Option<i32> {
        let status = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        let status = status.unwrap_or_else(|_| panic!("it does not end: {}", self.log()));
        status.expect("its status").code()
    }

    /// Returns the log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Stops the service with SIGTERM and checks that it exits with 0.
    pub async fn stop(mut self) {
        self.signal(Signal::SIGTERM);
        let code = self.wait_for_exit().await;
        assert_eq!(code, Some(0), "{}", self.log());
    }
}
