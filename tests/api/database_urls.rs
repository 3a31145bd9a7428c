//! The URL of the database means to the service what it means to PostgreSQL's own clients.

use std::{
    fs,
    path::{Path, PathBuf},
};

use pet_inventory::embedded_postgres::EmbeddedPostgres;
use test_support::postgres::{self, url};
use test_support::*;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, UnixStream},
    process::Command,
};

/// Password of the role `app`, with delimiters of URLs.
const PASSWORD: &str = "12?3 #+\"'é\\hunter2";

/// Forwards connections of a port, which is the same on both loopback addresses, to a Unix socket. Returns the port.
async fn forward_to(socket: PathBuf) -> u16 {
    let first = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = first.local_addr().expect("an address").port();
    let second = TcpListener::bind(("::1", port))
        .await
        .expect("the same port");
    for listener in [first, second] {
        let socket = socket.clone();
        tokio::spawn(async move {
            loop {
                let (mut client, _) = listener.accept().await.expect("a client");
                let socket = socket.clone();
                tokio::spawn(async move {
                    let mut server = UnixStream::connect(socket).await.expect("PostgreSQL");
                    let _ = copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
    }
    port
}

/// Forms that connect, with placeholders.
const VALID: [&str; 12] = [
    "postgres://app:PASSWORD@127.0.0.1:PORT/base",
    "postgresql://app:PASSWORD@localhost:PORT/base?",
    "postgres://app:PASSWORD@[::1]:PORT/base",
    "postgres://app:PASSWORD@/base?host=FOLDER&port=5432",
    "postgres://app:PASSWORD@ENCODED:5432/base",
    "postgres:///base?host=FOLDER&user=app&password=PASSWORD&port=5432",
    "postgres://app@nowhere.invalid/?hostaddr=127.0.0.1&port=PORT&dbname=base&password=PASSWORD",
    "postgres://app@nowhere.invalid/?hostaddr=::1&port=PORT&dbname=base&password=PASSWORD",
    "postgres://app:PASSWORD@127.0.0.1:PORT/base?sslpassword=hunter2&connect_timeout=9",
    "postgres://app:PASSWORD@127.0.0.1:PORT/base?options=-c%20work_mem%3D5MB&application_name=hunter2",
    "postgres://app:PASSWORD@127.0.0.1:PORT/base?sslmode=disable&sslrootcert=MISSING",
    "postgres://app:PASSWORD@127.0.0.1:PORT/base?sslmode=prefer&sslcert=MISSING&sslkey=MISSING",
];

/// Forms that do not connect, with a text of their refusal.
const INVALID: [(&str, &str); 28] = [
    (
        "postgres://app:PASSWORD@127.0.0.1:PORT/base?sslmode=verify-full&sslrootcert=MISSING",
        "sslrootcert that cannot be read, MISSING",
    ),
    (
        "postgres://app:PASSWORD@127.0.0.1:PORT/base?sslmode=require",
        "TLS",
    ),
    (
        "postgres://app:PASSWORD@127.0.0.1:PORT/base?ssl=true",
        "TLS",
    ),
    (
        "postgres://app:PASSWORD@127.0.0.1:PORT/base?sslmode=unknown",
        "invalid sslmode",
    ),
    (
        "postgres://app:PASSWORD@127.0.0.1:PORT/base?sslmode=require&sslrootcert=system",
        "needs sslmode=verify-full",
    ),
    (
        "postgres://app:PASSWORD@127.0.0.1:PORT/base?ssl_mode=disable",
        "the parameter ssl_mode",
    ),
    (
        "postgres://app:PASSWORD@127.0.0.1:PORT/base?statement-cache-capacity=5",
        "the parameter statement-cache-capacity",
    ),
    (
        "postgres://app:PASSWORD@127.0.0.1:PORT/base?hunter2",
        "NAME=VALUE",
    ),
    (
        "postgres://app:PASSWORD@127.0.0.1:PORT/base?user=app=hunter2",
        "NAME=VALUE",
    ),
    (
        "postgres://app:PASSWORD@127.0.0.1:PORT/base%2",
        "percent-encoding",
    ),
    (
        "postgres://app:%zzPASSWORD@127.0.0.1:PORT/base",
        "percent-encoding",
    ),
    (
        "postgres://app:PASSWORD%00@127.0.0.1:PORT/base",
        "percent-encoding",
    ),
    ("postgres://app:hunter2@hunter2@127.0.0.1:PORT/base", "%40"),
    ("postgres://app:1/hunter2@127.0.0.1:PORT/base", "%2F"),
    ("postgres://app:hunter2/1@127.0.0.1:PORT/base", "%2F"),
    (
        "postgres://app:1/x?hunter2=1@127.0.0.1:PORT/base",
        "not encoded",
    ),
    (
        "postgres://app:PASSWORD@127.0.0.1:port/base",
        "invalid port",
    ),
    ("postgres://app:PASSWORD@127.0.0.1:0/base", "invalid port"),
    (
        "postgres://app:PASSWORD@127.0.0.1:65536/base",
        "invalid port",
    ),
    ("postgres://app:PASSWORD@[::1:PORT/base", "[ without a ]"),
    ("postgres://app:PASSWORD@[]:PORT/base", "brackets"),
    ("postgres://app:PASSWORD@[::1]x:PORT/base", "brackets"),
    (
        "postgres://app@nowhere.invalid/?hostaddr=localhost&port=PORT&dbname=base&password=PASSWORD",
        "hostaddr",
    ),
    (
        "postgres://app:wronghunter2@127.0.0.1:PORT/base",
        "password authentication failed",
    ),
    (
        "postgres://app:PASSWORD@127.0.0.1:PORT/nosuch",
        "does not exist",
    ),
    (
        "mysql://app:PASSWORD@127.0.0.1:PORT/base",
        "must begin with postgres://",
    ),
    (
        "https://app:PASSWORD@127.0.0.1:PORT/base",
        "must begin with postgres://",
    ),
    (
        "jdbc:postgresql://app:PASSWORD@127.0.0.1:PORT/base",
        "must begin with postgres://",
    ),
];

/// Starts a PostgreSQL with the role `app`, which needs its password, and the database `base`.
async fn start(folder: &Path) -> EmbeddedPostgres {
    let postgres = start_postgres(folder).await;
    let options = postgres.connect_options();
    Home::on(url(&options)).run(&["migrate"]).await.is(0);
    let password = PASSWORD.replace('\'', "''");
    for statement in [
        format!("create role app superuser login password '{password}'"),
        "create database base template postgres".to_owned(),
    ] {
        postgres::run(&options, &statement).await;
    }
    let rules = folder.join("postgres/pg_hba.conf");
    let others = fs::read_to_string(&rules).expect("a file");
    fs::write(&rules, format!("local all app scram-sha-256\n{others}")).expect("a file");
    postgres::run(&options, "select pg_reload_conf()").await;
    postgres
}

/// Returns true if psql connects.
async fn psql(home: &Home, url: &str) -> bool {
    let mut command = Command::new("psql");
    command
        .args(["--no-psqlrc", "--no-password", "--command", "select 1", url])
        .env("PGCONNECT_TIMEOUT", "5")
        .env("HOME", home.path());
    let output = command.output().await;
    output
        .expect("psql, which .ci/setup installs")
        .status
        .success()
}

/// Returns what the service prints until it serves, or until it refuses the URL with a text.
async fn serve(home: &Home, variables: [(&str, &str); 2], refusal: Option<&str>) -> String {
    let mut command = home.command(["serve"]);
    command.envs(variables);
    if let Some(refusal) = refusal {
        let output = Output::of(command).await.is(1);
        output.stderr_has(refusal);
        assert!(!output.stderr.contains("embedded"), "{output:?}");
        return output.stderr;
    }
    let _ = fs::remove_file(home.path().join("service.log"));
    let service = Service::start(home, command).await;
    let log = service.log();
    service.stop().await;
    log
}

#[tokio::test(flavor = "multi_thread")]
async fn url_means_to_the_service_what_it_means_to_psql() {
    let folder = tempfile::tempdir().expect("a folder");
    let postgres = start(folder.path()).await;
    let socket_folder = postgres
        .connect_options()
        .get_socket()
        .expect("a socket")
        .clone();
    let port = forward_to(socket_folder.join(".s.PGSQL.5432"))
        .await
        .to_string();
    let home = Home::new();
    let socket_folder = socket_folder.display().to_string();
    let missing = home.path().join("missing.pem").display().to_string();
    let fill = |text: &str| {
        text.replace("PASSWORD", &PASSWORD.replace(' ', "%20"))
            .replace("PORT", &port)
            .replace("FOLDER", &socket_folder)
            .replace("ENCODED", &socket_folder.replace('/', "%2F"))
            .replace("MISSING", &missing)
    };
    let valid = VALID.map(|url| (url, None)).into_iter();
    for (url, refusal) in valid.chain(INVALID.map(|(url, refusal)| (url, Some(refusal)))) {
        let (url, refusal) = (fill(url), refusal.map(fill));
        let connects = refusal.is_none();
        assert_eq!(psql(&home, &url).await, connects, "psql {url}");

        let variables = [("DATABASE_URL", url.as_str()), ("RUST_LOG", "trace")];
        let check = home
            .run_with(&["check"], &variables)
            .await
            .is(i32::from(!connects));
        let status = if connects { "ok" } else { "FAILED" };
        let line = |line: &str| {
            line.starts_with(&format!("{status:<7} database "))
                && line.contains(refusal.as_deref().unwrap_or_default())
        };
        assert!(check.stdout.lines().any(line), "check {url}: {check:?}");
        for name in ["sslpassword", "connect_timeout", "application_name"] {
            let warnings = check
                .stdout
                .matches(&format!("the parameter {name} "))
                .count();
            assert_eq!(
                warnings,
                usize::from(url.contains(name)),
                "{url}: {check:?}"
            );
        }
        let serve = serve(&home, variables, refusal.as_deref()).await;
        let show = home.run_with(&["config", "show"], &variables).await.is(0);
        let printed = format!("{check:?}{serve}{}", show.stdout);
        for hidden in ["hunter2", "at line"] {
            assert!(!printed.contains(hidden), "{url}: {printed}");
        }
    }
    // In place of that of the URL.
    for url in [
        "postgres://app@127.0.0.1:PORT/base",
        "postgres://app:wrong@127.0.0.1:PORT/base?sslmode=disable",
        "postgres:///base?user=app&host=127.0.0.1&port=PORT&password=wrong",
    ] {
        let url = fill(url);
        let password = ("PET_INVENTORY__DATABASE__PASSWORD", PASSWORD);
        home.run_with(&["check"], &[("DATABASE_URL", &url), password])
            .await
            .is(0);
    }
    // psql tries one after the other; the service has one server.
    let several = fill("postgres://app:PASSWORD@127.0.0.1:PORT,127.0.0.1:PORT/base");
    assert!(psql(&home, &several).await);
    let refused = home
        .run_with(&["serve"], &[("DATABASE_URL", &several)])
        .await
        .is(1);
    refused.stderr_has("several hosts");
    postgres.stop().await.expect("a stop");
}
