//! The OpenAPI document: its content, and conformance of the service.

use std::collections::BTreeSet;

use pet_inventory::{
    api::{self, state::Links},
    domain::{caller::Scopes, id::PetId, image, order, pet, user},
};
use reqwest::Method;
use serde_json::{Value, json};
use test_support::{Call, Response, TestApp, images::png};

const METHODS: [Method; 5] = [
    Method::GET,
    Method::POST,
    Method::PUT,
    Method::PATCH,
    Method::DELETE,
];

fn document() -> Value {
    serde_json::to_value(api::document(&Links::new(None))).expect("a document")
}

/// Returns the documented operation for a method and path, if there is one.
fn operation<'a>(document: &'a Value, method: &Method, path: &str) -> Option<&'a Value> {
    document["paths"][path].get(method.as_str().to_lowercase())
}

/// Returns the URL path for a documented path, with example parameters.
fn target(path: &str) -> String {
    let image = "0".repeat(32);
    let parameters = [
        ("{petId}", "5"),
        ("{orderId}", "5"),
        ("{username}", "ada"),
        ("{imageId}", &image),
    ];
    let path = parameters
        .iter()
        .fold(path.to_owned(), |path, (name, value)| {
            path.replace(name, value)
        });
    format!("/api/v3{path}")
}

/// Returns the name of the schema of a value, or its type. An array is its items in brackets.
fn schema_name(schema: &Value) -> String {
    if let Some(path) = schema["$ref"].as_str() {
        return path.rsplit('/').next().unwrap_or_default().to_owned();
    }
    if schema["items"].is_object() {
        return format!("[{}]", schema_name(&schema["items"]));
    }
    let types = match &schema["type"] {
        Value::Array(types) => types.clone(),
        one => vec![one.clone()],
    };
    let types: Vec<_> = types.iter().filter_map(Value::as_str).collect();
    types.join("|")
}

/// Returns the content of a request or response: each media type with its schema.
fn content(of: &Value) -> String {
    let types = of["content"].as_object().into_iter().flatten();
    let types = types.map(|(media_type, content)| {
        let name = schema_name(&content["schema"]);
        format!("{} {name}", media_type.trim_start_matches("application/"))
    });
    types.collect::<Vec<_>>().join(", ")
}

/// Returns an operation in three lines: parameters, body, and statuses. Validators and generators check the rest.
fn digest(document: &Value, operation: &Value) -> String {
    let resolved = |value: &Value| match value["$ref"].as_str() {
        Some(path) => document.pointer(&path[1..]).expect("a component").clone(),
        None => value.clone(),
    };
    let parameters = operation["parameters"].as_array().into_iter().flatten();
    let parameters = parameters.map(|parameter| {
        let parameter = resolved(parameter);
        let mark = if parameter["required"] == true {
            "!"
        } else {
            ""
        };
        let [place, name] =
            [&parameter["in"], &parameter["name"]].map(|it| it.as_str().expect("text"));
        format!("{place} {name}{mark} {}", schema_name(&parameter["schema"]))
    });
    let parameters: Vec<_> = parameters.collect();
    let body = content(&resolved(&operation["requestBody"]));
    let responses = operation["responses"].as_object().into_iter().flatten();
    let responses = responses.map(|(status, response)| {
        format!("{status} {}", content(&resolved(response)))
            .trim_end()
            .to_owned()
    });
    let responses: Vec<_> = responses.collect();
    format!(
        "{}\n  {}\n  {body}\n  {}",
        operation["operationId"].as_str().expect("an id"),
        parameters.join(", "),
        responses.join("; ")
    )
}

#[test]
fn operations_equal_their_digests() {
    let document = document();
    let mut digests = Vec::new();
    for path in document["paths"].as_object().expect("paths").keys() {
        for method in METHODS {
            if let Some(operation) = operation(&document, &method, path) {
                digests.push(format!("{method} {path} {}", digest(&document, operation)));
            }
        }
    }
    insta::assert_snapshot!("operations", digests.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn document_is_served_without_a_credential() {
    let app = TestApp::start().await;
    let served = app.bare(Method::GET, "/api/v3/openapi.json").is(200).await;
    assert_eq!(served.header("content-type"), "application/json");
    assert_eq!(served.json(), document());
    assert!(
        served.json()["openapi"]
            .as_str()
            .is_some_and(|version| version.starts_with("3.1"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn index_names_the_forms_of_the_document_which_have_weak_entity_tags() {
    let app = TestApp::start().await;
    let get = |path: &str| app.bare(Method::GET, path);
    let index = get("/api/v3").is(200).await;
    assert_eq!(get("/api/v3/").is(200).await.text(), index.text());
    let urls = index.json()["openapi"].clone();
    let urls: Vec<&str> = urls
        .as_array()
        .expect("URLs")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let paths = ["openapi.json", "openapi.yaml", "openapi-3.0.json"];
    assert_eq!(urls, paths.map(|path| format!("/api/v3/{path}")));
    for (path, media_type) in urls
        .into_iter()
        .zip(["json", "yaml", "json"])
        .chain([("/api/v3", "json")])
    {
        let served = get(path).is(200).await;
        assert_eq!(
            served.header("content-type"),
            format!("application/{media_type}")
        );
        let tag = served.header("etag");
        let opaque = tag.strip_prefix("W/").expect("a weak tag");
        for tags in [tag, opaque, "*", &format!("\"x\", {tag}")] {
            let cached = get(path).header("if-none-match", tags).is(304).await;
            assert_eq!((cached.header("etag"), cached.body.len()), (tag, 0));
        }
        let other = get(path).header("if-none-match", "W/\"x\"").await;
        assert_eq!(other.is(200).body, served.body);
        let head = app.bare(Method::HEAD, path).is(200).await;
        assert_eq!(head.header("etag"), tag);
    }
    let version_3_0 = get("/api/v3/openapi-3.0.json").await.json();
    assert_eq!(version_3_0["openapi"], "3.0.3");
    assert_eq!(
        version_3_0["components"]["schemas"]["PetInput"]["properties"]["id"]["nullable"],
        true
    );
    visit(&version_3_0, &mut |value| {
        assert!(
            !value["type"].is_array() && value["type"] != "null",
            "{value}"
        );
        let members = value.as_object().map_or(0, serde_json::Map::len);
        assert!(value["$ref"].is_null() || members == 1, "{value}");
    });
    let document = document();
    let paths = |document: &Value| {
        let paths = document["paths"].as_object().expect("paths");
        paths.keys().cloned().collect::<Vec<_>>()
    };
    assert_eq!(paths(&version_3_0), paths(&document));
}

#[tokio::test(flavor = "multi_thread")]
async fn routes_are_exactly_the_documented_operations() {
    let app = TestApp::start().await;
    let document = document();
    let paths = document["paths"].as_object().expect("paths");
    assert!(paths.len() >= 4, "{:?}", paths.keys());
    for path in paths.keys() {
        let mut documented: BTreeSet<&str> = METHODS
            .iter()
            .filter(|method| operation(&document, method, path).is_some())
            .map(Method::as_str)
            .collect();
        let all = paths[path].as_object().expect("operations").len();
        assert_eq!(documented.len(), all, "{path}");
        // GET has side effects here, so HEAD is refused.
        let acts = ["/user/login", "/user/logout"].contains(&path.as_str());
        if documented.contains("GET") && !acts {
            documented.insert("HEAD");
        }
        let target = target(path);
        for method in METHODS
            .iter()
            .chain(&[Method::HEAD, Method::OPTIONS, Method::TRACE])
        {
            let request = app.bare(method.clone(), &target);
            let response = request.header("api_key", &app.key).await;
            if documented.contains(method.as_str()) {
                assert_ne!(response.status, 405, "{method} {path}: {response}");
                continue;
            }
            assert_eq!(response.status, 405, "{method} {path}: {response}");
            let allowed: BTreeSet<&str> =
                response.header("allow").split(',').map(str::trim).collect();
            assert_eq!(allowed, documented, "{path}: {response}");
        }
    }
    for path in [
        "/pet/5/x",
        "/pet/findByName",
        "/store/inventories",
        "/users",
        "/pets",
    ] {
        let known = paths.keys().any(|known| known == path);
        let response = app.get(path).await;
        assert!(
            known || [400, 404].contains(&response.status),
            "{path}: {response}"
        );
    }
}

/// Resolves `value` if it is a `$ref`.
fn resolve<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    let Some(reference) = value["$ref"].as_str() else {
        return value;
    };
    let pointer = reference.strip_prefix('#').expect("a reference within");
    let referred = document.pointer(pointer);
    referred.unwrap_or_else(|| panic!("nothing at {reference}"))
}

/// Checks that the response's status, media type and headers are documented.
fn assert_documented(document: &Value, method: &Method, path: &str, response: &Response) {
    let method = if method == Method::HEAD {
        &Method::GET
    } else {
        method
    };
    let operation = operation(document, method, path).unwrap_or_else(|| panic!("{method} {path}"));
    let status = response.status.to_string();
    let documented = operation["responses"].get(&status).unwrap_or_else(|| {
        panic!("{method} {path} returns {status}, which is not documented: {response}")
    });
    let documented = resolve(document, documented);
    if !response.body.is_empty() {
        let sent = response.header("content-type");
        let content = documented["content"]
            .as_object()
            .unwrap_or_else(|| panic!("{method} {path} {status}"));
        assert!(
            content.contains_key(sent),
            "{method} {path} {status} is {sent}: {content:?}"
        );
    }
    let documented: BTreeSet<String> = documented["headers"]
        .as_object()
        .into_iter()
        .flat_map(|headers| headers.keys().map(|name| name.to_lowercase()))
        .collect();
    for name in response
        .headers
        .keys()
        .map(reqwest::header::HeaderName::as_str)
    {
        let of_http = [
            "cache-control",
            "content-type",
            "content-length",
            "date",
            "pragma",
            "transfer-encoding",
            "connection",
        ];
        assert!(
            of_http.contains(&name) || documented.contains(name),
            "{method} {path} {status} has {name}, which is not documented: {response}"
        );
    }
}

/// Request of an operation: its documented path, and the expected status of the response.
type Case = (&'static str, Call, u16);

#[tokio::test(flavor = "multi_thread")]
async fn responses_of_every_operation_are_documented() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = format!("file://{}", folder.path().display());
    let app = TestApp::with(&[
        ("PET_INVENTORY__SERVER__MAX_BODY_SIZE", "4KiB"),
        ("PET_INVENTORY__IMAGES__URL", &folder),
        ("PET_INVENTORY__IMAGES__MAX_SIZE", "4KiB"),
    ])
    .await;
    let document = document();
    let powerless = app.make_key("powerless", Scopes::default()).await.secret;
    let pet = json!({"id": 16, "name": "b"});
    app.post("/pet", &pet).is(201).await;
    let uploaded = upload(&app, 16, &png(20, 20)).is(200).await.json();
    let uploaded = uploaded["imageId"].as_str().expect("an id");
    let uploaded = format!("/pet/16/images/{uploaded}");
    // In this order: later requests depend on what earlier ones have stored.
    let cases = [
        upload_requests(&app),
        image_requests(&app, &uploaded),
        other_requests(&app),
        pet_requests(&app, &powerless),
        pet_by_id_requests(&app, &powerless),
        find_requests(&app, &powerless),
        store_requests(&app, &powerless),
        user_requests(&app, &powerless),
        admin_requests(&app, &powerless),
        webhook_requests(&app),
    ];
    let mut seen = BTreeSet::new();
    for (path, request, status) in cases.into_iter().flatten() {
        let request = request.build();
        let method = request.method().clone();
        let response = app.execute(request).await;
        assert_eq!(response.status, status, "{method} {path}: {response}");
        assert_documented(&document, &method, path, &response);
        seen.insert((method.to_string(), path));
    }
    let all: usize = document["paths"]
        .as_object()
        .into_iter()
        .flat_map(|paths| paths.values())
        .filter_map(|item| Some(item.as_object()?.len()))
        .sum();
    let seen = seen.iter().filter(|(method, _)| method != "HEAD").count();
    assert_eq!(seen, all, "an operation without a request here");
}

fn upload(app: &TestApp, pet: i64, bytes: &[u8]) -> Call {
    let request = app.request(Method::POST, &format!("/pet/{pet}/uploadImage"));
    request
        .header("content-type", "image/png")
        .body(bytes.to_vec())
}

fn upload_requests(app: &TestApp) -> Vec<Case> {
    let uploads = "/pet/{petId}/uploadImage";
    let upload = |pet: i64, bytes: &[u8]| upload(app, pet, bytes);
    let image = png(20, 20);
    vec![
        (uploads, upload(16, &image), 200),
        (
            uploads,
            upload(16, &image).header("idempotency-key", "i"),
            200,
        ),
        (
            uploads,
            upload(16, &image).header("idempotency-key", "i"),
            200,
        ),
        (
            uploads,
            upload(16, &png(2, 2)).header("idempotency-key", "i"),
            422,
        ),
        (uploads, upload(16, &image).header("if-match", "\"x\""), 412),
        (uploads, upload(16, &image[..50]), 400),
        (uploads, upload(16, b"x"), 415),
        (
            uploads,
            app.request(Method::POST, "/pet/16/uploadImage")
                .header("content-type", "text/html"),
            415,
        ),
        (uploads, upload(16, &[0; 5_000]), 413),
        (uploads, upload(99, &image), 404),
        (uploads, upload(16, &image).header("api_key", "x"), 401),
    ]
}

/// `uploaded` is the path of an image, which these requests delete.
fn image_requests(app: &TestApp, uploaded: &str) -> Vec<Case> {
    let (images, image) = ("/pet/{petId}/images", "/pet/{petId}/images/{imageId}");
    let get_image = || app.anonymous(Method::GET, uploaded);
    vec![
        (images, app.get("/pet/16/images"), 200),
        (images, app.get("/pet/99/images"), 404),
        (images, app.anonymous(Method::GET, "/pet/16/images"), 401),
        (image, get_image(), 200),
        (image, app.anonymous(Method::HEAD, uploaded), 200),
        (image, get_image().query(&[("width", 16)]), 200),
        (image, get_image().query(&[("width", 1)]), 400),
        (image, get_image().header("range", "bytes=0-1"), 206),
        (image, get_image().header("range", "bytes=9999-"), 416),
        (image, get_image().header("if-none-match", "*"), 304),
        (image, app.delete(uploaded).header("if-match", "\"x\""), 412),
        (image, app.delete(uploaded), 200),
        (image, app.delete(uploaded), 404),
        (image, get_image(), 404),
        (image, app.anonymous(Method::DELETE, uploaded), 401),
    ]
}

/// Returns requests of OAuth, limits and metadata.
fn other_requests(app: &TestApp) -> Vec<Case> {
    const METADATA: &str = "/.well-known/oauth-authorization-server";
    let oauth = |path: &str| {
        let form = [
            ("grant_type", "client_credentials"),
            ("client_id", "x"),
            ("client_secret", "y"),
            ("token", "z"),
        ];
        app.anonymous(Method::POST, path).form(&form)
    };
    vec![
        (METADATA, app.anonymous(Method::GET, METADATA), 200),
        ("/oauth/token", oauth("/oauth/token"), 401),
        (
            "/oauth/token",
            app.anonymous(Method::POST, "/oauth/token").body("a"),
            400,
        ),
        ("/oauth/revoke", oauth("/oauth/revoke"), 401),
        ("/oauth/introspect", oauth("/oauth/introspect"), 401),
        ("/limits", app.get("/limits"), 200),
        ("/limits", app.anonymous(Method::GET, "/limits"), 401),
        ("/changes", app.get("/changes?kind=pet&limit=1"), 200),
        ("/changes", app.get("/changes?limit=0"), 400),
        ("/changes", app.get("/changes?after=1"), 410),
        ("/changes", app.anonymous(Method::GET, "/changes"), 401),
    ]
}

fn pet_requests(app: &TestApp, powerless: &str) -> Vec<Case> {
    let pet = json!({"id": 5, "name": "a", "tags": [{"name": "t"}]});
    let big = json!({"name": "x".repeat(5_000)});
    let anonymous = || app.anonymous(Method::POST, "/pet");
    let with_key = |pet: &Value, key: &str| app.post("/pet", pet).header("idempotency-key", key);
    vec![
        ("/pet", app.post("/pet", &pet), 201),
        ("/pet", with_key(&pet, "k"), 409),
        ("/pet", with_key(&pet, "k"), 409),
        ("/pet", with_key(&big, "k"), 413),
        ("/pet", with_key(&json!({"name": "b"}), "k"), 422),
        ("/pet", with_key(&json!({"name": "b"}), "l"), 201),
        ("/pet", with_key(&json!({"name": "b"}), "l"), 201),
        ("/pet", app.post("/pet", &json!({"name": ""})), 400),
        ("/pet", app.request(Method::POST, "/pet").body("a"), 415),
        ("/pet", anonymous(), 401),
        ("/pet", anonymous().header("api_key", powerless), 403),
        ("/pet", app.put("/pet", &pet), 200),
        (
            "/pet",
            app.put("/pet", &pet).header("if-match", "\"x\""),
            412,
        ),
        (
            "/pet",
            app.put("/pet", &json!({"id": 99, "name": "a"})),
            404,
        ),
        ("/pet", app.put("/pet", &json!({"name": "a"})), 400),
        ("/pet", app.put("/pet", &big), 413),
        ("/pet", app.request(Method::PUT, "/pet").body("a"), 415),
    ]
}

/// Returns requests to the pet with the id 5, which `pet_requests` adds and these delete.
fn pet_by_id_requests(app: &TestApp, powerless: &str) -> Vec<Case> {
    let id = "/pet/{petId}";
    let big = json!({"name": "x".repeat(5_000)});
    let rename = |query: &str| app.request(Method::POST, &format!("/pet/5{query}"));
    vec![
        (id, app.get("/pet/5"), 200),
        (id, app.request(Method::HEAD, "/pet/5"), 200),
        (id, app.get("/pet/5").header("if-none-match", "*"), 304),
        (id, app.get("/pet/99"), 404),
        (id, app.get("/pet/x"), 400),
        (id, app.anonymous(Method::GET, "/pet/5"), 401),
        (id, app.with_key(powerless, Method::GET, "/pet/5"), 403),
        (id, app.get(&format!("/pet/5?{}", "x".repeat(9_000))), 414),
        (
            id,
            app.get("/pet/5").header("x-big", "x".repeat(17_000)),
            431,
        ),
        (id, app.patch("/pet/5", &json!({"name": "b"})), 200),
        (
            id,
            app.patch("/pet/5", &json!({"name": "b"}))
                .header("if-match", "\"x\""),
            412,
        ),
        (id, app.patch("/pet/99", &json!({"name": "b"})), 404),
        (id, app.patch("/pet/5", &json!({"name": null})), 400),
        (id, app.patch("/pet/5", &big), 413),
        (id, app.request(Method::PATCH, "/pet/5").body("a"), 415),
        (id, rename("?name=c"), 200),
        (id, rename("?name=c").header("if-match", "\"x\""), 412),
        (id, app.request(Method::POST, "/pet/99?name=c"), 404),
        (id, rename(""), 400),
        (id, rename("").body("a"), 415),
        (id, rename("?name=d").header("idempotency-key", "m"), 200),
        (id, rename("?name=d").header("idempotency-key", "m"), 200),
        (id, rename("?name=e").header("idempotency-key", "m"), 422),
        (id, app.delete("/pet/5").header("if-match", "\"x\""), 412),
        (id, app.delete("/pet/5"), 200),
        (id, app.delete("/pet/5"), 404),
        (id, app.delete("/pet/0"), 400),
    ]
}

fn find_requests(app: &TestApp, powerless: &str) -> Vec<Case> {
    let (by_status, by_tags) = ("/pet/findByStatus", "/pet/findByTags");
    vec![
        (
            by_status,
            app.get("/pet/findByStatus?status=sold,available"),
            200,
        ),
        (
            by_status,
            app.get("/pet/findByStatus?status=available&limit=1"),
            200,
        ),
        ("/pet", app.get("/pet?name=b&limit=1"), 200),
        ("/pet", app.get("/pet?tag=t&status=sold&sort=-id"), 200),
        ("/pet/tags", app.get("/pet/tags?prefix=t"), 200),
        ("/pet/tags", app.get("/pet/tags"), 400),
        (by_status, app.get("/pet/findByStatus"), 400),
        (
            by_status,
            app.anonymous(Method::GET, "/pet/findByStatus"),
            401,
        ),
        (by_tags, app.get("/pet/findByTags?tags=t&match=all"), 200),
        (by_tags, app.get("/pet/findByTags"), 400),
        (
            by_tags,
            app.with_key(powerless, Method::GET, "/pet/findByTags"),
            403,
        ),
    ]
}

fn admin_requests(app: &TestApp, powerless: &str) -> Vec<Case> {
    let (callers, caller) = ("/admin/callers", "/admin/callers/{callerId}");
    let (keys, key) = ("/admin/callers/{callerId}/keys", "/admin/keys/{keyId}");
    let new = json!({"name": "acme", "plan": "pro"});
    let powerless = app.with_key(powerless, Method::GET, callers);
    vec![
        (
            callers,
            app.post(callers, &new).header("idempotency-key", "caller"),
            201,
        ),
        (callers, app.post(callers, &new), 409),
        (callers, app.post(callers, &json!({})), 400),
        (callers, app.get("/admin/callers?limit=1"), 200),
        (callers, powerless, 403),
        (caller, app.get("/admin/callers/1"), 200),
        (caller, app.get("/admin/callers/999999"), 404),
        (
            "/admin/callers/{callerId}/usage",
            app.get("/admin/callers/1/usage"),
            200,
        ),
        (
            caller,
            app.patch("/admin/callers/1", &json!({"plan": "enterprise"})),
            200,
        ),
        (
            caller,
            app.patch("/admin/callers/1", &json!({"plan": 1})),
            400,
        ),
        (caller, app.delete("/admin/callers/999999"), 404),
        (keys, app.post("/admin/callers/1/keys", &json!({})), 201),
        (
            keys,
            app.post("/admin/callers/999999/keys", &json!({})),
            404,
        ),
        (keys, app.get("/admin/callers/1/keys"), 200),
        (
            "/admin/keys/{keyId}/rotate",
            app.post("/admin/keys/2/rotate", &json!({"overlap": 60})),
            201,
        ),
        (
            "/admin/callers/{callerId}/clients",
            app.post("/admin/callers/1/clients", &json!({})),
            201,
        ),
        (
            "/admin/callers/{callerId}/clients",
            app.get("/admin/callers/1/clients?limit=1"),
            200,
        ),
        (
            "/admin/clients/{clientId}",
            app.delete("/admin/clients/999999"),
            404,
        ),
        ("/admin/sessions", app.get("/admin/sessions?limit=1"), 200),
        (
            "/admin/sample-store",
            app.request(Method::POST, "/admin/sample-store"),
            409,
        ),
        (
            "/admin/sessions/{sessionId}",
            app.delete("/admin/sessions/999999"),
            404,
        ),
        (key, app.delete("/admin/keys/999999"), 404),
        (key, app.delete("/admin/keys/2"), 200),
    ]
}

fn webhook_requests(app: &TestApp) -> Vec<Case> {
    let webhook = "/admin/webhooks/{webhookId}";
    vec![
        (
            "/admin/webhooks",
            app.post(
                "/admin/webhooks",
                &json!({"url": "https://localhost/", "kinds": ["session"]}),
            ),
            201,
        ),
        (
            "/admin/webhooks",
            app.post("/admin/webhooks", &json!({"url": "x"})),
            400,
        ),
        ("/admin/webhooks", app.get("/admin/webhooks?limit=1"), 200),
        (webhook, app.get("/admin/webhooks/1"), 200),
        (webhook, app.get("/admin/webhooks/999999"), 404),
        (
            "/admin/webhooks/{webhookId}/test",
            app.request(Method::POST, "/admin/webhooks/1/test"),
            200,
        ),
        (
            "/admin/webhooks/{webhookId}/attempts",
            app.get("/admin/webhooks/1/attempts"),
            200,
        ),
        (
            "/admin/webhooks/{webhookId}/rotate",
            app.post("/admin/webhooks/1/rotate", &json!({"overlap": 60})),
            201,
        ),
        (
            "/admin/webhooks/{webhookId}/rotate",
            app.post("/admin/webhooks/1/rotate", &json!({"overlap": 604_801})),
            400,
        ),
        (
            "/admin/webhooks/{webhookId}/deliveries/retry",
            app.request(Method::POST, "/admin/webhooks/1/deliveries/retry"),
            202,
        ),
        (
            webhook,
            app.patch("/admin/webhooks/1", &json!({"enabled": false})),
            200,
        ),
        (
            "/admin/webhooks/{webhookId}/test",
            app.request(Method::POST, "/admin/webhooks/1/test"),
            409,
        ),
        (
            "/admin/webhooks/{webhookId}/deliveries",
            app.get("/admin/webhooks/1/deliveries"),
            200,
        ),
        (
            "/admin/webhooks/{webhookId}/deliveries/{position}/retry",
            app.request(Method::POST, "/admin/webhooks/1/deliveries/7/retry"),
            404,
        ),
        (webhook, app.delete("/admin/webhooks/1"), 200),
    ]
}

fn store_requests(app: &TestApp, powerless: &str) -> Vec<Case> {
    let (one, many) = ("/store/order/{orderId}", "/store/orders");
    let place = |pet: i64| app.post("/store/order", &json!({"id": 5, "petId": pet}));
    let again = |pet: i64| place(pet).header("idempotency-key", "order");
    let anonymous = |path: &str| app.anonymous(Method::GET, path);
    vec![
        ("/store/order", place(99), 400),
        // The requests before have deleted pet 5.
        (
            "/pet",
            app.post("/pet", &json!({"id": 6, "name": "a"})),
            201,
        ),
        ("/store/order", again(6), 201),
        ("/store/order", again(6), 201),
        ("/store/order", again(7), 422),
        ("/store/order", place(6), 409),
        (
            "/store/order",
            app.request(Method::POST, "/store/order").body("a"),
            415,
        ),
        (
            "/store/order",
            app.anonymous(Method::POST, "/store/order"),
            401,
        ),
        ("/store/inventory", app.get("/store/inventory"), 200),
        (
            "/store/inventory",
            anonymous("/store/inventory").header("api_key", powerless),
            403,
        ),
        (many, app.get(many), 200),
        (
            many,
            app.get("/store/orders?limit=1&status=placed&petId=6"),
            200,
        ),
        (many, app.get("/store/orders?status=x"), 400),
        (one, app.get("/store/order/5"), 200),
        (one, anonymous("/store/order/5"), 401),
        (one, app.get("/store/order/0"), 400),
        (one, app.get("/store/order/5").header("if-match", "*"), 400),
        (
            "/pet",
            app.put(
                "/pet",
                &json!({"id": 6, "name": "a", "status": "available"}),
            ),
            409,
        ),
        (one, app.patch("/store/order/5", &json!({})), 200),
        (one, app.patch("/store/order/5", &json!({"status": 1})), 400),
        (one, app.patch("/store/order/9", &json!({})), 404),
        (
            one,
            app.patch("/store/order/5", &json!({"status": "approved"})),
            200,
        ),
        (
            one,
            app.patch("/store/order/5", &json!({"status": "placed"})),
            409,
        ),
        (
            one,
            app.with_key(powerless, Method::PATCH, "/store/order/5"),
            403,
        ),
        (
            one,
            app.request(Method::PATCH, "/store/order/5").body("a"),
            415,
        ),
        (one, app.delete("/store/order/5"), 200),
        (one, app.delete("/store/order/5"), 404),
    ]
}

fn user_requests(app: &TestApp, powerless: &str) -> Vec<Case> {
    let (one, list, log_in, log_out) = (
        "/user/{username}",
        "/user/createWithList",
        "/user/login",
        "/user/logout",
    );
    let ada = json!({"username": "ada", "email": "ada@example.com", "password": "correct horse"});
    let bob = json!([{"username": "bob", "phone": "1"}]);
    let open = |method: Method, path: &str| app.anonymous(method, path);
    let pair = "/user/login?username=ada&password=correct+horse";
    vec![
        ("/user", open(Method::POST, "/user").json(&ada), 201),
        ("/user", open(Method::POST, "/user").json(&ada), 409),
        ("/user", open(Method::POST, "/user").json(&bob), 400),
        ("/user", open(Method::POST, "/user").body("a"), 415),
        (list, app.post(list, &bob), 200),
        (list, app.post(list, &bob), 409),
        (list, app.post(list, &ada), 400),
        (
            list,
            open(Method::POST, list).header("api_key", powerless),
            403,
        ),
        (log_in, open(Method::POST, log_in).json(&ada), 200),
        (
            log_in,
            open(Method::POST, log_in).form(&[("username", "ada")]),
            400,
        ),
        (log_in, open(Method::POST, log_in).body("a"), 415),
        (log_in, open(Method::GET, pair), 200),
        (log_in, open(Method::GET, log_in), 400),
        (log_out, app.get(log_out), 200),
        (log_out, open(Method::GET, log_out), 401),
        (one, app.get("/user/ada"), 200),
        (one, app.get("/user/nobody"), 404),
        (one, app.get("/user/%20"), 400),
        (one, open(Method::GET, "/user/ada"), 401),
        (one, app.put("/user/ada", &json!({"username": "BOB"})), 409),
        (one, app.put("/user/ada", &json!({})), 200),
        (one, app.put("/user/ada", &json!([])), 400),
        (one, app.request(Method::PUT, "/user/ada").body("a"), 415),
        (one, app.delete("/user/ada"), 200),
        (
            one,
            open(Method::DELETE, "/user/bob").header("api_key", powerless),
            404,
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn public_url_is_in_servers_location_and_link() {
    let public = "https://pets.example.com/shop";
    let app = TestApp::with(&[("PET_INVENTORY__SERVER__PUBLIC_URL", &format!("{public}/"))]).await;
    let document = app.bare(Method::GET, "/api/v3/openapi.json").await.json();
    assert_eq!(document["servers"][0]["url"], format!("{public}/api/v3"));
    let added = app
        .post("/pet", &json!({"id": 5, "name": "a"}))
        .is(201)
        .await;
    assert_eq!(added.header("location"), format!("{public}/api/v3/pet/5"));
    app.pet("b").await;
    let page = app
        .get("/pet/findByStatus?status=available&limit=1")
        .is(200)
        .await;
    let link = page.header("link");
    assert!(
        link.starts_with(&format!("<{public}/api/v3/pet/findByStatus?")),
        "{link}"
    );
}

/// Checks that every `$ref` in `value` resolves.
fn assert_resolves(document: &Value, value: &Value) {
    if value["$ref"].is_string() {
        resolve(document, value);
    }
    let members = value
        .as_object()
        .into_iter()
        .flat_map(|object| object.values());
    for inner in members.chain(value.as_array().into_iter().flatten()) {
        assert_resolves(document, inner);
    }
}

#[test]
fn document_references_resolve() {
    let document = document();
    assert_resolves(&document, &document);
}

/// Compares the bounds in the document with those of the domain, which utoipa's macros cannot read.
#[test]
fn document_bounds_equal_those_of_the_domain() {
    let document = document();
    let max = |pointer: &str| {
        let bound = document.pointer(pointer).and_then(Value::as_u64);
        bound.unwrap_or_else(|| panic!("nothing at {pointer}"))
    };
    for (schemas, bound) in [
        ("Pet/properties/name/maxLength", pet::MAX_NAME as u64),
        ("PetInput/properties/name/maxLength", pet::MAX_NAME as u64),
        ("PetPatch/properties/name/maxLength", pet::MAX_NAME as u64),
        ("Tag/properties/name/maxLength", pet::MAX_NAME as u64),
        ("Category/properties/name/maxLength", pet::MAX_NAME as u64),
        ("PetInput/properties/tags/maxItems", pet::MAX_ITEMS as u64),
        (
            "PetInput/properties/photoUrls/maxItems",
            pet::MAX_ITEMS as u64,
        ),
        (
            "PetInput/properties/photoUrls/items/maxLength",
            pet::MAX_PHOTO_URL as u64,
        ),
        (
            "PetInput/properties/id/maximum",
            PetId::MAX.try_into().expect("a bound"),
        ),
        (
            "OrderInput/properties/shipDate/maxLength",
            order::MAX_DATE as u64,
        ),
        (
            "ImageForm/properties/additionalMetadata/maxLength",
            image::MAX_METADATA as u64,
        ),
        ("Image/properties/width/maximum", u64::from(image::MAX_SIDE)),
    ] {
        let pointer = format!("/components/schemas/{schemas}");
        assert_eq!(max(&pointer), bound, "{pointer}");
    }
    let list = "/paths/~1user~1createWithList/post/requestBody/content/application~1json/schema";
    assert_eq!(max(&format!("{list}/maxItems")), user::MAX_LIST as u64);
}

/// Calls `check` with each value within `value`, except the values of examples.
fn visit<'a>(value: &'a Value, check: &mut impl FnMut(&'a Value)) {
    check(value);
    let members = value.as_object().into_iter().flatten();
    let members = members.filter(|(name, _)| *name != "example" && *name != "examples");
    let items = value.as_array().into_iter().flatten();
    for inner in members.map(|(_, member)| member).chain(items) {
        visit(inner, check);
    }
}

/// Headers with values that belong to one request.
const OF_ONE_REQUEST: [&str; 5] = [
    "Idempotency-Key",
    "If-Match",
    "If-None-Match",
    "If-Range",
    "Range",
];

#[test]
fn document_has_no_construct_that_a_generator_misreads() {
    let document = document();
    let max = PetId::MAX;
    visit(&document, &mut |value| {
        // JavaScript corrupts larger numbers, and aiopenapi3 cannot load the document.
        for bound in ["minimum", "maximum"].map(|name| &value[name]) {
            let within = bound
                .as_i64()
                .is_some_and(|bound| (-max..=max).contains(&bound));
            assert!(bound.is_null() || within, "{value}");
        }
        // openapi-python-client drops operations if their schemas narrow a property in this way.
        assert!(value["allOf"].is_null(), "{value}");
        // The binary types of Go and of some generators for TypeScript have no length.
        if value["format"] == "binary" {
            let bounds = ["minLength", "maxLength"].map(|name| &value[name]);
            assert!(bounds.iter().all(|it| it.is_null()), "{value}");
        }
        // Ruby, PHP and RE2 read other patterns differently, or not at all.
        if let Some(pattern) = value["pattern"].as_str() {
            let is_plain =
                pattern.is_ascii() && !pattern.contains("\\u") && !pattern.contains("(?");
            let above_ascii = ["\\x8", "\\x9", "\\xa"];
            assert!(
                is_plain && !above_ascii.iter().any(|it| pattern.contains(it)),
                "{pattern}"
            );
        }
        // Collections send an example with every request: these belong to one.
        if value["in"] == "header" && OF_ONE_REQUEST.iter().any(|name| value["name"] == **name) {
            assert!(
                value["example"].is_null() && value["schema"]["examples"].is_null(),
                "{value}"
            );
        }
        // openapi-generator refuses a document with another type in a link.
        if value["operationId"].is_string() && value["responses"].is_null() {
            assert!(
                matches!(value["requestBody"], Value::Null | Value::String(_)),
                "{value}"
            );
        }
    });
    let parameters = document["components"]["parameters"].as_object();
    let parameters: Vec<String> = parameters
        .expect("parameters")
        .keys()
        .map(|it| it.to_lowercase())
        .collect();
    for (name, schema) in document["components"]["schemas"]
        .as_object()
        .expect("schemas")
    {
        // Clients in Go have the function `NewPet` for the schema `Pet`.
        assert!(!name.starts_with("New"), "{name}");
        assert!(!parameters.contains(&name.to_lowercase()), "{name}");
        // openapi-typescript makes properties with a default required.
        visit(schema, &mut |value| {
            assert!(value["default"].is_null(), "{name}: {value}");
        });
    }
}

/// Returns true if the schema has an example, or lists its values, or all of its parts do.
fn has_example(document: &Value, schema: &Value) -> bool {
    let schema = resolve(document, schema);
    let has = |part: &Value| has_example(document, part);
    ["example", "examples", "enum"].iter().any(|name| !schema[name].is_null())
        // Bytes of an image.
        || schema["format"] == "binary"
        || (schema["items"].is_object() && has(&schema["items"]))
        || schema["properties"].as_object().is_some_and(|properties| properties.values().all(has))
}

#[test]
fn document_suits_forms_collections_and_agents() {
    let document = document();
    let body = |path: &str| &document["paths"][path]["post"]["requestBody"];
    // The query alone is enough.
    let form = body("/pet/{petId}");
    assert_ne!(form["required"], true);
    let form = &form["content"]["application/x-www-form-urlencoded"]["schema"];
    assert_eq!(form["properties"]["status"]["type"], "string");
    assert!(form["required"].is_null(), "{form}");
    // Otherwise, collections send one account twice.
    let accounts = &body("/user/createWithList")["content"]["application/json"]["schema"];
    assert_eq!(accounts["example"].as_array().map(Vec::len), Some(2));
    for name in ["If-Match", "cursor"] {
        let parameter = &document["components"]["parameters"][name];
        assert!(parameter["schema"]["pattern"].is_string(), "{parameter}");
    }
    // Tools for agents do not show the summary.
    visit(&document, &mut |value| {
        if let Some(summary) = value["summary"].as_str() {
            let description = value["description"].as_str().unwrap_or_default();
            assert!(description.starts_with(summary), "{value}");
        }
    });
}

#[test]
fn document_has_examples_everywhere() {
    let document = document();
    let mut missing = BTreeSet::new();
    visit(&document, &mut |value| {
        // A parameter, a header, or the content of a body.
        let schema = &value["schema"];
        let own = !value["example"].is_null();
        let is_exempt = OF_ONE_REQUEST.iter().any(|name| value["name"] == **name);
        if schema.is_object() && !own && !is_exempt && !has_example(&document, schema) {
            missing.insert(value.to_string());
        }
    });
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn document_links_name_existing_operations_and_parameters() {
    let document = document();
    let items = document["paths"].as_object().expect("paths").values();
    let operations: Vec<&Value> = items
        .flat_map(|item| {
            METHODS
                .iter()
                .map(|method| &item[method.as_str().to_lowercase()])
        })
        .filter(|operation| operation.is_object())
        .collect();
    let mut links = BTreeSet::new();
    for operation in &operations {
        let responses = operation["responses"].as_object().expect("responses");
        for link in responses
            .values()
            .filter_map(|response| response["links"].as_object())
            .flat_map(|links| links.values())
        {
            let target = &link["operationId"];
            let known = operations.iter().find(|it| it["operationId"] == *target);
            let known = known.unwrap_or_else(|| panic!("{target} is no operation"));
            for name in link["parameters"].as_object().into_iter().flatten() {
                let parameters = known["parameters"].as_array().expect("parameters");
                let takes = parameters
                    .iter()
                    .any(|it| resolve(&document, it)["name"] == *name.0);
                assert!(takes, "{target} has no parameter {}", name.0);
            }
            links.insert(operation["operationId"].as_str().expect("a name"));
        }
    }
    let sources = [
        "addPet",
        "createCaller",
        "createClient",
        "createKey",
        "createUser",
        "createUsersWithListInput",
        "createWebhook",
        "findPetsByStatus",
        "findPetsByTags",
        "getPetById",
        "listCallers",
        "listDeliveries",
        "listImages",
        "listOrders",
        "listPets",
        "listSessions",
        "placeOrder",
        "rotateKey",
        "updatePet",
        "uploadFile",
    ];
    assert_eq!(links, BTreeSet::from(sources));
}
