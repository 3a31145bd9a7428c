//! Tests of the commands: output, effects, exit codes and error messages.

use std::{net::TcpListener, ops::Deref};

use pet_inventory::domain::change::Kind;
use test_support::*;

/// Runs commands on an external database.
pub(super) struct Commands {
    home: Home,
    pub(super) database: TestDatabase,
}

impl Commands {
    pub(super) fn on(database: TestDatabase) -> Self {
        let home = Home::on(database.url());
        Self { home, database }
    }

    pub(super) async fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(arguments).await.is(0);
        one_json_line(&output)
    }
}

impl Deref for Commands {
    type Target = Home;

    fn deref(&self) -> &Home {
        &self.home
    }
}

#[track_caller]
fn one_json_line(output: &Output) -> Value {
    assert_eq!(output.stdout.lines().count(), 1, "{output:?}");
    serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[track_caller]
fn names(object: &Value) -> Vec<&str> {
    let object = object
        .as_object()
        .unwrap_or_else(|| panic!("not an object: {object}"));
    object.keys().map(String::as_str).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_create_list_and_revoke_apply_to_a_running_service() {
    // The database has no schema: the service migrates it at startup.
    let commands = Commands::on(TestDatabase::empty().await);
    let service = commands.serve().await;
    assert!(
        service.startup_output.contains("keys create"),
        "{}",
        service.startup_output
    );
    let created = commands
        .json(&[
            "keys", "create", "--caller", "acme", "--plan", "pro", "--json",
        ])
        .await;
    let mut members = names(&created);
    members.sort_unstable();
    assert_eq!(members, ["caller", "id", "key", "plan"], "{created}");
    assert_eq!(
        (&created["caller"], &created["plan"]),
        (&json!("acme"), &json!("pro"))
    );
    let (id, key) = (
        created["id"].as_i64().expect("a number"),
        created["key"].as_str().expect("a text"),
    );
    assert!(key.starts_with("pik_"), "{created}");
    service
        .request(Method::POST, "/pet", key)
        .json(&json!({"name": "a"}))
        .is(201)
        .await;

    let listed = commands.json(&["keys", "list", "--json"]).await;
    let listed = &listed.as_array().expect("an array")[0];
    assert_eq!(
        (&listed["id"], &listed["caller"]),
        (&json!(id), &json!("acme"))
    );
    assert_eq!(
        (&listed["expiresAt"], &listed["revokedAt"]),
        (&Value::Null, &Value::Null)
    );
    assert!(!listed["scopes"].to_string().contains("admin"), "{listed}");
    let text = commands.run(&["keys", "list"]).await.is(0).stdout;
    assert!(
        text.contains("acme") && text.contains(&key[..8]) && !text.contains(key),
        "{text}"
    );
    assert!(!listed.to_string().contains(key), "{listed}");

    commands
        .run(&["keys", "revoke", &id.to_string()])
        .await
        .is(0);
    eventually(async || {
        let request = service.request(Method::GET, "/pet/1", key);
        request.await.status == 401
    })
    .await;
    let again = commands
        .run(&["keys", "revoke", &id.to_string()])
        .await
        .is(1);
    again.stderr_has(&id.to_string());
    assert_eq!(again.stdout, "");
    let listed = commands.json(&["keys", "list", "--json"]).await;
    assert!(listed[0]["revokedAt"].is_string(), "{listed}");
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_create_sets_scopes_expiry_and_caller() {
    let commands = Commands::on(TestDatabase::migrated().await);
    let service = commands.serve().await;
    let create = ["keys", "create", "--json", "--caller", "reader"];
    commands.refuses(&create, "--plan").await;

    let narrow = [
        &create[..],
        &["--plan", "free", "--scope", "read:pets", "--expires", "90d"],
    ]
    .concat();
    let created = commands.json(&narrow).await;
    let key = created["key"].as_str().expect("a text");
    service
        .request(Method::GET, "/pet/1", key)
        .await
        .problem(404);
    service
        .request(Method::POST, "/pet", key)
        .json(&json!({"name": "a"}))
        .await
        .problem(403);
    let listed = commands.json(&["keys", "list", "--json"]).await;
    assert_eq!(listed[0]["scopes"], json!(["read:pets"]));
    let expires: DateTime<Utc> = listed[0]["expiresAt"]
        .as_str()
        .and_then(|time| time.parse().ok())
        .expect("a time");
    let days = (expires - Utc::now()).num_hours();
    assert!((89 * 24..=90 * 24).contains(&days), "{listed}");

    // A second key of the caller gets its plan, and cannot change the caller's plan or scopes.
    assert_eq!(commands.json(&create).await["plan"], "free");
    for (more, word) in [
        (["--plan", "pro"], "set-plan"),
        (["--scope", "admin"], "read:pets"),
    ] {
        let refused = commands.run(&[&create[..], &more].concat()).await.is(1);
        refused.stderr_has(word);
        assert_eq!(refused.stdout, "");
    }
    for bad in [
        ["--scope", "write:cats"],
        ["--expires", "soon"],
        ["--plan", "gold"],
        ["--caller", ""],
    ] {
        let refused = commands
            .run(&[&["keys", "create"][..], &bad].concat())
            .await
            .is(2);
        assert!(refused.stderr.contains(bad[0]), "{refused:?}");
    }

    let brief = [&create[..], &["--expires", "1ms"]].concat();
    let brief = commands.json(&brief).await;
    let brief = brief["key"].as_str().expect("a text");
    service
        .request(Method::GET, "/pet/1", brief)
        .await
        .problem(401);
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_set_plan_is_shown_by_callers_list() {
    let commands = Commands::on(TestDatabase::migrated().await);
    commands
        .json(&[
            "keys", "create", "--caller", "acme", "--plan", "free", "--json",
        ])
        .await;
    commands
        .run(&["callers", "set-plan", "acme", "pro"])
        .await
        .is(0);
    let callers = commands.json(&["callers", "list", "--json"]).await;
    let acme = &callers[0];
    assert_eq!(
        (&acme["name"], &acme["plan"]),
        (&json!("acme"), &json!("pro"))
    );
    assert_eq!(acme["credentials"], 1);
    let text = commands.run(&["callers", "list"]).await.is(0).stdout;
    assert!(
        text.contains("acme") && text.contains("pro") && text.contains("600"),
        "{text}"
    );
    commands
        .refuses(&["callers", "set-plan", "nobody", "pro"], "nobody")
        .await;
    commands
        .run(&["callers", "set-plan", "acme", "gold"])
        .await
        .is(2);
}

#[tokio::test(flavor = "multi_thread")]
async fn migrate_check_lists_missing_migrations_and_changes_nothing() {
    let commands = Commands::on(TestDatabase::empty().await);
    for _ in 0..2 {
        let check = commands.run(&["migrate", "--check"]).await.is(1);
        assert!(
            check.stdout.starts_with("missing 0301") && check.stderr.contains("migrate"),
            "{check:?}"
        );
    }
    assert_eq!(
        commands
            .database
            .number("select count(*) from pg_tables where schemaname = 'public'")
            .await,
        0
    );
    let done = commands.run(&["migrate"]).await.is(0);
    assert!(done.stdout.starts_with("applied 0301"), "{done:?}");
    for arguments in [&["migrate", "--check"][..], &["migrate"]] {
        let output = commands.run(arguments).await.is(0);
        assert_eq!(output.stdout, "the schema is up to date\n");
    }

    let undo = "drop table idempotency_keys; delete from _sqlx_migrations where version = 306";
    let mut connection = commands.database.connect().await;
    connection.execute(undo).await.expect("undone");
    let done = commands.run(&["migrate"]).await.is(0);
    assert_eq!(done.stdout, "applied 0306 idempotency keys\n");
    let logged =
        r#""message":"applied a migration","version":306,"description":"idempotency keys","time":"#;
    done.stderr_has(logged);
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_use_embedded_postgres_with_and_without_a_service() {
    let home = Home::new();
    let create = [
        "keys",
        "create",
        "--caller",
        "acme",
        "--plan",
        "enterprise",
        "--json",
    ];
    let before = one_json_line(&home.run(&create).await.is(0));
    home.wait_until_unused().await;
    let service = home.serve().await;
    let beside = one_json_line(&home.run(&create).await.is(0));
    for created in [&before, &beside] {
        let key = created["key"].as_str().expect("a text");
        service
            .request(Method::GET, "/pet/1", key)
            .await
            .problem(404);
    }
    home.run(&["keys", "revoke", &before["id"].to_string()])
        .await
        .is(0);
    let key = before["key"].as_str().expect("a text");
    eventually(async || {
        let request = service.request(Method::GET, "/pet/1", key);
        request.await.status == 401
    })
    .await;
    home.run(&["migrate", "--check"]).await.is(0);
    let callers = one_json_line(&home.run(&["callers", "list", "--json"]).await.is(0));
    assert_eq!(callers.as_array().map(Vec::len), Some(4), "{callers}");

    let address = service.address.to_string();
    let listen = [("PET_INVENTORY__SERVER__LISTEN", address.as_str())];
    let healthcheck = async || home.run_with(&["healthcheck"], &listen).await;
    assert_eq!(healthcheck().await.is(0).stdout, "ok\n");
    service.stop().await;
    healthcheck().await.is(1).stderr_has(&address);
    home.wait_until_unused().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn openapi_prints_only_the_document() {
    let home = Home::new();
    let output = home.run(&["openapi"]).await.is(0);
    let document: Value = serde_json::from_str(&output.stdout).expect("JSON");
    assert!(document["paths"]["/pet"]["post"].is_object(), "{output:?}");
    assert_eq!(output.stderr, "");
    assert!(!home.path().join("data").exists(), "it needs no database");
    for format in ["json", "json-3.0"] {
        let run = async |more: &[&str]| {
            let arguments = [&["openapi", "--format", format], more].concat();
            home.run(&arguments).await.is(0).stdout
        };
        let (pretty, line) = (run(&[]).await, run(&["--json"]).await);
        assert_eq!(line.lines().count(), 1, "{format}");
        let parse = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
        assert_eq!(parse(&line), parse(&pretty));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn help_describes_every_command() {
    let home = Home::new();
    for (arguments, words) in [
        (
            &["--help"][..],
            &[
                "DATABASE_URL",
                "serve",
                "migrate",
                "openapi",
                "keys",
                "callers",
                "healthcheck",
            ][..],
        ),
        (&["serve", "--help"], &["--config"]),
        (&["migrate", "--help"], &["--check"]),
        (&["openapi", "--help"], &["OpenAPI"]),
        (&["healthcheck", "--help"], &["HEALTHCHECK"]),
        (&["keys", "--help"], &["create", "rotate", "list", "revoke"]),
        (
            &["keys", "rotate", "--help"],
            &["<ID>", "--overlap", "24h", "--expires", "keys revoke"],
        ),
        (
            &["keys", "create", "--help"],
            &[
                "--caller",
                "--plan",
                "--scope",
                "--expires",
                "--json",
                "read:pets",
                "90d",
            ],
        ),
        (
            &["keys", "list", "--help"],
            &["--json", "--caller", "last use"],
        ),
        (&["keys", "revoke", "--help"], &["<ID>"]),
        (
            &["callers", "--help"],
            &[
                "list",
                "set-plan",
                "set-scopes",
                "disable",
                "enable",
                "delete",
            ],
        ),
        (
            &["callers", "set-scopes", "--help"],
            &["<NAME>", "<SCOPE>", "read:pets", "disable"],
        ),
        (
            &["callers", "set-plan", "--help"],
            &["<NAME>", "<PLAN>", "enterprise"],
        ),
    ] {
        let output = home.run(arguments).await.is(0);
        for word in words {
            assert!(output.stdout.contains(word), "no {word} in {output:?}");
        }
    }
    let version = home.run(&["--version"]).await.is(0);
    // CI builds a clone, which has commits; an archive of the source has none.
    let git = ["log", "-1", "--abbrev=9", "--format=%h %cs"];
    let git = std::process::Command::new("git").args(git).output();
    let commit = String::from_utf8(git.expect("git").stdout).expect("text");
    let commit = match commit.trim_end() {
        "" => "unknown",
        commit => commit,
    };
    let expected = format!("pet-inventory {} ({commit})\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(version.stdout, expected);
    let wrong = home.run(&["keys", "craete"]).await.is(2);
    assert!(wrong.stderr.contains("create"), "{wrong:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn help_lists_all_values() {
    let home = Home::new();
    let kinds = Kind::ALL.map(Kind::as_str);
    let scopes = Scope::ALL.map(Scope::as_str);
    let plans = Plan::ALL.map(Plan::as_str);
    for (command, values) in [
        (&["audit"][..], &kinds[..]),
        (&["webhooks", "create"], &kinds),
        (&["keys", "create"], &scopes),
        (&["keys", "create"], &plans),
        (&["clients", "create"], &scopes),
        (&["callers", "set-scopes"], &scopes),
        (&["callers", "set-plan"], &plans),
    ] {
        let help = home.run(&[command, &["--help"]].concat()).await.is(0);
        let separators = |letter: char| letter.is_whitespace() || [',', ';'].contains(&letter);
        let words: Vec<&str> = help.stdout.split(separators).collect();
        for value in values {
            assert!(words.contains(value), "no {value} in {help:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_configuration_fails_startup_and_names_its_key() {
    let home = Home::new();
    for (name, value, key) in [
        ("PET_INVENTORY__SERVER__LISTEN", "nowhere", "server.listen"),
        ("PET_INVENTORY__SERVER__LISTNE", "127.0.0.1:0", "listne"),
        ("PET_INVENTORY__TELEMETRY__LOG", "=;=", "telemetry.log"),
        ("DATABASE_URL", "not a url", "DATABASE_URL"),
    ] {
        let output = home.run_with(&["serve"], &[(name, value)]).await.is(1);
        output.stderr_has(key);
        assert_eq!(output.stdout, "");
    }
    home.write("pets.toml", "[server]\nlisten = 5\n");
    let mut command = home.command(["--config", "pets.toml", "serve"]);
    command.env_remove("PET_INVENTORY__SERVER__LISTEN");
    let output = Output::of(command).await.is(1);
    output.stderr_has("server.listen");
    output.stderr_has("pets.toml");
    let missing = ["--config", "missing.toml"];
    home.refuses(&missing, "missing.toml").await;
    assert!(!home.path().join("data").exists(), "nothing was started");
}

#[tokio::test(flavor = "multi_thread")]
async fn port_in_use_fails_startup_and_names_its_key() {
    let commands = Commands::on(TestDatabase::migrated().await);
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    for (name, key) in [
        ("PET_INVENTORY__SERVER__LISTEN", "server.listen"),
        ("PET_INVENTORY__OPERATIONS__LISTEN", "operations.listen"),
    ] {
        let output = commands.run_with(&["serve"], &[(name, &address)]).await;
        for words in [key, &address, name] {
            output.stderr_has(words);
        }
        output.is(1);
        // Before it waits for PostgreSQL.
        let away = format!("postgres://pets@{}/pets", free_address());
        let variables = [(name, &*address), ("DATABASE_URL", &away)];
        let output = commands.run_with(&["serve"], &variables).await.is(1);
        output.stderr_has(&address);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn default_port_in_use_is_replaced_by_a_free_one() {
    // If binding fails, another process has the port, which is as good for this test.
    let _taken = ["127.0.0.1:8080", "127.0.0.1:9090"].map(TcpListener::bind);
    let home = Home::new();
    let mut command = home.command(["serve"]);
    command.env_remove("PET_INVENTORY__SERVER__LISTEN");
    command.env_remove("PET_INVENTORY__OPERATIONS__LISTEN");
    let service = Service::start(&home, command).await;
    assert_ne!(service.address.port(), 8080);
    assert_ne!(service.operations.port(), 9090);
    service
        .request(Method::GET, "/pet/findByStatus?status=sold", "free-key")
        .is(200)
        .await;
    assert!(service.log().contains("8080"), "{}", service.log());
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn command_with_closed_stdout_exits_with_141_without_a_message() {
    let commands = Commands::on(TestDatabase::migrated().await);
    commands.write("pets.ndjson", "{\"name\":\"Rex\"}\n");
    commands.run(&["import", "pets.ndjson"]).await.is(0);
    for arguments in [
        &["config", "show"] as &[&str],
        &["openapi"],
        &["completions", "bash"],
        &["keys", "list"],
        &["export", "--format", "csv"],
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = commands.command(arguments);
        command.stdout(writer);
        let ended = command.spawn().expect("the program").wait_with_output();
        let ended = ended.await.expect("it ends");
        let output = String::from_utf8_lossy(&ended.stderr);
        // 128 + SIGPIPE, as shells report it.
        assert_eq!(ended.status.code(), Some(141), "{arguments:?}: {output}");
        assert_eq!(output, "", "{arguments:?}");
    }
}
