//! What no HTTP client sends by itself: broken, ambiguous, cut off and dribbled messages.

use std::time::{Duration, Instant};

use reqwest::Version;
use serde_json::json;

use crate::support::{Ask, Raw, TestApp, client_builder};

/// A request to add a pet, with these fields beside the needed ones.
fn post(app: &TestApp, fields: &str, body: &str) -> String {
    format!(
        "POST /api/v3/pet HTTP/1.1\r\nHost: a\r\napi_key: {}\r\nContent-Type: application/json\r\n{fields}\r\n{body}",
        app.key
    )
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_http_is_a_problem_too() {
    let app = TestApp::start().await;
    let head = |fields: &str| format!("GET /livez HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n");
    for (what, status, bytes) in [
        ("garbage", 400, "garbage\r\n\r\n".to_owned()),
        (
            "an empty target",
            400,
            "GET  HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
        ),
        (
            "another protocol",
            400,
            "SSH-2.0-OpenSSH_9.2\r\n\r\n".to_owned(),
        ),
        (
            "TLS",
            400,
            "\u{16}\u{3}\u{1}\u{2}\0\u{1}\0\u{1}\r\n\r\n".to_owned(),
        ),
        (
            "HTTP/3",
            400,
            "GET / HTTP/3.0\r\nHost: a\r\n\r\n".to_owned(),
        ),
        (
            "a method of strange letters",
            400,
            "G(T / HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
        ),
        ("a field without a colon", 400, head("broken")),
        ("a field without a name", 400, head(": x")),
        ("a space before the colon", 400, head("X-A : x")),
        ("NUL in a field", 400, head("X-A: a\0b")),
        ("a bare CR in a field", 400, head("X-A: a\rb")),
        ("a folded field", 400, head("X-A: a\r\n b")),
        (
            "a length that is no number",
            400,
            head("Content-Length: five"),
        ),
        ("a negative length", 400, head("Content-Length: -1")),
        ("a length with a sign", 400, head("Content-Length: +1")),
        (
            "two lengths",
            400,
            head("Content-Length: 1\r\nContent-Length: 2"),
        ),
        ("a list of lengths", 400, head("Content-Length: 1, 2")),
        (
            "an unknown transfer coding",
            400,
            head("Transfer-Encoding: gzip"),
        ),
        (
            "chunked not last",
            400,
            head("Transfer-Encoding: chunked, gzip"),
        ),
        (
            "a head too large",
            431,
            head(&format!("X-A: {}", "a".repeat(20_000))),
        ),
        (
            "too many fields",
            431,
            head("X-A: a\r\n".repeat(100).trim_end()),
        ),
    ] {
        let mut raw = Raw::connect(app.address).await;
        raw.send(bytes).await;
        let answer = raw.answer().await;
        assert_eq!(answer.status.as_u16(), status, "{what}: {answer}");
        answer.problem(status);
        assert_eq!(answer.header("connection"), "close", "{what}: {answer}");
        assert_eq!(raw.closed().await, "", "{what}");
    }
    Raw::ask(app.address, get("/livez")).await.is(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn up_to_100_fields_and_16_kib_are_fine() {
    let app = TestApp::start().await;
    let many = format!(
        "GET /livez HTTP/1.1\r\nHost: a\r\n{}\r\n",
        "X-A: a\r\n".repeat(99)
    );
    Raw::ask(app.address, many).await.is(200);
    let large = format!(
        "GET /livez HTTP/1.1\r\nHost: a\r\nX-A: {}\r\n\r\n",
        "a".repeat(15_000)
    );
    Raw::ask(app.address, large).await.is(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn host_comes_exactly_once() {
    let app = TestApp::start().await;
    for (what, fields) in [
        ("missing", ""),
        ("doubled", "Host: a\r\nHost: a\r\n"),
        ("two of them", "Host: a\r\nX-A: b\r\nHost: b\r\n"),
        ("not a host", "Host: a b\r\n"),
        ("a list", "Host: a, b\r\n"),
        ("a path", "Host: a/b\r\n"),
    ] {
        let request = format!("GET /livez HTTP/1.1\r\n{fields}\r\n");
        let answer = Raw::ask(app.address, request).await;
        assert_eq!(answer.invalid_fields(), ["Host"], "{what}: {answer}");
    }
    for host in ["a", "a:80", "127.0.0.1:8080", "[::1]:80", ""] {
        let request = format!("GET /livez HTTP/1.1\r\nHost: {host}\r\n\r\n");
        Raw::ask(app.address, request).await.is(200);
    }
    // HTTP/1.0 knows no Host.
    Raw::ask(app.address, "GET /livez HTTP/1.0\r\n\r\n")
        .await
        .is(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_two_lengths_is_refused_however_it_is_cut() {
    let app = TestApp::start().await;
    let (length, chunked) = ("Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n");
    let requests = [
        post(&app, &format!("{length}{chunked}"), ""),
        post(&app, &format!("{chunked}{length}"), ""),
        post(
            &app,
            &format!("{chunked}X-A: {}\r\n{length}", "a".repeat(500)),
            "",
        ),
        post(
            &app,
            "content-length:0\r\ntransfer-encoding:\tchunked\r\n",
            "",
        ),
    ];
    for request in &requests {
        // Up to the field that makes it ambiguous: it is refused before anything more has come.
        let head = request.trim_end_matches("\r\n").to_owned() + "\r\n";
        for size in [1, 7, 100, head.len()] {
            let mut raw = Raw::connect(app.address).await;
            for piece in head.as_bytes().chunks(size) {
                raw.send(piece).await;
                tokio::task::yield_now().await;
            }
            println!("{head:?} in pieces of {size}");
            raw.answer().await.problem(400);
            assert_eq!(raw.closed().await, "");
        }
    }
    // Also as the second request of a connection.
    let mut raw = Raw::connect(app.address).await;
    raw.send(format!("{}{}", get("/livez"), requests[0])).await;
    raw.answer().await.is(200);
    raw.answer().await.problem(400);
    assert_eq!(raw.closed().await, "");
    assert_eq!(app.count().await, 0);
}

/// A length written so that the guard and hyper could read it differently would let the body's bytes pass
/// for heads, and hide the ambiguous head behind them.
#[tokio::test(flavor = "multi_thread")]
async fn no_way_to_write_a_length_hides_an_ambiguous_message_behind_it() {
    let app = TestApp::start().await;
    let decoy = "GET / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n";
    let ambiguous = post(
        &app,
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "c\r\n{\"name\":\"a\"}\r\n0\r\n\r\n",
    );
    let size = decoy.len();
    let first = |fields: &str, body: &str| {
        format!("POST /nothing HTTP/1.1\r\nHost: a\r\n{fields}\r\n{body}")
    };
    let by_length = |value: String| first(&format!("Content-Length: {value}\r\n"), decoy);
    let by_chunk = |value: String| {
        first(
            "Transfer-Encoding: chunked\r\n",
            &format!("{value}\r\n{decoy}\r\n0\r\n\r\n"),
        )
    };
    for (what, request) in [
        ("a plain length", by_length(size.to_string())),
        (
            "a length far behind its name",
            by_length(format!("{}{size}", " ".repeat(300))),
        ),
        (
            "a length with a long tail",
            by_length(format!("{size}{}", " ".repeat(300))),
        ),
        (
            "a length of many zeros",
            by_length(format!("{}{size}", "0".repeat(300))),
        ),
        ("a plain chunk", by_chunk(format!("{size:x}"))),
        (
            "a chunk size of many zeros",
            by_chunk(format!("{}{size:x}", "0".repeat(300))),
        ),
        (
            "a chunk with a long extension",
            by_chunk(format!("{size:x};{}", "a".repeat(300))),
        ),
    ] {
        let mut raw = Raw::connect(app.address).await;
        raw.send(format!("{request}{ambiguous}")).await;
        let answer = raw.answer().await;
        if answer.status == 404 {
            let answer = raw.answer().await;
            assert_eq!(answer.status, 400, "{what}: {answer}");
        } else {
            // It may refuse the strange length itself.
            assert_eq!(answer.status, 400, "{what}: {answer}");
        }
        assert_eq!(raw.closed().await, "", "{what}");
    }
    assert_eq!(app.count().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_far_too_large_does_not_keep_the_client_from_reading_why() {
    let app = TestApp::start().await;
    let pet = json!({"name": "a", "x": "x".repeat(8 << 20)});
    for _ in 0..5 {
        app.post("/pet", &pet).answer().await.problem(413);
    }
    app.pet("a").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_takes_one_request_after_another_also_sent_together() {
    let app = TestApp::start().await;
    let pet = "{\"id\":1,\"name\":\"a\"}";
    let chunked = "Transfer-Encoding: chunked\r\n";
    let like_a_head = "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n";
    let requests = [
        post(&app, &format!("Content-Length: {}\r\n", pet.len()), pet),
        post(
            &app,
            chunked,
            "5;x=y\r\n{\"id\"\r\nd\r\n:2,\"name\":\"b\"\r\n01\r\n}\r\n0\r\nX-Trailer: t\r\n\r\n",
        ),
        get("/livez"),
        // Its body looks like an ambiguous head.
        post(
            &app,
            &format!("Content-Length: {}\r\n", like_a_head.len()),
            like_a_head,
        ),
        get("/nothing"),
    ];
    for piece in [1, 13, 10_000] {
        let mut raw = Raw::connect(app.address).await;
        for piece in requests.concat().as_bytes().chunks(piece) {
            raw.send(piece).await;
        }
        for status in [
            if piece == 1 { 201 } else { 409 },
            if piece == 1 { 201 } else { 409 },
            200,
            400,
            404,
        ] {
            raw.answer().await.is(status);
        }
    }
    assert_eq!(app.count().await, 2);
    assert_eq!(app.get("/pet/2").answer().await.is(200).json()["name"], "b");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_asks_first_is_told_to_go_on() {
    let app = TestApp::start().await;
    let pet = "{\"name\":\"a\"}";
    let mut raw = Raw::connect(app.address).await;
    raw.send(post(
        &app,
        &format!("Expect: 100-continue\r\nContent-Length: {}\r\n", pet.len()),
        "",
    ))
    .await;
    raw.answer().await.is(100);
    raw.send(pet).await;
    raw.answer().await.is(201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_cut_off_stores_nothing() {
    let app = TestApp::start().await;
    let pet = "{\"name\":\"a\"}";
    for (what, fields, body) in [
        (
            "shorter than it says",
            "Content-Length: 100\r\n",
            pet.to_owned(),
        ),
        (
            "no last chunk",
            "Transfer-Encoding: chunked\r\n",
            format!("{:x}\r\n{pet}\r\n", pet.len()),
        ),
        (
            "half a chunk",
            "Transfer-Encoding: chunked\r\n",
            format!("ff\r\n{pet}"),
        ),
        (
            "no end of the last chunk",
            "Transfer-Encoding: chunked\r\n",
            format!("{:x}\r\n{pet}\r\n0\r\n", pet.len()),
        ),
        (
            "a chunk longer than it says",
            "Transfer-Encoding: chunked\r\n",
            format!("5\r\n{pet}\r\n0\r\n\r\n"),
        ),
        (
            "a chunk size that is none",
            "Transfer-Encoding: chunked\r\n",
            format!("{:x}\r\n{pet}\r\nzz\r\n\r\n", pet.len()),
        ),
        (
            "a negative chunk size",
            "Transfer-Encoding: chunked\r\n",
            format!("{:x}\r\n{pet}\r\n-1\r\n\r\n", pet.len()),
        ),
    ] {
        for key in ["", "Idempotency-Key: k\r\n"] {
            let mut raw = Raw::connect(app.address).await;
            raw.send(post(&app, &format!("{fields}{key}"), &body)).await;
            raw.finish().await;
            let said = raw.closed().await;
            assert!(
                said.is_empty() || said.starts_with("HTTP/1.1 400"),
                "{what}: {said}"
            );
        }
    }
    assert_eq!(app.count().await, 0);
    app.pet("a").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_does_not_end_is_cut_off() {
    let app = TestApp::with(&[("PET_INVENTORY__SERVER__HEADER_TIMEOUT", "300ms")]).await;
    for bytes in [
        "",
        "G",
        "PRI * HT",
        "GET /livez HTTP/1.1\r\nHost: a\r\nX-A: ",
    ] {
        let begun = Instant::now();
        let mut raw = Raw::connect(app.address).await;
        raw.send(bytes).await;
        let said = raw.closed().await;
        assert!(
            said.is_empty() || said.starts_with("HTTP/1.1 408"),
            "{bytes}: {said}"
        );
        let elapsed = begun.elapsed();
        assert!(
            elapsed > Duration::from_millis(250) && elapsed < Duration::from_secs(3),
            "{bytes}: {elapsed:?}"
        );
    }
    // Dribbling does not help.
    let begun = Instant::now();
    let mut raw = Raw::connect(app.address).await;
    raw.send("GET /livez HTTP/1.1\r\nHost: a\r\nX-A: ").await;
    let mut raw = tokio::spawn(async move {
        for _ in 0..30 {
            raw.send("a").await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        raw
    })
    .await
    .expect("dribbled");
    raw.closed().await;
    assert!(
        begun.elapsed() < Duration::from_secs(4),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn http_2_with_prior_knowledge_works() {
    let app = TestApp::start().await;
    let client = client_builder()
        .no_proxy()
        .http2_prior_knowledge()
        .build()
        .expect("a client");
    let url = app.url("/pet");
    let post = |body: serde_json::Value| client.post(&url).header("api_key", &app.key).json(&body);
    let response = post(json!({"id": 5, "name": "two"}))
        .send()
        .await
        .expect("an answer");
    assert_eq!(response.version(), Version::HTTP_2);
    assert_eq!(response.status(), 201);
    post(json!({"id": 5, "name": "two"}))
        .answer()
        .await
        .problem(409);
    post(json!({"name": ""})).answer().await.problem(400);
    client.get(&url).answer().await.problem(405);
    client.get(app.url("/nothing/")).answer().await.problem(404);
    client.get(app.url("/pet/5/")).answer().await.problem(401);
    let gets = (0..50).map(|_| {
        client
            .get(app.url("/pet/5"))
            .header("api_key", &app.key)
            .answer()
    });
    for answer in futures_util::future::join_all(gets).await {
        assert_eq!(answer.is(200).id(), 5);
    }
    let big = client
        .get(app.url("/pet/5"))
        .header("x-big", "x".repeat(20_000));
    match big.send().await {
        Ok(response) => assert_eq!(response.status(), 431),
        Err(error) => assert!(error.is_request(), "{error:?}"),
    }
}
