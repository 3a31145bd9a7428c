//! A PostgreSQL cluster of a row's own, to be killed, frozen or filled up.
//!
//! It listens on TCP, so that a proxy can be put in front. Its settings are those of production except `fsync = off`:
//! processes die in these tests, the machine does not.

use std::{
    os::unix::{fs::chown, process::CommandExt as _},
    process::{Child, Command},
};

use nix::{
    sys::signal::kill,
    unistd::{Uid, User},
};
use test_support::postgres::spawn_cleaner;
use test_support::*;

/// A PostgreSQL cluster, running or stopped.
pub struct Cluster {
    folder: PathBuf,
    pub address: SocketAddr,
    running: Option<Child>,
    settings: Vec<String>,
    _cleaner: Child,
}

impl Cluster {
    /// Creates and starts a cluster.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Creates and starts a cluster with additional settings.
    pub async fn start_with(settings: &[&str]) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("pet-inventory-faults-")
            .tempdir();
        Self::start_in(folder.expect("a folder").keep(), settings).await
    }

    /// Creates and starts a cluster in `folder` with additional settings.
    pub async fn start_in(folder: PathBuf, settings: &[&str]) -> Self {
        let mut cluster = Self::of(folder, settings);
        let data = cluster.data();
        let mut initdb = program("initdb");
        initdb.args([
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
            "-U",
            "postgres",
        ]);
        initdb.arg("-D").arg(&data).stdout(Stdio::null());
        assert!(initdb.status().expect("initdb").success(), "initdb failed");
        cluster.resume().await;
        cluster
    }

    /// Wraps a stopped cluster. Another program puts its data into `folder/data`.
    pub fn of(folder: PathBuf, settings: &[&str]) -> Self {
        chown_to_postgres(&folder);
        Self {
            _cleaner: spawn_cluster_stopper(&folder),
            folder,
            address: free_address(),
            running: None,
            settings: settings
                .iter()
                .map(|setting| (*setting).to_owned())
                .collect(),
        }
    }

    pub fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Starts the server without waiting for it.
    pub fn launch(&mut self) {
        let mut postgres = program("postgres");
        let port = format!("port={}", self.address.port());
        let settings = [
            port.as_str(),
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "max_connections=100",
        ];
        for setting in settings
            .iter()
            .copied()
            .chain(["fsync=off"])
            .chain(self.settings.iter().map(String::as_str))
        {
            postgres.args(["-c", setting]);
        }
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.join("log"));
        postgres
            .arg("-D")
            .arg(self.data())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.expect("a log"))
            .process_group(0);
        self.running = Some(postgres.spawn().expect("postgres"));
    }

    /// Starts the server and waits until it accepts connections.
    pub async fn resume(&mut self) {
        self.launch();
        self.accepts().await;
    }

    /// Waits until the server accepts connections.
    pub async fn accepts(&self) {
        let accepted = async {
            while self.try_connect("postgres").await.is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let accepted = tokio::time::timeout(PATIENCE, accepted).await;
        assert!(accepted.is_ok(), "{}", self.log());
    }

    /// Returns true if the server has stopped by itself.
    pub fn has_ended(&mut self) -> bool {
        let ended = self.running.as_mut().map(Child::try_wait);
        ended.is_none_or(|status| status.is_ok_and(|status| status.is_some()))
    }

    /// Kills all processes of the server with SIGKILL and waits until none is left.
    pub fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        // Again: the server may have been about to start one, which may wait for a lock of the killed ones for ever.
        self.reap(Some(Signal::SIGKILL));
    }

    /// Stops the server with SIGINT (fast shutdown).
    pub fn stop(&mut self) {
        if let Some(postgres) = &self.running {
            let _ = kill(pid(postgres), Signal::SIGINT);
        }
        self.reap(None);
    }

    /// Waits for the end of all processes of the server, and sends `signal` to those that are left.
    fn reap(&mut self, signal: Option<Signal>) {
        let Some(mut postgres) = self.running.take() else {
            return;
        };
        let all = with_children(pid(&postgres));
        postgres.wait().expect("its end");
        while all
            .iter()
            .any(|pid| kill(*pid, signal).is_ok() && !is_zombie(*pid))
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sends a signal to all processes of the server.
    pub fn signal(&self, signal: Signal) {
        if let Some(postgres) = &self.running {
            for pid in with_children(pid(postgres)) {
                let _ = kill(pid, signal);
            }
        }
    }

    /// Returns the URL of the database `postgres`.
    pub fn url(&self) -> String {
        url_at(self.address, "postgres")
    }

    pub async fn try_connect(&self, database: &str) -> Result<PgConnection, sqlx::Error> {
        let url = url_at(self.address, database);
        let connection = tokio::time::timeout(PATIENCE, PgConnection::connect(&url)).await;
        connection.map_err(|_| sqlx::Error::PoolTimedOut)?
    }

    /// Connects to the database `postgres`.
    pub async fn connect(&self) -> PgConnection {
        self.try_connect("postgres")
            .await
            .unwrap_or_else(|error| panic!("{error}: {}", self.log()))
    }

    /// Creates a key of a caller, with all scopes.
    pub async fn make_key(&self, caller: &str) -> TestKey {
        make_key(&mut self.connect().await, caller, Scopes::all(), None).await
    }

    pub async fn run(&self, statements: &str) {
        let mut connection = self.connect().await;
        let ran = sqlx::raw_sql(AssertSqlSafe(statements.to_owned()))
            .execute(&mut connection)
            .await;
        ran.unwrap_or_else(|error| panic!("{statements}: {error}"));
    }

    /// Runs a query that returns one number.
    pub async fn number(&self, question: &str) -> i64 {
        let mut connection = self.connect().await;
        sqlx::query_scalar(AssertSqlSafe(question.to_owned()))
            .fetch_one(&mut connection)
            .await
            .unwrap_or_else(|error| panic!("{question}: {error}"))
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
        if let Some(mut postgres) = self.running.take() {
            let _ = postgres.wait();
        }
    }
}

pub fn url_at(address: SocketAddr, database: &str) -> String {
    format!("postgres://postgres@{address}/{database}?sslmode=disable")
}

/// Returns a command for a program of PostgreSQL or PgBouncer, run as [`owner`] if this process is root's.
pub fn program(name: &str) -> Command {
    let search = postgres::search_path();
    let folders = search.bin_dir.into_iter().chain(
        search
            .path
            .iter()
            .flat_map(std::env::split_paths)
            .collect::<Vec<_>>(),
    );
    let debian = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let mut debian: Vec<_> = debian.map(|version| version.path().join("bin")).collect();
    debian.sort();
    debian.insert(0, "/usr/sbin".into());
    // Debian's folders come first: a wrapper of the same name in PATH may refuse root before it changes users.
    let found = debian
        .into_iter()
        .rev()
        .chain(folders)
        .map(|folder| folder.join(name));
    let found = found.into_iter().find(|path| path.exists());
    let mut command =
        Command::new(found.unwrap_or_else(|| panic!("no {name} here: run .ci/setup --all")));
    command.current_dir("/");
    if let Some(user) = owner() {
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
    }
    command
}

/// Returns the user to run PostgreSQL as, which refuses root, or `None` if this process is not root's.
pub fn owner() -> Option<User> {
    let named = |name| User::from_name(name).ok().flatten();
    Uid::effective()
        .is_root()
        .then(|| named("postgres").or(named("nobody")))
        .flatten()
}

/// Changes the owner of a folder to the user that PostgreSQL runs as.
pub fn chown_to_postgres(folder: &Path) {
    if let Some(user) = owner() {
        chown(folder, Some(user.uid.as_raw()), Some(user.gid.as_raw()))
            .expect("a folder of its own");
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id().cast_signed())
}

/// Returns a process and its children.
fn with_children(of: Pid) -> Vec<Pid> {
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let children =
        numbers.filter(|pid| stat(*pid).is_some_and(|(_, parent)| parent == of.as_raw()));
    [of].into_iter()
        .chain(children.map(Pid::from_raw))
        .collect()
}

/// Returns the state and the parent of a process.
fn stat(pid: i32) -> Option<(char, i32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut rest = stat.rsplit_once(") ")?.1.split(' ');
    Some((rest.next()?.chars().next()?, rest.next()?.parse().ok()?))
}

fn is_zombie(pid: Pid) -> bool {
    stat(pid.as_raw()).is_none_or(|(state, _)| state == 'Z')
}

/// Starts a shell that stops PostgreSQL and removes its folder when this process ends, even by SIGKILL.
fn spawn_cluster_stopper(folder: &Path) -> Child {
    const STOP: &str = r#"
        trap '' INT TERM
        read -r _
        if read -r pid 2>/dev/null <"$1/data/postmaster.pid"; then
            kill -CONT "-$pid"; kill -QUIT "$pid"
        fi 2>/dev/null
        tries=0
        while [ -e "$1/data/postmaster.pid" ] && kill -0 "$pid" && [ $((tries += 1)) -lt 50 ]; do
            sleep 0.1
        done 2>/dev/null
        rm -rf "$1"
    "#;
    spawn_cleaner(STOP, folder)
}
