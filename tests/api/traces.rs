//! Trace export with OTLP over HTTP, to a test collector.

use std::net::TcpListener;

use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value::Value as Any},
    trace::v1::{Span, span::SpanKind, status::StatusCode},
};
use prost::Message as _;
use test_support::*;
use wiremock::matchers::any;

const ENDPOINT: &str = "PET_INVENTORY__TELEMETRY__OTLP_ENDPOINT";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// OTLP collector that records requests.
struct Collector(MockHttp);

impl Collector {
    async fn start() -> Self {
        let server = MockHttp::start().await;
        let taken = ResponseTemplate::new(200);
        Mock::given(any()).respond_with(taken).mount(&server).await;
        Self(server)
    }

    /// Returns the decoded export requests so far.
    async fn requests(&self) -> Vec<ExportTraceServiceRequest> {
        let requests = self.0.received_requests().await.expect("recorded");
        let read = |request: &wiremock::Request| {
            assert_eq!(request.url.path(), "/v1/traces");
            assert_eq!(request.headers["content-type"], "application/x-protobuf");
            ExportTraceServiceRequest::decode(&*request.body).expect("protobuf")
        };
        requests.iter().map(read).collect()
    }

    /// Returns the spans of all requests so far.
    async fn spans(&self) -> Vec<Span> {
        let requests = self.requests().await.into_iter();
        let resources = requests.flat_map(|request| request.resource_spans);
        let scopes = resources.flat_map(|resource| resource.scope_spans);
        scopes.flat_map(|scope| scope.spans).collect()
    }

    /// Waits for the server span of a trace and returns all spans of the trace.
    async fn trace(&self, id: &str) -> Vec<Span> {
        let mut found = Vec::new();
        let started = Instant::now();
        while !found.iter().any(is_server) {
            assert!(started.elapsed() < PATIENCE, "no trace {id}");
            tokio::time::sleep(Duration::from_millis(20)).await;
            let spans = self.spans().await;
            found = spans
                .into_iter()
                .filter(|it| hex(&it.trace_id) == id)
                .collect();
        }
        found
    }
}

fn is_server(span: &Span) -> bool {
    span.kind == SpanKind::Server as i32
}

fn hex(bytes: &[u8]) -> String {
    let digits = |byte: &u8| [byte >> 4, byte & 15].map(|it| char::from_digit(it.into(), 16));
    bytes.iter().flat_map(digits).flatten().collect()
}

fn attributes(attributes: &[KeyValue]) -> BTreeMap<&str, Value> {
    let value = |it: &KeyValue| match it.value.clone().and_then(|value| value.value) {
        Some(Any::StringValue(text)) => text.into(),
        Some(Any::IntValue(number)) => number.into(),
        Some(Any::BoolValue(yes)) => yes.into(),
        other => panic!("{other:?}"),
    };
    let pairs = attributes.iter().map(|it| (it.key.as_str(), value(it)));
    pairs.collect()
}

fn server(spans: &[Span]) -> &Span {
    let mut servers = spans.iter().filter(|span| is_server(span));
    let server = servers.next().expect("the request");
    assert!(servers.next().is_none(), "{spans:?}");
    server
}

/// Checks that the parent of each span but the server span is present; returns the spans' names.
fn names_in_one_tree(spans: &[Span]) -> Vec<&str> {
    let ids: HashSet<&[u8]> = spans.iter().map(|span| &*span.span_id).collect();
    assert_eq!(ids.len(), spans.len());
    for span in spans {
        assert!(
            is_server(span) || ids.contains(&*span.parent_span_id),
            "{span:?}"
        );
        assert!(
            span.start_time_unix_nano <= span.end_time_unix_nano,
            "{span:?}"
        );
    }
    spans.iter().map(|span| span.name.as_str()).collect()
}

fn traceparent(trace: &str, flags: &str) -> String {
    format!("00-{trace}-{PARENT}-{flags}")
}

#[tokio::test(flavor = "multi_thread")]
async fn request_and_its_statements_join_the_incoming_trace() {
    let (home, collector) = (Home::new(), Collector::start().await);
    let uri = collector.0.uri();
    let headers = ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=for%20the%20collector");
    let service = home.serve_with(&[(ENDPOINT, &uri), headers]).await;
    let add = service.request(Method::POST, "/pet", "special-key");
    add.json(&json!({"name": "Rex", "id": 7})).is(201).await;
    let read = service.request(Method::GET, "/pet/7", "special-key");
    let read = read
        .header("traceparent", traceparent(TRACE, "01"))
        .header("tracestate", "vendor=opaque")
        .header("x-request-id", "mine");
    read.is(200).await;

    let spans = collector.trace(TRACE).await;
    let request = server(&spans);
    assert_eq!(request.name, "GET /api/v3/pet/{petId}");
    assert_eq!(hex(&request.parent_span_id), PARENT);
    assert_eq!(request.trace_state, "vendor=opaque");
    assert_eq!(request.status.clone().unwrap_or_default().code, 0);
    let port = service.address.port();
    let recorded = attributes(&request.attributes);
    let expected = [
        ("enduser.id", json!("demo-enterprise")),
        ("http.request.method", json!("GET")),
        ("http.response.status_code", json!(200)),
        ("http.route", json!("/api/v3/pet/{petId}")),
        ("network.protocol.version", json!("1.1")),
        ("request.id", json!("mine")),
        ("server.address", json!("127.0.0.1")),
        ("server.port", json!(port)),
        ("url.scheme", json!("http")),
    ];
    assert_eq!(recorded, expected.into_iter().collect());

    // The trace also has a credential lookup if another worker than before serves the request.
    names_in_one_tree(&spans);
    let statement = spans.iter().find(|span| span.name == "SELECT pets");
    let statement = statement.expect("the statement");
    assert_eq!(statement.parent_span_id, request.span_id);
    assert_eq!(statement.kind, SpanKind::Client as i32);
    let recorded = attributes(&statement.attributes);
    assert_eq!(recorded["db.system.name"], "postgresql");
    assert_eq!(recorded["db.operation.name"], "SELECT");
    assert_eq!(recorded["db.operation.batch.size"], 1);

    let requests = collector.0.received_requests().await.expect("recorded");
    assert!(
        requests
            .iter()
            .all(|it| it.headers["x-key"] == "for the collector")
    );
    let sent = collector.requests().await;
    let resource = sent[0].resource_spans[0].resource.as_ref().expect("one");
    let recorded = attributes(&resource.attributes);
    assert_eq!(recorded["service.name"], "pet-inventory");
    assert_eq!(recorded["service.version"], env!("CARGO_PKG_VERSION"));
    assert!(recorded["service.instance.id"].is_string());

    let line = service.log();
    let line = line
        .lines()
        .find(|line| line.contains("\"request_id\":\"mine\""));
    let line: Value = serde_json::from_str(line.expect("an access line")).expect("JSON");
    assert_eq!(line["trace_id"], TRACE);
    service.stop().await;
}

/// Also checks that each statement of a transaction has a span.
#[tokio::test(flavor = "multi_thread")]
async fn shutdown_exports_the_last_spans() {
    let (home, collector) = (Home::new(), Collector::start().await);
    let service = home.serve_with(&[(ENDPOINT, &collector.0.uri())]).await;
    let add = service.request(Method::POST, "/pet", "special-key");
    let add = add
        .header("traceparent", traceparent(TRACE, "01"))
        .header("idempotency-key", "once")
        .json(&json!({"name": "Rex"}));
    add.is(201).await;
    service.stop().await;

    let spans = collector.spans().await;
    let spans: Vec<_> = spans
        .into_iter()
        .filter(|it| hex(&it.trace_id) == TRACE)
        .collect();
    server(&spans);
    let mut names = names_in_one_tree(&spans);
    names.sort_unstable();
    for expected in ["BEGIN", "COMMIT", "INSERT", "POST /api/v3/pet"] {
        assert!(names.contains(&expected), "{expected}: {names:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn traceparent_unsampled_is_honoured_and_invalid_is_ignored() {
    let (home, collector) = (Home::new(), Collector::start().await);
    let service = home.serve_with(&[(ENDPOINT, &collector.0.uri())]).await;
    let read = async |traceparent: &str| {
        let read = service.request(Method::GET, "/pet/7", "special-key");
        let read = read.header("traceparent", traceparent);
        read.is(404).await;
    };
    read(&traceparent(TRACE, "00")).await;
    let zeros = "0".repeat(32);
    let unreadable = [
        String::new(),
        "nonsense".to_owned(),
        traceparent(&zeros, "01"),
        traceparent(&TRACE.to_uppercase(), "01"),
        format!("ff-{TRACE}-{PARENT}-01"),
        format!("00-{TRACE}-{PARENT}"),
        "é".to_owned(),
    ];
    for wrong in &unreadable {
        read(wrong).await;
    }
    // Health checks and metrics are not traced.
    let http = client();
    for url in [
        format!("http://{}/livez", service.address),
        format!("http://{}/readyz", service.operations),
        format!("http://{}/metrics", service.operations),
    ] {
        http.get(url).is(200).await;
    }
    service.stop().await;
    let spans = collector.spans().await;
    // The port may have been that of another test's collector, to which spans are still sent by POST.
    let is_ours = |span: &&Span| is_server(span) && span.name.starts_with("GET");
    let servers: Vec<_> = spans.iter().filter(is_ours).collect();
    assert_eq!(servers.len(), unreadable.len(), "{servers:?}");
    for span in servers {
        assert!(span.parent_span_id.is_empty(), "{span:?}");
        assert!(
            ![TRACE, &zeros].contains(&&*hex(&span.trace_id)),
            "{span:?}"
        );
    }
}

/// Sets sampling to 0, which does not apply to requests with a sampled `traceparent`.
#[tokio::test(flavor = "multi_thread")]
async fn sampling_applies_only_to_traces_that_begin_here() {
    let (home, collector) = (Home::new(), Collector::start().await);
    let none = ("PET_INVENTORY__TELEMETRY__OTLP_SAMPLING", "0");
    let service = home
        .serve_with(&[(ENDPOINT, &collector.0.uri()), none])
        .await;
    let read = || service.request(Method::GET, "/pet/7", "special-key");
    read().is(404).await;
    let theirs = read().header("traceparent", traceparent(TRACE, "01"));
    theirs.is(404).await;
    service.stop().await;
    let spans = collector.spans().await;
    assert!(!spans.is_empty() && spans.iter().all(|it| hex(&it.trace_id) == TRACE));
}

#[tokio::test(flavor = "multi_thread")]
async fn server_error_sets_span_status_and_issuer_gets_traceparent() {
    let (home, collector) = (Home::new(), Collector::start().await);
    let signer = Signer::ed25519();
    let issuer = Issuer::start(&[&signer]).await;
    issuer.respond_with(ResponseTemplate::new(500));
    home.write("issuers.toml", &issuer.table(""));
    let mut command = home.command(["serve", "--config", "issuers.toml"]);
    command.env(ENDPOINT, collector.0.uri());
    let service = Service::start(&home, command).await;
    let read = service.request(Method::GET, "/pet/7", "");
    let mut read = read.build();
    let headers = read.headers_mut();
    headers.remove("api_key");
    let bearer = format!("Bearer {}", signer.token(&issuer.claims("a")));
    headers.insert("authorization", bearer.parse().expect("a value"));
    let ours = traceparent(TRACE, "01");
    headers.insert("traceparent", ours.parse().expect("a value"));
    let response = client().execute(read).await;
    assert_eq!(response.expect("a response").status(), 503);
    service
        .request(Method::GET, "/pet/0", "special-key")
        .is(400)
        .await;

    let spans = collector.trace(TRACE).await;
    let request = server(&spans);
    let status = request.status.clone().expect("a status");
    assert_eq!(status.code, StatusCode::Error as i32);
    let recorded = attributes(&request.attributes);
    assert_eq!(recorded["http.response.status_code"], 503);
    assert_eq!(recorded["error.type"], "503");
    let traceparents = issuer.traceparents().await;
    let [traceparents] = &traceparents[..] else {
        panic!("{traceparents:?}");
    };
    let fetch = spans.iter().find(|it| it.name == "fetch an issuer's keys");
    let fetch = hex(&fetch.expect("the fetch").span_id);
    assert_eq!(*traceparents, format!("00-{TRACE}-{fetch}-01"));

    service.stop().await;
    let spans = collector.spans().await;
    let refused = |it: &&Span| {
        attributes(&it.attributes).get("http.response.status_code") == Some(&json!(400))
    };
    // A 4xx does not set the status of a server span to error.
    let refused = spans.iter().find(refused).expect("the refusal");
    assert_eq!(refused.status.clone().unwrap_or_default().code, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_contain_no_secrets_and_no_request_data() {
    let (home, collector) = (Home::new(), Collector::start().await);
    let service = home.serve_with(&[(ENDPOINT, &collector.0.uri())]).await;
    let key = "special-key";
    let canary = json!({"username": "name-canary", "password": "password canary", "email": "canary@example.com"});
    let request = |method: Method, path: &str| {
        let request = service.request(method, path, key);
        request
            .header("x-canary", "header-canary")
            .header("user-agent", "agent-canary")
    };
    request(Method::POST, "/user").json(&canary).is(201).await;
    let log_in = request(Method::POST, "/user/login")
        .json(&canary)
        .is(200)
        .await;
    let token = log_in.json().as_str().expect("a token").to_owned();
    request(Method::GET, "/user/name-canary").is(200).await;
    request(Method::POST, "/pet")
        .json(&json!({"name": "body-canary"}))
        .is(201)
        .await;
    request(Method::GET, "/pet/findByTags?tags=query-canary")
        .is(200)
        .await;
    request(Method::GET, "/pet/path-canary").is(400).await;
    let custom = Method::from_bytes(b"CANARY").expect("a method");
    request(custom, "/pet").is(405).await;
    service
        .request(Method::GET, "/pet/1", "wrong-canary")
        .is(401)
        .await;
    service.stop().await;

    let spans = collector.spans().await;
    let names: HashSet<_> = spans.iter().map(|span| span.name.as_str()).collect();
    for expected in [
        "POST /api/v3/user/login",
        "hash a password",
        "INSERT",
        "HTTP /api/v3/pet",
    ] {
        assert!(names.contains(expected), "{expected}: {names:?}");
    }
    let recorded = format!("{:?}", collector.requests().await);
    for secret in ["canary", "CANARY", key, &token, "argon2id$"] {
        assert!(!recorded.contains(secret), "{secret} is in a span");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn trace_export_is_off_if_disabled() {
    let (home, collector) = (Home::new(), Collector::start().await);
    let uri = collector.0.uri();
    let disabled = [
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &*uri),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &*uri),
        ("OTEL_TRACES_EXPORTER", "otlp"),
        ("OTEL_SDK_DISABLED", "true"),
    ];
    let service = home.serve_with(&disabled).await;
    let read = service.request(Method::GET, "/pet/7", "special-key");
    let read = read.header("traceparent", traceparent(TRACE, "01"));
    read.is(404).await;
    eventually(async || service.log().contains("pet_inventory::access")).await;
    assert!(!service.log().contains("trace_id"));
    service.stop().await;
    assert!(
        collector
            .0
            .received_requests()
            .await
            .expect("recorded")
            .is_empty()
    );
}

/// Settings take precedence over variables of the same meaning that the exporter would read itself.
#[tokio::test(flavor = "multi_thread")]
async fn endpoint_headers_and_sampler_come_from_the_variables_of_opentelemetry() {
    let collector = MockHttp::start().await;
    let taken = ResponseTemplate::new(200);
    Mock::given(any())
        .respond_with(taken)
        .mount(&collector)
        .await;
    let endpoint = format!("{}/spans", collector.uri());
    for (sampler, is_sent) in [("traceidratio", false), ("parentbased_always_on", true)] {
        let home = Home::new();
        let settings = [
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", endpoint.as_str()),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-team=wrong,x-secret=other"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
            ("PET_INVENTORY__TELEMETRY__OTLP_HEADERS", "x-team=pets"),
            ("OTEL_TRACES_SAMPLER", sampler),
            ("OTEL_TRACES_SAMPLER_ARG", "0"),
            ("OTEL_BSP_SCHEDULE_DELAY", "20"),
        ];
        let service = home.serve_with(&settings).await;
        let read = service.request(Method::GET, "/pet/7", "special-key");
        let read = read.header("traceparent", traceparent(TRACE, "01"));
        read.is(404).await;
        service.stop().await;
        let requests = collector.received_requests().await.expect("recorded");
        assert_eq!(!requests.is_empty(), is_sent, "{sampler}");
        for request in requests {
            assert_eq!(request.url.path(), "/spans");
            assert_eq!(request.headers["x-team"], "pets");
            assert!(!request.headers.contains_key("x-secret"), "{request:?}");
            assert_eq!(request.headers["content-type"], "application/x-protobuf");
            assert_eq!(request.headers["content-encoding"], "gzip");
            assert_eq!(request.body[..2], [0x1f, 0x8b]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn span_and_metric_do_not_wait_for_the_body_of_an_access_line_with_details() {
    let (home, collector) = (Home::new(), Collector::start().await);
    let settings = [
        (ENDPOINT, &*collector.0.uri()),
        ("PET_INVENTORY__TELEMETRY__ACCESS_DETAILS", "true"),
    ];
    let service = home.serve_with(&settings).await;
    let path = "/api/v3/pet/findByStatus";
    // More than fits into the buffers on the way.
    for _ in 0..150 {
        let add = service.request(Method::POST, "/pet", "special-key");
        add.json(&pet_of_size("a", 16 << 10)).is(201).await;
    }
    let head = format!(
        "GET {path}?status=available HTTP/1.1\r\nHost: localhost\r\napi_key: special-key\r\ntraceparent: {}\r\n\r\n",
        traceparent(TRACE, "01")
    );
    let (connection, status) = request_unread("127.0.0.1", service.address, &head).await;
    assert_eq!(status, 200);
    let spans = collector.trace(TRACE).await;
    let recorded = attributes(&server(&spans).attributes);
    assert_eq!(recorded["http.response.status_code"], 200);
    let metrics = service.metrics().await;
    let count = |it: &str| it.contains("duration_seconds_count") && it.contains(path);
    assert_eq!(
        metrics.lines().filter(|it| count(it)).count(),
        1,
        "{metrics}"
    );
    assert!(!service.log().contains(path), "{}", service.log());

    drop(connection);
    eventually(async || service.log().contains(path)).await;
    let log = service.log();
    let line = log.lines().find(|line| line.contains(path));
    assert!(line.is_some_and(|line| line.contains(TRACE)), "{log}");
    service.stop().await;
    assert_eq!(
        server(&collector.trace(TRACE).await).name,
        server(&spans).name
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn unavailable_collector_is_logged_once_and_does_not_delay_exit() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("its address");
    // The kernel accepts connections, but nothing responds.
    let silent = format!("http://{port}");
    let unused = TcpListener::bind("127.0.0.1:0").expect("a port");
    let away = format!("http://{}", unused.local_addr().expect("its address"));
    drop(unused);
    for (endpoint, is_logged) in [(&away, true), (&silent, false)] {
        let home = Home::new();
        let service = home.serve_with(&[(ENDPOINT, endpoint)]).await;
        let exports = async || {
            let failed = service
                .sample("otlp_exports_total{result=\"failed\"}")
                .await;
            failed.unwrap_or(0)
        };
        let started = Instant::now();
        loop {
            let read = service.request(Method::GET, "/pet/7", "special-key");
            read.is(404).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
            // At least two failed batches, if batches fail at once.
            let enough = if is_logged {
                exports().await > 1
            } else {
                started.elapsed().as_secs() > 1
            };
            if enough {
                break;
            }
            assert!(started.elapsed() < PATIENCE, "{}", service.log());
        }
        if is_logged {
            assert_eq!(service.log().matches("failed to send traces").count(), 1);
        }
        service.stop().await;
    }
}
