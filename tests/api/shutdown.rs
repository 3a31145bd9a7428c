//! Start and shutdown of the program: requests in progress, stored data, and remaining processes.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use pet_inventory::domain::caller::Scopes;
use reqwest::Method;
use serde_json::json;
use test_support::{Ask, Home, Raw, Service, TestDatabase, make_key, process::users_of};

const KEY: &str = "special-key";
/// Maximum time from the start of the process until it serves, on a busy machine.
const START: Duration = Duration::from_secs(30);

/// Starts the service on an existing database, which is quicker than an embedded PostgreSQL; returns it and a key.
async fn serve_on(home: &Home, database: &TestDatabase) -> (Service, String) {
    let mut command = home.command(["serve"]);
    command.env("DATABASE_URL", database.url());
    command.env("PET_INVENTORY__SERVER__SHUTDOWN_GRACE", "2s");
    let service = Service::start(home, command).await;
    let key = make_key(&mut database.connect().await, "tester", Scopes::all(), None).await;
    (service, key.secret)
}

#[tokio::test(flavor = "multi_thread")]
async fn start_without_configuration_prints_urls_and_keeps_data_over_a_restart() {
    let home = Home::new();
    let begun = Instant::now();
    // No arguments.
    let service = Service::start(&home, home.command([""; 0])).await;
    assert!(begun.elapsed() < START, "{:?}", begun.elapsed());
    for words in [
        "/docs",
        "Metrics",
        "special-key (enterprise)",
        "pro-key (pro)",
        "free-key (free)",
        "curl -H",
    ] {
        assert!(service.greeting.contains(words), "{}", service.greeting);
    }
    for key in [KEY, "pro-key", "free-key"] {
        let pet = json!({"name": key, "status": "sold"});
        service
            .request(Method::POST, "/pet", key)
            .json(&pet)
            .answer()
            .await
            .is(201);
    }
    assert!(home.path().join("data/postgres").is_dir());
    service.stop().await;
    assert_eq!(users_of(home.path()), []);

    let begun = Instant::now();
    let service = home.serve().await;
    assert!(begun.elapsed() < START, "{:?}", begun.elapsed());
    let found = service
        .request(Method::GET, "/pet/findByStatus?status=sold", KEY)
        .answer()
        .await
        .is(200);
    assert_eq!(found.ids().len(), 3, "{found}");
    service.stop().await;
    assert_eq!(users_of(home.path()), []);
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
                .answer()
                .await
                .is(201)
                .id(),
        );
    }
    assert!(
        users_of(home.path())
            .iter()
            .any(|(_, name)| name.trim() == "postgres")
    );
    service.signal(Signal::SIGKILL);
    assert_eq!(service.ended().await, None);
    home.nothing_runs().await;

    let service = home.serve().await;
    let found = service.request(Method::GET, "/pet/findByStatus?status=available", KEY);
    assert_eq!(found.answer().await.is(200).ids(), stored);
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn second_instance_on_the_same_folder_exits_with_an_error() {
    let home = Home::new();
    let service = home.serve().await;
    let begun = Instant::now();
    let second = home.run(&["serve"]).await.is(1);
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    let pid = service.pid().to_string();
    assert!(
        second.stderr.contains(&pid) && second.stderr.contains("already serves"),
        "{second:?}"
    );
    assert_eq!(second.stdout, "");
    service
        .request(Method::GET, "/pet/findByStatus?status=sold", KEY)
        .answer()
        .await
        .is(200);

    // As Ctrl-C in a terminal does, which the embedded PostgreSQL does not receive.
    let mut service = service;
    service.signal(Signal::SIGINT);
    assert_eq!(service.ended().await, Some(0), "{}", service.log());
    assert_eq!(users_of(home.path()), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn request_in_progress_completes_before_exit() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let (home, database) = (Home::new(), TestDatabase::migrated().await);
        let (mut service, key) = serve_on(&home, &database).await;
        let mut raw = Raw::connect(service.address).await;
        let head = format!(
            "POST /api/v3/pet HTTP/1.1\r\nHost: a\r\napi_key: {key}\r\nContent-Type: application/json\r\n\
             Expect: 100-continue\r\nContent-Length: 12\r\n\r\n"
        );
        raw.send(head).await;
        // The 100 shows that the service reads the body.
        raw.answer().await.is(100);
        raw.send("{\"name").await;
        service.signal(signal);
        // Graceful stage: new connections are refused.
        let begun = Instant::now();
        while tokio::net::TcpStream::connect(service.address)
            .await
            .is_ok()
        {
            assert!(begun.elapsed() < Duration::from_secs(2), "it still accepts");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // The operations listener still accepts connections.
        let ready = test_support::client().get(format!("http://{}/readyz", service.operations));
        ready.answer().await.problem(503);
        raw.send("\":\"a\"}").await;
        let answer = raw.answer().await.is(201);
        assert_eq!(answer.header("connection"), "close", "{answer}");
        assert_eq!(service.ended().await, Some(0), "{}", service.log());
        assert!(
            begun.elapsed() < Duration::from_secs(2),
            "{:?}",
            begun.elapsed()
        );
        assert_eq!(database.number("select count(*) from pets").await, 1);
    }
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
            "POST /api/v3/pet HTTP/1.1\r\nHost: a\r\napi_key: {key}\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{{"
        ),
    ] {
        let mut raw = Raw::connect(service.address).await;
        raw.send(bytes).await;
        half.push(raw);
    }
    // An idle connection after its first request.
    let mut idle = Raw::connect(service.address).await;
    idle.send("GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").await;
    idle.answer().await.is(200);
    let begun = Instant::now();
    service.signal(Signal::SIGTERM);
    assert_eq!(idle.closed().await, "");
    assert!(
        begun.elapsed() < Duration::from_millis(1_900),
        "an idle connection held on: {:?}",
        begun.elapsed()
    );
    assert_eq!(service.ended().await, Some(0), "{}", service.log());
    let elapsed = begun.elapsed();
    assert!(elapsed < Duration::from_millis(3_500), "{elapsed:?}");
    assert_eq!(database.number("select count(*) from pets").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn second_signal_exits_at_once() {
    let (home, database) = (Home::new(), TestDatabase::migrated().await);
    let mut command = home.command(["serve"]);
    command.env("DATABASE_URL", database.url());
    command.env("PET_INVENTORY__SERVER__SHUTDOWN_GRACE", "1m");
    let mut service = Service::start(&home, command).await;
    let mut raw = Raw::connect(service.address).await;
    raw.send("GET /livez HTTP/1.1\r\nHo").await;
    service.signal(Signal::SIGTERM);
    let begun = Instant::now();
    while !service.log().contains("stopping") {
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "{}",
            service.log()
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    service.signal(Signal::SIGINT);
    assert_eq!(service.ended().await, Some(0), "{}", service.log());
    assert!(
        begun.elapsed() < Duration::from_secs(4),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_do_not_delay_exit() {
    let (home, database) = (Home::new(), TestDatabase::migrated().await);
    let mut command = home.command(["serve"]);
    command.env("DATABASE_URL", database.url());
    let mut service = Service::start(&home, command).await;
    let mut idle = Vec::new();
    for _ in 0..5 {
        let mut raw = Raw::connect(service.address).await;
        raw.send("GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").await;
        raw.answer().await.is(200);
        idle.push(raw);
    }
    let begun = Instant::now();
    service.signal(Signal::SIGTERM);
    assert_eq!(service.ended().await, Some(0), "{}", service.log());
    let elapsed = begun.elapsed();
    assert!(elapsed < Duration::from_millis(1_900), "{elapsed:?}");
}
