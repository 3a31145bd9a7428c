//! Web pages of other origins in a browser (CORS).

use test_support::*;
use wiremock::matchers::path;

use crate::browser::Browser;

/// Starts a web server with empty pages, and returns it with its origin.
pub async fn web_server() -> (MockHttp, String) {
    let server = MockHttp::start().await;
    let page =
        ResponseTemplate::new(200).set_body_raw("<!doctype html><title>Shop</title>", "text/html");
    Mock::given(path("/"))
        .respond_with(page)
        .mount(&server)
        .await;
    let origin = server.uri();
    (server, origin)
}

/// Starts the service for pages of an origin.
pub async fn service_for(origin: &str) -> TestApp {
    TestApp::with(&[("PET_INVENTORY__SERVER__CORS_ORIGINS", origin)]).await
}

/// Response that a page has read.
#[derive(Debug)]
struct Seen(Value);

impl Seen {
    fn is(self, status: u16) -> Self {
        assert_eq!(self.0["status"], status, "{self:?}");
        self
    }

    fn header(&self, name: &str) -> &str {
        let value = self.0["headers"][name].as_str();
        value.unwrap_or_else(|| panic!("{name} is not readable: {self:?}"))
    }

    fn json(&self) -> Value {
        serde_json::from_str(self.0["body"].as_str().expect("text")).expect("JSON")
    }
}

/// Calls `fetch` in the page. The options are a JavaScript expression. Returns the error's name if the page cannot read the response.
async fn fetch(browser: &Browser, url: &str, options: &str) -> Seen {
    let script = format!(
        "return fetch('{url}', {options}).then(
             async (it) => ({{ status: it.status, headers: Object.fromEntries(it.headers), body: await it.text() }}),
             (error) => ({{ status: error.name }}))"
    );
    Seen(browser.run(&script).await)
}

/// Returns the options of a request with JSON and with further headers.
fn with_json(method: &str, key: &str, headers: &Value, body: &Value) -> String {
    let mut all = json!({"api_key": key, "content-type": "application/json"});
    let all_headers = all.as_object_mut().expect("an object");
    all_headers.extend(headers.as_object().cloned().unwrap_or_default());
    json!({"method": method, "headers": all, "body": body.to_string()}).to_string()
}

/// Adds, replaces and finds pets in the page.
async fn change_pets(app: &TestApp, browser: &Browser) {
    let pets = app.url("/pet");
    let add = |headers: &Value| with_json("POST", &app.key, headers, &json!({"name": "Rex"}));
    let idempotent = add(&json!({"idempotency-key": "one"}));
    let added = fetch(browser, &pets, &idempotent).await.is(201);
    let (id, etag) = (added.json()["id"].clone(), added.header("etag"));
    assert!(added.header("location").ends_with(&format!("/pet/{id}")));
    added.header("x-request-id");
    let repeated = fetch(browser, &pets, &idempotent).await.is(201);
    assert_eq!(repeated.header("idempotent-replayed"), "true");
    assert_eq!(repeated.json(), added.json());
    fetch(browser, &pets, &add(&json!({}))).await.is(201);

    let replace = |etag: &str| {
        let pet = json!({"id": id, "name": "Max"});
        with_json("PUT", &app.key, &json!({"if-match": etag}), &pet)
    };
    let replaced = fetch(browser, &pets, &replace(etag)).await.is(200);
    assert_ne!(replaced.header("etag"), etag);
    fetch(browser, &pets, &replace(etag)).await.is(412);

    let get = json!({"headers": {"authorization": format!("Bearer {}", app.key)}}).to_string();
    let find = app.url("/pet/findByStatus?status=available&limit=1");
    let found = fetch(browser, &find, &get).await.is(200);
    assert!(found.header("link").ends_with("rel=\"next\""), "{found:?}");
    assert_eq!(found.json()[0]["name"], "Max");
    let missing = fetch(browser, &app.url("/pet/999"), &get).await.is(404);
    assert_eq!(missing.json()["code"], 404);
    let delete = with_json("DELETE", &app.key, &json!({}), &json!(null));
    fetch(browser, &format!("{pets}/{id}"), &delete)
        .await
        .is(200);
}

/// Uploads an image as a form, and displays it in the page.
async fn upload(app: &TestApp, browser: &Browser) {
    let pet = app.pet("Bella").await;
    let options = format!(
        "{{ method: 'POST', headers: {{ api_key: '{}' }}, body: (() => {{
             const form = new FormData();
             form.append('file', new Blob([new Uint8Array({:?})]), 'bella.png');
             return form;
         }})() }}",
        app.key,
        png(320, 200)
    );
    let url = app.url(&format!("/pet/{pet}/uploadImage"));
    let uploaded = fetch(browser, &url, &options).await.is(200).json();
    assert_eq!(uploaded["width"], 320);
    let image = format!(
        "/pet/{pet}/images/{}",
        uploaded["imageId"].as_str().expect("an id")
    );
    let shown = format!(
        "const image = new Image();
         image.src = '{}';
         return image.decode().then(() => image.naturalWidth)",
        app.url(&image)
    );
    assert_eq!(browser.run(&shown).await, 320);
}

/// Sends requests of a caller on plan Free until the limit per minute.
async fn reach_limit(app: &TestApp, browser: &Browser) {
    let key = app.make_key("shop", Scopes::all()).await.secret;
    app.database
        .run("update callers set plan = 'free' where name = 'shop'")
        .await;
    let get = json!({"headers": {"api_key": key}}).to_string();
    let find = app.url("/pet/findByTags?tags=none");
    for left in (0..60).rev() {
        let found = fetch(browser, &find, &get).await.is(200);
        let limit = format!("\"minute\";r={left};");
        assert!(found.header("ratelimit").starts_with(&limit), "{found:?}");
    }
    let refused = fetch(browser, &find, &get).await.is(429);
    let wait: u32 = refused.header("retry-after").parse().expect("seconds");
    assert!((1..=61).contains(&wait), "{wait}");
    assert_eq!(refused.header("x-ratelimit-remaining"), "0");
    for name in ["ratelimit-policy", "x-ratelimit-limit", "x-ratelimit-reset"] {
        refused.header(name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_a_listed_origin_use_the_api() {
    let (_server, origin) = web_server().await;
    let app = service_for(&origin).await;
    let browser = Browser::start().await;
    browser.open(&format!("{origin}/")).await;
    change_pets(&app, &browser).await;
    upload(&app, &browser).await;
    reach_limit(&app, &browser).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_other_origins_can_read_and_change_nothing() {
    let (_listed, listed) = web_server().await;
    let (_server, origin) = web_server().await;
    let app = service_for(&listed).await;
    let browser = Browser::start().await;
    browser.open(&format!("{origin}/")).await;
    let add = with_json("POST", &app.key, &json!({}), &json!({"name": "Rex"}));
    let get = json!({"headers": {"api_key": app.key}}).to_string();
    for (url, options) in [
        (app.url("/pet"), add.as_str()),
        (app.url("/pet/findByStatus?status=available"), &get),
        // Without a preflight request.
        (app.url("/openapi.json"), "{}"),
        (format!("http://{}/livez", app.operations), "{}"),
    ] {
        let seen = fetch(&browser, &url, options).await;
        assert_eq!(seen.0["status"], "TypeError", "{url}: {seen:?}");
    }
    assert_eq!(app.count().await, 0);
}
