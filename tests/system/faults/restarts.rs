//! Rows 8, 9 and 12: processes stop, replace each other on one port, and start concurrently.

use test_support::*;
use tokio::net::TcpStream;

use crate::stage::*;

#[tokio::test(flavor = "multi_thread")]
async fn row_08_sigterm_drains_requests_in_flight() {
    const IN_FLIGHT: usize = 50;
    let mut row = Row::begin(8, "SIGTERM with 50 requests in flight").await;
    let mut stage = Stage::start(&[]).await;
    let (address, key) = (stage.target.address, stage.target.key.clone());
    let mut in_flight = Vec::new();
    for _ in 0..IN_FLIGHT {
        let mut raw = RawConnection::connect(address).await;
        raw.send(format!(
            "POST /api/v3/pet HTTP/1.1\r\nHost: a\r\napi_key: {key}\r\n\
             Content-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: 12\r\n\r\n"
        ))
        .await;
        // The 100 shows that the handler waits for the body.
        raw.response().await.is(100);
        in_flight.push(raw);
    }
    let mut idle = Vec::new();
    for _ in 0..10 {
        let mut raw = RawConnection::connect(address).await;
        raw.send("GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").await;
        raw.response().await.is(200);
        idle.push(raw);
    }
    let mut half = RawConnection::connect(address).await;
    half.send("GET /livez HTTP/1.1\r\nHo").await;
    let started = Instant::now();
    stage.service.signal(Signal::SIGTERM);
    while TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    // A client that finds the port closed must find readiness failing already.
    let ready = TimedResponse::of(stage.operations("/readyz")).await;
    row.check(
        "readiness fails before the port closes",
        ready.status == Some(503),
    );
    let mut completed = 0;
    let mut closing = 0;
    for mut raw in in_flight {
        raw.send(r#"{"name":"a"}"#).await;
        let response = raw.response().await;
        completed += usize::from(response.status == 201);
        closing += usize::from(response.optional_header("connection") == Some("close"));
    }
    row.at_least("completed of 50", completed, IN_FLIGHT);
    row.at_least("with Connection: close", closing, IN_FLIGHT);
    let code = stage.service.wait_for_exit().await;
    row.check("exit code 0", code == Some(0));
    row.within("exit", started.elapsed(), Duration::from_secs(10));
    let stored = stage.cluster.number("select count(*) from pets").await;
    row.at_least("stored", stored, 50);
    row.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn row_09_rolling_restart_on_one_port_fails_no_request() {
    let mut row = Row::begin(9, "rolling restart on one port").await;
    let (swaps, rate, wanted) = short_or_full((2, 200, 400), (4, 500, 10_000));
    let mut stage = Stage::start(&[("SERVER__REUSE_PORT", "true")]).await;
    let stop = CancellationToken::new();
    let fresh = client_without_reuse();
    let clients = {
        let (target, stop) = (stage.target.clone(), stop.clone());
        tokio::spawn(send_at_rate(rate, stop, move |number| {
            // One in five uses a new connection.
            let request = match number % 5 {
                0 => Call::from(fresh.get(format!("http://{}/api/v3/pet/1", target.address)))
                    .header("api_key", &target.key),
                1 | 2 => target
                    .request(Method::POST, "/pet")
                    .json(&json!({"name": "a"})),
                _ => target.request(Method::GET, "/pet/1"),
            };
            request.timeout(Duration::from_secs(10))
        }))
    };
    let started = Instant::now();
    tokio::time::sleep(Duration::from_millis(300)).await;
    for _ in 0..swaps {
        let next = stage.serve().await;
        tokio::time::sleep(short_or_full(
            Duration::from_millis(300),
            Duration::from_secs(2),
        ))
        .await;
        std::mem::replace(&mut stage.service, next).stop().await;
        tokio::time::sleep(short_or_full(
            Duration::from_millis(100),
            Duration::from_secs(1),
        ))
        .await;
    }
    // The last request takes some time, too.
    let needed = Duration::from_secs_f64(f64::from(wanted) / f64::from(rate));
    let left = (needed + Duration::from_millis(500)).saturating_sub(started.elapsed());
    tokio::time::sleep(left).await;
    stop.cancel();
    let responses = clients.await.expect("the clients");
    row.note(format!(
        "{swaps} swaps at {rate} a second: {}",
        by_status(&responses)
    ));
    row.done_in_time(
        "requests",
        u32::try_from(responses.len()).unwrap_or(u32::MAX),
        wanted,
    );
    let failed = responses
        .iter()
        .filter(|response| !response.is_success() && response.status != Some(404));
    row.none("failed", failed);
    row.end();
}

/// Returns a client that opens a connection for each request.
fn client_without_reuse() -> Client {
    client_builder()
        .no_proxy()
        .pool_max_idle_per_host(0)
        .build()
        .expect("a client")
}

#[tokio::test(flavor = "multi_thread")]
async fn row_12_replicas_started_concurrently_run_each_migration_once() {
    let mut row = Row::begin(
        12,
        "8 replicas start on an empty database, one killed midway",
    )
    .await;
    let cluster = Cluster::start_with(&["max_connections=300"]).await;
    let rounds = short_or_full(2, 20);
    let mut slowest = Duration::ZERO;
    let (mut twice, mut missing) = (0, 0);
    for round in 0..rounds {
        let database = format!("round_{round}");
        cluster.run(&format!("create database {database}")).await;
        let url = url_at(cluster.address, &database);
        let settings = [("DATABASE_URL".to_owned(), url.clone())];
        let homes: Vec<_> = (0..8).map(|_| Home::new()).collect();
        let started = Instant::now();
        let mut victim = homes[0].command(["serve"]);
        victim.env("DATABASE_URL", &url);
        let mut victim = victim.spawn().expect("the program");
        let kill = async {
            // Later in each round, so that each kill interrupts a different step of the startup.
            tokio::time::sleep(Duration::from_millis(15 * (round + 1))).await;
            victim.start_kill().expect("it runs");
            victim.wait().await.expect("its end");
        };
        let replicas = join_all(homes[1..].iter().map(async |home| {
            let service = serve(home, &settings).await;
            let ready = client().get(format!("http://{}/readyz", service.operations));
            let ready = TimedResponse::of(ready.into()).await;
            assert!(ready.is_success(), "{ready:?}");
            (service, started.elapsed())
        }));
        let ((), replicas) = tokio::join!(kill, replicas);
        slowest = replicas
            .iter()
            .map(|(_, took)| *took)
            .fold(slowest, Duration::max);
        let mut connection = cluster.try_connect(&database).await.expect("a connection");
        let (all, different, failed): (i64, i64, i64) = sqlx::query_as(
            "select count(*), count(distinct version), count(*) filter (where not success)
             from _sqlx_migrations",
        )
        .fetch_one(&mut connection)
        .await
        .expect("the migrations");
        twice += all - different + failed;
        missing += i64::from(different != migrations());
        drop(connection);
        join_all(replicas.into_iter().map(|(service, _)| service.stop())).await;
    }
    row.note(format!("{rounds} rounds"));
    row.within("slowest until ready", slowest, Duration::from_secs(10));
    row.at_most("migrations twice or failed", twice, 0);
    row.at_most("rounds with one missing", missing, 0);
    row.end();
}

/// Returns the number of migration files.
fn migrations() -> i64 {
    let files = fs::read_dir(repository().join("migrations"));
    let names = files
        .expect("the migrations")
        .map(|file| file.expect("a file").path());
    let is_sql = |path: &PathBuf| path.extension().is_some_and(|it| it == "sql");
    i64::try_from(names.filter(is_sql).count()).expect("a few")
}
