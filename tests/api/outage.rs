//! Database outages: requests fail fast with 503, and the service recovers by itself. Rows 2 to 4 of `tests/system/faults` measure how
//! fast, also if PostgreSQL is killed or frozen.

use std::os::unix::fs::symlink;

use nix::sys::signal::kill;
use pet_inventory::embedded_postgres::EmbeddedPostgres;
use sqlx::postgres::PgConnectOptions;
use test_support::*;
use test_support::{postgres::url_at, process::processes_using};

/// Service on a PostgreSQL that tests stop.
struct UnreliableApp {
    postgres: Option<EmbeddedPostgres>,
    folder: tempfile::TempDir,
    address: SocketAddr,
    key: String,
    client: Client,
    shutdown: Shutdown,
}

impl UnreliableApp {
    async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut unreliable = Self {
            postgres: None,
            address: ([127, 0, 0, 1], 0).into(),
            key: String::new(),
            client: client(),
            shutdown: Shutdown::default(),
            folder,
        };
        let options = unreliable.start_postgres().await;
        let url = url_at(&options, &unreliable.socket());
        let images = format!(
            "file://{}",
            unreliable.folder.path().join("images").display()
        );
        let settings = [
            ("PET_INVENTORY__DATABASE__ACQUIRE_TIMEOUT", "1s"),
            ("PET_INVENTORY__IMAGES__URL", &images),
        ];
        let app = build(&url, &settings).await;
        let mut connection = PgConnection::connect(&url).await.expect("a connection");
        let key = make_key(&mut connection, "tester", Scopes::all(), None).await;
        unreliable.key = key.secret;
        unreliable.address = app.local_addr().tcp().expect("a TCP socket");
        let shutdown = unreliable.shutdown.clone();
        tokio::spawn(async move { app.run(shutdown).await });
        unreliable
    }

    /// Symbolic link to PostgreSQL's socket directory, which changes with each start.
    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    async fn start_postgres(&mut self) -> PgConnectOptions {
        let postgres = start_postgres(&self.folder.path().join("data")).await;
        let options = postgres.connect_options();
        let socket = options.get_socket().expect("a socket").clone();
        let _ = fs::remove_file(self.socket());
        symlink(socket, self.socket()).expect("a link");
        self.postgres = Some(postgres);
        options
    }

    fn requests(&self) -> Vec<Call> {
        let request = |method, path: &str| {
            let url = format!("http://{}/api/v3{path}", self.address);
            let request = self.client.request(method, url);
            Call::from(request).header("api_key", &self.key)
        };
        requests_of_each_kind(request, 1).into()
    }

    async fn bare(&self, path: &str) -> Response {
        self.client
            .get(format!("http://{}{path}", self.address))
            .response()
            .await
    }

    /// Checks that every request gets a 503 with `Retry-After`.
    async fn assert_unavailable(&self) {
        for request in self.requests() {
            let response = request.await;
            response.problem(503);
            assert_eq!(response.header("retry-after"), "1", "{response}");
        }
        self.bare("/livez").await.is(200);
        self.bare("/readyz").await.problem(503);
    }

    /// Repeats requests until none gets a 503, for at most [`PATIENCE`]. No other 5xx may occur.
    async fn assert_available(&self) {
        let started = Instant::now();
        loop {
            let mut all_available = true;
            for request in self.requests() {
                let response = request.await;
                if response.status == 503 {
                    response.problem(503);
                    all_available = false;
                } else {
                    assert!(response.status < 500, "{response}");
                }
            }
            let ready = self.bare("/readyz").await;
            if all_available && ready.status == 200 {
                return;
            }
            assert!([200, 503].contains(&ready.status), "{ready}");
            assert!(started.elapsed() < PATIENCE, "not back after {PATIENCE:?}");
        }
    }

    async fn stop(mut self) {
        self.shutdown.force();
        if let Some(postgres) = self.postgres.take() {
            postgres.stop().await.expect("a stop");
        }
    }
}

fn postmaster(data: &Path) -> Pid {
    let text = fs::read_to_string(data.join("postgres/postmaster.pid")).expect("a pid file");
    let pid = text.lines().next().and_then(|pid| pid.trim().parse().ok());
    Pid::from_raw(pid.expect("a number"))
}

const WAITING: &str = "waiting until it accepts connections";

#[tokio::test(flavor = "multi_thread")]
async fn start_waits_for_postgres() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("socket");
    let start = async || {
        let postgres = start_postgres(&folder.path().join("data")).await;
        let options = postgres.connect_options();
        let _ = fs::remove_file(&socket);
        symlink(options.get_socket().expect("a socket"), &socket).expect("a link");
        postgres
    };
    let url = |database: &str| {
        url_at(
            &PgConnectOptions::new_without_pgpass().database(database),
            &socket,
        )
    };
    let home = Home::on(url("postgres"));
    // Commands do not wait.
    let migrate = home.run(&["migrate"]).await.is(1);
    assert!(!migrate.stderr.contains(WAITING), "{migrate:?}");
    let (service, postgres) = tokio::join!(home.serve(), async {
        let log = home.path().join("service.log");
        let is_waiting = async || fs::read_to_string(&log).is_ok_and(|log| log.contains(WAITING));
        eventually(is_waiting).await;
        start().await
    });
    let ready = async || {
        let url = format!("http://{}/readyz", service.operations);
        let response = client().get(url).send().await;
        response.is_ok_and(|response| response.status() == 200)
    };
    assert!(ready().await);
    // An orderly stop, as that of a planned switchover, logs no error.
    let before = service.log().len();
    postgres.stop().await.expect("a stop");
    for _ in 0..10 {
        let request = service.request(Method::GET, "/pet/1", "pik_unknown");
        request.await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    eventually(async || service.log()[before..].contains("opened the circuit breaker")).await;
    assert!(!ready().await);
    let postgres = start().await;
    eventually(ready).await;
    assert!(!service.log().contains("ERROR"), "{}", service.log());
    assert!(service.log().contains("WARN"), "{}", service.log());
    service.stop().await;
    // Errors that do not pass by themselves stop the start.
    let unknown = Home::on(url("none"));
    let problem = "\"none\" does not exist";
    unknown.refuses(&["serve"], problem).await;
    postgres.stop().await.expect("a stop");
}

#[tokio::test(flavor = "multi_thread")]
async fn wait_for_postgres_is_logged_each_5_s_and_ends_with_sigterm() {
    let home = Home::new();
    let log = home.path().join("log");
    let mut command = home.command(["serve"]);
    command
        .env("DATABASE_URL", "postgres://user:hunter2@127.0.0.1:1/db")
        .env("PET_INVENTORY__TELEMETRY__LOG", "trace")
        .stderr(fs::File::create(&log).expect("a log"));
    let mut service = command.spawn().expect("the program");
    let started = Instant::now();
    let lines = || fs::read_to_string(&log).unwrap_or_default();
    eventually(async || lines().matches(WAITING).count() == 2).await;
    assert!(started.elapsed() >= Duration::from_secs(5));
    let pid = service.id().expect("it runs").cast_signed();
    kill(Pid::from_raw(pid), Signal::SIGTERM).expect("it runs");
    let ended = tokio::time::timeout(Duration::from_secs(2), service.wait()).await;
    let status = ended.expect("it ends").expect("a status");
    assert!(status.success(), "{}", lines());
    assert!(
        lines().contains("127.0.0.1:1") && !lines().contains("hunter2"),
        "{}",
        lines()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_embedded_postgres_is_reported_and_back_after_a_restart() {
    let home = Home::new();
    let service = home.serve().await;
    let pet = service
        .request(Method::POST, "/pet", "special-key")
        .json(&json!({"name": "a"}))
        .is(201)
        .await
        .id();
    kill(postmaster(&home.path().join("data")), Signal::SIGKILL).expect("killed");
    let ready = format!("http://{}/readyz", service.address);
    let client = client();
    let started = Instant::now();
    while client.get(&ready).response().await.status == 200
        || !service.log().contains("lost the embedded PostgreSQL")
    {
        assert!(started.elapsed() < PATIENCE, "{}", service.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    client.get(&ready).response().await.problem(503);
    let path = format!("/pet/{pet}");
    let refused = service.request(Method::GET, &path, "special-key");
    refused.await.problem(503);
    let log = service.log();
    assert!(log.contains("restart pet-inventory"), "{log}");
    assert_eq!(log.matches("lost the embedded").count(), 1, "{log}");
    service.stop().await;
    assert_eq!(processes_using(home.path()), []);

    let service = home.serve().await;
    let found = service.request(Method::GET, &path, "special-key");
    found.is(200).await;
    service.stop().await;
}

/// A request that needs a credential, but no statement: its query is invalid.
async fn invalid(service: &UnreliableApp, key: &str) -> Response {
    let url = format!(
        "http://{}/api/v3/pet/findByStatus?status=none",
        service.address
    );
    let request = service.client.get(url).header("api_key", key);
    request.response().await
}

/// Lets the service cache a key, once it listens for changes: then it clears its cache.
async fn cache(service: &UnreliableApp, key: &str) {
    tokio::time::sleep(Duration::from_millis(500)).await;
    invalid(service, key).await.problem(400);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_while_database_is_down_are_503_also_with_a_cached_credential() {
    let mut service = UnreliableApp::start().await;
    service.assert_available().await;
    cache(&service, &service.key).await;
    let postgres = service.postgres.take().expect("it runs");
    postgres.stop().await.expect("a stop");
    service.assert_unavailable().await;
    // Also a request that needs nothing else of the database.
    invalid(&service, &service.key).await.problem(503);
    // No caller can have a credential in another format.
    invalid(&service, "malformed").await.problem(401);
    service.start_postgres().await;
    service.assert_available().await;
    invalid(&service, &service.key).await.problem(400);
    service.stop().await;
}
