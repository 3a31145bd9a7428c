//! Database outages: requests fail fast with 503, and the service recovers by itself.

use std::{
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use pet_inventory::{
    domain::{caller::Scopes, clock::Clock},
    embedded_postgres::EmbeddedPostgres,
    server::Shutdown,
};
use reqwest::{Client, Method, RequestBuilder};
use serde_json::json;
use sqlx::{Connection as _, Executor as _, PgConnection, postgres::PgConnectOptions};
use test_support::{
    self, Home, PATIENCE, RawConnection, RequestExt, Response,
    images::png,
    make_key,
    postgres::{start_postgres, url_at},
    process::processes_using,
};

/// Service on a PostgreSQL that tests stop, kill and freeze.
struct UnreliableApp {
    postgres: Option<EmbeddedPostgres>,
    folder: tempfile::TempDir,
    address: std::net::SocketAddr,
    key: String,
    client: Client,
    shutdown: Shutdown,
}

impl UnreliableApp {
    async fn start() -> Self {
        Self::with_clock(Clock::system()).await
    }

    async fn with_clock(clock: Clock) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut unreliable = Self {
            postgres: None,
            address: ([127, 0, 0, 1], 0).into(),
            key: String::new(),
            client: test_support::client(),
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
        let config = test_support::config(&url, &settings);
        let app = test_support::build_with(config, clock).await;
        unreliable.key = unreliable.make_key("tester").await;
        // This PostgreSQL commits asynchronously: a kill soon after would lose the last migration.
        let mut connection = PgConnection::connect(&url).await.expect("a connection");
        let flush = sqlx::query("checkpoint").execute(&mut connection);
        flush.await.expect("a checkpoint");
        unreliable.address = app.local_addr().tcp().expect("a TCP socket");
        let shutdown = unreliable.shutdown.clone();
        tokio::spawn(async move { app.run(shutdown).await });
        unreliable
    }

    /// Opens a connection to the database.
    async fn connect(&self) -> PgConnection {
        let options = self.postgres.as_ref().expect("it runs").connect_options();
        let url = url_at(&options, &self.socket());
        PgConnection::connect(&url).await.expect("a connection")
    }

    /// Creates a key of a new caller.
    async fn make_key(&self, caller: &str) -> String {
        let mut connection = self.connect().await;
        let key = make_key(&mut connection, caller, Scopes::all(), None);
        key.await.secret
    }

    /// Revokes the keys of a caller.
    async fn revoke(&self, caller: &str) {
        let revoke = "update credentials set revoked_at = now()
             where caller_id = (select id from callers where name = $1)";
        let revoke = sqlx::query(revoke).bind(caller);
        let revoked = revoke.execute(&mut self.connect().await).await;
        revoked.expect("revoked");
    }

    /// Symbolic link to PostgreSQL's socket directory, which changes with each start.
    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    async fn start_postgres(&mut self) -> PgConnectOptions {
        let postgres = start_postgres(&self.folder.path().join("data")).await;
        let options = postgres.connect_options();
        let socket = options.get_socket().expect("a socket").clone();
        let _ = std::fs::remove_file(self.socket());
        symlink(socket, self.socket()).expect("a link");
        self.postgres = Some(postgres);
        options
    }

    /// Starts PostgreSQL again after a kill.
    async fn restart_postgres(&mut self) {
        let postgres = self.postgres.take().expect("it ran");
        postgres.stop().await.expect("a stop");
        self.start_postgres().await;
    }

    fn postmaster(&self) -> Pid {
        postmaster(&self.folder.path().join("data"))
    }

    fn requests(&self) -> Vec<RequestBuilder> {
        let url = |path: &str| format!("http://{}/api/v3{path}", self.address);
        let requests = [
            self.client.get(url("/pet/1")),
            self.client.get(url("/pet/findByStatus?status=available")),
            self.client.get(url("/pet/findByTags?tags=a&limit=5")),
            self.client.post(url("/pet")).json(&json!({"name": "a"})),
            self.client
                .post(url("/pet"))
                .json(&json!({"name": "a"}))
                .header("idempotency-key", "k"),
            self.client
                .put(url("/pet"))
                .json(&json!({"id": 1, "name": "b"})),
            self.client.delete(url("/pet/999")),
        ];
        requests
            .into_iter()
            .map(|request| request.header("api_key", &self.key))
            .collect()
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
            let response = request.response().await;
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
                let response = request.response().await;
                if response.status == 503 {
                    response.problem(503);
                    all_available = false;
                } else {
                    assert!(response.status.as_u16() < 500, "{response}");
                }
            }
            let ready = self.bare("/readyz").await;
            if all_available && ready.status == 200 {
                return;
            }
            assert!([200, 503].contains(&ready.status.as_u16()), "{ready}");
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
    let text = std::fs::read_to_string(data.join("postgres/postmaster.pid")).expect("a pid file");
    let pid = text.lines().next().and_then(|pid| pid.trim().parse().ok());
    Pid::from_raw(pid.expect("a number"))
}

fn children(of: Pid) -> Vec<Pid> {
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    numbers
        .filter(|pid| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let parent = stat
                .rsplit_once(") ")
                .and_then(|(_, rest)| rest.split(' ').nth(1));
            parent == Some(&of.to_string())
        })
        .map(Pid::from_raw)
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_while_database_is_down_are_503_until_it_is_back() {
    let mut service = UnreliableApp::start().await;
    service.assert_available().await;
    let postgres = service.postgres.take().expect("it runs");
    postgres.stop().await.expect("a stop");
    service.assert_unavailable().await;
    service.start_postgres().await;
    service.assert_available().await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_while_database_is_killed_are_503_at_worst() {
    let mut service = UnreliableApp::start().await;
    service.assert_available().await;
    for _ in 0..2 {
        let rounds = [(); 3].map(|()| service.requests());
        tokio::join!(
            async {
                kill(service.postmaster(), Signal::SIGKILL).expect("killed");
                service.restart_postgres().await;
                service.assert_available().await;
            },
            // Requests in progress at the time of the kill.
            async {
                for requests in rounds {
                    let requests = requests.into_iter().map(RequestExt::response);
                    for response in futures_util::future::join_all(requests).await {
                        let status = response.status.as_u16();
                        assert!(status < 500 || status == 503, "{response}");
                    }
                }
            }
        );
    }
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_while_database_is_frozen_are_503_in_time() {
    let service = UnreliableApp::start().await;
    service.assert_available().await;
    let postmaster = service.postmaster();
    let mut frozen = children(postmaster);
    frozen.push(postmaster);
    for pid in &frozen {
        let _ = kill(*pid, Signal::SIGSTOP);
    }
    let requests = service.requests().into_iter().map(RequestExt::response);
    let responses = futures_util::future::join_all(requests).await;
    let live = service.bare("/livez").await;
    for pid in &frozen {
        let _ = kill(*pid, Signal::SIGCONT);
    }
    live.is(200);
    for response in responses {
        response.problem(503);
        assert_eq!(response.header("retry-after"), "1", "{response}");
    }
    service.assert_available().await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_embedded_postgres_is_reported_and_back_after_a_restart() {
    let home = Home::new();
    let service = home.serve().await;
    let pet = service
        .request(Method::POST, "/pet", "special-key")
        .json(&json!({"name": "a"}))
        .response()
        .await
        .is(201)
        .id();
    kill(postmaster(&home.path().join("data")), Signal::SIGKILL).expect("killed");
    let ready = format!("http://{}/readyz", service.address);
    let client = test_support::client();
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
    refused.response().await.problem(503);
    let log = service.log();
    assert!(log.contains("restart pet-inventory"), "{log}");
    assert_eq!(log.matches("lost the embedded").count(), 1, "{log}");
    service.stop().await;
    assert_eq!(processes_using(home.path()), []);

    let service = home.serve().await;
    let found = service.request(Method::GET, &path, "special-key");
    found.response().await.is(200);
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
async fn cached_credential_is_accepted_for_a_minute_of_an_outage() {
    let clock = Clock::manual();
    let mut service = UnreliableApp::with_clock(clock.clone()).await;
    service.assert_available().await;
    cache(&service, &service.key).await;
    let postgres = service.postgres.take().expect("it runs");
    postgres.stop().await.expect("a stop");
    service.assert_unavailable().await;
    invalid(&service, &service.key).await.problem(400);
    clock.advance(Duration::from_secs(50));
    invalid(&service, &service.key).await.problem(400);
    clock.advance(Duration::from_secs(11));
    invalid(&service, &service.key).await.problem(503);
    service.start_postgres().await;
    service.assert_available().await;
    invalid(&service, &service.key).await.problem(400);
    service.stop().await;
}

/// Requests with a body that begins during an outage and ends after it.
#[tokio::test(flavor = "multi_thread")]
async fn credential_revoked_in_an_outage_changes_nothing_after_it() {
    // Time stands still, so that cached credentials do not expire before the requests begin.
    let mut service = UnreliableApp::with_clock(Clock::manual()).await;
    let keys = [
        service.make_key("revoked").await,
        service.make_key("other").await,
    ];
    let both = |key| format!("api_key: {key}\r\nAuthorization: Bearer {key}");
    let credentials = keys
        .each_ref()
        .map(|key| [format!("api_key: {key}"), both(key)]);
    service.assert_available().await;
    let add = "insert into pets (id, status, name, category, photo_urls, tags)
         values (7, 'sold', 'a', null, '{}', '[]')";
    service.connect().await.execute(add).await.expect("added");
    for key in &keys {
        cache(&service, key).await;
    }
    let postgres = service.postgres.take().expect("it runs");
    postgres.stop().await.expect("a stop");
    service.assert_unavailable().await;
    let (json, image) = (br#"{"id":7,"name":"b"}"#.to_vec(), png(20, 20));
    let bodies = [
        ("PUT /api/v3/pet", "application/json", &json),
        ("PATCH /api/v3/pet/7", "application/json", &json),
        (
            "POST /api/v3/pet/7",
            "application/x-www-form-urlencoded",
            &b"name=b".to_vec(),
        ),
        ("POST /api/v3/pet/7/uploadImage", "image/png", &image),
    ];
    let mut begun = Vec::new();
    for (number, credential) in credentials.as_flattened().iter().enumerate() {
        for (target, media_type, body) in bodies {
            let mut raw = RawConnection::connect(service.address).await;
            // With a key, an upload is not refused before its body: a response may be stored.
            let head = format!(
                "{target} HTTP/1.1\r\nHost: a\r\n{credential}\r\nContent-Type: {media_type}\r\n\
                 Idempotency-Key: {media_type}-{number}\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            raw.send(head).await;
            raw.send(&body[..body.len() - 1]).await;
            begun.push((target, raw, body[body.len() - 1]));
        }
    }
    // The heads have been read.
    tokio::time::sleep(Duration::from_millis(300)).await;
    service.start_postgres().await;
    service.revoke("revoked").await;
    service.assert_available().await;
    for (number, (target, mut raw, last)) in begun.into_iter().enumerate() {
        raw.send([last]).await;
        let response = raw.response().await;
        if number < 2 * bodies.len() {
            response.problem(401);
            let unchanged =
                "select count(*) from pets where id = 7 and name = 'a' and photo_urls = '{}'";
            let count: i64 = sqlx::query_scalar(unchanged)
                .fetch_one(&mut service.connect().await)
                .await
                .expect("a number");
            assert_eq!(count, 1, "{target}");
        } else {
            assert!(response.status == 200, "{target}: {response}");
        }
    }
    service.stop().await;
}

/// Requests with the key of a stored response and a body that begins during an outage and ends after it.
#[tokio::test(flavor = "multi_thread")]
async fn response_is_not_replayed_to_a_credential_revoked_in_an_outage() {
    const BODY: &str = r#"{"name":"a"}"#;
    // Time stands still, so that cached credentials do not expire before the requests begin.
    let mut service = UnreliableApp::with_clock(Clock::manual()).await;
    let keys = [
        service.make_key("revoked").await,
        service.make_key("other").await,
    ];
    let targets = ["/pet", "/user/createWithList"];
    let head = |key: &str, target: &str| {
        format!(
            "POST /api/v3{target} HTTP/1.1\r\nHost: a\r\napi_key: {key}\r\nIdempotency-Key: k-{target}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            BODY.len()
        )
    };
    let mut first = Vec::new();
    for key in &keys {
        cache(&service, key).await;
        for target in targets {
            let request = head(key, target) + BODY;
            let response = RawConnection::exchange(service.address, request).await;
            let status = if target == "/pet" { 201 } else { 400 };
            assert_eq!(response.status, status, "{response}");
            first.push(response);
        }
    }
    let postgres = service.postgres.take().expect("it runs");
    postgres.stop().await.expect("a stop");
    service.assert_unavailable().await;
    let (first_part, last_part) = BODY.split_at(5);
    let mut begun = Vec::new();
    for key in &keys {
        for target in targets {
            let mut raw = RawConnection::connect(service.address).await;
            raw.send(head(key, target) + first_part).await;
            begun.push(raw);
        }
    }
    // The heads have been read.
    tokio::time::sleep(Duration::from_millis(300)).await;
    service.start_postgres().await;
    service.revoke("revoked").await;
    service.assert_available().await;
    for (number, (mut raw, first)) in begun.into_iter().zip(first).enumerate() {
        raw.send(last_part).await;
        let response = raw.response().await;
        if number < targets.len() {
            response.problem(401);
            assert_eq!(response.optional_header("idempotent-replayed"), None);
        } else {
            assert_eq!(response.status, first.status, "{response}");
            assert_eq!(response.header("idempotent-replayed"), "true");
        }
    }
    service.stop().await;
}

/// The database may be back when the handler of such a request makes its change.
#[tokio::test(flavor = "multi_thread")]
async fn body_that_ends_in_an_outage_is_503_unless_it_is_malformed() {
    let mut service = UnreliableApp::with_clock(Clock::manual()).await;
    service.assert_available().await;
    cache(&service, &service.key).await;
    let postgres = service.postgres.take().expect("it runs");
    postgres.stop().await.expect("a stop");
    service.assert_unavailable().await;
    for (body, status) in [
        ("{", 400),
        ("[]", 400),
        ("{}", 503),
        (r#"{"name":""}"#, 503),
    ] {
        let url = format!("http://{}/api/v3/pet", service.address);
        let request = service.client.post(url).header("api_key", &service.key);
        let request = request.header("content-type", "application/json");
        request.body(body).response().await.problem(status);
    }
    service.stop().await;
}
