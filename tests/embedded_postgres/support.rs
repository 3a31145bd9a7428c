//! Test support for embedded PostgreSQL: a process to kill, a folder, and views from outside.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pet_inventory::embedded_postgres::{Durability, EmbeddedPostgres, SearchPath};
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, PgConnection};

pub(crate) const TIMEOUT: Duration = Duration::from_mins(1);

pub(crate) struct Holder {
    pub(crate) child: Child,
}

impl Holder {
    pub(crate) fn spawn(home: &Path, role: &str) -> Self {
        Self::run(
            &mut Command::new(std::env::current_exe().unwrap()),
            home,
            role,
        )
    }

    pub(crate) fn run(command: &mut Command, home: &Path, role: &str) -> Self {
        command
            .args(["--exact", "holder", "--ignored", "--nocapture"])
            .env("HOLD", home)
            .env("ROLE", role);
        Self {
            child: command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap(),
        }
    }

    /// Waits until it is ready; returns its socket directory.
    pub(crate) fn ready(&mut self) -> PathBuf {
        let lines = BufReader::new(self.child.stdout.as_mut().unwrap()).lines();
        let line = lines
            .map(Result::unwrap)
            .find(|line| line.starts_with("ready "))
            .expect("the holder is ready");
        line["ready ".len()..].into()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn end(&mut self) {
        drop(self.child.stdin.take());
        // Reads its remaining output, so that it can end.
        for _ in BufReader::new(self.child.stdout.as_mut().unwrap()).lines() {}
        assert!(self.child.wait().unwrap().success());
    }
}

/// Temporary folder, removed when dropped.
pub(crate) struct Home {
    pub(crate) path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Home {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Self {
            path: folder.path().to_owned(),
            _folder: folder,
        }
    }
}

pub(crate) fn search() -> SearchPath {
    SearchPath {
        bin_dir: std::env::var_os("POSTGRES_BIN_DIR").map(PathBuf::from),
        path: std::env::var_os("PATH"),
    }
}

pub(crate) async fn start(home: &Path) -> EmbeddedPostgres {
    EmbeddedPostgres::start(home, &search(), Durability::Durable)
        .await
        .unwrap()
}

pub(crate) fn options(socket: &Path) -> PgConnectOptions {
    PgConnectOptions::new_without_pgpass()
        .socket(socket)
        .username("postgres")
        .database("postgres")
}

pub(crate) async fn run(options: &PgConnectOptions, statement: &'static str) {
    let mut connection = options.connect().await.unwrap();
    run_on(&mut connection, statement).await;
    connection.close().await.unwrap();
}

pub(crate) async fn run_on(connection: &mut PgConnection, statement: &'static str) {
    sqlx::query(statement).execute(connection).await.unwrap();
}

pub(crate) async fn query_number(options: &PgConnectOptions, query: &'static str) -> i32 {
    let mut connection = options.connect().await.unwrap();
    let number = sqlx::query_scalar(query)
        .fetch_one(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
    number
}

fn pid_file(home: &Path) -> Vec<String> {
    let text = fs::read_to_string(home.join("postgres/postmaster.pid")).unwrap();
    text.lines().map(str::to_owned).collect()
}

pub(crate) fn postmaster_of(home: &Path) -> i32 {
    pid_file(home)[0].parse().unwrap()
}

pub(crate) fn socket_of(home: &Path) -> PathBuf {
    pid_file(home)[4].clone().into()
}

pub(crate) fn names(folder: &Path) -> Vec<String> {
    fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// Returns the other processes that have a file open below a folder: postmaster, backends, watcher, `initdb`.
pub(crate) fn processes_using(home: &Path) -> Vec<u32> {
    let processes = names(Path::new("/proc"))
        .into_iter()
        .filter_map(|name| name.parse().ok());
    let uses = |pid: &u32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd"))
            .into_iter()
            .flatten()
            .flatten();
        let mut targets = open.filter_map(|entry| fs::read_link(entry.path()).ok());
        *pid != std::process::id() && targets.any(|target| target.starts_with(home))
    };
    processes.filter(uses).collect()
}

pub(crate) async fn wait_until_unused(home: &Path) {
    let started = Instant::now();
    while !processes_using(home).is_empty() {
        assert!(
            started.elapsed() < TIMEOUT,
            "{:?} still run in {}",
            processes_using(home),
            home.display()
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
