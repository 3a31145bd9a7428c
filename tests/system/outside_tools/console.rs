//! The console in a browser: sign in, limits and requests by day, errors, keyboard, layout and accessibility.
//! `console_pets`, `console_new_pets`, `console_edits` and `console_administration` have its other views.

use pet_inventory::db::ConnectOptions;
use test_support::postgres::run;
use test_support::*;

use crate::browser::Browser;

pub(super) const TAB: &str = "\u{E004}";
pub(super) const ENTER: &str = "\u{E007}";
pub(super) const ESCAPE: &str = "\u{E00C}";
/// Maximum height of the header on a phone.
const MAX_HEADER: f64 = 96.0;
/// Script that returns the name of the focused element, and true if its focus is visible.
const FOCUS: &str = "
    const it = document.activeElement, style = getComputedStyle(it);
    const name = it.labels?.[0] ?? it;
    return [name.innerText, style.outlineStyle === 'solid' && parseFloat(style.outlineWidth) >= 2]";
pub(super) const REFUSED: &str = "Failed to load resource: the server responded with a status of 4";

/// Returns the value and the maximum of each meter on the page.
async fn meters(browser: &Browser) -> Value {
    browser
        .run("return [...document.querySelectorAll('meter')].map(it => [it.value, it.max])")
        .await
}

/// Returns what is beside a screen of this width, except for what is cut or scrolls inside its element. A phone zooms out to show
/// what is too wide, so its own width grows.
async fn beside(browser: &Browser, width: u32) -> Value {
    let script = format!(
        "const isCut = (it) => it !== document.body && it.parentElement !== null
             && (getComputedStyle(it.parentElement).overflowX !== 'visible' || isCut(it.parentElement));
         return [...document.querySelectorAll('body, body *:not(.skip)')]
             .filter((it) => it.getBoundingClientRect().right > {width} && !isCut(it))
             .map((it) => it.outerHTML.slice(0, 200))
             .concat(document.documentElement.scrollWidth > {width} ? ['the document'] : [])"
    );
    browser.run(&script).await
}

/// Returns the script of axe-core.
pub(super) fn axe() -> String {
    let axe = Path::new("target/outside-tools/conformance/node_modules/axe-core/axe.min.js");
    let axe = fs::read_to_string(repository().join(axe));
    axe.expect("axe-core is missing: run .ci/setup --all")
}

/// Checks that the view has no violation of axe-core, and fits, at each width and in each colour scheme. Saves a picture of
/// each, and leaves the window as it is at the start.
pub(super) async fn is_accessible(browser: &Browser, name: &str) {
    let axe = axe();
    for width in [320, 768, 1280] {
        for scheme in ["light", "dark"] {
            browser.set_viewport(width, 800, scheme).await;
            assert_eq!(beside(browser, width).await, json!([]), "{name}, {width}");
            let slips =
                "return /\\b(undefined|null|NaN)\\b|\\[object/.exec(document.body.innerText)?.[0]";
            assert_eq!(browser.run(slips).await, Value::Null, "{name}");
            let header = "return document.querySelector('header').getBoundingClientRect().height";
            let header = browser.run(header).await.as_f64().expect("a number");
            assert!(width > 320 || header <= MAX_HEADER, "{name}: {header}");
            let violations = format!(
                "{axe}; return axe.run({{ rules: {{ 'label-content-name-mismatch': {{ enabled: true }} }} }}).then(it => it.violations.map(
                     ({{ id, nodes }}) => `${{id}}: ${{nodes.map(it => it.html).join(', ')}}`))"
            );
            let violations = browser.run(&violations).await;
            assert_eq!(violations, json!([]), "{name}, {width}, {scheme}");
            let picture = format!("console-{name}-{width}-{scheme}.png");
            browser.screenshot(&picture).await;
        }
    }
    browser.set_viewport(1280, 800, "light").await;
}

/// Script that returns the number of buttons to send a failed request again.
pub(super) const OFFERS_TO_REPEAT: &str =
    "return document.querySelectorAll('.failure button').length";

/// Checks that a secret is in the session storage of the tab at most: in no cookie, other storage or URL.
async fn is_kept_in_the_tab_only(browser: &Browser, secret: &str) {
    let stored = "return [document.cookie, localStorage.length, sessionStorage.length]";
    assert_eq!(browser.run(stored).await, json!(["", 0, 1]));
    let url = browser.run("return location.href").await;
    assert!(!url.as_str().expect("a URL").contains(secret), "{url}");
}

/// Starts the service, opens the console, and returns both with the key of a caller on plan Free.
pub(super) async fn console(settings: &[(&str, &str)]) -> (TestApp, Browser, String) {
    let app = TestApp::with_stopped_clock(settings).await;
    let mut connection = app.database.connect().await;
    let key = make_key(&mut connection, "shop", Scopes::all(), None).await;
    let freed = "update callers set plan = 'free' where name = 'shop'";
    app.database.run(freed).await;
    let browser = Browser::start().await;
    browser.set_viewport(1280, 800, "light").await;
    let url = format!("http://{}/#/account", app.address);
    browser.open(&url).await;
    browser.until_text("#status", "Ready").await;
    browser.until_text("h1", "Sign in").await;
    (app, browser, key.secret)
}

/// Starts the service with a pet named Rex, opens the console, and returns both with the identifier of the pet.
pub(super) async fn console_with_pet(settings: &[(&str, &str)]) -> (TestApp, Browser, i64) {
    let (app, browser, _) = console(settings).await;
    let id = app.pet("Rex").await;
    (app, browser, id)
}

/// Signs in with [`TestApp::key`] and shows a view.
pub(super) async fn enter(app: &TestApp, browser: &Browser, place: &str, title: &str) {
    sign_in(browser, &app.key).await;
    show(browser, place, title).await;
}

/// Waits until the fragment is this place.
pub(super) async fn until_place(browser: &Browser, place: &str) {
    let is_there = format!("location.hash === '#/{place}'");
    browser.until(&is_there).await;
}

/// Shows the view at a place in the fragment.
pub(super) async fn show(browser: &Browser, place: &str, title: &str) {
    let script = format!("location.hash = '#/{place}'");
    browser.run(&script).await;
    browser.until_text("h1", title).await;
}

/// Signs in with a key, and waits for the view that comes first.
pub(super) async fn sign_in(browser: &Browser, key: &str) {
    enter_key(browser, key).await;
    browser.until_text("h1", "Account").await;
}

pub(super) async fn enter_key(browser: &Browser, key: &str) {
    browser.enter("#key", &format!("{key}{ENTER}")).await;
}

/// Takes the database away from the service. Returns its server and its name.
pub(super) async fn lock_out(app: &TestApp) -> (ConnectOptions, String) {
    let database = app.database.options();
    let name = database.get_database().expect("a name").to_owned();
    let server = database.clone().database("postgres");
    for statement in [
        format!("alter database {name} allow_connections false"),
        format!("select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'"),
    ] {
        run(&server, &statement).await;
    }
    (server, name)
}

/// Sends `requests` counted requests.
pub(super) async fn spend(app: &TestApp, key: &str, requests: u32) {
    for _ in 0..requests {
        let request = app.anonymous(Method::GET, "/pet/1").header("api_key", key);
        request.is(404).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn console_shows_limits_and_requests_by_day() {
    let (app, browser, key) = console(&[]).await;
    is_accessible(&browser, "sign-in").await;

    // By keyboard alone, with a visible focus.
    browser.reload().await;
    browser.until_text("h1", "Sign in").await;
    for (name, keys) in [("API key", &*key), ("Sign in", ENTER)] {
        browser.press(TAB).await;
        assert_eq!(browser.run(FOCUS).await, json!([name, true]));
        browser.press(keys).await;
    }
    browser.until_text("h1", "Account").await;
    assert_eq!(meters(&browser).await, json!([[60, 60], [1000, 1000]]));
    browser
        .until_text("#limits", "No requests in the last 30 days.")
        .await;

    // The page displays the service's exact numbers.
    spend(&app, &key, 56).await;
    let history = "insert into caller_usage
         select id, (now() at time zone 'utc')::date - ago, ago * 7, case when ago % 9 = 0 then ago else 0 end
         from callers cross join generate_series(1, 29) as ago where name = 'shop'";
    app.database.run(history).await;
    browser.click(".title button").await;
    browser
        .until_text("#limits", "4 of 60 requests left this minute")
        .await;
    let limits = browser.text("#limits").await;
    for part in [
        "Plan: free",
        "more in ",
        "944 of 1,000 requests left today (UTC)",
        "of them refused; at most 216 in a day.",
    ] {
        assert!(limits.contains(part), "{part}: {limits}");
    }
    assert_eq!(meters(&browser).await, json!([[4, 60], [944, 1000]]));
    browser.click("summary").await;
    browser.until_text("table", "Day (UTC)").await;
    is_accessible(&browser, "account").await;

    // It stays in this tab, and a link to a view works.
    browser.reload().await;
    browser.until_text("h1", "Account").await;
    is_kept_in_the_tab_only(&browser, &key).await;
    browser.click("#sign-out").await;
    browser.until_text(".notice", "You are signed out.").await;
    assert_eq!(browser.run("return sessionStorage.length").await, 0);
    enter_key(&browser, &app.key).await;
    browser
        .until_text("#limits", "Requests are not limited.")
        .await;
    browser.is_clean(app.address, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn console_signs_users_in() {
    let (app, browser, _) = console(&[]).await;
    app.sign_up("ada").await;
    browser.enter("#username", "ada").await;
    browser.enter("#password", &format!("wrong{ENTER}")).await;
    browser
        .until_text("#problem", "Username or password is incorrect.")
        .await;
    browser
        .enter("#password", &format!("{PASSWORD}{ENTER}"))
        .await;
    browser.until_text("#limits", "Plan: free").await;
    is_kept_in_the_tab_only(&browser, PASSWORD).await;
    let sessions = "select count(*) from credentials where kind = 'session' and revoked_at is null";
    assert_eq!(app.database.number(sessions).await, 1);
    browser.click("#sign-out").await;
    browser.until_text(".notice", "You are signed out.").await;
    eventually(async || app.database.number(sessions).await == 0).await;
    browser.is_clean(app.address, &[REFUSED]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn console_signs_in_as_the_demo_administrator() {
    let home = Home::new();
    let service = home.serve().await;
    let browser = Browser::start().await;
    browser.set_viewport(1280, 800, "light").await;
    let url = format!("http://{}/#/account", service.address);
    browser.open(&url).await;
    browser.until_text("h1", "Sign in").await;
    is_accessible(&browser, "demo").await;
    browser.click("#demo").await;
    browser.until_text("#limits", "Plan: enterprise").await;
    show(&browser, "pets", "Pets").await;
    browser.until_text("#empty", "The store is empty.").await;
    is_accessible(&browser, "empty").await;
    browser.click("#sample-store").await;
    browser
        .until("document.querySelectorAll('.pet img').length === 30")
        .await;
    browser.is_clean(service.address, &[]).await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn console_reports_errors() {
    let (app, browser, key) = console(&[]).await;
    enter_key(&browser, "pik_wrong").await;
    browser
        .until_text("#problem", "This key is not valid")
        .await;
    enter_key(&browser, "clé").await;
    browser
        .until_text("#problem", "This is not an API key")
        .await;
    enter_key(&browser, &key).await;
    browser.until_text("#limits", "Plan: free").await;
    // Refused, until its own limit has capacity again.
    for _ in 0..60 {
        let request = app
            .anonymous(Method::GET, "/limits")
            .header("api_key", &key);
        request.await;
    }
    browser.click(".title button").await;
    browser.until_text("main", "Limit reached: limits.").await;
    browser.until_text("main", "Trying again in ").await;
    // A key that ends while it is in use.
    let revoke =
        "update credentials set revoked_at = now() where id = (select max(id) from credentials)";
    app.database.run(revoke).await;
    let is_refused = async || {
        let request = app.anonymous(Method::GET, "/pet/1");
        request.header("api_key", &key).await.status == 401
    };
    eventually(is_refused).await;
    // The view may have tried again by itself: before the end of the key, which took the failure away, or after it.
    let again = "document.querySelector('.failure button, .title button')?.click()";
    browser.run(again).await;
    browser
        .until_text(".notice", "Your key or session is no longer valid.")
        .await;
    browser.is_clean(app.address, &[REFUSED]).await;

    // A service that is not ready, and one that is gone.
    lock_out(&app).await;
    browser
        .until_text("#status", "Not ready: the database is not available")
        .await;
    browser.screenshot("console-unready.png").await;
    drop(app);
    browser.until_text("#status", "No response").await;
    enter_key(&browser, "pik_any").await;
    browser
        .until_text("#problem", "The server did not respond")
        .await;
}
