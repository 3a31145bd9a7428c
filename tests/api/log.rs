//! Tests of the log: access lines, documented fields and absent secrets.

use std::io::{self, BufRead as _, BufReader};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use test_support::*;

const TRACE: (&str, &str) = ("PET_INVENTORY__TELEMETRY__LOG", "trace");

fn access_lines(service: &Service) -> Vec<Value> {
    let log = service.log();
    let lines = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines
        .filter(|line| line["target"] == "pet_inventory::access")
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn access_log_has_one_line_per_request_without_query_headers_or_body() {
    let home = Home::new();
    let service = home.serve().await;
    let path = "/pet/findByTags?tags=query-canary";
    let request = service.request(Method::GET, path, "special-key");
    let request = request
        .header("x-request-id", "mine")
        .header("x-canary", "header-canary");
    request.is(200).await;
    let pet = json!({"name": "body-canary"});
    let post = service
        .request(Method::POST, "/pet", "special-key")
        .json(&pet);
    let id = post.is(201).await.header("x-request-id").to_owned();
    let bad = service.request(Method::GET, "/pet/path-canary", "free-key");
    bad.is(400).await;

    // Lines are batched for a few milliseconds before they are written.
    eventually(async || access_lines(&service).len() >= 3).await;
    let lines = access_lines(&service);
    let of = |id: &str| -> Vec<&Value> {
        lines
            .iter()
            .filter(|line| line["request_id"] == id)
            .collect()
    };
    let [find] = of("mine")[..] else {
        panic!("{lines:?}")
    };
    assert_eq!(find["method"], "GET");
    assert_eq!(find["route"], "/api/v3/pet/findByTags");
    assert_eq!(find["status"], 200);
    assert_eq!(find["caller"], "demo-enterprise");
    assert!(find["latency_ms"].is_f64(), "{find}");
    assert_eq!(of(&id).len(), 1);
    let log = service.log();
    for canary in [
        "query-canary",
        "header-canary",
        "body-canary",
        "path-canary",
    ] {
        assert!(!log.contains(canary), "{canary} is in the log: {log}");
    }
    service.stop().await;
}

/// Returns the fields that `config/README.md` lists for a kind of log lines.
fn documented(kind: &str) -> BTreeSet<&'static str> {
    let rows = include_str!("../../config/README.md").lines();
    let rows = rows.filter_map(|row| row.strip_prefix("| `")?.split_once("` | "));
    let of_kind = rows.filter(|(_, rest)| {
        let lines = rest.split(" | ").next().unwrap_or_default();
        lines.split(", ").any(|it| it == kind || it == "all")
            || (lines == "all but access" && kind != "access")
    });
    of_kind.map(|(field, _)| field).collect()
}

fn fields(line: &Value) -> BTreeSet<&str> {
    let line = line.as_object().expect("an object");
    line.keys().map(String::as_str).collect()
}

/// Returns a command that serves, with traces if `traced`, and accepts [`BOOTSTRAP`].
fn command(home: &Home, database: &TestDatabase, traced: bool) -> tokio::process::Command {
    let mut command = home.command(["serve"]);
    command
        .env("DATABASE_URL", database.url())
        .env("BOOTSTRAP_API_KEY", BOOTSTRAP);
    if traced {
        // No collector is needed.
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1");
    }
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn log_lines_have_the_documented_fields() {
    let database = TestDatabase::migrated().await;
    for traced in [false, true] {
        let home = Home::new();
        let service = Service::start(&home, command(&home, &database, traced)).await;
        let rename = async |from: &str, to: &str| {
            let rename = format!("alter table {from} rename to {to}");
            let rename = sqlx::raw_sql(AssertSqlSafe(rename));
            let done = rename.execute(&mut database.connect().await).await;
            done.expect("renamed");
        };
        rename("orders", "hidden").await;
        let read = service.request(Method::GET, "/store/order/1", BOOTSTRAP);
        let id = read.is(500).await.header("x-request-id").to_owned();
        rename("hidden", "orders").await;
        let lines = || -> Vec<Value> {
            let log = service.log();
            let lines = log.lines().filter(|line| line.contains(&id));
            lines
                .map(|line| serde_json::from_str(line).expect("JSON"))
                .collect()
        };
        eventually(async || lines().len() == 2).await;
        let lines = lines();
        let [failed, access] = &lines[..] else {
            panic!("{lines:?}");
        };
        assert_eq!(failed["message"], "request failed");
        assert_eq!(access["target"], "pet_inventory::access");
        for (line, kind) in [(failed, "failed"), (access, "access")] {
            let mut expected = documented(kind);
            assert!(expected.len() > 5, "{kind}: {expected:?}");
            if traced {
                expected.insert("trace_id");
            }
            assert_eq!(fields(line), expected, "{kind}");
        }
        service.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn access_details_add_path_address_and_size_but_no_query() {
    let database = TestDatabase::migrated().await;
    for traced in [false, true] {
        let home = Home::new();
        let mut command = command(&home, &database, traced);
        command
            .env("PET_INVENTORY__LIMITS__TRUSTED_PROXIES", "127.0.0.1")
            .env("PET_INVENTORY__TELEMETRY__ACCESS_DETAILS", "true");
        let service = Service::start(&home, command).await;
        let base = format!("http://{}", service.address);
        let add = service.request(Method::POST, "/pet", BOOTSTRAP);
        let added = add.json(&json!({"name": "a".repeat(200)})).is(201).await;
        let targets = [
            // Responses of a handler, streamed, of an error, and of a page.
            (format!("/api/v3/pet/{}", added.id()), 200),
            (
                "/api/v3/pet/findByStatus?status=query-canary,available".into(),
                400,
            ),
            ("/api/v3/pet/findByStatus?status=available".into(), 200),
            ("/api/v3/user/path-canary".into(), 404),
            ("/docs/".into(), 200),
            (format!("/api/v3/user/{}", "%41".repeat(200)), 400),
        ];
        for (number, (target, status)) in targets.iter().enumerate() {
            let get = client().get(format!("{base}{target}"));
            let get = get
                .header("api_key", BOOTSTRAP)
                .header("x-request-id", format!("id-{number}"));
            let get = get.header("x-forwarded-for", "::ffff:192.0.2.1");
            let response = get.response().await.is(*status);
            let id = format!("id-{number}");
            let of_request = || {
                access_lines(&service)
                    .into_iter()
                    .find(|it| it["request_id"] == id)
            };
            eventually(async || of_request().is_some()).await;
            let line = of_request().expect("a line");
            let path = target.split('?').next().unwrap_or_default();
            assert_eq!(line["path"], path[..path.len().min(512)], "{line}");
            assert_eq!(line["client_address"], "192.0.2.1", "{line}");
            assert_eq!(line["response_bytes"], response.body.len(), "{line}");
            assert_eq!(line["status"], *status, "{line}");
            assert_eq!(line.get("trace_id").is_some(), traced, "{line}");
            let documented = &documented("access with details") | &documented("access");
            assert!(documented.is_superset(&fields(&line)) || traced, "{line}");
        }
        assert_eq!(access_lines(&service).len(), 1 + targets.len());
        assert!(!service.log().contains("query-canary"), "{}", service.log());
        service.stop().await;
    }
}

/// Secret that the service does not know.
const WRONG: &str = "wrong-canary-987654321";
const BOOTSTRAP: &str = "bootstrap-canary-0123456789abcdef0123456789";

/// Credentials that the program has created.
struct Issued {
    key: String,
    client_id: String,
    client_secret: String,
}

impl Issued {
    async fn create(home: &Home) -> Self {
        let json = async |arguments: &[&str]| -> Value {
            let output = home.run(arguments).await.is(0);
            serde_json::from_str(&output.stdout).expect("JSON")
        };
        let owner = ["--caller", "acme", "--json"];
        let key = json(&[&["keys", "create", "--plan", "pro"], &owner[..]].concat()).await;
        let client = json(&[&["clients", "create"], &owner[..]].concat()).await;
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        Self {
            key: text(&key["key"]),
            client_id: text(&client["client_id"]),
            client_secret: text(&client["client_secret"]),
        }
    }

    /// Gets a token at `/oauth/token`, by Basic authentication and by form, and once with a wrong secret.
    async fn token(&self, http: &Client, host: &str) -> String {
        let grant = ("grant_type", "client_credentials");
        let token_request = || http.post(format!("{host}/oauth/token"));
        let token = token_request()
            .form(&[grant])
            .basic_auth(&self.client_id, Some(&self.client_secret));
        let token = token.is(200).await.json();
        for (secret, status) in [(self.client_secret.as_str(), 200), (WRONG, 401)] {
            let id = ("client_id", self.client_id.as_str());
            let form = [grant, id, ("client_secret", secret)];
            token_request().form(&form).response().await.is(status);
        }
        token["access_token"].as_str().expect("a token").to_owned()
    }

    async fn revoke(&self, http: &Client, host: &str, token: &str) {
        let revoke = http.post(format!("{host}/oauth/revoke"));
        let revoke = revoke
            .form(&[("token", token)])
            .basic_auth(&self.client_id, Some(&self.client_secret));
        revoke.is(200).await;
    }
}

/// Sends each secret as an API key and as a bearer token, to several paths.
async fn present(http: &Client, host: &str, secrets: &[&str]) {
    for path in [
        "/pet/1",
        "/limits",
        "/pet/findByStatus?status=sold",
        "/nowhere",
    ] {
        let url = format!("{host}/api/v3{path}");
        for secret in secrets {
            http.get(&url).header("api_key", *secret).response().await;
            http.get(&url).bearer_auth(secret).response().await;
            let malformed = http.post(&url).header("api_key", *secret).body("{");
            malformed.response().await;
        }
    }
}

/// Creates an account, logs in and changes the password; returns the secrets of the account.
async fn use_account(http: &Client, host: &str) -> Vec<String> {
    let (name, password, renewed) = ("ada", "password canary", "renewed canary");
    let users = format!("{host}/api/v3/user");
    let pair = [("username", name), ("password", password)];
    let json: serde_json::Map<String, Value> = pair
        .map(|(name, value)| (name.to_owned(), value.into()))
        .into_iter()
        .collect();
    http.post(&users).json(&json).is(201).await;
    http.post(&users).json(&json).is(409).await;

    let log_in = format!("{users}/login");
    let session = http.post(&log_in).form(&pair).is(200).await;
    let session = session.json().as_str().expect("a token").to_owned();
    http.get(&log_in).query(&pair).is(200).await;
    http.post(&log_in).json(&json).is(200).await;
    let guess = [pair[0], ("password", WRONG)];
    http.get(&log_in).query(&guess).is(400).await;

    for method in [Method::GET, Method::PUT] {
        let own = http.request(method, format!("{users}/{name}"));
        let own = own.bearer_auth(&session);
        let own = own.json(&json!({"password": renewed})).is(200).await;
        assert!(
            !own.text().contains("canary") && !own.text().contains("argon2"),
            "{own}"
        );
    }
    let list = http.post(format!("{users}/createWithList"));
    let list = list.header("api_key", "special-key");
    let list = list.json(&[&json]);
    list.is(409).await;
    [password, renewed, &session, "$argon2id$"]
        .map(str::to_owned)
        .into()
}

/// Returns all that the service has written, with a name for each text.
async fn written(service: &Service, home: &Home) -> [(&'static str, String); 4] {
    let metrics = service.metrics().await;
    let postgres = fs::read_to_string(home.path().join("data/postgres.log")).expect("its log");
    [
        ("the log", service.log()),
        ("the metrics", metrics),
        ("the startup_output", service.startup_output.clone()),
        ("PostgreSQL's log", postgres),
    ]
}

/// Sends secrets of every kind in every way, at log level `trace`.
#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_in_no_log_metric_or_startup_output() {
    let home = Home::new();
    let variables = [TRACE, ("BOOTSTRAP_API_KEY", BOOTSTRAP)];
    let service = home.serve_with(&variables).await;
    let issued = Issued::create(&home).await;
    let host = format!("http://{}", service.address);
    let http = Client::new();
    let token = issued.token(&http, &host).await;
    let all = [&issued.key, &token, &issued.client_secret, WRONG, BOOTSTRAP];
    present(&http, &host, &all).await;
    issued.revoke(&http, &host, &token).await;
    let mut secrets = use_account(&http, &host).await;
    secrets.push(token);
    let refused = ["keys", "create", "--caller", "acme", "--plan", "free"];
    home.run(&refused).await.is(1);
    home.run(&["keys", "list"]).await.is(0);

    let written = written(&service, &home).await;
    assert!(written[0].1.contains("DEBUG"), "the log level is not trace");
    secrets.extend([issued.key, issued.client_secret]);
    secrets.extend([WRONG.to_owned(), BOOTSTRAP.to_owned()]);
    for secret in &secrets {
        for (place, text) in &written {
            assert!(!text.contains(secret.as_str()), "a secret is in {place}");
        }
    }
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_that_clients_choose_have_a_bound() {
    let home = Home::new();
    let details = ("PET_INVENTORY__TELEMETRY__ACCESS_DETAILS", "true");
    let service = home.serve_with(&[details]).await;
    let (method, path) = ("M".repeat(4_000), "p".repeat(4_000));
    let request = format!("{method} /{path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    RawConnection::exchange(service.address, request).await;
    eventually(async || !access_lines(&service).is_empty()).await;
    let lines = access_lines(&service);
    assert_eq!(lines[0]["method"], "M".repeat(16));
    assert!(service.log().lines().all(|line| line.len() < 2_000));
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn request_whose_client_disconnects_is_logged_with_499() {
    let (database, home) = (TestDatabase::migrated().await, Home::new());
    let service = Service::start(&home, command(&home, &database, false)).await;
    let blocker = database.lock("pets").await;
    let mut raw = RawConnection::connect(service.address).await;
    let head = format!("GET /api/v3/pet/1 HTTP/1.1\r\nHost: a\r\napi_key: {BOOTSTRAP}\r\n\r\n");
    raw.send(head).await;
    eventually(async || service.sample("http_server_active_requests").await == Some(1)).await;
    drop(raw);
    let is_dropped = |line: &Value| line["route"] == "/api/v3/pet/{petId}" && line["status"] == 499;
    eventually(async || access_lines(&service).iter().any(is_dropped)).await;
    drop(blocker);
    service.stop().await;
}

/// A log collector that hangs, or Ctrl-S on a terminal.
#[tokio::test(flavor = "multi_thread")]
async fn stalled_reader_of_the_log_stalls_neither_requests_nor_the_stop() {
    let home = Home::new();
    for is_read_again in [true, false] {
        let (reader, writer) = io::pipe().expect("a pipe");
        let mut command = home.command(["serve"]);
        command
            .env("PET_INVENTORY__TELEMETRY__ACCESS_DETAILS", "true")
            .env("PET_INVENTORY__SERVER__SHUTDOWN_GRACE", "1s");
        let mut service = Service::start_with_log(&home, command, writer.into()).await;
        let dropped = async || {
            let dropped = service.sample("log_dropped_lines_total").await;
            dropped.expect("the metric")
        };
        // Each line has more than a kilobyte, and 2 MiB wait at most.
        let path = format!("/pet/{}", "é".repeat(250));
        while dropped().await == 0 {
            let requests = (0..100).map(|_| service.request(Method::GET, &path, "free-key"));
            send_all(requests).await;
        }
        let request = service.request(Method::GET, "/pet/1", "special-key");
        request.is(404).await;

        if is_read_again {
            let lines = tokio::task::spawn_blocking(move || {
                let mut lines = BufReader::new(reader).lines();
                lines.find_map(|line| line.ok().filter(|it| it.contains("dropped log lines")))
            });
            let line = lines.await.expect("no panic").expect("a line");
            let line: Value = serde_json::from_str(&line).expect("JSON");
            assert!(line["lines"].as_u64().is_some_and(|it| it > 0), "{line}");
            drop(service);
            home.wait_until_unused().await;
        } else {
            let started = Instant::now();
            service.signal(Signal::SIGTERM);
            assert_eq!(service.wait_for_exit().await, Some(0));
            // The grace period, and the end of PostgreSQL.
            assert!(started.elapsed() < Duration::from_secs(30));
            drop(reader);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_that_stderr_does_not_take_are_counted_and_leave_the_others_whole() {
    let home = Home::new();
    let (reader, writer) = io::pipe().expect("a pipe");
    // Takes a part of the lines and refuses the rest, as a full disk does.
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("a pipe");
    let mut command = home.command(["serve"]);
    command.env("PET_INVENTORY__TELEMETRY__ACCESS_DETAILS", "true");
    let service = Service::start_with_log(&home, command, writer.into()).await;
    let path = format!("/pet/{}", "é".repeat(250));
    let dropped = async || {
        service
            .sample("log_dropped_lines_total")
            .await
            .expect("the metric")
    };
    while dropped().await == 0 {
        let requests = (0..100).map(|_| service.request(Method::GET, &path, "free-key"));
        send_all(requests).await;
    }
    let reading = tokio::task::spawn_blocking(move || {
        let mut whole = 0;
        for line in BufReader::new(reader).lines() {
            let line = line.expect("text");
            // A line that was cut is ended: the next one is not behind it.
            assert_eq!(line.matches("{\"timestamp\":").count(), 1, "{line}");
            whole += usize::from(serde_json::from_str::<Value>(&line).is_ok());
            if line.contains("dropped log lines") {
                return whole;
            }
        }
        panic!("no line says that lines were dropped");
    });
    let requests = async {
        loop {
            service
                .request(Method::GET, "/pet/1", "special-key")
                .is(404)
                .await;
        }
    };
    let whole = tokio::select! {
        whole = reading => whole.expect("whole lines"),
        () = requests => unreachable!(),
    };
    assert!(whole > 1, "{whole}");
}
