//! The home page and the documentation page in a browser.

use pet_inventory::domain::{caller::Scopes, clock::Clock};
use reqwest::Method;
use serde_json::{Value, json};
use test_support::{
    RequestExt, TestApp, TestDatabase,
    images::png,
    make_key,
    postgres::run,
    process::{Home, Service},
};

use crate::browser::Browser;

const TAB: &str = "\u{E004}";
const ENTER: &str = "\u{E007}";
const NO_OVERFLOW: &str =
    "return [...document.querySelectorAll('body, body *')].every(it => it.getBoundingClientRect().right <= innerWidth)
     && document.documentElement.scrollWidth <= innerWidth";

/// Script that returns the accessible name of the focused element, and true if its focus is visible.
const FOCUS: &str = "
    const it = document.activeElement, style = getComputedStyle(it);
    const name = it.labels?.[0] ?? it.querySelector('strong') ?? it;
    return [name.innerText, style.outlineStyle === 'solid' && parseFloat(style.outlineWidth) >= 2]";
/// Script that returns the lowest contrast of a text with its background (WCAG 2.2, 1.4.3).
const CONTRAST: &str = "
    const rgb = (color) => color.match(/[\\d.]+/g).map(Number);
    const luminance = (color) => rgb(color).slice(0, 3)
        .map((it) => it / 255).map((it) => it <= 0.04045 ? it / 12.92 : ((it + 0.055) / 1.055) ** 2.4)
        .reduce((sum, it, at) => sum + it * [0.2126, 0.7152, 0.0722][at], 0);
    const ground = (it) => rgb(getComputedStyle(it).backgroundColor)[3] === 0 ? ground(it.parentElement) : getComputedStyle(it).backgroundColor;
    const texts = [...document.querySelectorAll('body *')]
        .filter((it) => [...it.childNodes].some((node) => node.nodeType === 3 && node.data.trim()));
    return Math.min(...texts.map((it) => {
        const [dark, light] = [luminance(getComputedStyle(it).color), luminance(ground(it))].sort((a, b) => a - b);
        return (light + 0.05) / (dark + 0.05);
    }))";

/// Returns the value and the maximum of each meter on the page.
async fn meters(browser: &Browser) -> Value {
    browser
        .run("return [...document.querySelectorAll('meter')].map(it => [it.value, it.max])")
        .await
}

/// Returns a selector for a part of an operation of pets on the documentation page.
fn operation(id: &str, part: &str) -> String {
    format!("#operations-pet-{id} {part}")
}

/// Expands or collapses an operation.
async fn toggle(browser: &Browser, id: &str) {
    browser
        .click(&operation(id, ".opblock-summary-control"))
        .await;
}

/// Executes an expanded operation and checks that the response is a 200.
async fn execute(browser: &Browser, id: &str) {
    browser.click(&operation(id, "button.execute")).await;
    let status = operation(id, ".live-responses-table tbody .response-col_status");
    let status = browser.text(&status).await;
    assert!(status.starts_with("200"), "{id}: {status}");
}

/// Checks that the page has stored a key in no cookie, storage or URL.
async fn assert_nothing_kept(browser: &Browser, key: &str) {
    let stored = "return [document.cookie, localStorage.length, sessionStorage.length]";
    assert_eq!(browser.run(stored).await, json!(["", 0, 0]));
    let url = browser.run("return location.href").await;
    assert!(!url.as_str().expect("a URL").contains(key), "{url}");
}

/// Opens the documentation page as on a phone with a dark colour scheme.
async fn fits_a_phone(browser: &Browser, origin: &str) {
    browser.set_viewport(375, 700, "dark").await;
    browser.open(&format!("{origin}/docs/")).await;
    browser
        .until("document.querySelector('.opblock') !== null")
        .await;
    assert_eq!(browser.run(NO_OVERFLOW).await, true);
    browser
        .until("document.documentElement.classList.contains('dark-mode')")
        .await;
    browser.screenshot("docs-phone.png").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn documentation_page_executes_operations() {
    let home = Home::new();
    let service: Service = home.serve().await;
    let origin = format!("http://{}", service.address);
    let pet = service.request(Method::POST, "/pet", "special-key");
    let pet = pet.json(
        &json!({ "name": "Rex", "category": { "name": "dog" }, "tags": [{ "name": "friendly" }] }),
    );
    assert_eq!(pet.is(201).await.id(), 1, "the documents' example");
    let photo = home.path().join("rex.png");
    std::fs::write(&photo, png(320, 200)).expect("a file");

    let browser = Browser::start().await;
    browser.set_viewport(1100, 760, "light").await;
    browser.open(&format!("{origin}/docs")).await;
    browser.click("button.authorize").await;
    browser.enter("#api_key_value", "special-key").await;
    browser.click(".auth-container button.authorize").await;
    browser.click(".btn-done").await;
    browser.screenshot("docs.png").await;

    toggle(&browser, "getPetById").await;
    execute(&browser, "getPetById").await;
    let shown = browser
        .text(&operation("getPetById", ".live-responses-table"))
        .await;
    assert!(shown.contains("\"name\": \"Rex\""), "{shown}");

    toggle(&browser, "uploadFile").await;
    let file = operation("uploadFile", "input[type=file]");
    browser.enter(&file, &photo.display().to_string()).await;
    execute(&browser, "uploadFile").await;
    let images = service.request(Method::GET, "/pet/1/images", "special-key");
    let images = images.is(200).await.json();
    let image = images[0]["id"].as_str().expect("an image");

    // The page displays the image.
    toggle(&browser, "getImage").await;
    browser
        .enter(
            &operation("getImage", "[data-param-name=imageId] input"),
            image,
        )
        .await;
    execute(&browser, "getImage").await;
    let image = operation("getImage", ".live-responses-table img");
    browser
        .until(&format!(
            "document.querySelector('{image}')?.naturalWidth === 320"
        ))
        .await;

    // A reload loses the key.
    assert_nothing_kept(&browser, "special-key").await;
    browser.reload().await;
    toggle(&browser, "getPetById").await;
    browser.is_clean(&origin, &[]).await;
    browser
        .click(&operation("getPetById", "button.execute"))
        .await;
    let status = operation(
        "getPetById",
        ".live-responses-table tbody .response-col_status",
    );
    assert!(browser.text(&status).await.starts_with("401"));

    fits_a_phone(&browser, &origin).await;
    browser
        .is_clean(
            &origin,
            &["/api/v3/pet/1 - Failed to load resource: the server responded with a status of 401"],
        )
        .await;
    service.stop().await;
}

/// Starts the service, opens the home page, and returns both with the key of a caller on plan Free.
async fn first_page() -> (TestApp, Browser, String) {
    // The clock is stopped, so no minute passes on a slow machine.
    let app = TestApp::with_clock(TestDatabase::migrated().await, &[], Clock::manual()).await;
    let mut connection = app.database.connect().await;
    let key = make_key(&mut connection, "shop", Scopes::all(), None).await;
    let freed = "update callers set plan = 'free' where name = 'shop'";
    app.database.run(freed).await;
    let browser = Browser::start().await;
    browser.set_viewport(1280, 800, "light").await;
    browser.open(&format!("http://{}/", app.address)).await;
    browser.until_text("#status", "Ready").await;
    (app, browser, key.secret)
}

/// Sends `requests` counted requests.
async fn spend(app: &TestApp, key: &str, requests: u32) {
    for _ in 0..requests {
        let request = app.anonymous(Method::GET, "/pet/1").header("api_key", key);
        request.is(404).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn home_page_shows_the_limits_of_a_caller() {
    let (app, browser, key) = first_page().await;
    browser.screenshot("home.png").await;

    // By keyboard alone, with a visible focus.
    for (name, keys) in [
        ("Documentation", ""),
        ("OpenAPI document", ""),
        ("API key", &key),
        ("Show", ENTER),
    ] {
        browser.press(TAB).await;
        assert_eq!(browser.run(FOCUS).await, json!([name, true]));
        browser.press(keys).await;
    }
    browser
        .until("document.querySelector('meter') !== null")
        .await;
    assert_eq!(meters(&browser).await, json!([[60, 60], [1000, 1000]]));

    // The page displays the service's exact numbers.
    spend(&app, &key, 56).await;
    browser.click("#ask button").await;
    browser
        .until_text("#limits", "4 of 60 requests left this minute")
        .await;
    let limits = browser.text("#limits").await;
    for part in [
        "Plan: free",
        "more in 6",
        "944 of 1,000 requests left today (UTC)",
    ] {
        assert!(limits.contains(part), "{part}: {limits}");
    }
    assert_eq!(meters(&browser).await, json!([[4, 60], [944, 1000]]));
    for width in [375, 768, 1280] {
        for scheme in ["light", "dark"] {
            browser.set_viewport(width, 800, scheme).await;
            assert_eq!(browser.run(NO_OVERFLOW).await, true, "{width}");
            let contrast = browser.run(CONTRAST).await.as_f64();
            let contrast = contrast.expect("a number");
            assert!(contrast >= 4.5, "{scheme}: {contrast}");
            browser
                .screenshot(&format!("home-{width}-{scheme}.png"))
                .await;
        }
    }
    // At the limit, and refused.
    spend(&app, &key, 4).await;
    browser.click("#ask button").await;
    browser
        .until_text("#limits", "0 of 60 requests left this minute")
        .await;
    for _ in 0..60 {
        let request = app
            .anonymous(Method::GET, "/limits")
            .header("api_key", &key);
        request.response().await;
    }
    browser.click("#ask button").await;
    browser
        .until_text("#limits", "Limit reached: limits; retry in ")
        .await;

    browser.enter("#key", &format!("{}{ENTER}", app.key)).await;
    browser.until_text("#limits", "Plan: enterprise").await;
    let limits = browser.text("#limits").await;
    assert_eq!(limits, "Plan: enterprise\nRequests are not limited.");
    assert_nothing_kept(&browser, &key).await;
    let refused =
        ["/api/v3/limits - Failed to load resource: the server responded with a status of 429"];
    browser
        .is_clean(&format!("http://{}", app.address), &refused)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn home_page_reports_errors() {
    let (app, browser, key) = first_page().await;
    let enter_key = async |key: &str, text: &str| {
        browser.enter("#key", &format!("{key}{ENTER}")).await;
        browser.until_text("#limits", text).await;
    };
    enter_key("pik_wrong", "This key is not valid").await;
    enter_key("clé", "This is not an API key").await;

    // The links work, and the key is gone after a return to the page.
    enter_key(&key, "Plan: free").await;
    browser.click("nav a[href='docs/']").await;
    browser
        .until("document.querySelector('.opblock') !== null")
        .await;
    browser.run("history.back()").await;
    browser
        .until("document.querySelector('#key')?.value === ''")
        .await;
    browser.click("nav a[href='api/v3/openapi.json']").await;
    browser.until_text("body", "{\"openapi\":\"3.1").await;
    browser.run("history.back()").await;
    browser.until_text("#status", "Ready").await;
    let wrong =
        ["/api/v3/limits - Failed to load resource: the server responded with a status of 401"];
    browser
        .is_clean(&format!("http://{}", app.address), &wrong)
        .await;

    // A service that is not ready, and one that is gone.
    let database = app.database.options();
    let name = database.get_database().expect("a name");
    let server = database.clone().database("postgres");
    for lock_out in [
        format!("alter database {name} allow_connections false"),
        format!("select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'"),
    ] {
        run(&server, &lock_out).await;
    }
    browser
        .until_text("#status", "Not ready: the database is not available")
        .await;
    browser.screenshot("home-unready.png").await;
    drop(app);
    browser.until_text("#status", "No response").await;
    enter_key("pik_any", "The server did not respond").await;
}
