//! Tests of error responses: each is problem details (RFC 9457), including the rejections of the framework.

use reqwest::header::HeaderValue;
use test_support::*;

/// Starts the service with a maximum body size of 4 KiB and one pet; returns the id of the pet.
async fn app_with_a_pet() -> (TestApp, i64) {
    let app = TestApp::with(&[("PET_INVENTORY__SERVER__MAX_BODY_SIZE", "4KiB")]).await;
    let id = app.pet("a").await;
    (app, id)
}

/// Checks that each request gets a problem document with its status, a 400 names the invalid fields, and nothing is
/// stored.
async fn assert_problems(app: &TestApp, requests: Vec<(u16, Call)>) {
    for (status, request) in requests {
        let what = format!("{request:?}");
        let response = request.await;
        assert_eq!(response.status, status, "{what}: {response}");
        let problem = response.problem(status);
        let has_errors = problem.get("errors").is_some();
        assert_eq!(has_errors, status == 400, "{what}: {response}");
    }
    assert_eq!(app.count().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_json_or_parameter_is_400() {
    let (app, _) = app_with_a_pet().await;
    let json = |body: &str| {
        let request = app.request(Method::POST, "/pet");
        let request = request.header("content-type", "application/json");
        (400, request.body(body.to_owned()))
    };
    let requests = vec![
        json(""),
        json("{"),
        json("{]"),
        json("\"text\""),
        json("{\"name\": \"a\"} trailing"),
        json("{\"name\": \"\\ud800\"}"),
        json("{\"name\": \"a\", \"name\": \"b\"}"),
        json("{\"name\": \"a\", \"category\": {\"id\": 1, \"id\": 2}}"),
        json("{\"name\": \"a\", \"tags\": [{\"id\": 1, \"id\": 2}]}"),
        json(&format!("{{\"x\": {}}}", "[".repeat(2_000))),
        (400, app.get("/pet/x")),
        (400, app.get("/pet/findByStatus")),
    ];
    assert_problems(&app, requests).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_path_is_404_and_unsupported_method_405() {
    let (app, id) = app_with_a_pet().await;
    let pet = json!({"name": "a"});
    let requests = vec![
        (404, app.get("/pet/999")),
        (404, app.get("/pets")),
        (404, app.get("/pet/1/toys")),
        (404, app.bare(Method::GET, "/nowhere")),
        (404, app.bare(Method::GET, "/metrics")),
        (404, app.bare(Method::GET, "/api/v3pet")),
        (404, app.bare(Method::POST, "/nothing").json(&pet)),
        (405, app.delete("/pet")),
        (405, app.put(&format!("/pet/{id}"), &pet)),
        (405, app.bare(Method::POST, "/livez")),
    ];
    assert_problems(&app, requests).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_credential_taken_id_and_other_etag_are_401_409_and_412() {
    let (app, id) = app_with_a_pet().await;
    let delete = app.delete(&format!("/pet/{id}"));
    let requests = vec![
        (401, app.anonymous(Method::GET, "/pet/1")),
        (409, app.post("/pet", &json!({"id": id, "name": "a"}))),
        (412, delete.header("if-match", "\"x\"")),
    ];
    assert_problems(&app, requests).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn oversized_body_is_413_and_oversized_target_414() {
    let (app, id) = app_with_a_pet().await;
    let big = json!({"name": "a", "x": "x".repeat(5_000)});
    let long = "x".repeat(8_200);
    let form = app.request(Method::POST, &format!("/pet/{id}"));
    let requests = vec![
        (413, app.post("/pet", &big)),
        (413, app.put("/pet", &big)),
        (413, app.post("/pet", &big).header("idempotency-key", "k")),
        (413, app.patch(&format!("/pet/{id}"), &big)),
        (413, form.form(&[("name", &long)])),
        (414, app.get(&format!("/pet/findByTags?tags={long}"))),
        (414, app.bare(Method::GET, &format!("/{long}"))),
    ];
    assert_problems(&app, requests).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unsupported_media_type_is_415() {
    let (app, id) = app_with_a_pet().await;
    let pet = json!({"name": "a"});
    let post = |media_type: &str, body: &'static str| {
        let request = app.request(Method::POST, "/pet");
        (415, request.header("content-type", media_type).body(body))
    };
    let patch = app.request(Method::PATCH, &format!("/pet/{id}"));
    let patch = patch.header("content-type", "application/json-patch+json");
    let requests = vec![
        (415, app.request(Method::POST, "/pet").body(pet.to_string())),
        post("text/plain", "a"),
        post("application/xml", "<a/>"),
        post("application/jsonp", "{}"),
        post("application/json, text/html", "{}"),
        (415, app.request(Method::PUT, "/pet").form(&[("name", "a")])),
        (415, patch.body("[]")),
    ];
    assert_problems(&app, requests).await;
    for (request, accept_patch) in [
        (
            app.request(Method::PATCH, &format!("/pet/{id}")).body("a"),
            Some("application/merge-patch+json, application/json"),
        ),
        (
            app.patch(&format!("/pet/{id}"), &pet)
                .header("content-encoding", "gzip"),
            Some("application/merge-patch+json, application/json"),
        ),
        (app.request(Method::PUT, "/pet").body("a"), None),
    ] {
        let refused = request.is(415).await;
        assert_eq!(
            refused.optional_header("accept-patch"),
            accept_patch,
            "{refused}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn content_type_may_have_parameters_and_any_case() {
    let app = TestApp::start().await;
    for media_type in [
        "application/json;charset=UTF-8",
        "Application/JSON",
        "application/json ; a=\"b\"",
    ] {
        let request = app
            .request(Method::POST, "/pet")
            .header("content-type", media_type);
        let response = request.body("{\"name\":\"a\"}").await;
        assert_eq!(response.status, 201, "{media_type}: {response}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_fields_are_all_listed() {
    let app = TestApp::start().await;
    let pet = json!({
        "id": -1, "name": "", "category": {"id": "x", "name": 5}, "photoUrls": ["/fine", "mailto:x", 7],
        "tags": [{"name": "x".repeat(256)}, "tag", {"id": 1.5, "name": "a\0"}], "status": "lost",
    });
    let expected = [
        "category.id",
        "category.name",
        "id",
        "name",
        "photoUrls[1]",
        "photoUrls[2]",
        "status",
        "tags[0].name",
        "tags[1]",
        "tags[2].id",
        "tags[2].name",
    ];
    for method in [Method::POST, Method::PUT] {
        let response = app.request(method, "/pet").json(&pet).await;
        let mut fields = response.invalid_fields();
        fields.sort_unstable();
        assert_eq!(fields, expected, "{response}");
        let detail = response.json()["detail"].to_string();
        assert!(
            expected.iter().all(|field| detail.contains(field)),
            "{response}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_values_are_not_echoed() {
    let app = TestApp::start().await;
    let secret = "hunter2-secret";
    for body in [
        format!("{{\"name\": {secret}}}"),
        format!("{{\"name\": \"a\", \"status\": \"{secret}\", \"category\": \"{secret}\"}}"),
        format!("{{\"name\": \"a\", \"photoUrls\": [\"{secret}:x\"]}}"),
    ] {
        let request = app
            .request(Method::POST, "/pet")
            .header("content-type", "application/json");
        let response = request.body(body).await;
        response.problem(400);
        assert!(!response.text().contains("hunter2"), "{response}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unsupported_method_is_405_with_allow() {
    let app = TestApp::start().await;
    for (path, method, allow) in [
        ("/api/v3/pet", Method::DELETE, "GET,HEAD,POST,PUT"),
        ("/api/v3/pet", Method::OPTIONS, "GET,HEAD,POST,PUT"),
        ("/api/v3/pet/5", Method::PUT, "DELETE,GET,HEAD,PATCH,POST"),
        ("/api/v3/pet/findByStatus", Method::POST, "GET,HEAD"),
        ("/api/v3/openapi.json", Method::POST, "GET,HEAD"),
        ("/livez", Method::DELETE, "GET,HEAD"),
    ] {
        let response = app.bare(method, path).await;
        response.problem(405);
        let mut methods: Vec<&str> = response.header("allow").split(',').map(str::trim).collect();
        methods.sort_unstable();
        assert_eq!(methods.join(","), allow, "{path}: {response}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn request_id_is_kept_if_valid_and_replaced_otherwise() {
    let app = TestApp::start().await;
    let longest = "x".repeat(64);
    for id in ["a", "A.b_c-9", &longest] {
        for path in ["/livez", "/nothing", "/api/v3/pet/1"] {
            let request = app.bare(Method::GET, path).header("x-request-id", id);
            assert_eq!(request.await.header("x-request-id"), id, "{path}");
        }
    }
    for id in ["", "a b", "ü", &"x".repeat(65), "a/b", "a\"b", "<x>"] {
        let value = HeaderValue::from_bytes(id.as_bytes()).expect("a value");
        let response = app.get("/pet/1").header("x-request-id", value).await;
        response.problem(404);
        let given = response.header("x-request-id");
        let fit = given.bytes().all(|byte| byte.is_ascii_alphanumeric());
        assert!(given != id && fit && !given.is_empty(), "{id}: {response}");
    }
    let (one, other) = tokio::join!(app.get("/pet/1"), app.get("/pet/1"));
    assert_ne!(one.header("x-request-id"), other.header("x-request-id"));
}

#[tokio::test(flavor = "multi_thread")]
async fn trailing_slash_is_accepted() {
    let app = TestApp::start().await;
    let id = app.post("/pet/", &json!({"name": "a"})).is(201).await.id();
    app.get(&format!("/pet/{id}/")).is(200).await;
    app.get("/pet/findByStatus/?status=available").is(200).await;
    app.bare(Method::GET, "/api/v3/openapi.json/").is(200).await;
    app.delete(&format!("/pet/{id}/")).is(200).await;
    app.anonymous(Method::GET, "/pet/1/").await.problem(401);
}

#[tokio::test(flavor = "multi_thread")]
async fn health_and_metrics_are_served_on_their_listeners() {
    let app = TestApp::start().await;
    let id = app.pet("a").await;
    app.get(&format!("/pet/{id}")).is(200).await;
    for path in ["/livez", "/readyz"] {
        app.bare(Method::GET, path).is(200).await;
    }
    let client = client();
    let operations = |path: &str| {
        client
            .get(format!("http://{}{path}", app.operations))
            .response()
    };
    for path in ["/livez", "/readyz"] {
        operations(path).await.is(200);
    }
    let metrics = operations("/metrics").await.is(200);
    assert!(
        metrics.header("content-type").starts_with("text/plain"),
        "{metrics}"
    );
    let text = metrics.text();
    // A request is counted when its response is on its way; the probes in between gave these requests time.
    for line in [
        "http_server_request_duration_seconds_count{http_request_method=\"GET\",http_route=\"/api/v3/pet/{petId}\",http_response_status_code=\"200\"}",
        "http_server_request_duration_seconds_bucket{http_request_method=\"POST\",http_route=\"/api/v3/pet\"",
        "db_client_connections{db_client_connection_pool_name=\"requests\",db_client_connection_state=\"idle\"}",
        "http_server_open_connections{listener=\"api\"}",
    ] {
        assert!(text.contains(line), "no {line} in {metrics}");
    }
    operations("/api/v3/openapi.json").await.problem(404);
    operations("/nothing").await.problem(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn stalled_body_is_408() {
    let app = TestApp::with(&[("PET_INVENTORY__SERVER__BODY_TIMEOUT", "300ms")]).await;
    for extra in ["", "Idempotency-Key: k\r\n"] {
        let head = format!(
            "POST /api/v3/pet HTTP/1.1\r\nHost: a\r\napi_key: {}\r\n{extra}Content-Type: application/json\r\n\
             Content-Length: 13\r\n\r\n{{\"name\"",
            app.key
        );
        let mut raw = RawConnection::connect(app.address).await;
        raw.send(head).await;
        let response = raw.response().await;
        response.problem(408);
        assert_eq!(response.header("connection"), "close", "{response}");
        assert_eq!(raw.closed().await, "");
    }
    assert_eq!(app.count().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn request_timeout_is_503() {
    let app = TestApp::with(&[("PET_INVENTORY__SERVER__REQUEST_TIMEOUT", "300ms")]).await;
    let _lock = app.database.lock("pets in exclusive mode").await;
    let response = app.post("/pet", &json!({"name": "a"})).await;
    response.problem(503);
    assert_eq!(response.header("retry-after"), "1", "{response}");
}

#[tokio::test(flavor = "multi_thread")]
async fn encoded_body_is_415() {
    let app = TestApp::start().await;
    let id = app.pet("a").await;
    let pet = json!({"name": "b"});
    let png = || {
        let upload = app.request(Method::POST, &format!("/pet/{id}/uploadImage"));
        upload.header("content-type", "image/png").body("bytes")
    };
    let form = || {
        let form = app.request(Method::POST, &format!("/pet/{id}"));
        form.form(&[("name", "b")])
    };
    for coding in ["gzip", "br", "identity, gzip", "GZIP"] {
        for request in [
            app.post("/pet", &pet),
            app.post("/pet", &pet).header("idempotency-key", coding),
            app.put("/pet", &json!({"id": id, "name": "b"})),
            app.patch(&format!("/pet/{id}"), &pet),
            form(),
            png(),
        ] {
            let response = request.header("content-encoding", coding).await;
            response.problem(415);
            // RFC 7694 §3: distinguishes an unsupported content coding from an unsupported media type.
            assert_eq!(response.header("accept-encoding"), "identity");
            assert_eq!(response.optional_header("accept"), None);
        }
    }
    let token = app.bare(Method::POST, "/oauth/token");
    let token = token.form(&[("grant_type", "client_credentials")]);
    let refused = token.header("content-encoding", "gzip").await;
    assert_eq!(refused.is(400).json()["error"], "invalid_request");
    assert_eq!(app.count().await, 1);
    let kept = app.get(&format!("/pet/{id}")).is(200).await;
    assert_eq!(kept.json()["name"], "a");

    // `identity` is allowed, and so is any coding if there is no body.
    for coding in ["Identity", ""] {
        let plain = app.post("/pet", &pet).header("content-encoding", coding);
        plain.is(201).await;
    }
    let none = app.request(Method::POST, &format!("/pet/{id}?name=c"));
    none.header("content-encoding", "gzip").is(200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_value_is_listed_once_with_its_rule() {
    let app = TestApp::start().await;
    let twice = app.bare(
        Method::GET,
        "/api/v3/user/login?username=a&username=b&password=c",
    );
    let twice = twice.await.problem(400);
    assert_eq!(
        twice["errors"],
        json!([{"field": "username", "reason": "must be given once"}])
    );
    // Every invalid identifier gets the same reason, whether its type or its value is wrong.
    for id in [
        json!(-1),
        json!(1.5),
        json!("1"),
        json!(1e300),
        json!(u64::MAX),
    ] {
        let pet = app.post("/pet", &json!({"id": id, "name": "a"}));
        assert_eq!(
            pet.await.problem(400)["errors"],
            json!([{"field": "id", "reason": "must be an integer from 1 to 9007199254740991"}]),
            "{id}"
        );
    }
}

/// Each parameter takes about fifty times the memory of the two bytes that a client sends for it.
#[tokio::test(flavor = "multi_thread")]
async fn query_or_form_of_more_than_a_thousand_parameters_is_400() {
    let app = TestApp::start().await;
    let id = app.pet("a").await;
    let update = |path: &str, parameters: usize| {
        let form = "a&".repeat(parameters - 1) + "name=b";
        let request = app.request(Method::POST, path);
        let kind = "application/x-www-form-urlencoded";
        request.header("content-type", kind).body(form)
    };
    let path = format!("/pet/{id}");
    update(&path, 1_000).await.is(200);
    for parameters in [1_001, 500_000] {
        let refused = update(&path, parameters).await;
        assert_eq!(refused.invalid_fields(), ["body"]);
    }
    let query = |parameters: usize| {
        let query = "a&".repeat(parameters - 1) + "status=available";
        app.get(&format!("/pet/findByStatus?{query}"))
    };
    query(1_000).await.is(200);
    assert_eq!(query(1_001).await.invalid_fields(), ["query"]);
    let token = app.bare(Method::POST, "/oauth/token");
    let token = token.header("content-type", "application/x-www-form-urlencoded");
    let token = token.body("a&".repeat(1_001)).await;
    assert_eq!(token.status, 400, "{token}");
}

#[tokio::test(flavor = "multi_thread")]
async fn byte_order_mark_before_json_is_skipped() {
    let app = TestApp::start().await;
    let send = |method, path: &str, body: &str| {
        let request = app.request(method, path);
        let request = request.header("content-type", "application/json");
        request.body(body.to_owned())
    };
    let pet = r#"{"id":5,"name":"bom"}"#;
    let with_mark = format!("\u{feff}{pet}");
    send(Method::POST, "/pet", &with_mark).is(201).await;
    send(Method::PUT, "/pet", &with_mark).is(200).await;
    send(Method::PATCH, "/pet/5", &with_mark).is(200).await;
    for body in [
        format!("\u{feff}\u{feff}{pet}"),
        format!(" \u{feff}{pet}"),
        "\u{feff}[]".into(),
        "\u{feff}".into(),
    ] {
        let refused = send(Method::PUT, "/pet", &body).await;
        assert_eq!(refused.invalid_fields(), ["body"], "{body:?}: {refused}");
    }
}
