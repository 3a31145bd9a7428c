//! The harness: a real [`App`] on port 0 with a database of its own, asked over real HTTP.

pub mod answer;
pub mod issuer;
pub mod load;
pub mod postgres;
pub mod process;
pub mod raw;
pub mod signer;

use std::{
    ffi::OsString,
    net::SocketAddr,
    path::Path,
    time::{Duration, Instant},
};

use chrono::{DateTime, Utc};
use pet_inventory::{
    app::App,
    auth::secret::{Kind, Secret},
    config::Config,
    db::{self, Connection, credentials::NewCredential},
    domain::{
        caller::{CallerName, Scope, Scopes},
        clock::Clock,
        plan::Plan,
    },
    shutdown::Shutdown,
};
use reqwest::{Client, Method, Request, RequestBuilder};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

pub use self::{
    answer::{Answer, Ask},
    postgres::TestDatabase,
    process::{Home, Said, Service},
    raw::Raw,
};

/// A running service; stops when dropped.
pub struct TestApp {
    /// Where it listens.
    pub address: SocketAddr,
    /// Where its metrics are.
    pub operations: SocketAddr,
    /// What [`TestApp::request`] sends.
    pub key: String,
    /// Its database.
    pub database: TestDatabase,
    client: Client,
    shutdown: Shutdown,
    running: JoinHandle<()>,
}

impl TestApp {
    /// The service as it is configured by default.
    pub async fn start() -> Self {
        Self::with(&[]).await
    }

    /// The service with settings over the defaults, as the environment would give them.
    pub async fn with(settings: &[(&str, &str)]) -> Self {
        Self::on(TestDatabase::migrated().await, settings).await
    }

    /// The service on this database.
    pub async fn on(database: TestDatabase, settings: &[(&str, &str)]) -> Self {
        Self::at(database, settings, Clock::system()).await
    }

    /// The service on this database, by this clock.
    pub async fn at(database: TestDatabase, settings: &[(&str, &str)], clock: Clock) -> Self {
        let config = config(&database.url(), settings);
        Self::configured(database, config, clock).await
    }

    /// The service on this database, by this configuration and clock.
    pub async fn configured(database: TestDatabase, config: Config, clock: Clock) -> Self {
        let app = build_with(config, clock).await;
        let mut connection = database.connect().await;
        let key = make_key(&mut connection, "tester", Scopes::all(), None).await;
        Self {
            address: app.local_addr(),
            operations: app.operations_addr(),
            key: key.secret,
            database,
            client: client(),
            shutdown: Shutdown::default(),
            running: tokio::spawn(async {}),
        }
        .running(app)
    }

    /// A second replica on the database of another, which must outlast it.
    pub async fn beside(first: &Self, settings: &[(&str, &str)]) -> Self {
        Self::on(first.database.shared(), settings).await
    }

    fn running(mut self, app: App) -> Self {
        let shutdown = self.shutdown.clone();
        self.running = tokio::spawn(async move {
            app.run(shutdown).await.expect("a clean stop");
        });
        self
    }

    /// The URL of a path of the API.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}/api/v3{path}", self.address)
    }

    /// A request to any path of the host, without a credential.
    pub fn bare(&self, method: Method, path: &str) -> RequestBuilder {
        self.client
            .request(method, format!("http://{}{path}", self.address))
    }

    /// A request to a path of the API, without a credential.
    pub fn anonymous(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, self.url(path))
    }

    /// A request to a path of the API, of a caller that may do everything.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.anonymous(method, path).header("api_key", &self.key)
    }

    /// Sends a request that is complete.
    pub async fn execute(&self, request: Request) -> Answer {
        RequestBuilder::from_parts(self.client.clone(), request)
            .answer()
            .await
    }

    /// `GET`.
    pub fn get(&self, path: &str) -> RequestBuilder {
        self.request(Method::GET, path)
    }

    /// `POST` with a JSON body.
    pub fn post(&self, path: &str, body: &Value) -> RequestBuilder {
        self.request(Method::POST, path).json(body)
    }

    /// `PUT` with a JSON body.
    pub fn put(&self, path: &str, body: &Value) -> RequestBuilder {
        self.request(Method::PUT, path).json(body)
    }

    /// `PATCH` with a merge patch.
    pub fn patch(&self, path: &str, body: &Value) -> RequestBuilder {
        self.request(Method::PATCH, path)
            .header("content-type", "application/merge-patch+json")
            .body(body.to_string())
    }

    /// `DELETE`.
    pub fn delete(&self, path: &str) -> RequestBuilder {
        self.request(Method::DELETE, path)
    }

    /// Adds a pet and gives its identifier.
    pub async fn pet(&self, name: &str) -> i64 {
        let pet = json!({ "name": name });
        self.post("/pet", &pet).answer().await.is(201).id()
    }

    /// Makes a key of the caller of that name, and the caller if there is none.
    pub async fn make_key(&self, caller: &str, scopes: Scopes) -> TestKey {
        make_key(&mut self.database.connect().await, caller, scopes, None).await
    }

    /// How many pets are stored.
    pub async fn count(&self) -> usize {
        let count = self.database.number("select count(*) from pets").await;
        usize::try_from(count).expect("a number of rows")
    }
}

impl Drop for TestApp {
    fn drop(&mut self) {
        self.shutdown.cut_off();
        self.running.abort();
    }
}

/// What a client is made with. The service's reqwest speaks TLS and so this one does, which panics where
/// it finds nothing to do it with; no test speaks it, so none trusts anybody.
pub fn client_builder() -> reqwest::ClientBuilder {
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder().tls_certs_only([])
}

/// A client that reads nothing of the environment.
pub fn client() -> Client {
    client_builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .expect("a client")
}

/// Builds the service on a database, with settings over the defaults.
pub async fn build(database_url: &str, settings: &[(&str, &str)]) -> App {
    build_with(config(database_url, settings), Clock::system()).await
}

async fn build_with(config: Config, clock: Clock) -> App {
    App::build_with(config, clock).await.expect("a service")
}

/// The configuration of a test.
pub fn config(database_url: &str, settings: &[(&str, &str)]) -> Config {
    config_over(database_url, settings, None)
}

/// The same, with a file below the settings, for what the environment cannot say.
pub fn config_over(database_url: &str, settings: &[(&str, &str)], file: Option<&Path>) -> Config {
    let common = [
        ("PET_INVENTORY__SERVER__LISTEN", "127.0.0.1:0"),
        ("PET_INVENTORY__OPERATIONS__LISTEN", "127.0.0.1:0"),
        ("PET_INVENTORY__DATABASE__MAX_CONNECTIONS", "5"),
        // A machine that also builds is slow, not broken.
        ("PET_INVENTORY__DATABASE__ACQUIRE_TIMEOUT", "10s"),
        ("DATABASE_URL", database_url),
    ];
    let variables = common
        .iter()
        .chain(settings)
        .map(|(name, value)| (OsString::from(name), OsString::from(value)));
    Config::from_layers(file, variables).expect("a valid configuration")
}

/// A key as it was made.
#[derive(Debug, Clone)]
pub struct TestKey {
    /// Its identifier.
    pub id: i64,
    /// The key itself.
    pub secret: String,
}

/// Makes a key as `keys create` does: the caller may do everything, the key what is said here.
pub async fn make_key(
    connection: &mut Connection,
    caller: &str,
    scopes: Scopes,
    expires_at: Option<DateTime<Utc>>,
) -> TestKey {
    let name: CallerName = caller.parse().expect("the name of a caller");
    let inserted = db::callers::insert(&mut *connection, &name, Plan::Enterprise, Scopes::all())
        .await
        .expect("a database");
    let caller = match inserted {
        Some(caller) => caller,
        None => {
            let known = db::callers::find(&mut *connection, &name).await;
            known.expect("a database").expect("the caller").id
        }
    };
    let key = Secret::generate(Kind::ApiKey).expect("random numbers");
    let credential = NewCredential {
        caller,
        hash: key.hash(),
        hint: key.hint(),
        client_id: None,
        scopes: Some(scopes),
        expires_at,
    };
    let id = db::credentials::insert(connection, credential).await;
    TestKey {
        id: id.expect("a database").expect("a new key"),
        secret: key.expose().to_owned(),
    }
}

/// Waits, not for long, until something is so.
pub async fn eventually(mut so: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !so().await {
        assert!(begun.elapsed() < Duration::from_secs(2), "not within 2 s");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A set of scopes.
pub fn scopes(scopes: &[Scope]) -> Scopes {
    scopes.iter().copied().collect()
}
