//! Rows 3, 4, 5 and 36: PostgreSQL is down, frozen, has no free connection, or refuses the service.

use test_support::*;

use crate::{checker, stage::*};

/// Returns requests that need no database, each with its expected status.
fn without_database(stage: &Stage) -> Vec<(Call, u16)> {
    let target = &stage.target;
    vec![
        (target.bare(Method::GET, "/livez"), 200),
        (target.bare(Method::GET, "/api/v3/openapi.json"), 200),
        (target.anonymous(Method::GET, "/pet/1"), 401),
        (target.request(Method::GET, "/nothing"), 404),
        (target.request(Method::PATCH, "/pet"), 405),
    ]
}

/// Returns these requests, and others that need no statement: their credentials are cached or malformed, and refused while
/// PostgreSQL is away.
fn without_statement(stage: &Stage) -> Vec<(Call, u16)> {
    let target = &stage.target;
    let get = target.anonymous(Method::GET, "/pet/1");
    let post = |media_type| {
        let post = target.request(Method::POST, "/pet");
        post.header("content-type", media_type).body("{")
    };
    let mut requests = without_database(stage);
    requests.extend([
        (get.header("api_key", "x"), 401),
        (post("text/plain"), 415),
        (post("application/json"), 400),
    ]);
    requests
}

/// Sends requests until stopped; returns the unexpected responses, and the latency of each.
async fn send(
    requests: fn(&Stage) -> Vec<(Call, u16)>,
    stage: &Stage,
    stop: CancellationToken,
) -> (Vec<String>, Vec<Duration>) {
    let (mut unexpected, mut times) = (Vec::new(), Vec::new());
    while !stop.is_cancelled() {
        for (request, expected) in requests(stage) {
            let response = TimedResponse::of(request).await;
            times.push(response.latency);
            if response.status != Some(expected) {
                unexpected.push(format!("{expected} expected: {response:?}"));
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    (unexpected, times)
}

#[tokio::test(flavor = "multi_thread")]
async fn row_03_stopped_postgres_yields_503_immediately() {
    let mut row = Row::begin(3, "PostgreSQL down").await;
    let down = short_or_full(Duration::from_secs(3), Duration::from_secs(20));
    let rate = short_or_full(100, 500);
    let mut stage = Stage::start(&[]).await;
    until(200, || stage.target.bare(Method::GET, "/readyz")).await;
    stage
        .target
        .request(Method::GET, "/pet/findByStatus?status=sold")
        .send()
        .await
        .expect("a response");
    let stop = CancellationToken::new();
    let clients = {
        let (target, stop) = (stage.target.clone(), stop.clone());
        tokio::spawn(send_at_rate(rate, stop, move |number| match number % 2 {
            0 => target.request(Method::GET, "/pet/1"),
            _ => target
                .request(Method::POST, "/pet")
                .json(&json!({"name": "a"})),
        }))
    };
    tokio::time::sleep(Duration::from_millis(500)).await;
    let logged = stage.log_lines().len();
    let stopped = Instant::now();
    stage.cluster.stop();
    let unready = until(503, || stage.target.bare(Method::GET, "/readyz")).await;
    let stop_others = CancellationToken::new();
    let (others, ()) = tokio::join!(send(without_database, &stage, stop_others.clone()), async {
        tokio::time::sleep(down).await;
        stop_others.cancel();
    });
    let logged = stage.log_lines().len() - logged;
    let outage = stopped.elapsed();
    stage.cluster.resume().await;
    let ready = until(200, || stage.target.bare(Method::GET, "/readyz")).await;
    stop.cancel();
    let responses = clients.await.expect("the clients");

    let after_a_second = responses.iter().filter(|response| {
        response.sent_at > stopped + Duration::from_secs(1) && response.sent_at < stopped + outage
    });
    let refused: Vec<_> = after_a_second.cloned().collect();
    row.note(format!(
        "{rate} a second for {down:?}: {}",
        by_status(&refused)
    ));
    let unexpected = refused.iter().filter(|response| !response.is_retryable());
    row.none("other than 503 with Retry-After", unexpected);
    let failed = responses.iter().filter(|response| {
        !response.is_success() && ![Some(404), Some(503)].contains(&response.status)
    });
    row.none("other than done, 404 and 503 before and after", failed);
    let mut times: Vec<_> = refused.iter().map(|response| response.latency).collect();
    row.p99_within(
        "p99 after the first second",
        &mut times,
        Duration::from_millis(20),
    );
    row.within("readyz 503", unready, Duration::from_secs(1));
    row.within("readyz 200 again", ready, Duration::from_secs(1));
    let (unexpected, _) = others;
    row.none("unexpected responses without a database", unexpected);
    #[expect(clippy::cast_precision_loss, reason = "some lines")]
    let lines = logged as f64 / outage.as_secs_f64();
    row.at_most("log lines a second", (lines * 10.0).round() / 10.0, 2.0);
    row.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn row_04_frozen_postgres_does_not_block_requests() {
    let mut row = Row::begin(
        4,
        "PostgreSQL frozen, then a network that drops all packets",
    )
    .await;
    // Longer than the bound of a response.
    let freeze = Duration::from_secs(5);
    let cluster = Cluster::start().await;
    let proxy = Proxy::before(cluster.address).await;
    let url = url_at(proxy.address, "postgres");
    let stage = Stage::on(cluster, &url, &[("SERVER__WORKERS", "2")]).await;
    let load = Load::start(&stage.target, 32).await;
    for drops_packets in [false, true] {
        load.success_after(Instant::now()).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        let froze_at = Instant::now();
        if drops_packets {
            proxy.swallow();
        } else {
            stage.cluster.signal(Signal::SIGSTOP);
        }
        let during_freeze = async {
            // What was on its way arrives.
            tokio::time::sleep(Duration::from_millis(100)).await;
            let live = stage.target.bare(Method::GET, "/livez");
            tokio::join!(
                send_each_kind(stage.target.clone()),
                TimedResponse::of(live)
            )
        };
        let ((), (refused, live)) = tokio::join!(tokio::time::sleep(freeze), during_freeze);
        if drops_packets {
            proxy.pass();
        } else {
            stage.cluster.signal(Signal::SIGCONT);
        }
        let over = Instant::now();
        load.success_after(over).await;
        tokio::time::sleep(short_or_full(
            Duration::from_secs(1),
            Duration::from_secs(2),
        ))
        .await;
        let responses = load.responses();
        let during_outage = responses
            .iter()
            .filter(|response| response.sent_at + response.latency > froze_at);
        let mut latencies: Vec<_> = during_outage
            .clone()
            .map(|response| response.latency)
            .collect();
        let last_failed = during_outage
            .filter(|response| !response.is_success())
            .map(|response| response.sent_at + response.latency)
            .max()
            .map_or(Duration::ZERO, |last| last.saturating_duration_since(over));
        let name = if drops_packets {
            "network down"
        } else {
            "frozen"
        };
        let unexpected = refused
            .iter()
            .filter(|response| !response.is_retryable() || response.is_failure());
        row.none(
            &format!("{name}: other than 503 with Retry-After"),
            unexpected,
        );
        row.check(&format!("{name}: livez 200"), live.status == Some(200));
        row.longest_within(
            &format!("{name}: slowest response"),
            &mut latencies,
            Duration::from_millis(2_500),
        );
        row.within("normal after", last_failed, Duration::from_secs(1));
    }
    until_each_kind_is_served(&stage.target).await;
    let (log, responses) = load.stop().await;
    row.note(by_status(&responses));
    row.none(
        "lost",
        checker::breaches(&log, &found(&mut stage.cluster.connect().await).await),
    );
    let used = settles(async || stage.metric("db_client_connections", "used").await == 0.0).await;
    row.check("connections in use back to 0", used);
    let mut open = 0;
    settles(async || {
        open = stage.cluster.number(OURS).await;
        open <= MOST
    })
    .await;
    row.at_most("sessions in pg_stat_activity", open, MOST);
    let busy = format!("{OURS} and state <> 'idle'");
    let idle = settles(async || stage.cluster.number(&busy).await == 0).await;
    row.check("all of them idle", idle);
    row.end();
}

/// Maximum number of sessions: the pool, six batch connections per worker (pets, new pets, changed pets, new orders, pages of a
/// tag, credentials), the notification listener and a probe. No request here is on a limited plan.
const MOST: i64 = 16 + 6 * 2 + 1 + 1;
const OURS: &str = "select count(*) from pg_stat_activity where application_name = 'pet-inventory'";

/// Waits up to 8 s for a condition; returns true if it was met.
async fn settles(mut condition: impl AsyncFnMut() -> bool) -> bool {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(8) {
        if condition().await {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    false
}

/// Adds a pet per second until `stop`.
async fn add_pets(target: Arc<Target>, stop: CancellationToken) -> Vec<TimedResponse> {
    let mut responses = Vec::new();
    while !stop.is_cancelled() {
        let pet = json!({"name": "a"});
        let request = target.request(Method::POST, "/pet").json(&pet);
        responses.push(TimedResponse::of(request).await);
        // The delay that Retry-After demands.
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    responses
}

#[tokio::test(flavor = "multi_thread")]
async fn row_05_exhausted_pool_yields_503_in_time() {
    let mut row = Row::begin(5, "pool of 4 exhausted by a held lock, 200 clients").await;
    let held = short_or_full(Duration::from_secs(2), Duration::from_secs(10));
    let stage = Stage::start(&[("DATABASE__MAX_CONNECTIONS", "4")]).await;
    let mut connection = stage.cluster.connect().await;
    let mut lock = connection.begin().await.expect("a transaction");
    lock.execute("lock table pets in exclusive mode")
        .await
        .expect("the lock");
    let stop = CancellationToken::new();
    let clients = (0..200).map(|_| tokio::spawn(add_pets(stage.target.clone(), stop.clone())));
    let clients: Vec<_> = clients.collect();
    let stop_others = CancellationToken::new();
    let ((unexpected, mut times), waiting) = tokio::join!(
        send(without_statement, &stage, stop_others.clone()),
        async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let waiting = stage
                .cluster
                .number(&format!("{OURS} and wait_event_type = 'Lock'"))
                .await;
            tokio::time::sleep(held).await;
            stop_others.cancel();
            stop.cancel();
            waiting
        }
    );
    let responses: Vec<_> = join_all(clients)
        .await
        .into_iter()
        .flat_map(|all| all.expect("a client"))
        .collect();
    lock.rollback().await.expect("unlocked");
    row.note(format!(
        "{waiting} waiting in PostgreSQL, {}",
        by_status(&responses)
    ));
    let other = responses.iter().filter(|response| !response.is_retryable());
    row.none("other than 503", other);
    let mut latencies: Vec<_> = responses.iter().map(|response| response.latency).collect();
    row.longest_within("slowest 503", &mut latencies, Duration::from_millis(1_100));
    // Four requests wait in PostgreSQL and 128 in the queue of the pool. Of 200 concurrent requests, the other 68 are
    // refused as soon as their shared statement is found to wait for a lock, and not after the second of the others.
    let half_a_second = Duration::from_millis(500);
    let quick = responses
        .iter()
        .filter(|response| response.latency < half_a_second);
    row.at_least("refused soon, the queue being full", quick.count(), 40);
    row.none("unexpected responses without a database", unexpected);
    row.p99_within("their p99", &mut times, Duration::from_millis(20));
    let back = until(201, || {
        stage
            .target
            .request(Method::POST, "/pet")
            .json(&json!({"name": "a"}))
    });
    row.within("well after the lock", back.await, Duration::from_secs(1));
    row.end();
}

/// How PostgreSQL comes to refuse the service, and how it accepts it again.
struct Refusal {
    name: &'static str,
    begin: &'static str,
    end: &'static str,
    /// Password in the file at the end.
    password: &'static str,
}

const REFUSALS: [Refusal; 4] = [
    Refusal {
        name: "password changed and back",
        begin: "alter role pets password 'two'",
        end: "alter role pets password 'one'",
        password: "one",
    },
    Refusal {
        name: "password changed, then its file",
        begin: "alter role pets password 'two'",
        end: "select",
        password: "two",
    },
    Refusal {
        name: "login revoked",
        begin: "alter role pets nologin",
        end: "alter role pets login",
        password: "two",
    },
    Refusal {
        name: "database renamed",
        begin: "alter database postgres allow_connections false;
                select pg_terminate_backend(pid) from pg_stat_activity where datname = 'postgres';
                select pg_sleep(0.1);
                alter database postgres rename to gone",
        end: "alter database gone rename to postgres; alter database postgres allow_connections true",
        password: "two",
    },
];

#[tokio::test(flavor = "multi_thread")]
async fn row_36_refused_credentials_yield_503() {
    let mut row = Row::begin(
        36,
        "PostgreSQL refuses the password, the role or the database",
    )
    .await;
    let time = short_or_full(Duration::from_secs(2), Duration::from_secs(20));
    let cluster = Cluster::start().await;
    cluster
        .run("create role pets superuser login password 'one'")
        .await;
    let rules = "host all postgres 127.0.0.1/32 trust\nhost all pets 127.0.0.1/32 scram-sha-256\n";
    fs::write(cluster.data().join("pg_hba.conf"), rules).expect("rules");
    cluster.run("select pg_reload_conf()").await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("password");
    fs::write(&file, "one\n").expect("a file");
    let url = format!(
        "postgres://pets@{}/postgres?sslmode=disable",
        cluster.address
    );
    let path = file.to_str().expect("a path");
    let stage = Stage::on(cluster, &url, &[("DATABASE__PASSWORD_FILE", path)]).await;
    let ready = || stage.target.bare(Method::GET, "/readyz");
    let mut administration = stage.cluster.try_connect("template1").await;
    let administration = administration.as_mut().expect("a connection");
    for refusal in REFUSALS {
        until(200, ready).await;
        let stop = CancellationToken::new();
        let clients = {
            let (target, stop) = (stage.target.clone(), stop.clone());
            tokio::spawn(send_at_rate(50, stop, move |number| match number % 3 {
                0 => target.request(Method::GET, "/pet/1"),
                1 => target.request(Method::GET, "/pet?limit=5"),
                _ => target
                    .request(Method::POST, "/pet")
                    .json(&json!({"name": "a"})),
            }))
        };
        tokio::time::sleep(Duration::from_millis(500)).await;
        let end_sessions =
            "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'pets'";
        for statement in refusal.begin.split(';').chain([end_sessions]) {
            let ran = administration.execute(statement).await;
            ran.unwrap_or_else(|error| panic!("{statement}: {error}"));
        }
        let refused_at = Instant::now();
        let unready = until(503, ready).await;
        tokio::time::sleep(time).await;
        let is_open = stage.metric("db_client_breaker_open", "").await;
        let refused = refused_at.elapsed();
        for statement in refusal.end.split(';') {
            let ran = administration.execute(statement).await;
            ran.unwrap_or_else(|error| panic!("{statement}: {error}"));
        }
        fs::write(&file, refusal.password).expect("a file");
        let back = until(200, ready).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        stop.cancel();
        let responses = clients.await.expect("the clients");
        let name = refusal.name;
        row.note(format!("{name}: {}", by_status(&responses)));
        let other = responses.iter().filter(|response| {
            !response.is_success() && response.status != Some(404) && !response.is_retryable()
        });
        row.none("other than done, 404 and 503", other);
        let second = Duration::from_secs(1);
        let mut served = responses.iter().filter(|response| {
            (refused_at + second..refused_at + refused).contains(&response.sent_at)
        });
        row.check("all refused", served.all(TimedResponse::is_retryable));
        row.check("the alert's expression is true", is_open > 0.0);
        row.within("readyz 503", unready, second);
        row.within("well again", back, second);
    }
    row.end();
}
