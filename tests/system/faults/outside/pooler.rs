//! Row 13: PgBouncer in transaction mode between the service and PostgreSQL.

use std::process::Child;

use sqlx::{Row as _, postgres::PgConnectOptions};
use test_support::*;

use crate::stage::*;

/// A PgBouncer, killed when dropped.
struct PgBouncer {
    running: Child,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl PgBouncer {
    async fn before(cluster: &Cluster, mode: &str, pool: u32) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        chown_to_postgres(folder.path());
        let address = free_address();
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={} user=postgres\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {}\nunix_socket_dir =\n\
             auth_type = any\npool_mode = {mode}\ndefault_pool_size = {pool}\n\
             max_client_conn = 200\nlogfile = {}\n",
            cluster.address.port(),
            address.port(),
            folder.path().join("log").display(),
        );
        let file = folder.path().join("pgbouncer.ini");
        fs::write(&file, settings).expect("its settings");
        let mut command = program("pgbouncer");
        let running = command
            .arg("--quiet")
            .arg(&file)
            .spawn()
            .expect("pgbouncer: run .ci/setup --all");
        let started = Instant::now();
        while tokio::net::TcpStream::connect(address).await.is_err() {
            assert!(started.elapsed() < PATIENCE, "pgbouncer does not listen");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Self {
            running,
            address,
            _folder: folder,
        }
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.running.kill();
        let _ = self.running.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn row_13_pgbouncer_in_transaction_mode_fails_no_request() {
    let mut row =
        Row::begin_beside_others(13, "PgBouncer in transaction mode, pool 4, 32 clients").await;
    let cluster = Cluster::start().await;
    let pgbouncer = PgBouncer::before(&cluster, "transaction", 4).await;
    // Migrations run through PgBouncer, too.
    let url = url_at(pgbouncer.address, "postgres");
    let mut stage = Stage::on(cluster, &url, &[("DATABASE__POOLER", "transaction")]).await;
    let wanted: usize = short_or_full(2_000, 10_000);
    let mut responses = Vec::new();
    // The second process meets server connections on which the first one prepared its statements.
    for _ in 0..2 {
        let mut clients = JoinSet::new();
        for client in 0..32 {
            let target = stage.target.clone();
            let rounds = wanted / 2 / 32 / 5 + 1;
            clients.spawn(async move {
                let mut responses = Vec::new();
                for round in 0..rounds {
                    let name = format!("{client}-{round}");
                    let created = TimedResponse::of(
                        target
                            .request(Method::POST, "/pet")
                            .json(&json!({"name": name})),
                    )
                    .await;
                    let id = created.body()["id"].as_i64().unwrap_or(1);
                    responses.push(created);
                    let pet = json!({"id": id, "name": "b", "tags": [{"name": "t"}]});
                    for request in [
                        target.request(Method::GET, &format!("/pet/{id}")),
                        target.request(Method::PUT, "/pet").json(&pet),
                        target
                            .request(Method::PATCH, &format!("/pet/{id}"))
                            .json(&json!({"status": "sold"})),
                        target
                            .request(Method::POST, "/pet")
                            .header("idempotency-key", &name)
                            .json(&json!({"name": name})),
                        target.request(Method::GET, "/pet/findByTags?tags=t&limit=5"),
                    ] {
                        responses.push(TimedResponse::of(request).await);
                    }
                }
                responses
            });
        }
        responses.extend(clients.join_all().await.into_iter().flatten());
        stage.service.signal(Signal::SIGKILL);
        stage.service.wait_for_exit().await;
        stage.service = stage.serve().await;
    }
    row.note(by_status(&responses));
    row.done_in_time("requests", responses.len(), wanted);
    row.none("failed", failures(&responses));
    // No session setting may stay on a server connection: PgBouncer gives it to another client next.
    let options: PgConnectOptions = url.parse().expect("a URL");
    let options = options.extra_float_digits(None);
    let mut another = PgConnection::connect_with(&options)
        .await
        .expect("a connection");
    let timeout = another
        .fetch_one("show statement_timeout")
        .await
        .expect("a setting");
    let timeout: String = timeout.get(0);
    row.check("no setting left on a server", timeout == "0");
    row.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn row_13_check_reports_a_wrong_pooler_setting() {
    let mut row = Row::begin_beside_others(13, "check with and without PgBouncer").await;
    let cluster = Cluster::start().await;
    let pgbouncer = PgBouncer::before(&cluster, "transaction", 4).await;
    let home = Home::on(cluster.url());
    home.run(&["migrate"]).await.is(0);
    let pooled = url_at(pgbouncer.address, "postgres");
    let small = PgBouncer::before(&cluster, "transaction", 1).await;
    let one = url_at(small.address, "postgres");
    // Each connection has a server of its own.
    let in_session_mode = PgBouncer::before(&cluster, "session", 4).await;
    let session = url_at(in_session_mode.address, "postgres");
    for (url, setting, remedy) in [
        (&pooled, "none", Some("database.pooler = \"transaction\"")),
        (&pooled, "transaction", None),
        (&one, "none", Some("database.pooler = \"transaction\"")),
        (&session, "none", None),
        (&session, "transaction", Some("database.pooler = \"none\"")),
        (&cluster.url(), "none", None),
        (
            &cluster.url(),
            "transaction",
            Some("database.pooler = \"none\""),
        ),
    ] {
        let variables = [
            ("DATABASE_URL", url.as_str()),
            ("PET_INVENTORY__DATABASE__POOLER", setting),
        ];
        let output = home.run_with(&["check"], &variables).await;
        let is_reported = output.stdout.contains(remedy.unwrap_or("ok      database"));
        let is_expected = is_reported && output.code == Some(i32::from(remedy.is_some()));
        row.check(&format!("{setting} at {url}: {output:?}"), is_expected);
    }
    row.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn row_13_undeclared_pgbouncer_is_reported_with_the_setting() {
    // The quotes of the value are escaped in a field.
    const REMEDY: &str = "PET_INVENTORY__DATABASE__POOLER";
    let mut row =
        Row::begin_beside_others(13, "PgBouncer put before PostgreSQL later, undeclared").await;
    let cluster = Cluster::start().await;
    let pgbouncer = PgBouncer::before(&cluster, "transaction", 4).await;
    let proxy = Proxy::before(cluster.address).await;
    let stage = Stage::on(cluster, &url_at(proxy.address, "postgres"), &[]).await;
    let pet = json!({"id": 1, "name": "a"});
    until(201, || {
        stage.target.request(Method::POST, "/pet").json(&pet)
    })
    .await;
    proxy.lead_to(pgbouncer.address);
    let (started, mut responses) = (Instant::now(), Vec::new());
    while !stage.service.log().contains(REMEDY) {
        assert!(started.elapsed() < PATIENCE, "not reported");
        for path in ["/pet/1", "/pet/findByStatus?status=sold", "/store/order/1"] {
            responses.push(TimedResponse::of(stage.target.request(Method::GET, path)).await);
        }
    }
    let is_internal = |response: &&TimedResponse| response.status == Some(500);
    let internal = responses.iter().filter(is_internal);
    row.none("500", internal);

    let log = stage.home.path().join("second.log");
    let mut serve = stage.home.command(["serve"]);
    serve
        .env("DATABASE_URL", url_at(pgbouncer.address, "postgres"))
        .stderr(fs::File::create(&log).expect("a log"));
    let _running = serve.spawn().expect("the program");
    let reported = async {
        while !fs::read_to_string(&log).expect("a log").contains(REMEDY) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let reported = tokio::time::timeout(PATIENCE, reported).await;
    row.check("reported at start", reported.is_ok());
    row.end();
}

fn failures(responses: &[TimedResponse]) -> impl Iterator<Item = String> {
    responses
        .iter()
        .filter(|response| !response.is_success())
        .map(|response| format!("{response:?}"))
}
