//! Messages that no HTTP client sends by itself: broken, ambiguous, truncated and slow ones.

use test_support::*;
use tokio::net::TcpStream;

/// Request to add a pet, with `fields` in addition to the required ones.
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
async fn request_head_that_cannot_be_parsed_is_4xx_and_closes_the_connection() {
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
            "another coding below chunked",
            501,
            head("Transfer-Encoding: gzip, chunked"),
        ),
        (
            "another coding in a field of its own",
            501,
            head("Transfer-Encoding: gzip\r\nTransfer-Encoding: Chunked"),
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
        let mut raw = RawConnection::connect(app.address).await;
        raw.send(bytes).await;
        let response = raw.response().await;
        assert_eq!(response.status, status, "{what}: {response}");
        assert_eq!(response.header("connection"), "close", "{what}: {response}");
        assert_eq!(raw.closed().await, "", "{what}");
    }
    // The other refusals are those of hyper.
    let head = "POST /api/v3/pet HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n";
    let refused = RawConnection::exchange(app.address, head).await.is(501);
    document::check(&Method::POST, "/api/v3/pet", &refused);
    app.bare(Method::GET, "/livez").is(200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn request_head_of_100_fields_or_16_kib_is_accepted() {
    let app = TestApp::start().await;
    let many = format!(
        "GET /livez HTTP/1.1\r\nHost: a\r\n{}\r\n",
        "X-A: a\r\n".repeat(99)
    );
    RawConnection::exchange(app.address, many).await.is(200);
    let large = format!(
        "GET /livez HTTP/1.1\r\nHost: a\r\nX-A: {}\r\n\r\n",
        "a".repeat(15_000)
    );
    RawConnection::exchange(app.address, large).await.is(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn host_missing_repeated_or_invalid_is_400() {
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
        let response = RawConnection::exchange(app.address, request).await;
        assert_eq!(response.invalid_fields(), ["Host"], "{what}: {response}");
    }
    for host in ["a", "a:80", "127.0.0.1:8080", "[::1]:80", ""] {
        let request = format!("GET /livez HTTP/1.1\r\nHost: {host}\r\n\r\n");
        RawConnection::exchange(app.address, request).await.is(200);
    }
    // HTTP/1.0 has no Host.
    RawConnection::exchange(app.address, "GET /livez HTTP/1.0\r\n\r\n")
        .await
        .is(200);
}

/// The authority of the target takes precedence over `Host`, and so has the same rules.
#[tokio::test(flavor = "multi_thread")]
async fn target_with_user_information_or_no_host_name_is_400_and_not_repeated() {
    let app = TestApp::start().await;
    let pet = app.pet("Rex").await;
    let upload = format!("/api/v3/pet/{pet}/uploadImage");
    let image = png(8, 8);
    let length = image.len();
    for authority in [
        "u:p@evil.example",
        "u@evil.example",
        ":p@evil.example:80",
        "@evil.example",
        "evil.example,a",
    ] {
        for path in [
            "/.well-known/oauth-authorization-server",
            "/livez",
            "/docs/",
            "/nothing",
        ] {
            for scheme in ["http", "https"] {
                let target = format!("{scheme}://{authority}{path}");
                let request = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
                let response = RawConnection::exchange(app.address, request).await;
                assert_eq!(
                    response.invalid_fields(),
                    ["authority"],
                    "{target}: {response}"
                );
                assert!(!format!("{response}").contains("evil"), "{response}");
            }
        }
        let head = format!(
            "POST http://{authority}{upload} HTTP/1.1\r\nHost: a\r\napi_key: {}\r\n\
             Content-Type: image/png\r\nContent-Length: {length}\r\n\r\n",
            app.key
        );
        let request = [head.as_bytes(), &image].concat();
        let response = RawConnection::exchange(app.address, request).await;
        assert_eq!(response.invalid_fields(), ["authority"], "{response}");
    }
    let stored = app.get(&format!("/pet/{pet}")).is(200).await;
    assert_eq!(stored.json()["photoUrls"], json!([]));
    // A host with a port is accepted.
    let request = "GET http://pets.example:8080/.well-known/oauth-authorization-server HTTP/1.1\r\nHost: a\r\n\r\n";
    let response = RawConnection::exchange(app.address, request).await.is(200);
    assert_eq!(response.json()["issuer"], "http://pets.example:8080");
}

/// hyper gives `Transfer-Encoding` precedence over `Content-Length` (RFC 9112, section 6.1), so the connection is closed
/// behind such a request: what follows may be the rest of its body to another server.
#[tokio::test(flavor = "multi_thread")]
async fn request_with_transfer_encoding_is_the_last_of_its_connection() {
    let app = TestApp::start().await;
    let (length, chunked) = ("Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n");
    let body = "c\r\n{\"name\":\"a\"}\r\n0\r\n\r\n";
    let smuggled = post(&app, "Content-Length: 12\r\n", "{\"name\":\"b\"}");
    let requests = [
        post(&app, chunked, body),
        post(&app, &format!("{length}{chunked}"), body),
        post(&app, &format!("{chunked}{length}"), body),
        post(
            &app,
            &format!("{chunked}X-A: {}\r\n{length}", "a".repeat(500)),
            body,
        ),
        post(
            &app,
            "content-length:0\r\ntransfer-encoding:\tchunked\r\n",
            body,
        ),
    ];
    for (number, request) in requests.iter().enumerate() {
        for (size, before) in [(1, ""), (100, ""), (100_000, &*get("/livez"))] {
            let mut raw = RawConnection::connect(app.address).await;
            let message = format!("{before}{request}{smuggled}");
            for piece in message.as_bytes().chunks(size) {
                raw.send(piece).await;
            }
            if !before.is_empty() {
                raw.response().await.is(200);
            }
            let response = raw.response().await.is(201);
            assert_eq!(response.header("connection"), "close", "{number}, {size}");
            assert_eq!(raw.closed().await, "", "{number}, {size}");
        }
    }
    // One pet for each request, and none for those behind.
    assert_eq!(app.count().await, 3 * requests.len());
}

/// However the length of a body is written, its bytes are not executed as a request.
#[tokio::test(flavor = "multi_thread")]
async fn body_that_looks_like_a_request_is_not_executed() {
    let app = TestApp::start().await;
    let decoy = post(&app, "Content-Length: 12\r\n", "{\"name\":\"b\"}");
    let size = decoy.len();
    let first = |fields: &str, body: &str| {
        format!("POST /nothing HTTP/1.1\r\nHost: a\r\n{fields}\r\n{body}")
    };
    let by_length = |value: String| first(&format!("Content-Length: {value}\r\n"), &decoy);
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
        let mut raw = RawConnection::connect(app.address).await;
        raw.send(request).await;
        let response = raw.response().await;
        // A strange length may be refused.
        assert!([400, 404].contains(&response.status), "{what}: {response}");
        raw.finish().await;
        assert_eq!(raw.closed().await, "", "{what}");
    }
    assert_eq!(app.count().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn body_far_over_the_limit_is_413_that_the_client_can_read() {
    let app = TestApp::start().await;
    let pet = json!({"name": "a", "x": "x".repeat(8 << 20)});
    for _ in 0..5 {
        app.post("/pet", &pet).await.problem(413);
    }
    app.pet("a").await;
}

/// The client reads only after its last byte, as simple clients do. The server must receive the whole body until then: a
/// closed socket would reset the connection, and the client would fail before it reads the response.
#[tokio::test(flavor = "multi_thread")]
async fn body_over_the_limit_from_a_slow_client_is_413_after_its_last_byte() {
    let app = TestApp::with(&[("PET_INVENTORY__SERVER__MAX_BODY_SIZE", "16KiB")]).await;
    let (piece, pieces, pause) = (vec![b' '; 4 << 10], 12, Duration::from_millis(100));
    let chunk = [b"1000\r\n", &*piece, b"\r\n"].concat();
    let length = format!("Content-Length: {}\r\n", pieces * piece.len());
    for (fields, piece) in [
        (&*length, &piece),
        ("Transfer-Encoding: chunked\r\n", &chunk),
    ] {
        let mut stream = TcpStream::connect(app.address).await.expect("a connection");
        let head = post(&app, fields, "");
        stream.write_all(head.as_bytes()).await.expect("sent");
        for number in 0..pieces {
            tokio::time::sleep(pause).await;
            let sent = stream.write_all(piece).await;
            sent.unwrap_or_else(|error| panic!("{fields}: piece {number}: {error}"));
        }
        let response = RawConnection::from(stream).response().await;
        response.problem(413);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pipelined_requests_are_answered_in_order() {
    let app = TestApp::start().await;
    let pet = "{\"id\":1,\"name\":\"a\"}";
    let chunked = "Transfer-Encoding: chunked\r\n";
    let like_a_head = "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n";
    let requests = [
        post(&app, &format!("Content-Length: {}\r\n", pet.len()), pet),
        get("/livez"),
        // Its body looks like an ambiguous head.
        post(
            &app,
            &format!("Content-Length: {}\r\n", like_a_head.len()),
            like_a_head,
        ),
        get("/nothing"),
        // The last one of a connection.
        post(
            &app,
            chunked,
            "5;x=y\r\n{\"id\"\r\nd\r\n:2,\"name\":\"b\"\r\n01\r\n}\r\n0\r\nX-Trailer: t\r\n\r\n",
        ),
    ];
    for piece in [1, 13, 10_000] {
        let mut raw = RawConnection::connect(app.address).await;
        for piece in requests.concat().as_bytes().chunks(piece) {
            raw.send(piece).await;
        }
        for status in [
            if piece == 1 { 201 } else { 409 },
            200,
            400,
            404,
            if piece == 1 { 201 } else { 409 },
        ] {
            raw.response().await.is(status);
        }
    }
    assert_eq!(app.count().await, 2);
    assert_eq!(app.get("/pet/2").is(200).await.json()["name"], "b");
}

#[tokio::test(flavor = "multi_thread")]
async fn expect_100_continue_is_answered_with_100() {
    let app = TestApp::start().await;
    let pet = "{\"name\":\"a\"}";
    let mut raw = RawConnection::connect(app.address).await;
    raw.send(post(
        &app,
        &format!("Expect: 100-continue\r\nContent-Length: {}\r\n", pet.len()),
        "",
    ))
    .await;
    raw.response().await.is(100);
    raw.send(pet).await;
    raw.response().await.is(201);
}

/// A chunk costs as much CPU time as 4 KiB: many small ones would take it from all other clients.
#[tokio::test(flavor = "multi_thread")]
async fn body_in_many_small_chunks_is_400() {
    let app = TestApp::start().await;
    let chunked = |body: &str, length: usize| {
        let chunks = body.as_bytes().chunks(length).map(|chunk| {
            let size = format!("{:x}\r\n", chunk.len());
            [size.as_bytes(), chunk, b"\r\n"].concat()
        });
        let chunks: Vec<_> = chunks.collect();
        [&chunks.concat()[..], b"0\r\n\r\n"].concat()
    };
    let pet = |spaces: usize| format!("{{\"name\":\"a\"{}}}", " ".repeat(spaces));
    for (spaces, length, status) in [
        (0, 1, 201),
        (1_000, 1, 201),
        (1_300, 1, 400),
        (100_000, 1, 400),
        (100_000, 7, 400),
        (100_000, 8, 201),
    ] {
        let key = format!("Idempotency-Key: {spaces}-{length}\r\n");
        for key in ["", &*key] {
            let fields = format!("{key}Transfer-Encoding: chunked\r\n");
            let mut raw = RawConnection::connect(app.address).await;
            raw.send(post(&app, &fields, "")).await;
            raw.send(chunked(&pet(spaces), length)).await;
            let response = raw.response().await;
            let what = format!("{spaces} spaces in chunks of {length}: {response}");
            assert_eq!(response.status, status, "{what}");
            if status == 400 {
                assert_eq!(response.invalid_fields(), ["body"], "{what}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn truncated_body_stores_nothing() {
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
            let mut raw = RawConnection::connect(app.address).await;
            raw.send(post(&app, &format!("{fields}{key}"), &body)).await;
            raw.finish().await;
            let received = raw.closed().await;
            assert!(
                received.is_empty() || received.starts_with("HTTP/1.1 400"),
                "{what}: {received}"
            );
        }
    }
    assert_eq!(app.count().await, 0);
    app.pet("a").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn incomplete_request_head_is_closed_after_header_timeout() {
    let app = TestApp::with(&[("PET_INVENTORY__SERVER__HEADER_TIMEOUT", "300ms")]).await;
    for bytes in [
        "",
        "G",
        "PRI * HT",
        "GET /livez HTTP/1.1\r\nHost: a\r\nX-A: ",
    ] {
        let started = Instant::now();
        let mut raw = RawConnection::connect(app.address).await;
        raw.send(bytes).await;
        let received = raw.closed().await;
        assert!(
            received.is_empty() || received.starts_with("HTTP/1.1 408"),
            "{bytes}: {received}"
        );
        let elapsed = started.elapsed();
        assert!(elapsed > Duration::from_millis(250), "{bytes}: {elapsed:?}");
    }
    // Also if a byte comes now and then.
    let mut raw = RawConnection::connect(app.address).await;
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
}

/// Without TLS, HTTP/2 is not offered.
#[tokio::test(flavor = "multi_thread")]
async fn connection_with_an_http2_preface_is_closed() {
    let app = TestApp::start().await;
    let mut raw = RawConnection::connect(app.address).await;
    raw.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .await;
    let received = raw.closed().await;
    assert!(
        received.is_empty() || received.starts_with("HTTP/1.1 400"),
        "{received}"
    );
}

/// The client must know that it cannot send another request (RFC 9112, section 9.6).
#[tokio::test(flavor = "multi_thread")]
async fn connection_is_closed_behind_an_unread_body_only_and_the_response_says_so() {
    let app = TestApp::start().await;
    let head =
        |path: &str, fields: &str| format!("POST {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
    let (key, large) = (format!("api_key: {}\r\n", app.key), 3 << 20);
    let json = "Content-Type: application/json\r\n";
    for (path, fields, status) in [
        ("/api/v3/pet", String::new(), 401),
        ("/api/v3/pet", format!("{key}{json}"), 413),
        ("/api/v3/pet", key.clone(), 415),
        ("/api/v3/pet/a/uploadImage", key.clone(), 400),
        ("/api/v3/pet/1/uploadImage", key.clone(), 404),
        ("/api/v3/nothing", key.clone(), 404),
        ("/livez", key.clone(), 405),
    ] {
        // A large body, of which a part arrives; a small one; and one that the client keeps until it is asked for it.
        for (length, sent, extra, is_kept) in [
            (large, 100_000, "", false),
            (2, 2, "", status != 413),
            (2, 0, "Expect: 100-continue\r\n", false),
        ] {
            if status == 413 && length < large {
                continue;
            }
            let fields = format!("{fields}{extra}Content-Length: {length}\r\n");
            let mut raw = RawConnection::connect(app.address).await;
            raw.send(head(path, &fields) + &" ".repeat(sent)).await;
            let response = raw.response().await;
            response.problem(status);
            let connection = response.optional_header("connection");
            let expected = (!is_kept).then_some("close");
            assert_eq!(connection, expected, "{path} {length}: {response}");
            if is_kept {
                raw.send("GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").await;
                raw.response().await.is(200);
            } else {
                assert_eq!(raw.closed().await, "", "{path} {length}");
            }
        }
    }
}
