//! Output of the commands: `--json` of each command that prints, and tables with wide characters.

use test_support::*;

use super::cli::Commands;

/// Creates a caller with a key, and returns the id of the key.
async fn create(commands: &Commands, caller: &str) -> String {
    let create = ["keys", "create", "--caller", caller, "--plan", "free"];
    let create = [&create[..], &["--scope", "read:pets", "--json"]].concat();
    commands.json(&create).await["id"].to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_callers_and_credentials_print_json() {
    let commands = Commands::on(TestDatabase::migrated().await);
    let key = create(&commands, "acme").await;
    let client = ["clients", "create", "--caller", "acme", "--json"];
    let client = commands.json(&client).await;
    let members: Vec<_> = client.as_object().expect("an object").keys().collect();
    assert_eq!(
        members,
        ["caller", "client_id", "client_secret", "id", "plan"]
    );
    let client = client["id"].to_string();
    for (arguments, expected) in [
        (
            &["callers", "set-plan", "acme", "pro"][..],
            json!({"name": "acme", "plan": "pro"}),
        ),
        (
            &["callers", "set-scopes", "acme", "write:pets", "read:pets"],
            json!({"name": "acme", "scopes": ["read:pets", "write:pets"]}),
        ),
        (
            &["callers", "disable", "acme"],
            json!({"name": "acme", "disabled": true}),
        ),
        (
            &["callers", "enable", "acme"],
            json!({"name": "acme", "disabled": false}),
        ),
        (&["keys", "revoke", &key], json!({"id": 1, "revoked": true})),
        (
            &["clients", "revoke", &client],
            json!({"id": 2, "revoked": true}),
        ),
        (
            &["callers", "delete", "acme"],
            json!({"name": "acme", "deleted": true}),
        ),
        (&["callers", "list"], json!([])),
        (&["sessions", "list"], json!([])),
    ] {
        let printed = commands.json(&[arguments, &["--json"]].concat()).await;
        assert_eq!(printed, expected, "{arguments:?}");
    }
    // The option can come first.
    assert_eq!(
        commands.json(&["--json", "clients", "list"]).await,
        json!([])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn migrate_import_and_export_print_json() {
    let commands = Commands::on(TestDatabase::empty().await);
    let run = async |arguments: &[&str], code: i32| -> Value {
        let output = commands.run(&[arguments, &["--json"]].concat()).await;
        let output = output.is(code);
        assert_eq!(output.stdout.lines().count(), 1, "{output:?}");
        serde_json::from_str(&output.stdout).expect("JSON")
    };
    let missing = run(&["migrate", "--check"], 1).await;
    assert_eq!(missing["missing"][0]["version"], 301, "{missing}");
    assert!(missing["missing"][0]["description"].is_string());
    let applied = run(&["migrate"], 0).await;
    assert_eq!(applied["applied"], missing["missing"]);
    assert_eq!(run(&["migrate"], 0).await, json!({"applied": []}));
    assert_eq!(
        run(&["migrate", "--check"], 0).await,
        json!({"missing": []})
    );

    commands.write("in.ndjson", "{\"name\":\"Rex\"}\n");
    assert_eq!(run(&["import", "in.ndjson"], 0).await, json!({"added": 1}));
    let exported = run(&["export", "out.ndjson"], 0).await;
    let file = fs::read(commands.path().join("out.ndjson")).expect("a file");
    assert_eq!(exported, json!({"file": "out.ndjson", "bytes": file.len()}));
    let refused = ["export", "--format", "csv", "--json"];
    let refused = commands.run(&refused).await.is(1);
    assert!(refused.stderr.contains("add a file"), "{refused:?}");
    assert_eq!(refused.stdout, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn check_and_config_show_print_json() {
    let commands = Commands::on(TestDatabase::migrated().await);
    let images = format!("file://{}", commands.path().display());
    let run = async |url: &str, code: i32| -> Value {
        let check = ["check", "--json", "--database-url", url];
        let variables = [
            ("PET_INVENTORY__IMAGES__URL", images.as_str()),
            ("OTEL_PROPAGATORS", "b3"),
        ];
        let output = commands.run_with(&check, &variables).await.is(code);
        serde_json::from_str(&output.stdout).expect("JSON")
    };
    let good = run(&commands.database.url(), 0).await;
    assert_eq!(good["ok"], true, "{good}");
    let parts = |report: &Value, member: &str| -> Vec<Value> {
        let list = report[member].as_array().expect("an array").iter();
        list.map(|it| it["part"].clone()).collect()
    };
    let all = ["configuration", "database", "cluster", "schema", "images"];
    assert_eq!(parts(&good, "checks"), all);
    let warnings = good["warnings"].to_string();
    assert!(warnings.contains("OTEL_PROPAGATORS"), "{good}");
    let bad = run("postgres://user:hunter2@127.0.0.1:1/db", 1).await;
    assert_eq!(
        (&bad["ok"], &bad["checks"][1]["ok"]),
        (&json!(false), &json!(false))
    );
    assert!(!bad.to_string().contains("hunter2"), "{bad}");

    let url = "postgres://user:hunter2@127.0.0.1:1/db";
    let show = ["config", "show", "--json", "--database-url", url];
    let variables = [
        ("PORT", "8123"),
        ("RUST_LOG", "warn"),
        ("OTEL_BSP_SCHEDULE_DELAY", "5"),
    ];
    let output = Home::new().run_with(&show, &variables).await.is(0);
    assert!(!output.stdout.contains("hunter2"), "{output:?}");
    let settings: Vec<Value> = serde_json::from_str(&output.stdout).expect("JSON");
    for (key, value, origin) in [
        ("server.listen", json!("127.0.0.1:8123"), "PORT"),
        ("server.max_requests", json!(1024), "default"),
        ("server.reuse_port", json!(false), "default"),
        ("limits.trusted_proxies", json!([]), "default"),
        ("telemetry.log", json!("warn"), "RUST_LOG"),
        (
            "telemetry.otlp_delay",
            json!("5ms"),
            "OTEL_BSP_SCHEDULE_DELAY",
        ),
        (
            "operations.listen",
            json!("127.0.0.1:0"),
            "PET_INVENTORY__OPERATIONS__LISTEN",
        ),
        (
            "database.url",
            json!("postgres://user:***@127.0.0.1:1/db"),
            "--database-url",
        ),
    ] {
        let expected = json!({"key": key, "value": value, "origin": origin});
        assert!(
            settings.contains(&expected),
            "no {expected} in {settings:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn serve_and_healthcheck_print_json() {
    use tokio::io::{AsyncBufReadExt as _, BufReader};
    let home = Home::new();
    let mut serve = home.command(["--json"]);
    let mut child = serve.spawn().expect("the program");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let line = lines.next_line().await.expect("text").expect("a line");
    let started: Value = serde_json::from_str(&line).expect("JSON");
    let docs = started["docs"].as_str().expect("a URL");
    assert!(
        started["api"]
            .as_str()
            .is_some_and(|url| url.ends_with("/api/v3"))
    );
    assert!(
        started["metrics"]
            .as_str()
            .is_some_and(|url| url.ends_with("/metrics"))
    );
    assert_eq!(started["data"], "embedded PostgreSQL in data");
    assert_eq!(
        started["demoKeys"][0],
        json!({"key": "special-key", "plan": "enterprise"})
    );
    let page = client().get(docs).send().await;
    assert_eq!(page.expect("a response").status(), 303);
    let address = docs.trim_start_matches("http://").trim_end_matches("/docs");
    let check = home
        .run(&["healthcheck", "--json", "--listen", address])
        .await;
    assert_eq!(check.is(0).stdout, "{\"ok\":true}\n");
    child.kill().await.expect("it ran");
    home.wait_until_unused().await;
}

/// Width of a text on a terminal, for characters from one of two blocks.
fn width(text: &str) -> usize {
    let is_wide = |it: char| ('\u{3000}'..='\u{9fff}').contains(&it);
    text.chars().map(|it| 1 + usize::from(is_wide(it))).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn columns_are_aligned_behind_wide_characters() {
    let commands = Commands::on(TestDatabase::migrated().await);
    for caller in ["acme", "宠物商店", "ペット", "cafe\u{301}"] {
        create(&commands, caller).await;
    }
    for list in ["callers", "keys"] {
        let table = commands.run(&[list, "list"]).await.is(0).stdout;
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(lines.len(), 5, "{table}");
        let column = |line: &str, word: &str| {
            let start = line
                .find(word)
                .unwrap_or_else(|| panic!("no {word} in {table}"));
            // A combining character has no width.
            width(&line[..start].replace('\u{301}', ""))
        };
        let (title, cell) = match list {
            "keys" => ("VALID", "without end"),
            _ => ("PLAN", "free"),
        };
        let title = column(lines[0], title);
        for line in &lines[1..] {
            assert_eq!(column(line, cell), title, "{table}");
            assert_eq!(*line, line.trim_end(), "{table:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn list_of_keys_fits_a_terminal() {
    let commands = Commands::on(TestDatabase::migrated().await);
    let (caller, name) = ("c".repeat(64), "name of a till ".repeat(6));
    let mut create = vec![
        "keys",
        "create",
        "--caller",
        &caller,
        "--plan",
        "enterprise",
    ];
    for scope in [
        "read:pets",
        "write:pets",
        "read:orders",
        "write:orders",
        "read:changes",
        "admin",
    ] {
        create.extend(["--scope", scope]);
    }
    create.extend(["--name", &name, "--expires", "90d"]);
    commands.run(&create).await.is(0);
    let table = commands.run(&["keys", "list"]).await.is(0).stdout;
    assert!(table.lines().all(|line| width(line) <= 100), "{table}");
    let all: String = table.split_whitespace().collect();
    for word in ["read:changes", "admin", "until", "LASTUSED"] {
        assert!(all.contains(word), "{table}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_create_explains_how_to_use_an_existing_caller() {
    let commands = Commands::on(TestDatabase::migrated().await);
    create(&commands, "pet-shop").await;
    let more = [
        "keys",
        "create",
        "--caller",
        "pet-shop",
        "--scope",
        "write:pets",
    ];
    let refused = commands.run(&more).await.is(1);
    let fix = "pet-inventory callers set-scopes 'pet-shop' read:pets write:pets\n";
    assert!(refused.stderr.ends_with(fix), "{refused:?}");
    assert!(refused.stderr.contains("omit it"), "{refused:?}");
    // The command does what the message promises.
    let set = [
        "callers",
        "set-scopes",
        "pet-shop",
        "read:pets",
        "write:pets",
    ];
    commands.run(&set).await.is(0);
    commands.run(&more).await.is(0);
    let plan = ["keys", "create", "--caller", "pet-shop", "--plan", "pro"];
    let refused = commands.run(&plan).await.is(1);
    let fix = "pet-inventory callers set-plan 'pet-shop' pro\n";
    assert!(refused.stderr.ends_with(fix), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn options_replace_variables_and_are_refused_where_they_have_no_effect() {
    let (home, database) = (Home::new(), TestDatabase::migrated().await);
    let mut serve = home.command(["--database-url", &database.url(), "--listen", "127.0.0.1:0"]);
    serve
        .env("DATABASE_URL", "postgres://127.0.0.1:1/none")
        .env("PET_INVENTORY__SERVER__LISTEN", "192.0.2.1:1")
        .env("PORT", "1");
    let service = Service::start(&home, serve).await;
    service.stop().await;
    for (arguments, code, words) in [
        (
            &["keys", "list", "--listen", "127.0.0.1:1"][..],
            1,
            "--listen",
        ),
        (
            &["openapi", "--database-url", "postgres://hunter2"],
            1,
            "--database-url",
        ),
        (
            &["healthcheck", "--database-url", "postgres://hunter2"],
            1,
            "--database-url",
        ),
        (&["completions", "bash", "--json"], 1, "--json"),
        (&["openapi", "--format", "yaml", "--json"], 1, "--json"),
        (&["openapi", "--help"], 0, "3.0.3"),
        (&["serve", "--listen", "nowhere"], 2, "unix:"),
        (&["serve", "--help"], 0, "list of processes"),
    ] {
        let output = home.run(arguments).await.is(code);
        let printed = format!("{}{}", output.stdout, output.stderr).replace("\n          ", " ");
        assert!(printed.contains(words), "{output:?}");
        assert!(!printed.contains("hunter2"), "{output:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_are_json_with_the_next_step() {
    let commands = Commands::on(TestDatabase::migrated().await);
    for (arguments, code, error, next) in [
        (
            &["keys", "revoke", "7"][..],
            1,
            "key 7 does not exist or is already revoked",
            json!("see: pet-inventory keys list"),
        ),
        (
            &["export", "--listen", "127.0.0.1:1"],
            1,
            "this command does not use --listen",
            json!("omit it"),
        ),
        (
            &["export", "--format", "csv"],
            1,
            "--json prints a summary, but stdout is for the pets",
            json!("add a file"),
        ),
        (
            &["keys", "revoke"],
            2,
            "the following required arguments were not provided: <ID>",
            json!("Usage: pet-inventory keys revoke <ID> For more information, try '--help'."),
        ),
        (
            &["keys"],
            2,
            "a subcommand is missing",
            json!("try '--help'"),
        ),
    ] {
        let output = commands.run(&[&["--json"], arguments].concat()).await;
        let output = output.is(code);
        assert_eq!(output.stderr.lines().count(), 1, "{output:?}");
        let printed: Value = serde_json::from_str(&output.stderr).expect("JSON");
        let text = printed["error"].as_str().unwrap_or_default();
        assert!(text.starts_with(error), "{printed}");
        assert_eq!(printed["next"], next, "{printed}");
    }
}
