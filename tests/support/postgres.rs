//! Throwaway PostgreSQL for the whole test binary, with a database per test.
//!
//! Invariants:
//!
//! - No process and no file is left when the test process has ended, however it ended. `EmbeddedPostgres` ends the
//!   processes. A shell removes the folder when its pipe from the test process closes: Rust never drops a static.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Mutex as SyncMutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use pet_inventory::{
    config::Pooler,
    db,
    embedded_postgres::{Durability, EmbeddedPostgres, SearchPath},
};
use sqlx::{
    AssertSqlSafe, Connection as _, Executor as _, PgConnection,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use tokio::sync::{Mutex, OnceCell, Semaphore, SemaphorePermit};

static SERVER: OnceCell<Server> = OnceCell::const_new();
/// Held while a database is created: PostgreSQL copies a template no faster concurrently.
static CREATING: Mutex<()> = Mutex::const_new(());
/// Databases of finished tests, to be dropped before the next one is created.
static FINISHED: SyncMutex<Vec<String>> = SyncMutex::new(Vec::new());
/// Limits the databases in use, for any number of cores: PostgreSQL allows 100 connections.
static DATABASES: Semaphore = Semaphore::const_new(12);

const TEMPLATE: &str = "template_migrated";

struct Server {
    postgres: EmbeddedPostgres,
    _cleaner: Child,
}

impl Server {
    async fn get() -> &'static Self {
        SERVER.get_or_init(Self::start).await
    }

    async fn start() -> Self {
        let folder = tempfile::Builder::new()
            .prefix("pet-inventory-tests-")
            .tempdir_in(place_for_files())
            .expect("a temporary folder")
            .keep();
        let cleaner = spawn_folder_remover(&folder);
        let postgres = start_postgres(&folder).await;
        let options = postgres.connect_options();
        run(&options, &format!("create database {TEMPLATE}")).await;
        db::migrations::apply(&options.database(TEMPLATE), Pooler::None)
            .await
            .expect("the template is migrated");
        Self {
            postgres,
            _cleaner: cleaner,
        }
    }
}

/// Returns the folder for the server's files: in memory if that has room for the databases of a run. On a disk, creating and
/// dropping databases takes a third of the time of a run.
fn place_for_files() -> PathBuf {
    const ROOM: u128 = 1 << 30;
    let memory = PathBuf::from("/dev/shm");
    // The types of these numbers differ between systems.
    let free = nix::sys::statvfs::statvfs(&memory).map_or(0, |it| {
        u128::from(it.blocks_available()) * u128::from(it.fragment_size())
    });
    if free < ROOM {
        return std::env::temp_dir();
    }
    memory
}

/// Starts a throwaway PostgreSQL in a folder.
pub async fn start_postgres(folder: &Path) -> EmbeddedPostgres {
    EmbeddedPostgres::start(folder, &search_path(), Durability::Throwaway)
        .await
        .expect("a PostgreSQL for the tests")
}

/// Returns the search path for PostgreSQL's programs, the same as the service's.
#[expect(
    clippy::disallowed_methods,
    reason = "a test has no configuration that could tell"
)]
pub fn search_path() -> SearchPath {
    SearchPath {
        bin_dir: std::env::var_os("POSTGRES_BIN_DIR").map(PathBuf::from),
        path: std::env::var_os("PATH"),
    }
}

/// Starts a shell that removes a folder once this process has ended and PostgreSQL has stopped.
fn spawn_folder_remover(folder: &Path) -> Child {
    const REMOVE: &str = r#"
        trap '' INT TERM
        read -r _
        tries=0
        while [ -e "$1/postgres/postmaster.pid" ] && [ $((tries += 1)) -lt 200 ]; do sleep 0.1; done
        rm -rf "$1"
    "#;
    spawn_cleaner(REMOVE, folder)
}

/// Starts a shell script with this folder as its argument. Its input ends when this process does, even by SIGKILL.
pub fn spawn_cleaner(script: &str, folder: &Path) -> Child {
    use std::os::unix::process::CommandExt as _;
    Command::new("/bin/sh")
        .args(["-c", script, "cleaner"])
        .arg(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // The terminal's signals must not end it.
        .process_group(0)
        .spawn()
        .expect("a shell")
}

/// Runs one statement on a new connection.
pub async fn run(options: &PgConnectOptions, statement: &str) {
    let mut connection = PgConnection::connect_with(options)
        .await
        .expect("a connection");
    connection
        .execute(AssertSqlSafe(statement.to_owned()))
        .await
        .unwrap_or_else(|error| panic!("{statement}: {error}"));
    connection.close().await.expect("closed");
}

/// Database of one test, dropped when a later test creates one.
pub struct TestDatabase {
    /// Empty if another instance owns the database.
    name: String,
    options: PgConnectOptions,
    _permit: Option<SemaphorePermit<'static>>,
}

impl TestDatabase {
    /// Creates a database with the schema and no rows.
    pub async fn migrated() -> Self {
        Self::create(&format!("template {TEMPLATE}")).await
    }

    /// Creates a database without the schema.
    pub async fn empty() -> Self {
        Self::create("").await
    }

    async fn create(clause: &str) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        let permit = DATABASES.acquire().await.expect("never closed");
        let options = Server::get().await.postgres.connect_options();
        let _creating = CREATING.lock().await;
        let finished = std::mem::take(&mut *FINISHED.lock().expect("never poisoned"));
        for name in finished {
            run(&options, &format!("drop database {name} with (force)")).await;
        }
        let name = format!("test_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        run(&options, &format!("create database {name} {clause}")).await;
        Self {
            options: options.database(&name),
            name,
            _permit: Some(permit),
        }
    }

    /// Returns the same database, which `self` still owns.
    pub fn shared(&self) -> Self {
        Self {
            name: String::new(),
            options: self.options.clone(),
            _permit: None,
        }
    }

    /// Returns the options of a connection to the database.
    pub const fn options(&self) -> &PgConnectOptions {
        &self.options
    }

    /// Returns the URL of the database.
    pub fn url(&self) -> String {
        url(&self.options)
    }

    /// Opens a connection.
    pub async fn connect(&self) -> PgConnection {
        PgConnection::connect_with(&self.options)
            .await
            .expect("a connection")
    }

    /// Locks tables (in `access exclusive mode` if `tables` has no other) until the transaction or the connection ends.
    pub async fn lock(&self, tables: &str) -> PgConnection {
        let mut connection = self.connect().await;
        let lock = AssertSqlSafe(format!("begin; lock table {tables}"));
        connection.execute(lock).await.expect("a lock");
        connection
    }

    /// Runs one statement on a new connection.
    pub async fn run(&self, statement: &str) {
        run(&self.options, statement).await;
    }

    /// Returns the number of sessions that wait for a lock.
    pub async fn waiting_for_locks(&self) -> i64 {
        let waiting = "select count(*) from pg_stat_activity
                       where datname = current_database() and wait_event_type = 'Lock'";
        self.number(waiting).await
    }

    /// Returns the number that a query selects.
    pub async fn number(&self, query: &str) -> i64 {
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .connect_with(self.options.clone())
            .await
            .expect("a connection");
        let number = sqlx::query_scalar(AssertSqlSafe(query.to_owned()))
            .fetch_one(&pool)
            .await
            .unwrap_or_else(|error| panic!("{query}: {error}"));
        pool.close().await;
        number
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        if !self.name.is_empty()
            && let Ok(mut finished) = FINISHED.lock()
        {
            finished.push(std::mem::take(&mut self.name));
        }
    }
}

/// Settable clock of PostgreSQL: a `clock_timestamp` that precedes the real one in the search path.
pub struct TestClock {
    /// Database with this clock.
    pub database: TestDatabase,
    /// Connection that sets it.
    connection: Mutex<PgConnection>,
}

impl TestClock {
    /// Creates a clock that stands still at noon, for connections made after this call.
    pub async fn new(database: TestDatabase) -> Self {
        for statement in [
            "create schema test_clock",
            "create table test_clock.now (at timestamptz not null)",
            "insert into test_clock.now values ('2026-01-15T12:00:00Z')",
            "create function test_clock.clock_timestamp() returns timestamptz
             language sql volatile as 'select at from test_clock.now'",
        ] {
            database.run(statement).await;
        }
        let name = database.options.get_database().unwrap_or_default();
        let path =
            format!("alter database {name} set search_path = public, test_clock, pg_catalog");
        database.run(&path).await;
        let connection = Mutex::new(database.connect().await);
        Self {
            database,
            connection,
        }
    }

    /// Sets the time, in milliseconds since 1970.
    pub async fn set(&self, millis: i64) {
        let at = format!("to_timestamp({millis}::float8 / 1000)");
        self.run(&format!("update test_clock.now set at = {at}"))
            .await;
    }

    /// Advances the time.
    pub async fn advance(&self, by: std::time::Duration) {
        let by = by.as_micros();
        self.run(&format!(
            "update test_clock.now set at = at + {by} * interval '1 microsecond'"
        ))
        .await;
    }

    async fn run(&self, statement: &str) {
        let statement = AssertSqlSafe(statement.to_owned());
        let run = self.connection.lock().await.execute(statement).await;
        run.expect("the clock is set");
    }
}

/// Returns the URL of a database behind a Unix socket, independent of `PG…` environment variables.
pub fn url(options: &PgConnectOptions) -> String {
    url_at(
        options,
        options
            .get_socket()
            .expect("an embedded PostgreSQL has a socket"),
    )
}

/// Returns the same with another path of the socket's directory.
pub fn url_at(options: &PgConnectOptions, socket: &Path) -> String {
    format!(
        "postgres://postgres@localhost:5432/{}?host={}&sslmode=disable",
        options.get_database().unwrap_or("postgres"),
        socket.display(),
    )
}
