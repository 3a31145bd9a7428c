//! Tests of `keys rotate`, of the last use that `keys list` shows, and of the default expiry of API keys.

use test_support::*;

use super::cli::Commands;

const CREATE: [&str; 7] = [
    "keys",
    "create",
    "--caller",
    "acme",
    "--plan",
    "enterprise",
    "--json",
];

fn time(value: &Value) -> DateTime<Utc> {
    let text = value.as_str().unwrap_or_else(|| panic!("no time: {value}"));
    text.parse().expect("a time")
}

fn key(created: &Value) -> &str {
    created["key"].as_str().expect("a key")
}

/// Returns the number of seconds until a time.
fn seconds_until(value: &Value) -> i64 {
    (time(value) - Utc::now()).num_seconds()
}

async fn status(service: &Service, method: Method, key: &str) -> u16 {
    let request = match method {
        Method::POST => service
            .request(method, "/pet", key)
            .json(&json!({"name": "a"})),
        method => service.request(method, "/pet/1", key),
    };
    request.await.status
}

/// Returns the listed keys of the caller `acme`.
async fn keys(commands: &Commands) -> Vec<Value> {
    let list = ["keys", "list", "--caller", "acme", "--json"];
    let listed = commands.json(&list).await;
    listed.as_array().expect("a list").clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn rotate_creates_a_like_key_and_ends_the_old_one_after_the_overlap() {
    let commands = Commands::on(TestDatabase::migrated().await);
    let service = commands.serve().await;
    let narrow = [&CREATE[..], &["--scope", "read:pets"]].concat();
    let old = commands.json(&narrow).await;
    let id = old["id"].to_string();
    let new = commands.json(&["keys", "rotate", &id, "--json"]).await;
    assert_eq!(new["caller"], "acme");
    assert_eq!(new["replaced"]["id"], old["id"]);
    let day = 24 * 60 * 60;
    let left = seconds_until(&new["replaced"]["expiresAt"]);
    assert!((day - 60..=day).contains(&left), "{new}");
    for key in [key(&old), key(&new)] {
        assert_eq!(status(&service, Method::GET, key).await, 404);
        assert_eq!(status(&service, Method::POST, key).await, 403);
    }
    let listed = keys(&commands).await;
    assert_eq!(listed.len(), 2);
    assert_eq!(listed[0]["expiresAt"], new["replaced"]["expiresAt"]);
    assert_eq!(listed[1]["expiresAt"], Value::Null);
    assert_eq!(listed[1]["scopes"], json!(["read:pets"]));

    // A key has one successor.
    commands
        .refuses(&["keys", "rotate", &id], "has been replaced")
        .await;
    // A longer overlap does not end a key later.
    let short = [&CREATE[..], &["--expires", "10s", "--name", "till 3"]].concat();
    let old = commands.json(&short).await;
    let id = old["id"].to_string();
    let rotate = [
        "keys",
        "rotate",
        &id,
        "--json",
        "--overlap",
        "48h",
        "--expires",
        "30d",
    ];
    let rotated = commands.json(&rotate).await;
    assert!(seconds_until(&rotated["replaced"]["expiresAt"]) <= 10);
    assert!(seconds_until(&rotated["expiresAt"]) > 29 * day, "{rotated}");
    assert_eq!(keys(&commands).await[3]["name"], "till 3");
    let started = Instant::now();
    while status(&service, Method::GET, key(&old)).await != 401 {
        assert!(started.elapsed() < PATIENCE, "still valid");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(status(&service, Method::GET, key(&new)).await, 404);
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rotate_without_overlap_ends_the_old_key_within_a_second() {
    let commands = Commands::on(TestDatabase::migrated().await);
    let service = commands.serve().await;
    let old = commands.json(&CREATE).await;
    let id = old["id"].to_string();
    assert_eq!(status(&service, Method::GET, key(&old)).await, 404);
    let rotate = ["keys", "rotate", &id, "--overlap", "0s"];
    let text = commands.run(&rotate).await.is(0).stdout;
    assert!(
        text.contains(&format!("keys revoke {id}")) && text.contains("Expires never"),
        "{text}"
    );
    eventually(async || status(&service, Method::GET, key(&old)).await == 401).await;
    let new = text.lines().find_map(|line| line.strip_prefix("Key     "));
    let new = new.expect("a key");
    assert_eq!(status(&service, Method::GET, new).await, 404);

    // An expired key, a key that does not exist, and a client cannot be rotated.
    let client = ["clients", "create", "--caller", "acme", "--json"];
    let client = commands.json(&client).await["id"].to_string();
    for id in [id.as_str(), "999", &client] {
        commands.refuses(&["keys", "rotate", id], "keys list").await;
    }
    assert_eq!(keys(&commands).await.len(), 2);
    for overlap in ["soon", "-1h"] {
        let option = format!("--overlap={overlap}");
        commands.run(&["keys", "rotate", "1", &option]).await.is(2);
    }
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn last_use_is_written_after_a_minute_and_not_by_each_request() {
    let commands = Commands::on(TestDatabase::migrated().await);
    let service = commands.serve().await;
    let used = commands.json(&CREATE).await;
    commands.json(&CREATE).await;
    let started = Instant::now();
    let first = Utc::now();
    let last_use = async || keys(&commands).await[0]["lastUsedAt"].clone();
    let mut requests = 0;
    let written = loop {
        status(&service, Method::GET, key(&used)).await;
        requests += 1;
        let last_use = last_use().await;
        if last_use.is_string() {
            break last_use;
        }
        assert!(started.elapsed() < 2 * PATIENCE, "not written");
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    assert!(requests > 10, "written after {requests} requests");
    assert!(time(&written) >= first - chrono::Duration::seconds(1));
    for _ in 0..3 {
        status(&service, Method::GET, key(&used)).await;
    }
    assert_eq!(last_use().await, written);
    let listed = keys(&commands).await;
    assert_eq!(listed[1]["lastUsedAt"], Value::Null, "{listed:?}");
    let table = commands.run(&["keys", "list"]).await.is(0).stdout;
    assert!(
        table.contains("LAST USED") && table.contains(written.as_str().expect("text")),
        "{table}"
    );
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn last_use_is_written_at_shutdown_at_most_once_a_minute() {
    let commands = Commands::on(TestDatabase::migrated().await);
    let created = commands.json(&CREATE).await;
    let use_once = async || {
        let service = commands.serve().await;
        status(&service, Method::GET, key(&created)).await;
        service.stop().await;
        keys(&commands).await[0]["lastUsedAt"].clone()
    };
    let first = use_once().await;
    assert!(seconds_until(&first).abs() < 30, "{first}");
    assert_eq!(use_once().await, first);
    let age = "update credentials set last_used_at = last_used_at - interval '1 minute'";
    commands.database.run(age).await;
    assert!(time(&use_once().await) >= time(&first));
    // Other callers have no such keys.
    let unknown = ["keys", "list", "--caller", "nobody"];
    commands.refuses(&unknown, "callers list").await;
    let other = [
        "keys", "create", "--caller", "other", "--plan", "free", "--json",
    ];
    commands.json(&other).await;
    assert_eq!(keys(&commands).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn use_of_a_key_does_not_remove_it_from_caches() {
    let commands = Commands::on(TestDatabase::migrated().await);
    let service = commands.serve().await;
    let created = commands.json(&CREATE).await;
    let path = "/limits";
    let get = || service.request(Method::GET, path, key(&created));
    // Until the service listens for changes, it caches for a second only.
    tokio::time::sleep(Duration::from_secs(1)).await;
    get().await.is(200);
    let used = "update credentials set last_used_at = now()";
    commands.database.run(used).await;
    // Without the table, only the cache accepts the key.
    commands
        .database
        .run("alter table callers rename to gone")
        .await;
    for _ in 0..10 {
        get().await.is(200);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    commands
        .database
        .run("alter table gone rename to callers")
        .await;
    let revoke = "update credentials set revoked_at = now()";
    commands.database.run(revoke).await;
    eventually(async || get().await.status == 401).await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn default_expiry_applies_to_new_keys_without_their_own() {
    let commands = Commands::on(TestDatabase::migrated().await);
    let run = async |arguments: &[&str], lifetime: &str| {
        let lifetime = ("PET_INVENTORY__AUTH__API_KEY_LIFETIME", lifetime);
        commands.run_with(arguments, &[lifetime]).await
    };
    let json = async |arguments: &[&str]| -> Value {
        let output = run(arguments, "90d").await.is(0);
        serde_json::from_str(&output.stdout).expect("JSON")
    };
    let day = 24 * 60 * 60;
    let days = |created: &Value| seconds_until(&created["expiresAt"]) / day;
    let created = json(&CREATE).await;
    assert_eq!(days(&created), 89);
    let own = json(&[&CREATE[..], &["--expires", "7d"]].concat()).await;
    assert_eq!(days(&own), 6);
    let never = json(&[&CREATE[..], &["--expires", "never"]].concat()).await;
    assert_eq!(never["expiresAt"], Value::Null);
    // A successor has the lifetime of the key that it replaces.
    let rotated = async |id: &Value| json(&["keys", "rotate", &id.to_string(), "--json"]).await;
    assert_eq!(rotated(&never["id"]).await["expiresAt"], Value::Null);
    assert_eq!(days(&rotated(&own["id"]).await), 6);
    let listed = keys(&commands).await;
    assert_eq!(listed[0]["expiresAt"], created["expiresAt"]);
    let text = run(&["keys", "create", "--caller", "acme"], "90d").await;
    assert!(text.is(0).stdout.contains("Expires 2"));
    // Clients are not keys.
    json(&["clients", "create", "--caller", "acme", "--json"]).await;
    let expiring =
        "select count(*) from credentials where kind = 'client_secret' and expires_at is not null";
    assert_eq!(commands.database.number(expiring).await, 0);
    let refused = run(&CREATE, "0s").await.is(1);
    refused.stderr_has("auth.api_key_lifetime");
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_keys_are_listed_as_such() {
    let commands = Commands::on(TestDatabase::migrated().await);
    commands.json(&CREATE).await;
    let expire = "update credentials set expires_at = '2026-01-31T12:00:00Z'";
    commands.database.run(expire).await;
    let listed = commands.run(&["keys", "list"]).await.is(0);
    listed.stdout_has("expired 2026-01-31T12:00:00");
}

#[tokio::test(flavor = "multi_thread")]
async fn created_client_gets_a_token_at_the_printed_address() {
    let commands = Commands::on(TestDatabase::migrated().await);
    let service = commands.serve().await;
    let (address, port) = (service.address.to_string(), service.address.port());
    let unspecified = format!("0.0.0.0:{port}");
    for (variable, value, expected) in [
        ("LISTEN", &*address, format!("http://{address}/oauth/token")),
        (
            "LISTEN",
            &unspecified,
            format!("http://localhost:{port}/oauth/token"),
        ),
        (
            "LISTEN",
            "unix:/run/api.sock",
            "--unix-socket /run/api.sock http://localhost/oauth/token".to_owned(),
        ),
        (
            "PUBLIC_URL",
            "https://pets.example",
            "https://pets.example/oauth/token".to_owned(),
        ),
    ] {
        let name = format!("PET_INVENTORY__SERVER__{variable}");
        let create = [
            &["clients", "create", "--caller"][..],
            &["acme", "--plan", "free"],
        ]
        .concat();
        let created = commands.run_with(&create, &[(&name, value)]).await.is(0);
        let mut lines = created.stdout.lines();
        let mut field = |name: &str| {
            let value = lines.find_map(|line| line.strip_prefix(name));
            value.expect("a field").trim().to_owned()
        };
        let (id, secret, curl) = (
            field("client_id"),
            field("client_secret"),
            field("  curl -u"),
        );
        let form = "-d grant_type=client_credentials";
        assert_eq!(curl, format!("'{id}:SECRET' {form} {expected}"));
        if expected.contains(&address) {
            let token = client().post(expected).basic_auth(id, Some(secret));
            let token = token.form(&[("grant_type", "client_credentials")]);
            assert!(token.is(200).await.json()["access_token"].is_string());
        }
    }
    service.stop().await;
}
