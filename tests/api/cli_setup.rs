//! Tests of the commands for setting up a service: `check`, `config show` and `completions`.

use test_support::postgres::{self, url};
use test_support::*;
use tokio::process::Command;

#[tokio::test(flavor = "multi_thread")]
async fn check_reports_failures_with_the_next_step() {
    let check = async |url: &str| Home::on(url.to_owned()).run(&["check"]).await;
    let database = TestDatabase::empty().await;
    let output = check(&database.url()).await.is(1);
    let lines: Vec<_> = output.stdout.lines().collect();
    let [configuration, reached, cluster, schema, images] = lines[..] else {
        panic!("{output:?}");
    };
    assert!(
        configuration.starts_with("ok      configuration"),
        "{output:?}"
    );
    assert!(
        reached.starts_with("ok      database") && reached.contains("PostgreSQL 1"),
        "{output:?}"
    );
    let alone = "standbys connected: 0, a commit waits for: 0; no Patroni found";
    assert_eq!(cluster, format!("ok      cluster        {alone}"));
    assert!(
        schema.starts_with("FAILED  schema") && schema.contains("pet-inventory migrate"),
        "{output:?}"
    );

    assert!(images.starts_with("ok      images"), "{output:?}");

    let database = TestDatabase::migrated().await;
    let output = check(&database.url()).await.is(0);
    assert!(!output.stdout.contains("FAILED"), "{output:?}");

    let pooler = ("PET_INVENTORY__DATABASE__POOLER", "transaction");
    let home = Home::on(database.url());
    let output = home.run_with(&["check"], &[pooler]).await.is(1);
    output.stdout_has("set database.pooler = \"none\"");

    let output = check("postgres://user:hunter2@127.0.0.1:1/db").await.is(1);
    output.stdout_has("FAILED  database");
    output.stdout_has("DATABASE_URL");
    assert_eq!(output.stdout.matches("FAILED").count(), 1, "{output:?}");
    assert!(!format!("{output:?}").contains("hunter2"), "{output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn check_warns_of_synchronous_standbys_that_do_not_answer() {
    let folder = tempfile::tempdir().expect("a folder");
    let postgres = start_postgres(folder.path()).await;
    let options = postgres.connect_options();
    let home = Home::on(url(&options));
    let run = async |name: &str| home.run(&[name]).await.is(0).stdout;
    run("migrate").await;
    for (names, needed) in [("s1", 1), ("first 2 (s1, s2)", 2), ("ANY 1 (*)", 1)] {
        for statement in [
            format!("alter system set synchronous_standby_names = '{names}'"),
            "select pg_reload_conf()".to_owned(),
        ] {
            postgres::run(&options, &statement).await;
        }
        let waiting = format!(
            "WARNING database       a commit waits for {needed} standbys of synchronous_standby_names, but 0 answer"
        );
        let status = format!("standbys connected: 0, a commit waits for: {needed}; no Patroni");
        eventually(async || {
            let output = run("check").await;
            output.contains(&waiting) && output.contains(&status)
        })
        .await;
    }
    postgres.stop().await.expect("a stop");
}

#[tokio::test(flavor = "multi_thread")]
async fn check_without_database_url_uses_embedded_postgres_and_stops_it() {
    let home = Home::new();
    let output = home.run(&["check"]).await.is(1);
    output.stdout_has("embedded PostgreSQL 1");
    output.stdout_has(" in data");
    home.run(&["migrate"]).await.is(0);
    home.run(&["check"]).await.is(0);
    home.wait_until_unused().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_of_postgres_clients_do_not_reach_the_embedded_postgres() {
    let variables = [
        ("PGOPTIONS", "-c no_such_setting=1"),
        ("PGPORT", "1"),
        ("PGHOST", "nowhere.invalid"),
        ("PGDATABASE", "nowhere"),
        ("PGSSLMODE", "verify-full"),
        ("PGSSLROOTCERT", "/nowhere"),
        ("PGDATA", "/nowhere"),
        ("PGCLIENTENCODING", "LATIN1"),
        ("PGDATESTYLE", "nonsense"),
    ];
    let home = Home::new();
    home.run_with(&["migrate"], &variables).await.is(0);
    let service = home.serve_with(&variables).await;
    let pet = json!({"name": "Rex"});
    service
        .request(Method::POST, "/pet", "special-key")
        .json(&pet)
        .is(201)
        .await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn config_show_prints_each_setting_with_its_source() {
    let home = Home::new();
    let file = "[server]\nmax_requests = 7\n[telemetry]\nlog = \"warn\"\n";
    home.write("ours.toml", file);
    let show = ["--config", "ours.toml", "config", "show"];
    let headers = "authorization=hunter2, x=hunter2=";
    let variables = [
        ("DATABASE_URL", "postgres://user:hunter2@127.0.0.1:1/db"),
        ("OTEL_EXPORTER_OTLP_HEADERS", headers),
        ("PET_INVENTORY__DATABASE__PASSWORD", "hunter2"),
        ("PET_INVENTORY__TELEMETRY__LOG", "error"),
    ];
    let output = home.run_with(&show, &variables).await.is(0);
    for (setting, origin) in [
        ("server.max_requests = 7", "ours.toml"),
        ("server.header_timeout = \"10s\"", "default"),
        (
            "database.password = \"***\"",
            "PET_INVENTORY__DATABASE__PASSWORD",
        ),
        (
            "telemetry.otlp_headers = \"authorization=***,x=***\"",
            "OTEL_EXPORTER_OTLP_HEADERS",
        ),
        ("telemetry.log = \"error\"", "PET_INVENTORY__TELEMETRY__LOG"),
        (
            "database.url = \"postgres://user:***@127.0.0.1:1/db\"",
            "DATABASE_URL",
        ),
    ] {
        let line = output.stdout.lines().find(|line| line.starts_with(setting));
        let line = line.unwrap_or_else(|| panic!("no {setting} in {output:?}"));
        assert!(line.ends_with(&format!("# {origin}")), "{line}");
    }
    assert!(!output.stdout.contains("hunter2"), "{output:?}");

    let file = home.path().join("url");
    fs::write(&file, "postgres://user:hunter2@127.0.0.1:1/db\n").expect("a file");
    let mut command = home.command(["config", "show"]);
    command.env("DATABASE_URL_FILE", &file);
    let from_file = Output::of(command).await.is(0).stdout;
    let shown =
        |line: &str| line.starts_with("database.url") && line.ends_with("# DATABASE_URL_FILE");
    assert!(from_file.lines().any(shown), "{from_file}");
    assert!(!from_file.contains("hunter2"), "{from_file}");

    // The output is a valid configuration file.
    let shown = output.stdout.replace("user:***", "user");
    home.write("shown.toml", &shown);
    home.run(&["--config", "shown.toml", "config", "show"])
        .await
        .is(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_include_subcommands_for_each_shell() {
    let home = Home::new();
    for shell in ["bash", "zsh", "fish"] {
        let output = home.run(&["completions", shell]).await.is(0);
        output.stdout_has("set-plan");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn check_fails_if_the_image_store_is_unusable() {
    let database = TestDatabase::migrated().await;
    let home = Home::on(database.url());
    home.write("file", "");
    let inside_a_file = format!("file://{}/file/images", home.path().display());
    let images = ("PET_INVENTORY__IMAGES__URL", inside_a_file.as_str());
    let output = home.run_with(&["check"], &[images]).await.is(1);
    output.stdout_has("FAILED  images");
}

/// Returns a command that may open so many files.
fn with_files(home: &Home, limit: u32, arguments: &[&str]) -> Command {
    home.in_shell(
        &format!(r#"ulimit -n {limit} && exec "$0" "$@""#),
        arguments,
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn few_open_files_are_kept_for_the_database() {
    const ADMINISTRATOR: &str = "a-key-of-an-administrator-0000000";
    let database = TestDatabase::migrated().await;
    let home = Home::on(database.url());
    let home = home.with("BOOTSTRAP_API_KEY", ADMINISTRATOR.to_owned());
    for command in ["check", "serve"] {
        let output = Output::of(with_files(&home, 40, &[command])).await.is(1);
        let lines = format!("{}{}", output.stdout, output.stderr);
        let reason = "the limit of open files is 40, but at least ";
        assert!(
            lines.contains(reason) && lines.contains("ulimit -n"),
            "{lines}"
        );
    }
    let output = Output::of(with_files(&home, 64, &["check"])).await.is(0);
    output.stdout_has("WARNING configuration  the limit of open files is 64, which leaves ");

    let service = Service::start(&home, with_files(&home, 64, &["serve"])).await;
    assert!(service.log().contains("the limit of open files is 64"));
    let service = Arc::new(service);
    let clients = (0..60).map(|number| {
        let service = Arc::clone(&service);
        tokio::spawn(async move {
            let request = |method, path: &str| {
                let url = format!("http://{}/api/v3{path}", service.address);
                // Each request has a connection of its own.
                let request = Call::from(client().request(method, url));
                request
                    .header("api_key", ADMINISTRATOR)
                    .header("connection", "close")
            };
            let pet = json!({"name": format!("pet {number}"), "photoUrls": []});
            let added = request(Method::POST, "/pet")
                .json(&pet)
                .is(201)
                .await
                .json();
            let id = added["id"].as_i64().expect("an id");
            for path in [
                format!("/pet/{id}"),
                "/pet?limit=1000".to_owned(),
                format!("/pet?name=pet {number}"),
                "/store/inventory".to_owned(),
                "/pet/findByTags?tags=a".to_owned(),
            ] {
                request(Method::GET, &path).is(200).await;
            }
            request(Method::DELETE, &format!("/pet/{id}")).is(200).await;
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.expect("responses");
    }
    assert!(!service.log().contains("ERROR"), "{}", service.log());
}

/// Runs `check` and returns its warnings.
async fn warnings(database: &TestDatabase, settings: &[(&str, &str)]) -> Vec<String> {
    let home = Home::on(database.url());
    let output = home.run_with(&["check"], settings).await;
    assert!(!output.stdout.contains("hunter2"), "{output:?}");
    let lines = output.stdout.lines();
    let warnings = lines.filter_map(|line| line.strip_prefix("WARNING "));
    warnings.map(str::to_owned).collect()
}

/// Settings, and words of the one warning of them, if there is one.
type Case<'a> = (&'a [(&'a str, &'a str)], Option<&'a str>);

async fn check_warns(cases: &[Case<'_>]) {
    let database = TestDatabase::migrated().await;
    for (settings, words) in cases {
        let found = warnings(&database, settings).await;
        match words {
            None => assert!(found.is_empty(), "{settings:?}: {found:?}"),
            Some(words) => {
                let one = found.len() == 1 && found[0].contains(words);
                assert!(one, "{settings:?}: {found:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn check_warns_of_open_listeners_and_wide_networks_of_proxies() {
    const PROXIES: &str = "PET_INVENTORY__LIMITS__TRUSTED_PROXIES";
    const LISTEN: &str = "PET_INVENTORY__SERVER__LISTEN";
    check_warns(&[
        (&[], None),
        (&[(LISTEN, "0.0.0.0:0")], Some("server.listen")),
        (&[(LISTEN, "[::]:0")], Some("server.listen")),
        (&[(LISTEN, "0.0.0.0:0"), (PROXIES, "10.0.3.7")], None),
        (&[(LISTEN, "[::1]:0")], None),
        (&[(PROXIES, "10.0.0.0/8")], Some("10.0.0.0/8")),
        (
            &[(PROXIES, "10.0.3.7,192.168.0.0/16")],
            Some("192.168.0.0/16"),
        ),
        (&[(PROXIES, "10.0.0.0/23")], Some("10.0.0.0/23")),
        (&[(PROXIES, "fd00::/64")], Some("fd00::/64")),
        (&[(PROXIES, "0.0.0.0/0")], Some("0.0.0.0/0")),
        (&[(PROXIES, "10.0.0.0/24,fd00::/120")], None),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn check_warns_of_open_origins_and_unlimited_anonymous_callers() {
    const ORIGINS: &str = "PET_INVENTORY__SERVER__CORS_ORIGINS";
    const SIGN_UP: &str = "PET_INVENTORY__USERS__SIGN_UP";
    const PLAN: &str = "PET_INVENTORY__AUTH__ANONYMOUS_PLAN";
    const ANONYMOUS: &str = "PET_INVENTORY__AUTH__ANONYMOUS_SCOPES";
    const READ: (&str, &str) = (ANONYMOUS, "read:pets");
    let local = "http://localhost:3000,http://[::1]:5,http://127.0.0.1";
    let insecure = "http://localhost,http://a.example:8080";
    check_warns(&[
        (&[(ORIGINS, "*")], Some("sign_up")),
        (&[(ORIGINS, "*"), (SIGN_UP, "false")], None),
        (
            &[(ORIGINS, "*"), (SIGN_UP, "false"), READ],
            Some("anonymous_scopes"),
        ),
        (&[(ORIGINS, "https://a.example"), READ], None),
        (&[(ORIGINS, local)], None),
        (&[(ORIGINS, insecure)], Some("http://a.example:8080")),
        (&[READ, (PLAN, "enterprise")], Some("anonymous_plan")),
        (&[READ, (PLAN, "pro")], None),
        (&[(PLAN, "enterprise")], None),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn check_warns_of_connections_to_the_database_without_verification() {
    let database = TestDatabase::migrated().await;
    // No PostgreSQL is there, which changes no warning.
    for (host, mode, is_weak) in [
        ("0.0.0.0:1", "", true),
        ("0.0.0.0:1", "?sslmode=disable", true),
        ("0.0.0.0:1", "?sslmode=require", true),
        ("0.0.0.0:1", "?sslmode=verify-ca", true),
        ("0.0.0.0:1", "?sslmode=verify-full", false),
        ("127.0.0.1:1", "", false),
        ("[::1]:1", "", false),
        ("localhost:1", "?sslmode=disable", false),
    ] {
        let url = format!("postgres://user:hunter2@{host}/db{mode}");
        let found = warnings(&database, &[("DATABASE_URL", &url)]).await;
        let warned = found.iter().any(|line| line.contains("verify-full"));
        assert_eq!(warned, is_weak, "{url}: {found:?}");
    }
}
