//! Start and shutdown of the program: requests in progress, stored data, and remaining processes.

use test_support::process::processes_using;
use test_support::*;

const KEY: &str = "special-key";
const GRACE: &str = "PET_INVENTORY__SERVER__SHUTDOWN_GRACE";

/// Starts the service on an existing database, which is quicker than an embedded PostgreSQL; returns it and a key.
async fn serve_on(home: &Home, database: &TestDatabase) -> (Service, String) {
    let url = database.url();
    let variables = [("DATABASE_URL", url.as_str()), (GRACE, "2s")];
    let service = home.serve_with(&variables).await;
    let key = make_key(&mut database.connect().await, "tester", Scopes::all(), None).await;
    (service, key.secret)
}

#[tokio::test(flavor = "multi_thread")]
async fn start_without_configuration_prints_urls_and_keeps_data_over_a_restart() {
    let home = Home::new();
    // No arguments.
    let service = Service::start(&home, home.command([""; 0])).await;
    for words in [
        "/docs",
        "Metrics",
        "special-key (enterprise)",
        "pro-key (pro)",
        "free-key (free)",
        "curl -H",
    ] {
        assert!(
            service.startup_output.contains(words),
            "{}",
            service.startup_output
        );
    }
    for key in [KEY, "pro-key", "free-key"] {
        let pet = json!({"name": key, "status": "sold"});
        service
            .request(Method::POST, "/pet", key)
            .json(&pet)
            .is(201)
            .await;
    }
    assert!(home.path().join("data/postgres").is_dir());
    service.stop().await;
    assert_eq!(processes_using(home.path()), []);

    let service = home.serve().await;
    let found = service
        .request(Method::GET, "/pet/findByStatus?status=sold", KEY)
        .is(200)
        .await;
    assert_eq!(found.ids().len(), 3, "{found}");
    service.stop().await;
    assert_eq!(processes_using(home.path()), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn sigkill_leaves_no_process_and_loses_no_acknowledged_write() {
    let home = Home::new();
    let mut service = home.serve().await;
    let mut stored = Vec::new();
    for name in ["a", "b", "c"] {
        let pet = json!({"name": name});
        stored.push(
            service
                .request(Method::POST, "/pet", KEY)
                .json(&pet)
                .is(201)
                .await
                .id(),
        );
    }
    assert!(
        processes_using(home.path())
            .iter()
            .any(|(_, name)| name.trim() == "postgres")
    );
    service.signal(Signal::SIGKILL);
    assert_eq!(service.wait_for_exit().await, None);
    home.wait_until_unused().await;

    let service = home.serve().await;
    let found = service.request(Method::GET, "/pet/findByStatus?status=available", KEY);
    assert_eq!(found.is(200).await.ids(), stored);
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn second_instance_on_the_same_folder_exits_with_an_error() {
    let home = Home::new();
    let service = home.serve().await;
    let second = home.run(&["serve"]).await.is(1);
    let pid = service.pid().to_string();
    second.stderr_has(&pid);
    second.stderr_has("already serves");
    assert_eq!(second.stdout, "");
    service
        .request(Method::GET, "/pet/findByStatus?status=sold", KEY)
        .is(200)
        .await;

    // As Ctrl-C in a terminal does, which the embedded PostgreSQL does not receive.
    let mut service = service;
    service.signal(Signal::SIGINT);
    assert_eq!(service.wait_for_exit().await, Some(0), "{}", service.log());
    assert_eq!(processes_using(home.path()), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn request_in_progress_completes_before_exit() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let (home, database) = (Home::new(), TestDatabase::migrated().await);
        let (mut service, key) = serve_on(&home, &database).await;
        let mut raw = RawConnection::connect(service.address).await;
        let head = format!(
            "POST /api/v3/pet HTTP/1.1\r\nHost: localhost\r\napi_key: {key}\r\nContent-Type: application/json\r\n\
             Expect: 100-continue\r\nContent-Length: 12\r\n\r\n"
        );
        raw.send(head).await;
        // The 100 shows that the service reads the body.
        raw.response().await.is(100);
        raw.send("{\"name").await;
        service.signal(signal);
        // Graceful stage: new connections are refused.
        let started = Instant::now();
        while tokio::net::TcpStream::connect(service.address)
            .await
            .is_ok()
        {
            assert!(started.elapsed() < PATIENCE, "it still accepts");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // The operations listener still accepts connections.
        let ready = client().get(format!("http://{}/readyz", service.operations));
        ready.response().await.problem(503);
        raw.send("\":\"a\"}").await;
        let response = raw.response().await.is(201);
        assert_eq!(response.header("connection"), "close", "{response}");
        assert_eq!(service.wait_for_exit().await, Some(0), "{}", service.log());
        assert_eq!(database.number("select count(*) from pets").await, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_in_the_listen_queue_at_sigterm_are_served() {
    let (home, database) = (Home::new(), TestDatabase::migrated().await);
    let (mut service, key) = serve_on(&home, &database).await;
    // A stopped process accepts nothing. The kernel completes the handshakes, and keeps SIGTERM until SIGCONT.
    service.signal(Signal::SIGSTOP);
    let get = format!("GET /api/v3/pet/1 HTTP/1.1\r\nHost: localhost\r\napi_key: {key}\r\n\r\n");
    let mut connections = Vec::new();
    for _ in 0..300 {
        let mut raw = RawConnection::connect(service.address).await;
        raw.send(&get).await;
        connections.push(raw);
    }
    service.signal(Signal::SIGTERM);
    service.signal(Signal::SIGCONT);
    for raw in &mut connections {
        raw.response().await.problem(404);
        assert_eq!(raw.closed().await, "");
    }
    assert_eq!(service.wait_for_exit().await, Some(0), "{}", service.log());
}

/// The client may have sent the request before it could learn of the shutdown.
#[tokio::test(flavor = "multi_thread")]
async fn next_request_of_an_idle_connection_is_served_after_sigterm() {
    const LIVEZ: &str = "GET /livez HTTP/1.1\r\nHost: a\r\n\r\n";
    let (home, database) = (Home::new(), TestDatabase::migrated().await);
    let (mut service, _) = serve_on(&home, &database).await;
    let mut raw = RawConnection::connect(service.address).await;
    raw.send(LIVEZ).await;
    let first = raw.response().await.is(200);
    assert_eq!(first.optional_header("connection"), None, "{first}");
    service.signal(Signal::SIGTERM);
    eventually(async || service.log().contains("stopping")).await;
    raw.send(LIVEZ).await;
    let last = raw.response().await.is(200);
    assert_eq!(last.header("connection"), "close", "{last}");
    assert_eq!(raw.closed().await, "");
    assert_eq!(service.wait_for_exit().await, Some(0), "{}", service.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn half_sent_requests_do_not_delay_exit_beyond_the_grace() {
    let (home, database) = (Home::new(), TestDatabase::migrated().await);
    let (mut service, key) = serve_on(&home, &database).await;
    let mut half = Vec::new();
    for bytes in [
        String::new(),
        "GET /livez HTTP/1.1\r\nHo".into(),
        format!(
            "POST /api/v3/pet HTTP/1.1\r\nHost: localhost\r\napi_key: {key}\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{{"
        ),
    ] {
        let mut raw = RawConnection::connect(service.address).await;
        raw.send(bytes).await;
        half.push(raw);
    }
    // An idle connection after its first request.
    let mut idle = RawConnection::connect(service.address).await;
    idle.send("GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").await;
    idle.response().await.is(200);
    service.signal(Signal::SIGTERM);
    assert_eq!(idle.closed().await, "");
    assert_eq!(service.wait_for_exit().await, Some(0), "{}", service.log());
    assert_eq!(database.number("select count(*) from pets").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn second_signal_exits_immediately() {
    let database = TestDatabase::migrated().await;
    let home = Home::on(database.url());
    let mut service = home.serve_with(&[(GRACE, "1h")]).await;
    let mut raw = RawConnection::connect(service.address).await;
    raw.send("GET /livez HTTP/1.1\r\nHo").await;
    service.signal(Signal::SIGTERM);
    let started = Instant::now();
    while !service.log().contains("stopping") {
        assert!(started.elapsed() < PATIENCE, "{}", service.log());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    service.signal(Signal::SIGINT);
    assert_eq!(service.wait_for_exit().await, Some(0), "{}", service.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_do_not_delay_exit() {
    let database = TestDatabase::migrated().await;
    let home = Home::on(database.url());
    let mut service = home.serve_with(&[(GRACE, "1h")]).await;
    let mut idle = Vec::new();
    for _ in 0..5 {
        let mut raw = RawConnection::connect(service.address).await;
        raw.send("GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").await;
        raw.response().await.is(200);
        idle.push(raw);
    }
    service.signal(Signal::SIGTERM);
    assert_eq!(service.wait_for_exit().await, Some(0), "{}", service.log());
}
