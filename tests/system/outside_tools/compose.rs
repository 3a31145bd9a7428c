//! `config/compose.yaml` and `config/cluster/compose.yaml` as docker-compose reads them: missing secrets, any characters in
//! them, confinement, and the settings of the service, of PgBouncer and of the nodes of a cluster.

use std::os::unix::fs::{MetadataExt as _, chown};

use test_support::*;
use tokio::{
    net::TcpStream,
    process::{Child, Command},
};

/// Folders with a file.
const SINGLE: &str = "config";
const CLUSTER: &str = "config/cluster";
const SECRETS: [&str; 3] = ["POSTGRES_PASSWORD", "S3_SECRET_KEY", "BOOTSTRAP_API_KEY"];
/// Secret with all kinds of characters.
const SECRET: &str = r#"p@s:s/w?o=r&d#%41"'\$HOME${}`;|<>~!*()[]^+,0123456789abcdef"#;

/// Runs `docker-compose config` in a folder, with these secrets set.
async fn read(folder: &str, secrets: &[&str]) -> Output {
    let folder = repository().join(folder);
    let mut command = Command::new("docker-compose");
    command
        .args(["--file", "-", "config"])
        .current_dir(&folder)
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .envs(secrets.iter().map(|name| (name, SECRET)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .expect("docker-compose is missing: run .ci/setup --all");
    // Debian's docker-compose is older than the key `name`.
    let file = fs::read_to_string(folder.join("compose.yaml")).expect("a file");
    let file = file.replace("\nname: pet-inventory", "\n#");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(file.as_bytes()).await.expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().await.expect("its end");
    Output {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).expect("text"),
        stderr: String::from_utf8(output.stderr).expect("text"),
    }
}

/// Returns the file with all variables and anchors resolved.
async fn resolved(folder: &str) -> Value {
    const TO_JSON: &str =
        "import json, sys, yaml; json.dump(yaml.safe_load(sys.argv[1]), sys.stdout)";
    let yaml = read(folder, &SECRETS).await.is(0).stdout;
    // Debian's docker-compose depends on this Python and its yaml module.
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", TO_JSON, &yaml]);
    let json = Output::of(python).await.is(0).stdout;
    // docker-compose escapes $ in its output.
    serde_json::from_str(&json.replace("$$", "$")).expect("JSON")
}

#[tokio::test]
async fn compose_file_reports_a_missing_secret() {
    for (folder, missing) in [SINGLE, CLUSTER]
        .into_iter()
        .flat_map(|folder| SECRETS.map(|secret| (folder, secret)))
    {
        let set: Vec<_> = SECRETS
            .into_iter()
            .filter(|name| *name != missing)
            .collect();
        let output = read(folder, &set).await;
        assert_ne!(output.code, Some(0), "{output:?}");
        let wanted = format!("{missing} is not set. Put it into .env");
        assert!(output.stderr.contains(&wanted), "{output:?}");
    }
}

#[tokio::test]
async fn compose_services_are_confined_and_start_in_order() {
    are_confined_and_start_in_order(SINGLE).await;
    are_confined_and_start_in_order(CLUSTER).await;
}

async fn are_confined_and_start_in_order(folder: &str) {
    let services = resolved(folder).await["services"].take();
    let services = services.as_object().expect("services");
    for (name, service) in services {
        assert_eq!(service["read_only"], true, "{name}");
        assert_eq!(service["cap_drop"], serde_json::json!(["ALL"]), "{name}");
        assert_eq!(
            service["security_opt"][0], "no-new-privileges:true",
            "{name}"
        );
        assert_eq!(service["restart"], "unless-stopped", "{name}");
        assert_eq!(service.get("ports").is_some(), name == "nginx", "{name}");
        let ours = service["image"] == "pet-inventory";
        assert_eq!(
            service.get("healthcheck").is_none(),
            ours,
            "{name}: ours has its own"
        );
        let after = service["depends_on"].as_object();
        for (first, how) in after.into_iter().flatten() {
            assert!(services.contains_key(first), "{name} waits for {first}");
            assert_eq!(
                how["condition"], "service_healthy",
                "{name} waits for {first}"
            );
        }
    }
    let nginx = include_str!("../../../config/nginx.conf");
    for replica in services.keys().filter(|name| name.starts_with("service-")) {
        assert!(
            nginx.contains(&format!("server {replica}:8080 ")),
            "{replica}"
        );
        assert!(
            services["nginx"]["depends_on"].get(replica).is_some(),
            "{replica}"
        );
    }
}

/// `etcd.env` and `patroni.env` in `config/cluster` have the same variables, for machines.
#[tokio::test]
async fn nodes_of_the_cluster_have_the_variables_of_machines() {
    let services = resolved(CLUSTER).await["services"].take();
    let files = [
        ("node", include_str!("../../../config/cluster/patroni.env")),
        ("etcd", include_str!("../../../config/cluster/etcd.env")),
    ];
    let names = |file: &str| {
        let lines = file.lines().filter(|line| !line.starts_with('#'));
        let names = lines.filter_map(|line| line.split_once('='));
        let names = names.map(|(name, _)| name.to_owned());
        names.collect::<BTreeSet<_>>()
    };
    for number in 1..=3 {
        for (service, file) in files {
            let name = format!("{service}-{number}");
            let variables = services[&name]["environment"].as_object();
            let variables = variables.expect("variables").keys().cloned();
            assert_eq!(variables.collect::<BTreeSet<_>>(), names(file), "{name}");
        }
        let haproxy = &services["haproxy"]["environment"][format!("NODE_{number}")];
        let node = &services[format!("node-{number}")]["networks"]["data"];
        assert_eq!(*haproxy, node["ipv4_address"]);
    }
}

#[tokio::test]
async fn service_accepts_the_settings_of_the_compose_file() {
    for (folder, network) in [(SINGLE, "172.30.80.10"), (CLUSTER, "172.30.81.10")] {
        accepts_the_settings(folder, network).await;
    }
}

async fn accepts_the_settings(folder: &str, network: &str) {
    let service = resolved(folder).await["services"]["service-1"].take();
    let home = Home::new();
    let mut command = home.command(["--config", "production.toml", "config", "show"]);
    command.current_dir(repository().join(SINGLE));
    let variables = service["environment"].as_object().expect("variables");
    for (name, value) in variables {
        command.env(name, value.as_str().expect("text"));
    }
    for image in [
        "PET_INVENTORY__SERVER__LISTEN",
        "PET_INVENTORY__OPERATIONS__LISTEN",
    ] {
        command.env_remove(image);
    }
    assert_eq!(variables["PET_INVENTORY__DATABASE__PASSWORD"], SECRET);
    assert_eq!(variables["AWS_SECRET_ACCESS_KEY"], SECRET);
    let shown = Output::of(command).await.is(0).stdout;
    for wanted in [
        "0.0.0.0:8080",
        "http://localhost:8000",
        "s3://images",
        network,
    ] {
        assert!(shown.contains(wanted), "no {wanted} in {shown}");
    }
    assert_eq!(service["command"][0], "--config", "{service}");
}

/// Runs PgBouncer as the file does, but for addresses and folders, in front of the server of a database.
async fn pgbouncer(
    service: &Value,
    database: &TestDatabase,
    folder: &Path,
    address: SocketAddr,
) -> Child {
    let socket = database.options().get_socket().expect("a socket");
    // As the user of the server: both refuse root.
    let owner = fs::metadata(socket).expect("a folder");
    chown(folder, Some(owner.uid()), Some(owner.gid())).expect("a folder of its own");
    let (settings, users) = (folder.join("pgbouncer.ini"), folder.join("userlist.txt"));
    let replace = |text: &str, with: &[(&str, String)]| {
        with.iter().fold(text.to_owned(), |text, (theirs, ours)| {
            assert!(text.contains(theirs), "no {theirs} in it");
            text.replace(theirs, ours)
        })
    };
    let users = ("/etc/pgbouncer/userlist.txt", users.display().to_string());
    let server = format!("host={} port=5432 user=postgres", socket.display());
    let file = replace(
        include_str!("../../../config/pgbouncer.ini"),
        &[
            ("host=postgres port=5432", server),
            (
                "listen_addr = 0.0.0.0",
                format!("listen_addr = {}", address.ip()),
            ),
            (
                "listen_port = 5432",
                format!("listen_port = {}", address.port()),
            ),
            users.clone(),
        ],
    );
    let ini = ("/etc/pgbouncer.ini", settings.display().to_string());
    let command = service["command"][0].as_str().expect("a command");
    let command = replace(command, &[users, ini]);
    fs::write(&settings, file).expect("its settings");
    let entrypoint = service["entrypoint"].as_array().expect("a list");
    let mut words = entrypoint.iter().map(|word| word.as_str().expect("text"));
    let child = Command::new(words.next().expect("a program"))
        .args(words)
        .arg(command)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/bin")
        .env(
            "PASSWORD",
            service["environment"]["PASSWORD"].as_str().expect("text"),
        )
        .uid(owner.uid())
        .gid(owner.gid())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn();
    let child = child.expect("a shell");
    eventually(async || TcpStream::connect(address).await.is_ok()).await;
    child
}

/// PgBouncer with the password of the file, ended when dropped, and the settings of the service behind it.
struct Pooled {
    _pgbouncer: Child,
    url: String,
    password: String,
    home: Home,
    _folder: tempfile::TempDir,
}

impl Pooled {
    async fn before(database: &TestDatabase) -> Self {
        let services = resolved(SINGLE).await["services"].take();
        let (folder, address) = (tempfile::tempdir().expect("a folder"), free_address());
        let child = pgbouncer(&services["pgbouncer"], database, folder.path(), address).await;
        let variables = &services["service-1"]["environment"];
        let text = |name: &str| variables[name].as_str().expect("text").to_owned();
        Self {
            _pgbouncer: child,
            url: text("DATABASE_URL").replace("pgbouncer:5432", &address.to_string()),
            password: text("PET_INVENTORY__DATABASE__PASSWORD"),
            home: Home::new(),
            _folder: folder,
        }
    }

    /// Runs a command on a database, with a folder for its images.
    async fn run(&self, database: &TestDatabase, password: &str, arguments: &[&str]) -> Output {
        let name = database.options().get_database().expect("a name");
        let images = self.home.path().join(name);
        let (server, _) = self.url.rsplit_once('/').expect("a path");
        let mut command = self.home.command(arguments);
        command
            .env("DATABASE_URL", format!("{server}/{name}"))
            .env("PET_INVENTORY__DATABASE__PASSWORD", password)
            .env("PET_INVENTORY__DATABASE__POOLER", "transaction")
            .env(
                "PET_INVENTORY__IMAGES__URL",
                format!("file://{}", images.display()),
            );
        Output::of(command).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn service_logs_in_to_pgbouncer_with_any_password() {
    let database = TestDatabase::migrated().await;
    let pooled = Pooled::before(&database).await;
    let migrate = ["migrate", "--check"];
    pooled
        .run(&database, &pooled.password, &migrate)
        .await
        .is(0);
    // `check` recognises PgBouncer by server connections that are older than its own.
    tokio::time::sleep(Duration::from_millis(200)).await;
    pooled
        .run(&database, &pooled.password, &["check"])
        .await
        .is(0);
    let wrong = pooled.run(&database, "another", &["check"]).await.is(1);
    assert!(wrong.stdout.contains("FAILED  database"), "{wrong:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn backup_and_restore_work_behind_pgbouncer() {
    let (database, copy) = (TestDatabase::migrated().await, TestDatabase::empty().await);
    let pooled = Pooled::before(&database).await;
    let insert = "insert into pets (id, status, details)
                  select id, 'sold', json_build_object('name', 'Rex', 'photoUrls', '[]'::json, 'tags', '[]'::json)
                  from generate_series(1, 50000) as id";
    database.run(insert).await;
    for (database, command) in [(&database, "backup"), (&copy, "restore")] {
        pooled
            .run(database, &pooled.password, &[command, "a.tar"])
            .await
            .is(0);
    }
    assert_eq!(copy.number("select count(*) from pets").await, 50_000);
    // PgBouncer's connections are free again.
    pooled
        .run(&database, &pooled.password, &["check"])
        .await
        .is(0);
}
