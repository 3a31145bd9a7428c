//! Web pages of other origins (CORS).

use test_support::*;

const PAGE: &str = "https://shop.example.com";

async fn with_origins(origins: &str) -> TestApp {
    TestApp::with(&[("PET_INVENTORY__SERVER__CORS_ORIGINS", origins)]).await
}

async fn preflight(app: &TestApp, path: &str, origin: &str, method: &str) -> Response {
    let request = app.bare(Method::OPTIONS, path);
    let request = request.header("Origin", origin);
    let request = request.header("Access-Control-Request-Method", method);
    request
        .header("Access-Control-Request-Headers", "api_key,idempotency-key")
        .await
}

/// Asserts that a response has no CORS header.
fn lets_no_page_read(response: &Response) {
    for name in response.headers.keys() {
        assert!(!name.as_str().starts_with("access-control-"), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_origins_no_response_has_a_cors_header() {
    let app = TestApp::start().await;
    let response = preflight(&app, "/api/v3/pet", PAGE, "POST").await;
    lets_no_page_read(&response.is(405));
    for path in [
        "/api/v3/pet/1",
        "/api/v3/openapi.json",
        "/livez",
        "/nowhere",
    ] {
        let response = app.bare(Method::GET, path).header("Origin", PAGE).await;
        lets_no_page_read(&response);
        assert_ne!(response.optional_header("vary"), Some("origin"), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn preflight_request_of_a_listed_origin_needs_no_credential() {
    // The second one as browsers do not write it.
    let app = with_origins("https://a.example,HTTPS://Shop.example.com/").await;
    let methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];
    let headers = [
        "authorization",
        "content-type",
        "api_key",
        "if-match",
        "if-none-match",
        "idempotency-key",
        "range",
        "x-request-id",
    ];
    for path in [
        "/api/v3/pet",
        "/api/v3/pet/7",
        "/api/v3/pet/7/uploadImage",
        "/api/v3/user",
        "/oauth/token",
        "/api/v3/openapi.json",
    ] {
        let response = preflight(&app, path, PAGE, "PUT").await;
        let response = response.is(200);
        assert_eq!(response.header("access-control-allow-origin"), PAGE);
        let allowed = response.header("access-control-allow-methods").to_owned();
        let mut allowed: Vec<_> = allowed.split(',').collect();
        allowed.sort_unstable();
        let mut methods = methods;
        methods.sort_unstable();
        assert_eq!(allowed, methods);
        let allowed = response.header("access-control-allow-headers").to_owned();
        let allowed: Vec<_> = allowed.split(',').collect();
        for name in headers {
            assert!(allowed.contains(&name), "{name}");
        }
        assert_eq!(response.header("access-control-max-age"), "7200");
        assert!(response.headers.contains_key("x-request-id"));
        assert!(
            !response
                .headers
                .contains_key("access-control-allow-credentials")
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn preflight_requests_are_not_rate_limited() {
    let app = with_origins(PAGE).await;
    let clients = (0..100).map(|_| preflight(&app, "/api/v3/user/login", PAGE, "POST"));
    for response in join_all(clients).await {
        response.is(200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_a_listed_origin_read_responses_and_errors() {
    let app = with_origins(PAGE).await;
    let created = app
        .post("/pet", &json!({"name": "a"}))
        .header("Origin", PAGE);
    let created = created.await;
    let missing = app.get("/pet/77").header("Origin", PAGE).await;
    let anonymous = app.anonymous(Method::GET, "/pet/1").header("Origin", PAGE);
    let anonymous = anonymous.await;
    let nowhere = app.bare(Method::GET, "/nowhere").header("Origin", PAGE);
    let nowhere = nowhere.await;
    let invalid = app
        .bare(Method::GET, "/api/v3/pet/1")
        .header("Origin", PAGE);
    let invalid = invalid.header("Host", "a,b").await;
    let responses = [
        created.is(201),
        missing.is(404),
        anonymous.is(401),
        nowhere.is(404),
        invalid.is(400),
    ];
    for response in responses {
        assert_eq!(response.header("access-control-allow-origin"), PAGE);
        let exposed = response.header("access-control-expose-headers").to_owned();
        let exposed: Vec<_> = exposed.split(',').collect();
        for name in [
            "etag",
            "link",
            "location",
            "retry-after",
            "ratelimit",
            "ratelimit-policy",
            "x-ratelimit-limit",
            "x-ratelimit-remaining",
            "x-ratelimit-reset",
            "x-request-id",
            "idempotent-replayed",
        ] {
            assert!(exposed.contains(&name), "{name}");
        }
        assert!(
            !response
                .headers
                .contains_key("access-control-allow-credentials")
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn other_origins_get_no_cors_header() {
    let app = with_origins(PAGE).await;
    for origin in [
        "https://evil.example",
        "http://shop.example.com",
        "https://shop.example.com:8443",
        "https://shop.example.com.evil.example",
        "null",
        "",
    ] {
        let response = preflight(&app, "/api/v3/pet", origin, "POST").await;
        lets_no_page_read(&response.is(405));
        let response = app.get("/pet/77").header("Origin", origin).await;
        let response = response.is(404);
        lets_no_page_read(&response);
        // Another origin gets another response.
        assert_eq!(response.header("vary"), "origin");
    }
    let response = app.get("/pet/77").await;
    let response = response.is(404);
    lets_no_page_read(&response);
    assert_eq!(response.header("vary"), "origin");
}

#[tokio::test(flavor = "multi_thread")]
async fn options_request_that_is_no_preflight_request_is_405() {
    for origins in ["*", PAGE] {
        let app = with_origins(origins).await;
        let plain = app.bare(Method::OPTIONS, "/api/v3/pet").await;
        lets_no_page_read(&plain.is(405));
        let plain = app.bare(Method::OPTIONS, "/api/v3/pet");
        let plain = plain.header("Origin", PAGE).await;
        lets_no_page_read(&plain.is(405));
        let plain = app.bare(Method::OPTIONS, "/api/v3/pet");
        let plain = plain.header("Access-Control-Request-Method", "PUT");
        lets_no_page_read(&plain.is(405).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn operations_listener_has_no_cors_headers() {
    let app = with_origins("*").await;
    for path in ["livez", "readyz", "metrics"] {
        let url = format!("http://{}/{path}", app.operations);
        let get = client().get(url).header("Origin", PAGE);
        lets_no_page_read(&get.is(200).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn star_lets_the_pages_of_all_origins_read() {
    let app = with_origins("*").await;
    for origin in ["https://evil.example", "null"] {
        let response = preflight(&app, "/api/v3/pet", origin, "POST").await;
        let response = response.is(200);
        assert_eq!(response.header("access-control-allow-origin"), "*");
        let response = app.get("/pet/77").header("Origin", origin).await;
        let response = response.is(404);
        assert_eq!(response.header("access-control-allow-origin"), "*");
        assert!(
            !response
                .headers
                .contains_key("access-control-allow-credentials")
        );
    }
}
