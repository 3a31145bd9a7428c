//! Compression with gzip and zstd: of lists, the OpenAPI document, pages and metrics, and of nothing else.

use test_support::*;

const ENCODINGS: [&str; 2] = ["gzip", "zstd"];

/// Starts the service with 700 pets, and orders and images, whose lists have more than 1 KiB. Pet 1 has the images.
async fn with_lists() -> TestApp {
    let app = TestApp::start().await;
    let pets = r#"insert into pets (id, status, details)
        select n, 'available',
               json_build_object('name', 'Pet ' || n, 'photoUrls', '[]'::json, 'tags', '[{"name": "all"}]'::json)
        from generate_series(1, 700) n"#;
    app.database.run(pets).await;
    let orders = (1..=20).map(async |pet| {
        let order = app.post("/store/order", &json!({"petId": pet}));
        order.is(201).await;
    });
    join_all(orders).await;
    for _ in 0..6 {
        app.upload(1, png(9, 9)).is(200).await;
    }
    app
}

async fn accepting(encodings: &str, request: Call) -> Response {
    request.header("accept-encoding", encodings).await
}

/// Asserts that a response is compressed if the client accepts that, and that the compressed one has the same content.
async fn is_compressed(what: &str, request: impl Fn() -> Call) {
    let plain = request().is(200).await;
    assert_eq!(plain.optional_header("content-encoding"), None, "{what}");
    assert_eq!(plain.header("vary"), "accept-encoding", "{what}");
    for encoding in ENCODINGS {
        // Twice: constant bodies are compressed once.
        for _ in 0..2 {
            let compressed = accepting(encoding, request()).await.is(200);
            assert_eq!(compressed.header("content-encoding"), encoding, "{what}");
            assert_eq!(compressed.header("vary"), "accept-encoding", "{what}");
            assert!(compressed.body.len() < plain.body.len(), "{what}");
            if !what.contains("metrics") {
                assert_eq!(compressed.decoded(), plain.body, "{what}");
            }
            for header in ["content-type", "link"] {
                let values = (
                    compressed.optional_header(header),
                    plain.optional_header(header),
                );
                assert_eq!(values.0, values.1, "{what}");
            }
        }
    }
    let head = request().build();
    let client = client();
    let head: Call = client
        .head(head.url().clone())
        .headers(head.headers().clone())
        .into();
    let head = accepting("gzip", head).await.is(200);
    assert_eq!(head.header("content-encoding"), "gzip", "{what}");
    assert!(head.body.is_empty(), "{what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_are_compressed() {
    let app = with_lists().await;
    for (path, is_streamed) in [
        ("/pet/findByStatus?status=available", true),
        ("/pet/findByTags?tags=all", true),
        ("/pet/findByStatus?status=available&limit=40", false),
        // More than is compressed at once.
        ("/pet/findByTags?tags=all&limit=690", false),
        ("/store/orders?status=placed", false),
        ("/pet/1/images", false),
    ] {
        is_compressed(path, || app.get(path)).await;
        let page = accepting("gzip", app.get(path)).await;
        let is_small = page.decoded().len() <= 64 << 10;
        let length = page.optional_header("content-length");
        assert_eq!(length.is_some(), is_small && !is_streamed, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn document_pages_and_metrics_are_compressed() {
    let app = TestApp::start().await;
    for path in [
        "/api/v3/openapi.json",
        "/api/v3/openapi.yaml",
        "/api/v3/openapi-3.0.json",
        "/",
        "/console/console.css",
        "/docs/swagger-ui.css",
        "/docs/swagger-ui-bundle.js",
    ] {
        is_compressed(path, || app.bare(Method::GET, path)).await;
    }
    let document = || app.bare(Method::GET, "/api/v3/openapi.yaml");
    let etag = document().await.header("etag").to_owned();
    let known = document().header("if-none-match", etag);
    let unchanged = accepting("gzip", known).await.is(304);
    assert_eq!(unchanged.header("vary"), "accept-encoding");
    let metrics = format!("http://{}/metrics", app.operations);
    is_compressed("metrics", || client().get(&metrics).into()).await;
    let gzip = client().get(&metrics);
    let text = accepting("gzip", gzip.into()).await.decoded();
    assert!(String::from_utf8_lossy(&text).contains("\nhttp_server_open_connections{"));
}

#[tokio::test(flavor = "multi_thread")]
async fn encoding_is_one_that_the_client_accepts_and_never_406() {
    let app = with_lists().await;
    for (accepted, encoding) in [
        ("gzip", Some("gzip")),
        ("GZIP", Some("gzip")),
        ("x-gzip", Some("gzip")),
        ("gzip, deflate, br, zstd", Some("zstd")),
        ("gzip;q=1.0, zstd;q=0.5", Some("gzip")),
        ("identity;q=0, gzip", Some("gzip")),
        ("gzip;q=0.5, identity", None),
        ("gzip;q=0, zstd;q=0.000", None),
        ("identity;q=0", None),
        ("identity;q=0, *;q=0", None),
        ("br, deflate", None),
        ("*", None),
        ("", None),
        ("gzip;q=2, ;;, zstd;level=1", None),
    ] {
        for path in [
            "/api/v3/pet/findByStatus?status=available",
            "/api/v3/openapi.json",
            // Its bytes are compressed now.
            "/api/v3/openapi.json",
        ] {
            let request = app.bare(Method::GET, path).header("api_key", &app.key);
            let response = accepting(accepted, request).await.is(200);
            let used = response.optional_header("content-encoding");
            assert_eq!(used, encoding, "{accepted} {path}");
            serde_json::from_slice::<Value>(&response.decoded()).expect("JSON");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn other_responses_are_not_compressed() {
    let app = with_lists().await;
    let urls: Vec<_> = (0..100)
        .map(|n| format!("https://example.com/photos/{n}.jpg"))
        .collect();
    let invalid: Vec<_> = urls.iter().map(|url| url.replace("https", "ftp")).collect();
    let pet = |id: i64, urls: &[String]| json!({"id": id, "name": "large", "photoUrls": urls});
    let users: Vec<_> = (0..20)
        .map(|n| json!({"username": format!("user{n}")}))
        .collect();
    let image = app.get("/pet/1/images").await.json()[0].clone();
    let image = format!("/pet/1/images/{}", image["id"].as_str().expect("an id"));
    for (what, request, status) in [
        ("change", app.post("/pet", &pet(9_000, &urls)), 201),
        ("replacement", app.put("/pet", &pet(9_000, &urls)), 200),
        ("patch", app.patch("/pet/9000", &json!({"name": "b"})), 200),
        ("strong entity tag", app.get("/pet/9000"), 200),
        (
            "list of a change",
            app.post("/user/createWithList", &json!(users)),
            200,
        ),
        ("error", app.post("/pet", &pet(9_001, &invalid)), 400),
        ("image", app.get(&image), 200),
        ("rendering", app.get(&format!("{image}?width=64")), 200),
        ("empty list", app.get("/pet/findByStatus?status=sold"), 200),
        (
            "short list",
            app.get("/pet/findByTags?tags=all&limit=3"),
            200,
        ),
        (
            "error of a list",
            app.get("/pet/findByStatus?status=lost"),
            400,
        ),
        (
            "image of a page",
            app.bare(Method::GET, "/favicon.ico"),
            200,
        ),
        ("short page", app.bare(Method::GET, "/docs/"), 200),
    ] {
        let response = accepting("gzip, zstd", request).await.is(status);
        assert_eq!(response.optional_header("content-encoding"), None, "{what}");
        assert_eq!(response.optional_header("vary"), None, "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn list_that_fails_midway_is_cut_off() {
    let app = with_lists().await;
    let unreadable = "alter table pets drop constraint pets_id_in_range;
                      update pets set id = 1::bigint << 53 where id = 650";
    app.database.run(unreadable).await;
    for encoding in ["identity", "gzip", "zstd"] {
        let request = app.get("/pet/findByStatus?status=available");
        let request = request.header("accept-encoding", encoding);
        let response = request.send().await.expect("a response");
        assert_eq!(response.status(), 200);
        response.bytes().await.expect_err(encoding);
    }
}

/// The encoder of a response that a client does not read is counted as memory of lists.
#[tokio::test(flavor = "multi_thread")]
async fn encoders_are_counted_as_memory_of_responses() {
    // An address may use 2.75 MiB, of which a streamed list takes 2, and a page here 0.5.
    let settings = [("PET_INVENTORY__SERVER__MAX_RESPONSE_MEMORY", "22MiB")];
    let app = TestApp::with(&settings).await;
    let pets = "insert into pets (id, status, details)
        select n, 'sold',
               json_build_object('name', 'a', 'photoUrls', array(select '/' || (select string_agg(md5(random()::text || n || url || part), '')
                                    from generate_series(1, 62) part)
                     from generate_series(1, 2) url), 'tags', '[]'::json)
        from generate_series(1, 400) n";
    app.database.run(pets).await;
    let list = format!("http://{}/api/v3/pet/findByStatus?status=sold", app.address);
    for (address, encoding, status) in [
        ("127.0.0.2", "", 200),
        ("127.0.0.3", "Accept-Encoding: gzip\r\n", 503),
        ("127.0.0.4", "Accept-Encoding: zstd\r\n", 503),
    ] {
        let head = format!(
            "GET /api/v3/pet/findByStatus?status=sold HTTP/1.1\r\nHost: a\r\napi_key: {}\r\n{encoding}\r\n",
            app.key
        );
        let (connection, admitted) = request_unread(address, app.address, &head).await;
        assert_eq!(admitted, 200);
        let client = client_builder().no_proxy();
        let client = client.local_address(address.parse::<IpAddr>().ok()).build();
        let page = client.expect("a client").get(format!("{list}&limit=120"));
        let page = page.header("api_key", &app.key).response().await;
        assert_eq!(page.status, status, "{encoding}: {page}");
        drop(connection);
    }
}
