//! Starting and stopping the real program: what it promises, keeps and leaves behind.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use pet_inventory::domain::caller::Scopes;
use reqwest::Method;
use serde_json::json;

use crate::support::{Ask, Home, Raw, Service, TestDatabase, make_key, process::users_of};

const KEY: &str = "special-key";

/// The service on a database that is there: quick to start.
async fn serve_on(home: &Home, database: &TestDatabase) -> (Service, String) {
    let mut command = home.command(["serve"]);
    command.env("DATABASE_URL", database.url());
    command.env("PET_INVENTORY__SERVER__SHUTDOWN_GRACE", "2s");
    let service = Service::start(home, command).await;
    let key = make_key(&mut database.connect().await, "tester", Scopes::all(), None).await;
    (service, key.secret)
}

#[tokio::test(flavor = "multi_thread")]
async fn with_nothing_set_up_it_starts_greets_stops_and_keeps_its_data() {
    let home = Home::new();
    let begun = Instant::now();
    // Without any argument.
    let service = Service::start(&home, home.command([""; 0])).await;
    println!("first start {:?}", begun.elapsed());
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
    // Every scope, and all but admin.
    assert!(home.path().join("data/postgres").is_dir());
    service.stop().await;
    assert_eq!(users_of(home.path()), []);

    let begun = Instant::now();
    let service = home.serve().await;
    println!("second start {:?}", begun.elapsed());
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
async fn kill_9_leaves_no_process_and_loses_nothing_that_was_answered() {
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
async fn a_second_instance_on_the_same_folder_says_so_and_ends() {
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

    // Ctrl-C in a terminal; no other process of the service's is hit by it, hence by pid.
    let mut service = service;
    service.signal(Signal::SIGINT);
    assert_eq!(service.ended().await, Some(0), "{}", service.log());
    assert_eq!(users_of(home.path()), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_in_flight_is_answered_before_the_end() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let (home, database) = (Home::new(), TestDatabase::migrated().await);
        let (mut service, key) = serve_on(&home, &database).await;
        let mut raw = Raw::connect(service.address).await;
        let head = format!(
            "POST /api/v3/pet HTTP/1.1\r\nHost: a\r\napi_key: {key}\r\nContent-Type: application/json\r\n\
             Expect: 100-continue\r\nContent-Length: 12\r\n\r\n"
        );
        raw.send(head).await;
        // It has begun to read the body.
        raw.answer().await.is(100);
        raw.send("{\"name").await;
        service.signal(signal);
        // Soft: nothing new is taken.
        let begun = Instant::now();
        while tokio::net::TcpStream::connect(service.address)
            .await
            .is_ok()
        {
            assert!(begun.elapsed() < Duration::from_secs(2), "it still accepts");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // Whoever asks the operator's listener is told so.
        let ready = crate::support::client().get(format!("http://{}/readyz", service.operations));
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
async fn what_is_half_sent_does_not_hold_it_beyond_the_grace() {
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
    // An idle connection that was used before.
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
async fn a_second_signal_ends_it_at_once() {
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
async fn connections_that_wait_for_nothing_do_not_delay_the_end() {
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
