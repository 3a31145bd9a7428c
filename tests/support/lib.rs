//! Test harness: the service on free ports with a database of its own, requests to it, and checks of its responses. Tests import
//! all of it, with what most of them need of other crates: `use test_support::*`.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "the harness fails a test by a panic"
)]

pub mod call;
pub mod document;
pub mod events;
pub mod images;
pub mod issuer;
pub mod load;
pub mod mock_http;
pub mod pets;
pub mod postgres;
pub mod process;
pub mod raw;
pub mod receiver;
pub mod response;
pub mod signer;

use std::ffi::OsString;
pub use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fs,
    net::{IpAddr, SocketAddr},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, AtomicUsize},
    },
    time::{Duration, Instant},
};

pub use chrono::{DateTime, Utc};
pub use futures_util::future::join_all;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
pub use nix::{
    sys::signal::Signal,
    unistd::{Pid, geteuid},
};
pub use pet_inventory::{
    api::state::Links,
    auth::secret::Secret,
    db::credentials::CredentialKind,
    domain::{
        caller::{Scope, Scopes},
        change::Initiator,
        clock::Clock,
        id::PetId,
        plan::Plan,
    },
    server::Shutdown,
};
use pet_inventory::{
    app::{self, App},
    config::{CommandLine, Config},
    db::{self, Connection, credentials::NewCredential},
    domain::{caller::CallerName, id::CredentialId},
};
use reqwest::{Body, Request, RequestBuilder};
pub use reqwest::{Client, Method};
pub use serde_json::{Value, json};
pub use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use tokio::task::JoinHandle;
pub use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    task::JoinSet,
};
pub use tokio_util::sync::CancellationToken;
pub use wiremock::{Mock, ResponseTemplate};

pub use self::{
    call::{Call, send_all, statuses_of},
    events::Events,
    images::{
        MARKER, files_in, gif, jpeg, large_jpeg, lossy_webp, png, png_chunk, riff, rotated_jpeg,
        still_webp, transparent_png, vp8_chunk, webp, webp_animation, webp_chunk, webp_frame,
    },
    issuer::Issuer,
    mock_http::MockHttp,
    pets::{UNKNOWN_PET, marked_pet, pet_of_size, requests_of_each_kind},
    postgres::{TestDatabase, start_postgres},
    process::{Home, Output, Service, free_address},
    raw::{RawConnection, connect_from, request_unread},
    receiver::{Message, Receiver},
    response::{RequestExt, Response},
    signer::Signer,
};

/// Running service; stops when dropped.
pub struct TestApp {
    /// Address of the API.
    pub address: SocketAddr,
    /// Address of the operations listener.
    pub operations: SocketAddr,
    /// API key with all scopes.
    pub key: String,
    /// Database of the service.
    pub database: TestDatabase,
    client: Client,
    shutdown: Shutdown,
    running: JoinHandle<()>,
}

impl TestApp {
    /// Starts the service with the default configuration.
    pub async fn start() -> Self {
        Self::with(&[]).await
    }

    /// Starts the service with environment variables over the defaults.
    pub async fn with(settings: &[(&str, &str)]) -> Self {
        Self::on(TestDatabase::migrated().await, settings).await
    }

    /// Starts the service on a database.
    pub async fn on(database: TestDatabase, settings: &[(&str, &str)]) -> Self {
        Self::with_clock(database, settings, Clock::system()).await
    }

    /// Starts the service with a clock that stands still: no limit is refilled, however slow the machine is.
    pub async fn with_stopped_clock(settings: &[(&str, &str)]) -> Self {
        let database = TestDatabase::migrated().await;
        Self::with_clock(database, settings, Clock::manual()).await
    }

    /// Starts the service on a database with a clock.
    pub async fn with_clock(
        database: TestDatabase,
        settings: &[(&str, &str)],
        clock: Clock,
    ) -> Self {
        let config = config(&database.url(), settings);
        Self::configured(database, config, clock).await
    }

    /// Starts the service on a database with a configuration and a clock.
    pub async fn configured(database: TestDatabase, config: Config, clock: Clock) -> Self {
        let app = build_with(config, clock).await;
        let mut connection = database.connect().await;
        let key = make_key(&mut connection, "tester", Scopes::all(), None).await;
        Self {
            address: app.local_addr().tcp().expect("a TCP socket"),
            operations: app.operations_addr().tcp().expect("a TCP socket"),
            key: key.secret,
            database,
            client: client(),
            shutdown: Shutdown::default(),
            running: tokio::spawn(async {}),
        }
        .running(app)
    }

    /// Starts a second replica on the database of `first`, which must outlive it.
    pub async fn replica_of(first: &Self, settings: &[(&str, &str)]) -> Self {
        Self::on(first.database.shared(), settings).await
    }

    fn running(mut self, app: App) -> Self {
        let shutdown = self.shutdown.clone();
        self.running = tokio::spawn(async move {
            app.run(shutdown).await.expect("a clean stop");
        });
        self
    }

    /// Returns the URL of a path of the API.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}/api/v3{path}", self.address)
    }

    /// Builds a request to any path of the host, without a credential.
    pub fn bare(&self, method: Method, path: &str) -> Call {
        let url = format!("http://{}{path}", self.address);
        self.client.request(method, url).into()
    }

    /// Builds a request to a path of the API, without a credential.
    pub fn anonymous(&self, method: Method, path: &str) -> Call {
        self.client.request(method, self.url(path)).into()
    }

    /// Builds a request to a path of the API, with a key.
    pub fn with_key(&self, key: &str, method: Method, path: &str) -> Call {
        self.anonymous(method, path).header("api_key", key)
    }

    /// Builds a request to a path of the API, with [`TestApp::key`].
    pub fn request(&self, method: Method, path: &str) -> Call {
        self.with_key(&self.key, method, path)
    }

    /// Sends a request and reads the whole response.
    pub async fn execute(&self, request: Request) -> Response {
        RequestBuilder::from_parts(self.client.clone(), request)
            .response()
            .await
    }

    /// Builds a GET with [`TestApp::key`].
    pub fn get(&self, path: &str) -> Call {
        self.request(Method::GET, path)
    }

    /// Builds a POST of JSON with [`TestApp::key`].
    pub fn post(&self, path: &str, body: &Value) -> Call {
        self.request(Method::POST, path).json(body)
    }

    /// Builds a PUT of JSON with [`TestApp::key`].
    pub fn put(&self, path: &str, body: &Value) -> Call {
        self.request(Method::PUT, path).json(body)
    }

    /// Builds a PATCH of a merge patch with [`TestApp::key`].
    pub fn patch(&self, path: &str, body: &Value) -> Call {
        self.request(Method::PATCH, path)
            .header("content-type", "application/merge-patch+json")
            .body(body.to_string())
    }

    /// Builds a DELETE with [`TestApp::key`].
    pub fn delete(&self, path: &str) -> Call {
        self.request(Method::DELETE, path)
    }

    /// Builds an upload of an image for a pet.
    pub fn upload(&self, pet: i64, bytes: impl Into<Body>) -> Call {
        self.request(Method::POST, &format!("/pet/{pet}/uploadImage"))
            .header("content-type", "application/octet-stream")
            .body(bytes)
    }

    /// Creates an account with [`PASSWORD`], as a person does; returns its id.
    pub async fn sign_up(&self, username: &str) -> i64 {
        let request = self.anonymous(Method::POST, "/user");
        request.json(&account(username)).is(201).await.id()
    }

    /// Logs in to an account with [`PASSWORD`]; returns the token of the session.
    pub async fn log_in(&self, username: &str) -> String {
        let request = self.anonymous(Method::POST, "/user/login");
        let token = request.json(&account(username)).is(200).await.json();
        token.as_str().expect("a token").to_owned()
    }

    /// Adds a pet and returns its id.
    pub async fn pet(&self, name: &str) -> i64 {
        let pet = json!({ "name": name });
        self.post("/pet", &pet).is(201).await.id()
    }

    /// Adds a pet named Rex with an id.
    pub async fn add_pet(&self, id: i64) {
        let pet = json!({"id": id, "name": "Rex"});
        self.post("/pet", &pet).is(201).await;
    }

    /// Adds pets with the ids from 1 to `count`.
    pub async fn add_pets(&self, count: i64) {
        for id in 1..=count {
            self.add_pet(id).await;
        }
    }

    /// Creates a key, and its caller if there is none of that name.
    pub async fn make_key(&self, caller: &str, scopes: Scopes) -> TestKey {
        make_key(&mut self.database.connect().await, caller, scopes, None).await
    }

    /// Returns the number of stored pets.
    pub async fn count(&self) -> usize {
        let count = self.database.number("select count(*) from pets").await;
        usize::try_from(count).expect("a number of rows")
    }
}

impl Drop for TestApp {
    fn drop(&mut self) {
        self.shutdown.force();
        self.running.abort();
    }
}

/// Returns the root folder of the repository.
pub fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Returns a client builder with a crypto provider, without which reqwest panics, and without trusted certificates:
/// no test uses TLS.
pub fn client_builder() -> reqwest::ClientBuilder {
    let _ = rustls::crypto::ring::default_provider().install_default();
    // Half of the time for which the service keeps them: a request must not meet a connection that is being closed, even if
    // this process is late.
    let idle = Duration::from_secs(5);
    Client::builder().tls_certs_only([]).pool_idle_timeout(idle)
}

/// Returns a client without proxies and redirects.
pub fn client() -> Client {
    client_builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .expect("a client")
}

/// Builds the service on a database with environment variables over the defaults.
pub async fn build(database_url: &str, settings: &[(&str, &str)]) -> App {
    build_with(config(database_url, settings), Clock::system()).await
}

/// Lets this process, and those that it starts, open as many files as the machine allows.
pub fn raise_file_limit() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("more files");
}

/// Builds the service with a configuration and a clock.
async fn build_with(config: Config, clock: Clock) -> App {
    let build = async || {
        let operations = pet_inventory::api::operations();
        Box::pin(App::build_with(config.clone(), clock.clone(), operations)).await
    };
    let mut service = build().await;
    // PostgreSQL may not answer in time on a machine that also runs browsers. A supervisor would start the service again, too.
    for _ in 0..2 {
        if !matches!(service, Err(app::Error::Database(db::Error::TimedOut))) {
            break;
        }
        service = build().await;
    }
    service.expect("a service")
}

/// Returns a configuration for tests, with environment variables over the defaults.
pub fn config(database_url: &str, settings: &[(&str, &str)]) -> Config {
    config_over(database_url, settings, None)
}

/// Returns the same over a file, which can have settings that environment variables cannot express.
pub fn config_over(database_url: &str, settings: &[(&str, &str)], file: Option<&Path>) -> Config {
    let common = [
        ("PET_INVENTORY__SERVER__LISTEN", "127.0.0.1:0"),
        ("PET_INVENTORY__OPERATIONS__LISTEN", "127.0.0.1:0"),
        ("PET_INVENTORY__DATABASE__MAX_CONNECTIONS", "5"),
        // Generous, because a machine that also builds is slow.
        ("PET_INVENTORY__DATABASE__ACQUIRE_TIMEOUT", "1m"),
        ("PET_INVENTORY__SERVER__REQUEST_TIMEOUT", "2m"),
        ("PET_INVENTORY__SERVER__IDLE_TIMEOUT", "5m"),
        ("DATABASE_URL", database_url),
    ];
    let variables = common
        .iter()
        .chain(settings)
        .map(|(name, value)| (OsString::from(name), OsString::from(value)));
    let command_line = CommandLine {
        file: file.map(Path::to_owned),
        ..CommandLine::default()
    };
    Config::from_layers(&command_line, variables).expect("a valid configuration")
}

/// API key.
#[derive(Debug, Clone)]
pub struct TestKey {
    /// Identifier, as `keys list` prints it.
    pub id: CredentialId,
    /// The key itself.
    pub secret: String,
}

/// Creates a key with `scopes` as `keys create` does, for a caller with all scopes.
pub async fn make_key(
    connection: &mut Connection,
    caller: &str,
    scopes: Scopes,
    expires_at: Option<DateTime<Utc>>,
) -> TestKey {
    let name: CallerName = caller.parse().expect("the name of a caller");
    let inserted = db::callers::insert(
        &mut *connection,
        &name,
        Plan::Enterprise,
        Scopes::all(),
        &Initiator::operator(),
    )
    .await
    .expect("a database");
    let caller = match inserted {
        Some(caller) => caller,
        None => {
            let known = db::callers::find(&mut *connection, &name).await;
            known.expect("a database").expect("the caller").id
        }
    };
    let key = Secret::generate(CredentialKind::ApiKey).expect("random numbers");
    let credential = NewCredential {
        caller,
        hash: key.hash(),
        hint: key.hint(),
        client_id: None,
        name: None,
        scopes: Some(scopes),
        expires_at,
    };
    let id = db::credentials::insert(connection, credential, &Initiator::operator()).await;
    TestKey {
        id: id.expect("a database").expect("a new key"),
        secret: key.expose().to_owned(),
    }
}

/// Password of the accounts that tests create.
pub const PASSWORD: &str = "correct horse battery staple";

/// Returns the username and the password of an account.
pub fn account(username: &str) -> Value {
    json!({"username": username, "password": PASSWORD})
}

/// Time after which a test gives up waiting. It is no bound on the service: a slow or busy machine takes long for
/// everything. What the service promises about time, CPU and memory is measured by `tests/system/faults`.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// Waits for a condition, for at most [`PATIENCE`].
pub async fn eventually(mut condition: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !condition().await {
        assert!(started.elapsed() < PATIENCE, "not within {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Collects scopes.
pub fn scopes(scopes: &[Scope]) -> Scopes {
    scopes.iter().copied().collect()
}
