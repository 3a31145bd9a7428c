//! Tests of the log: access lines, documented fields and absent secrets.

use std::{collections::BTreeSet, fs};

use reqwest::Method;
use serde_json::{Value, json};
use test_support::{
    Ask, TestDatabase, eventually,
    process::{Home, Service},
};

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
    request.answer().await.is(200);
    let pet = json!({"name": "body-canary"});
    let post = service
        .request(Method::POST, "/pet", "special-key")
        .json(&pet);
    let id = post
        .answer()
        .await
        .is(201)
        .header("x-request-id")
        .to_owned();
    let bad = service.request(Method::GET, "/pet/path-canary", "free-key");
    bad.answer().await.is(400);

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

#[tokio::test(flavor = "multi_thread")]
async fn log_lines_have_the_documented_fields() {
    let database = TestDatabase::migrated().await;
    for traced in [false, true] {
        let home = Home::new();
        let key = "bootstrap-key-0123456789";
        let mut command = home.command(["serve"]);
        command
            .env("DATABASE_URL", database.url())
            .env("BOOTSTRAP_API_KEY", key);
        if traced {
            // Enables traces; no collector is needed.
            command.env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1");
        }
        let service = Service::start(&home, command).await;
        let rename = async |from: &str, to: &str| {
            let rename = format!("alter table {from} rename to {to}");
            let rename = sqlx::raw_sql(sqlx::AssertSqlSafe(rename));
            let done = rename.execute(&mut database.connect().await).await;
            done.expect("renamed");
        };
        rename("orders", "hidden").await;
        let read = service.request(Method::GET, "/store/order/1", key);
        let id = read
            .answer()
            .await
            .is(500)
            .header("x-request-id")
            .to_owned();
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

/// Sends secrets of every kind in every way, at log level `trace`.
#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_in_no_log_metric_or_greeting() {
    let home = Home::new();
    let bootstrap = "bootstrap-canary-0123456789";
    let mut command = home.command(["serve"]);
    command
        .env(TRACE.0, TRACE.1)
        .env("BOOTSTRAP_API_KEY", bootstrap);
    let service = Service::start(&home, command).await;

    let json = async |arguments: &[&str]| -> Value {
        let said = home.run(arguments).await.is(0);
        serde_json::from_str(&said.stdout).expect("JSON")
    };
    let owner = ["--caller", "acme", "--json"];
    let key = json(&[&["keys", "create", "--plan", "pro"], &owner[..]].concat()).await;
    let key = key["key"].as_str().expect("a key").to_owned();
    let client = json(&[&["clients", "create"], &owner[..]].concat()).await;
    let client_id = client["client_id"].as_str().expect("a name").to_owned();
    let client_secret = client["client_secret"]
        .as_str()
        .expect("a secret")
        .to_owned();

    let http2 = reqwest::Client::builder()
        .no_proxy()
        .http2_prior_knowledge()
        .build();
    let host = format!("http://{}", service.address);
    let mut tokens = Vec::new();
    let wrong = "wrong-canary-987654321";
    for http in [reqwest::Client::new(), http2.expect("a client")] {
        let form = [("grant_type", "client_credentials")];
        let token = http.post(format!("{host}/oauth/token")).form(&form);
        let token = token
            .basic_auth(&client_id, Some(&client_secret))
            .answer()
            .await
            .is(200);
        let token = token.json()["access_token"]
            .as_str()
            .expect("a token")
            .to_owned();
        let in_form = [
            form[0],
            ("client_id", &client_id),
            ("client_secret", &client_secret),
        ];
        http.post(format!("{host}/oauth/token"))
            .form(&in_form)
            .answer()
            .await
            .is(200);
        let guess = [form[0], ("client_id", &client_id), ("client_secret", wrong)];
        http.post(format!("{host}/oauth/token"))
            .form(&guess)
            .answer()
            .await
            .is(401);
        for path in [
            "/pet/1",
            "/limits",
            "/pet/findByStatus?status=sold",
            "/nowhere",
        ] {
            let url = format!("{host}/api/v3{path}");
            for secret in [
                &key,
                &token,
                &client_secret,
                &wrong.to_owned(),
                &bootstrap.to_owned(),
            ] {
                http.get(&url).header("api_key", secret).answer().await;
                http.get(&url).bearer_auth(secret).answer().await;
                http.post(&url)
                    .header("api_key", secret)
                    .body("{")
                    .answer()
                    .await;
            }
        }
        let revoke = http
            .post(format!("{host}/oauth/revoke"))
            .form(&[("token", &token)]);
        revoke
            .basic_auth(&client_id, Some(&client_secret))
            .answer()
            .await
            .is(200);
        tokens.push(token);
        let password = format!("password canary {}", tokens.len());
        let renewed = format!("renewed canary {}", tokens.len());
        let users = format!("{host}/api/v3/user");
        let name = format!("ada{}", tokens.len());
        let pair = [("username", name.as_str()), ("password", password.as_str())];
        let json: serde_json::Map<String, Value> = pair
            .map(|(name, value)| (name.to_owned(), value.into()))
            .into_iter()
            .collect();
        http.post(&users).json(&json).answer().await.is(201);
        http.post(&users).json(&json).answer().await.is(409);
        let log_in = format!("{users}/login");
        let session = http.post(&log_in).form(&pair).answer().await.is(200);
        let session = session.json().as_str().expect("a token").to_owned();
        http.get(&log_in).query(&pair).answer().await.is(200);
        http.post(&log_in).json(&json).answer().await.is(200);
        http.get(&log_in)
            .query(&[pair[0], ("password", wrong)])
            .answer()
            .await
            .is(400);
        for method in [Method::GET, Method::PUT] {
            let own = http
                .request(method, format!("{users}/{name}"))
                .bearer_auth(&session);
            let own = own
                .json(&json!({"password": renewed}))
                .answer()
                .await
                .is(200);
            assert!(
                !own.text().contains("canary") && !own.text().contains("argon2"),
                "{own}"
            );
        }
        let list = http
            .post(format!("{users}/createWithList"))
            .header("api_key", "special-key");
        let list = list.header("idempotency-key", &name).json(&[&json]);
        list.answer().await.is(409);
        tokens.extend([password, renewed, session, "$argon2id$".to_owned()]);
    }
    let metrics = format!("http://{}/metrics", service.operations);
    let metrics = reqwest::get(metrics)
        .await
        .expect("metrics")
        .text()
        .await
        .expect("text");
    home.run(&["keys", "create", "--caller", "acme", "--plan", "free"])
        .await
        .is(1);
    home.run(&["keys", "list"]).await.is(0);

    let said = [
        ("the log", service.log()),
        ("the metrics", metrics),
        ("the greeting", service.greeting.clone()),
        (
            "PostgreSQL's log",
            fs::read_to_string(home.path().join("data/postgres.log")).expect("its log"),
        ),
    ];
    assert!(
        said[0].1.contains("TRACE"),
        "the log is not at its most talkative"
    );
    let secrets = [key, client_secret, wrong.to_owned(), bootstrap.to_owned()];
    for secret in secrets.iter().chain(&tokens) {
        for (place, text) in &said {
            assert!(!text.contains(secret.as_str()), "a secret is in {place}");
        }
    }
    service.stop().await;
}
