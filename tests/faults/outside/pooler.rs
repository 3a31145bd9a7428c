//! Row 13: PgBouncer in transaction mode between the service and PostgreSQL.

use std::{
    fs,
    net::SocketAddr,
    process::Child,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use reqwest::Method;
use serde_json::json;
use sqlx::{Connection as _, Executor as _, PgConnection, Row as _, postgres::PgConnectOptions};
use test_support::process::free_address;
use tokio::task::JoinSet;

use crate::stage::{
    Cluster, Proxy, Row, Stage, chown_to_postgres,
    load::{TimedResponse, by_status},
    pick, program, until, url_at,
};

/// A PgBouncer in transaction mode, killed when dropped.
struct PgBouncer {
    running: Child,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl PgBouncer {
    async fn before(cluster: &Cluster, pool: u32) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        chown_to_postgres(folder.path());
        let address = free_address();
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={} user=postgres\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {}\nunix_socket_dir =\n\
             auth_type = any\npool_mode = transaction\ndefault_pool_size = {pool}\n\
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
            assert!(
                started.elapsed() < Duration::from_secs(5),
                "pgbouncer does not listen"
            );
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
#[cfg_attr(not(feature = "outside-tools"), ignore = "needs .ci/setup --all")]
async fn row_13_pgbouncer_in_transaction_mode_fails_no_request() {
    let mut row = Row::begin(13, "PgBouncer in transaction mode, pool 4, 32 clients").await;
    let cluster = Cluster::start().await;
    let pgbouncer = PgBouncer::before(&cluster, 4).await;
    // Migrations run through PgBouncer, too.
    let url = url_at(pgbouncer.address, "postgres");
    let mut stage = Stage::on(cluster, &url, &[]).await;
    let wanted: usize = pick(2_000, 10_000);
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
    row.at_least("requests", responses.len(), wanted);
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
    row.check(
        "the pooler was noticed",
        stage.service.log().contains("detected a connection pooler"),
    );
    row.end();
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(not(feature = "outside-tools"), ignore = "needs .ci/setup --all")]
async fn row_13_pgbouncer_inserted_at_runtime_is_detected_once() {
    let mut row = Row::begin(13, "PgBouncer put before PostgreSQL later, 8 clients").await;
    // Each request uses a different kind of connection. One detection must be enough for all kinds.
    for notices in ["/pet/1", "/pet/findByTags?tags=t", "/store/order/1"] {
        let cluster = Cluster::start().await;
        let pgbouncer = PgBouncer::before(&cluster, 4).await;
        let proxy = Proxy::before(cluster.address).await;
        let stage = Stage::on(cluster, &url_at(proxy.address, "postgres"), &[]).await;
        let pet = json!({"id": 1, "name": "a", "tags": [{"name": "t"}]});
        until(201, || {
            stage.target.request(Method::POST, "/pet").json(&pet)
        })
        .await;
        // Enough requests for every connection to prepare every statement.
        let before = send_requests_of_all_kinds(&stage, 20).await;
        row.none("failed before", failures(&before));
        proxy.lead_to(pgbouncer.address);
        let started = Instant::now();
        while !stage.service.log().contains("detected a connection pooler") {
            assert!(started.elapsed() < Duration::from_secs(10), "not noticed");
            TimedResponse::of(stage.target.request(Method::GET, notices)).await;
        }
        let after = send_requests_of_all_kinds(&stage, 20).await;
        row.none("failed after it was noticed", failures(&after));
    }
    row.end();
}

/// Runs 8 clients that send `rounds` rounds of requests over every kind of connection.
async fn send_requests_of_all_kinds(stage: &Stage, rounds: usize) -> Vec<TimedResponse> {
    let mut clients = JoinSet::new();
    for _ in 0..8 {
        let target = stage.target.clone();
        clients.spawn(async move {
            let mut responses = Vec::new();
            for _ in 0..rounds {
                for request in [
                    target.request(Method::GET, "/pet/1"),
                    target
                        .request(Method::POST, "/pet")
                        .json(&json!({"name": "b"})),
                    target
                        .request(Method::PATCH, "/pet/1")
                        .json(&json!({"status": "sold"})),
                    target.request(Method::GET, "/pet/findByTags?tags=t&limit=5"),
                    target.request(Method::GET, "/pet/findByStatus?status=sold&limit=5"),
                ] {
                    responses.push(TimedResponse::of(request).await);
                }
            }
            responses
        });
    }
    clients.join_all().await.into_iter().flatten().collect()
}

fn failures(responses: &[TimedResponse]) -> impl Iterator<Item = String> {
    responses
        .iter()
        .filter(|response| !response.is_success())
        .map(|response| format!("{response:?}"))
}
