//! Tests of authentication by API key: headers, scopes, expiry, revocation, bootstrap and demo keys.

use chrono::Duration;
use pet_inventory::{api, db, domain::id::CredentialId};
use reqwest::header::HeaderValue;
use test_support::*;

/// Checks that a response is a 401 with a challenge. Returns its body without `instance`, which differs per request.
#[track_caller]
fn unauthorized(response: &Response) -> Value {
    let mut problem = response.problem(401);
    assert!(
        response
            .header("www-authenticate")
            .starts_with("Bearer realm="),
        "{response}"
    );
    problem["instance"] = Value::Null;
    problem
}

fn by_key(app: &TestApp, key: &str) -> Call {
    app.with_key(key, Method::GET, "/pet/findByStatus?status=sold")
}

fn by_bearer(app: &TestApp, key: &str) -> Call {
    let request = app.anonymous(Method::GET, "/pet/findByStatus?status=sold");
    request.header("authorization", format!("Bearer {key}"))
}

async fn expired_key(app: &TestApp, scopes: Scopes) -> String {
    let mut connection = app.database.connect().await;
    let yesterday = Utc::now() - Duration::days(1);
    make_key(&mut connection, "expired", scopes, Some(yesterday))
        .await
        .secret
}

async fn revoked_key(app: &TestApp, scopes: Scopes) -> String {
    let mut connection = app.database.connect().await;
    let key = make_key(&mut connection, "revoked", scopes, None).await;
    revoke(&mut connection, key.id).await;
    key.secret
}

async fn revoke(connection: &mut db::Connection, id: CredentialId) {
    let revoked = db::credentials::revoke(
        connection,
        CredentialKind::ApiKey,
        id,
        &Initiator::operator(),
    )
    .await;
    assert!(revoked.expect("a database").is_some(), "no key {id}");
}

/// Returns a well-formed API key that is not in the database.
fn unknown_key() -> String {
    let key = Secret::generate(CredentialKind::ApiKey).expect("random numbers");
    key.expose().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn api_key_is_accepted_in_either_header() {
    let app = TestApp::start().await;
    let find = app.anonymous(Method::GET, "/pet/findByStatus?status=sold");
    for name in ["api_key", "API_KEY"] {
        find.clone().header(name, &app.key).is(200).await;
    }
    for scheme in ["Bearer", "bearer", "BEARER"] {
        let value = format!("{scheme} {}", app.key);
        find.clone().header("authorization", value).is(200).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_api_keys_all_get_the_same_401() {
    let app = TestApp::start().await;
    let unknown = unauthorized(&by_key(&app, &unknown_key()).await);
    let (typed, last) = app.key.split_at(app.key.len() - 1);
    let mistyped = format!("{typed}{}", if last == "0" { "1" } else { "0" });
    for key in [
        &revoked_key(&app, Scopes::all()).await,
        &expired_key(&app, Scopes::all()).await,
        &mistyped,
        "x",
        "special-key",
        "pik_",
        "' or 1=1 --",
        &app.key.to_lowercase(),
        &"k".repeat(5_000),
    ] {
        let responses = [by_key(&app, key), by_bearer(&app, key)];
        for response in send_all(responses).await {
            assert_eq!(unauthorized(&response), unknown, "{key}");
            assert!(
                response
                    .header("www-authenticate")
                    .contains("invalid_token"),
                "{response}"
            );
        }
    }
    for value in [&b"\xff\xfe"[..], "schl\u{fc}ssel".as_bytes()] {
        let value = HeaderValue::from_bytes(value).expect("a value");
        let request = app
            .anonymous(Method::GET, "/pet/1")
            .header("api_key", value);
        assert_eq!(unauthorized(&request.await), unknown);
    }
    for authorization in ["Basic dXNlcjpwYXNz", &app.key, "Bearer: x", "Digest a=b"] {
        let request = app
            .anonymous(Method::GET, "/pet/1")
            .header("authorization", authorization);
        assert_eq!(unauthorized(&request.await), unknown, "{authorization}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_credential_is_401_with_a_challenge() {
    let app = TestApp::start().await;
    for path in [
        "/pet/1",
        "/pet/findByStatus?status=sold",
        "/pet/not-a-number",
    ] {
        let response = app.anonymous(Method::GET, path).await;
        unauthorized(&response);
        assert!(
            !response.header("www-authenticate").contains("error="),
            "{response}"
        );
    }
    // The credential is checked before the body: this one is not valid JSON.
    let response = app.anonymous(Method::POST, "/pet").body("{").await;
    unauthorized(&response);
    for path in ["/livez", "/readyz", "/api/v3/openapi.json", "/docs/"] {
        app.bare(Method::GET, path).is(200).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn api_key_outside_its_headers_is_ignored() {
    let app = TestApp::start().await;
    let key = &app.key;
    let get = app.anonymous(Method::GET, "/pet/1");
    let form = app.anonymous(Method::POST, "/pet/1");
    let mut requests = vec![
        get.clone().header("api-key", key),
        form.form(&[("api_key", key), ("name", "a")]),
    ];
    for name in ["api_key", "access_token", "authorization", "key", "token"] {
        let path = format!("/pet/findByStatus?status=sold&{name}={key}");
        requests.push(app.anonymous(Method::GET, &path));
        requests.push(get.clone().header("cookie", format!("{name}={key}")));
    }
    for request in requests {
        unauthorized(&request.await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_credentials_must_both_be_valid_and_of_one_caller() {
    let app = TestApp::start().await;
    let same = app.make_key("tester", Scopes::all()).await.secret;
    let other = app.make_key("other", Scopes::all()).await.secret;
    let reader = app
        .make_key("tester", scopes(&[Scope::ReadPets]))
        .await
        .secret;
    let both =
        |one: &str, two: &str| by_key(&app, one).header("authorization", format!("Bearer {two}"));
    both(&app.key, &app.key).is(200).await;
    both(&app.key, &same).is(200).await;
    for (one, two) in [
        (&app.key, &other),
        (&other, &app.key),
        (&app.key, &unknown_key()),
        (&unknown_key(), &app.key),
    ] {
        unauthorized(&both(one, two).await);
    }
    // The response names the header, but never tells an unknown credential from a malformed or a revoked one.
    let in_key = "the credential in api_key is not valid";
    let in_token = "the credential in Authorization is not valid";
    let of_callers = "the credentials in api_key and Authorization belong to different callers";
    // A proxy with a password adds its own.
    for of_proxy in ["Basic dXNlcjpwYXNz", "basic x", "Digest a=b", "Negotiate"] {
        let request = by_key(&app, &app.key).header("authorization", of_proxy);
        request.is(200).await;
        let wrong = by_key(&app, &unknown_key()).header("authorization", of_proxy);
        unauthorized(&wrong.await);
    }
    let repeated = both(&app.key, &app.key).header("api_key", &app.key);
    let mut refused = vec![(repeated, in_key), (both(&app.key, &other), of_callers)];
    let revoked = revoked_key(&app, Scopes::all()).await;
    for wrong in ["x", &unknown_key(), &revoked] {
        refused.push((both(wrong, &app.key), in_key));
        refused.push((both(&app.key, wrong), in_token));
    }
    for (request, detail) in refused {
        assert_eq!(unauthorized(&request.await)["detail"], detail);
    }
    // Only the scopes that both keys have count.
    for (one, two) in [(&app.key, &reader), (&reader, &app.key)] {
        let add = app.with_key(one, Method::POST, "/pet").bearer_auth(two);
        add.json(&json!({"name": "a"})).await.problem(403);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_credential_header_is_401() {
    let app = TestApp::start().await;
    let other = app.make_key("other", Scopes::all()).await.secret;
    for second in [&app.key, &other] {
        unauthorized(&by_key(&app, &app.key).header("api_key", second).await);
        let bearer = by_bearer(&app, &app.key).header("authorization", format!("Bearer {second}"));
        unauthorized(&bearer.await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn api_key_is_401_once_revoked_or_expired() {
    let app = TestApp::start().await;
    let key = app.make_key("brief", Scopes::all()).await;
    by_key(&app, &key.secret).is(200).await;
    let mut connection = app.database.connect().await;
    revoke(&mut connection, key.id).await;
    // The key is cached; the revocation reaches the cache as a notification.
    eventually(async || by_key(&app, &key.secret).await.status == 401).await;
    unauthorized(&by_key(&app, &key.secret).await);

    let tomorrow = Utc::now() + Duration::days(1);
    let lasting = make_key(&mut connection, "brief", Scopes::all(), Some(tomorrow)).await;
    by_key(&app, &lasting.secret).is(200).await;
    app.database
        .run(&format!(
            "update credentials set expires_at = now() where id = {}",
            lasting.id
        ))
        .await;
    eventually(async || by_key(&app, &lasting.secret).await.status == 401).await;
}

/// Returns each operation that needs a credential: name, scopes, and a request that gets 2xx or 404 with them.
fn operations(app: &TestApp) -> Vec<(String, Vec<Scope>, Call)> {
    let document = serde_json::to_value(api::document(&Links::new(None))).expect("a document");
    let mut operations = Vec::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("operations") {
            let method: Method = method.to_uppercase().parse().expect("a method");
            let ways = operation["security"]
                .as_array()
                .expect("every operation says what it needs");
            if ways.contains(&json!({})) {
                let public = [
                    "/oauth/",
                    "/.well-known/",
                    "/user/login",
                    "/pet/{petId}/images/{imageId}",
                ];
                let known = path == "/user" || public.iter().any(|prefix| path.starts_with(prefix));
                assert!(known, "{method} {path} needs no credential");
                continue;
            }
            let needed = ways
                .iter()
                .find_map(|way| way.get("api_key"))
                .and_then(Value::as_array)
                .unwrap_or_else(|| panic!("{method} {path} takes no API key"))
                .iter()
                .map(|scope| scope.as_str().unwrap_or_default())
                .map(|scope| scope.parse().expect("a scope"))
                .collect();
            let target = path
                .replace("{petId}", "7")
                .replace("{orderId}", "7")
                .replace("{username}", "a")
                .replace("{callerId}", "7777")
                .replace("{keyId}", "7777")
                .replace("{clientId}", "7777")
                .replace("{sessionId}", "7777")
                .replace("{webhookId}", "7777")
                .replace("{position}", "7")
                .replace("{imageId}", &"0".repeat(32));
            let query = if path.starts_with("/pet") {
                "status=sold&tags=a&name=a&prefix=a"
            } else {
                ""
            };
            let mut request = app.anonymous(method.clone(), &format!("{target}?{query}"));
            let content = &operation["requestBody"]["content"];
            let is_json = |media_type| content.get(media_type).is_some();
            if is_json("application/json") || is_json("application/merge-patch+json") {
                let list = path.ends_with("List");
                let body = json!({"id": 7, "name": "a", "petId": 8, "username": "a", "plan": "free", "url": "https://a.example/"});
                request = request.json(&if list { json!([body]) } else { body });
            }
            operations.push((format!("{method} {path}"), needed, request));
        }
    }
    assert!(operations.len() >= 8, "{operations:?}");
    operations
}

#[tokio::test(flavor = "multi_thread")]
async fn operations_require_a_valid_credential_with_their_scopes() {
    let setting = "PET_INVENTORY__LIMITS__FAILED_AUTHENTICATION_PER_MINUTE";
    let app = TestApp::with(&[(setting, "10000")]).await;
    let expired = expired_key(&app, Scopes::all()).await;
    let revoked = revoked_key(&app, Scopes::all()).await;
    let powerless = app.make_key("powerless", Scopes::default()).await.secret;
    app.post("/pet", &json!({"id": 8, "name": "a"}))
        .is(201)
        .await;
    for (name, needed, request) in operations(&app) {
        let send = async |key: &str| {
            let request = request.clone();
            request.header("api_key", key).await
        };
        unauthorized(&request.clone().await);
        for key in ["malformed", &unknown_key(), &expired, &revoked] {
            unauthorized(&send(key).await);
        }
        let others: Scopes = Scope::ALL
            .into_iter()
            .filter(|scope| !needed.contains(scope))
            .collect();
        let others = app.make_key("others", others).await.secret;
        for key in [&powerless, &others] {
            let Some(missing) = needed.first() else {
                continue;
            };
            let response = send(key).await;
            let problem = response.problem(403);
            let missing = missing.as_str();
            let detail = problem["detail"].as_str().expect("a text");
            assert!(detail.contains(missing), "{name}: {response}");
            let challenge = response.header("www-authenticate");
            assert!(
                challenge.contains("insufficient_scope") && challenge.contains(missing),
                "{name}: {response}"
            );
        }
        let right = app.make_key("right", scopes(&needed)).await.secret;
        let response = send(&right).await;
        assert!(
            // Of the sample store: there is a pet.
            (200..300).contains(&response.status) || [404, 409].contains(&response.status),
            "{name}: {response}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn api_key_scopes_are_limited_to_those_of_its_caller() {
    let app = TestApp::start().await;
    let key = app.make_key("shrunk", Scopes::all()).await.secret;
    app.database
        .run("update callers set scopes = '{read:pets}' where name = 'shrunk'")
        .await;
    by_key(&app, &key).is(200).await;
    let add = app
        .anonymous(Method::POST, "/pet")
        .json(&json!({"name": "a"}));
    add.header("api_key", &key).await.problem(403);
}

/// Generated clients send an empty credential for a way to authenticate that was not configured.
#[tokio::test(flavor = "multi_thread")]
async fn empty_credential_counts_as_absent() {
    let app = TestApp::start().await;
    let get = || app.anonymous(Method::GET, "/pet/1");
    let absent = unauthorized(&get().await);
    for empty in ["", "Bearer", "bearer ", "Bearer  "] {
        let bearer = get().header("authorization", empty);
        assert_eq!(unauthorized(&bearer.await), absent, "{empty}");
        let both = get().header("authorization", empty);
        both.header("api_key", &app.key).is(404).await;
    }
    let key = get().header("api_key", "");
    assert_eq!(unauthorized(&key.await), absent);
    let both = by_bearer(&app, &app.key).header("api_key", "");
    both.is(200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn anonymous_scopes_do_not_apply_to_invalid_credentials() {
    let app = TestApp::with(&[("PET_INVENTORY__AUTH__ANONYMOUS_SCOPES", "read:pets")]).await;
    let find = || app.anonymous(Method::GET, "/pet/findByStatus?status=sold");
    find().is(200).await;
    unauthorized(&find().header("api_key", unknown_key()).await);
    unauthorized(&find().header("authorization", "Basic eDp5").await);
    let add = app
        .anonymous(Method::POST, "/pet")
        .json(&json!({"name": "a"}));
    add.await.problem(403);
}

#[tokio::test(flavor = "multi_thread")]
async fn demo_keys_are_401_on_an_external_database() {
    let app = TestApp::start().await;
    for key in ["special-key", "pro-key", "free-key"] {
        unauthorized(&by_key(&app, key).await);
        unauthorized(&by_bearer(&app, key).await);
    }
    assert_eq!(
        app.database
            .number("select count(*) from callers where name like 'demo%'")
            .await,
        0
    );
    // Refused even if a row has the hash of a demo key.
    let special = "update credentials set hash = sha256('special-key')";
    app.database.run(special).await;
    unauthorized(&by_key(&app, "special-key").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn bootstrap_key_is_created_only_in_a_database_without_keys() {
    const FIRST: &str = "first-bootstrap-key-0123456789abcdef";
    const SECOND: &str = "second-bootstrap-key-0123456789abcdef";
    let database = TestDatabase::empty().await;
    let settings = [("BOOTSTRAP_API_KEY", FIRST)];
    let built = build(&database.url(), &settings).await;
    assert!(!built.has_demo_keys());
    drop(built);
    assert_eq!(database.number("select count(*) from credentials").await, 1);

    let app = TestApp::on(database, &settings).await;
    by_key(&app, FIRST).is(200).await;
    by_bearer(&app, FIRST).is(200).await;
    let add = app
        .anonymous(Method::POST, "/pet")
        .json(&json!({"name": "a"}));
    add.header("api_key", FIRST).is(201).await;
    assert_eq!(
        app.database
            .number("select count(*) from callers where name = 'bootstrap'")
            .await,
        1
    );

    // Of a chosen key, no character is stored.
    let hints = "select count(*) from credentials where hint <> '' and scopes is null";
    assert_eq!(app.database.number(hints).await, 0);

    // A database that has keys accepts no bootstrap key.
    let second = [("BOOTSTRAP_API_KEY", SECOND)];
    let database = TestDatabase::migrated().await;
    let first = TestApp::on(database, &[]).await;
    drop(build(&first.database.url(), &second).await);
    assert_eq!(
        first
            .database
            .number("select count(*) from credentials")
            .await,
        1
    );
    unauthorized(&by_key(&first, SECOND).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_bootstrap_key_fails_startup() {
    let database = TestDatabase::migrated().await;
    for key in [
        "short",
        &"x".repeat(31),
        &"white space ".repeat(4),
        &"x".repeat(257),
    ] {
        let config = config(&database.url(), &[("BOOTSTRAP_API_KEY", key)]);
        let error = pet_inventory::app::App::build(config)
            .await
            .err()
            .expect("an error");
        let text = error.to_string();
        assert!(
            text.contains("BOOTSTRAP_API_KEY") && !text.contains(key),
            "{text}"
        );
        // An earlier release may have stored a shorter one; the database takes no other.
        assert!(text.contains("pet-inventory keys create"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn demo_keys_work_beyond_loopback_only_if_set_to_always() {
    let home = Home::new();
    for (listen, setting, good) in [
        ("0.0.0.0:0", "always", true),
        // The first service has stored the demo keys; they must not work here.
        ("0.0.0.0:0", "loopback", false),
        ("127.0.0.1:0", "never", false),
        ("127.0.0.1:0", "loopback", true),
    ] {
        let mut command = home.command(["serve"]);
        command
            .env("PET_INVENTORY__SERVER__LISTEN", listen)
            .env("PET_INVENTORY__LOCAL_POSTGRES__DEMO_KEYS", setting);
        let service = Service::start(&home, command).await;
        let request = service.request(Method::GET, "/limits", "free-key");
        let status = request.header("host", "localhost").await.status;
        assert_eq!(status, if good { 200 } else { 401 }, "{listen} {setting}");
        assert_eq!(
            service.startup_output.contains("free-key"),
            good,
            "{listen} {setting}"
        );
        service.stop().await;
    }
}

/// DNS rebinding: the page of another site reaches this machine, with the site's name in `Host`.
/// Sign-up needs no key, but that of an administrator gives a status.
#[tokio::test(flavor = "multi_thread")]
async fn demo_key_of_a_sign_up_is_refused_unless_the_host_is_loopback() {
    let home = Home::new();
    let service = home.serve().await;
    let body = r#"{"username":"x","userStatus":7}"#;
    let fields = format!(
        "Content-Type: application/json\r\nContent-Length: {}\r\napi_key: special-key\r\n",
        body.len()
    );
    for (host, status) in [("evil.example", 403), ("localhost", 201)] {
        let request = format!("POST /api/v3/user HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n{body}");
        let response = RawConnection::exchange(service.address, request).await;
        assert_eq!(response.status, status, "{host}: {response}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn demo_keys_are_refused_unless_every_host_is_loopback_and_no_proxy_forwards() {
    let home = Home::new();
    let mut command = home.command(["serve"]);
    command.env("PET_INVENTORY__SERVER__CORS_ORIGINS", "*");
    let service = Service::start(&home, command).await;
    let get = async |target: &str, fields: String| {
        let path = "/api/v3/pet/findByStatus?status=sold";
        let request = format!("GET {target}{path} HTTP/1.1\r\n{fields}\r\n");
        RawConnection::exchange(service.address, request).await
    };
    let port = service.address.port();
    let key = "api_key: special-key\r\n";
    for host in [
        "localhost",
        "LOCALHOST",
        "127.0.0.1",
        "127.9.9.9",
        "[::1]",
        "[::ffff:127.0.0.1]",
    ] {
        for host in [host.to_owned(), format!("{host}:{port}")] {
            get("", format!("Host: {host}\r\n{key}")).await.is(200);
            let target = format!("http://{host}");
            get(&target, format!("Host: {host}\r\n{key}")).await.is(200);
            let of_page = format!("Host: {host}\r\nOrigin: http://{host}\r\n{key}");
            get("", of_page).await.is(200);
        }
    }
    // The index of the API tells a page if it may use them.
    let offered = async |target: &str, fields: &str| {
        let request = format!("GET {target}/api/v3 HTTP/1.1\r\n{fields}\r\n");
        let response = RawConnection::exchange(service.address, request).await;
        response.is(200).json()["demoKeys"] == true
    };
    assert!(offered("", "Host: localhost\r\n").await);
    let refused = [
        ("", "Host: evil.example\r\n"),
        ("", "Host: evil.example:8080\r\n"),
        ("", "Host: localhost.evil.example\r\n"),
        ("", "Host: 127.0.0.1.evil.example\r\n"),
        ("", "Host: 0.0.0.0\r\n"),
        ("", "Host: 192.168.0.2\r\n"),
        ("", "Host: [::]\r\n"),
        ("", "Host: \r\n"),
        ("http://evil.example", "Host: localhost\r\n"),
        ("http://localhost", "Host: evil.example\r\n"),
        ("", "Host: localhost\r\nForwarded: for=192.0.2.1\r\n"),
        ("", "Host: localhost\r\nX-Forwarded-For: 127.0.0.1\r\n"),
        ("", "Host: localhost\r\nVia: 1.1 proxy\r\n"),
        ("", "Host: localhost\r\nX-FORWARDED-PROTO: https\r\n"),
        ("", "Host: localhost\r\nx-forwarded-host:\r\n"),
        ("", "Host: localhost\r\nX-Real-IP: 192.0.2.1\r\n"),
        ("", "Host: localhost\r\nCF-Connecting-IP: 192.0.2.1\r\n"),
        ("", "Host: localhost\r\nTrue-Client-IP: 192.0.2.1\r\n"),
        (
            "",
            "Host: localhost\r\nX-Envoy-External-Address: 192.0.2.1\r\n",
        ),
        ("", "Host: localhost\r\nCDN-Loop: cdn\r\n"),
        ("", "Host: localhost\r\nOrigin: https://evil.example\r\n"),
        (
            "",
            "Host: localhost\r\nOrigin: https://localhost.evil.example\r\n",
        ),
        ("", "Host: localhost\r\nOrigin: null\r\n"),
    ];
    for (target, fields) in refused {
        if fields != "Host: \r\n" {
            assert!(!offered(target, fields).await, "{target} {fields}");
        }
        for key in [
            "api_key: special-key",
            "api_key: pro-key",
            "Authorization: bearer free-key",
            "api_key: pro-key\r\nAuthorization: Bearer pro-key",
        ] {
            let response = get(target, format!("{fields}{key}\r\n")).await;
            let problem = response.problem(403);
            let detail = problem["detail"].as_str().expect("a text");
            assert!(
                detail.contains("pet-inventory keys create --caller"),
                "{detail}"
            );
            assert!(!response.text().contains("evil"), "{response}");
        }
    }
    // nginx forwards in HTTP/1.0 by default.
    let old = format!("GET /api/v3/pet/1 HTTP/1.0\r\nHost: localhost\r\n{key}\r\n");
    let response = RawConnection::exchange(service.address, old).await;
    response.problem(403);
    // Other keys work with any host.
    let created = [
        "keys", "create", "--caller", "acme", "--plan", "pro", "--json",
    ];
    let created = home.run(&created).await.is(0).stdout;
    let created: Value = serde_json::from_str(&created).expect("JSON");
    let key = created["key"].as_str().expect("a key");
    get("", format!("Host: evil.example\r\napi_key: {key}\r\n"))
        .await
        .is(200);
    service.stop().await;
}

const KINDS: [CredentialKind; 4] = [
    CredentialKind::ApiKey,
    CredentialKind::AccessToken,
    CredentialKind::Session,
    CredentialKind::ClientSecret,
];

#[test]
fn secret_is_parsed_as_its_kind_only() {
    for kind in KINDS {
        let secret = Secret::generate(kind).expect("random numbers");
        for other in KINDS {
            let again = Secret::parse(secret.expose(), &[other]);
            assert_eq!(again.is_some(), kind == other);
            assert!(again.is_none_or(|again| again.hash() == secret.hash()));
        }
        let another = Secret::generate(kind).expect("random numbers");
        assert_ne!(secret.hash(), another.hash());
    }
}

#[test]
fn secret_with_a_changed_character_is_not_parsed() {
    let secret = Secret::generate(CredentialKind::ApiKey).expect("random numbers");
    let text = secret.expose();
    let parse = |text: &str| Secret::parse(text, &KINDS);
    for position in 0..text.len() {
        for other in ["0", "z", "_", "é", "\0"] {
            let mut changed = text.to_owned();
            changed.replace_range(position..=position, other);
            let is_rejected = changed == text || parse(&changed).is_none();
            assert!(is_rejected, "{position} {other:?}");
        }
    }
    assert!(parse("").is_none());
    assert!(parse(&text[1..]).is_none());
    assert!(parse(&format!("{text}0")).is_none());
}
