//! Administration in the console: callers, keys, sessions, and the record of changes.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use test_support::*;

use crate::{
    browser::Browser,
    console::{ENTER, ESCAPE, REFUSED, console, enter, is_accessible, show},
};

const BACKSPACE: &str = "\u{E003}";
/// Script that returns true if the person is asked before the page is left.
const IS_ASKED: &str = "return !dispatchEvent(new Event('beforeunload', { cancelable: true }))";

/// Returns the status of a request with this key.
async fn status(app: &TestApp, key: &str) -> u16 {
    let request = app.anonymous(Method::GET, "/pet/1").header("api_key", key);
    request.await.status
}

/// Returns the secret that is shown once, and closes its dialog.
async fn secret(browser: &Browser) -> String {
    let secret = browser.text(".secret").await;
    browser.click("dialog p button").await;
    browser.until_text("dialog [role=status]", "Copied.").await;
    browser.click("dialog form button").await;
    secret
}

/// Waits until the table of keys contains a text: the view is shown again after each change.
async fn until_keys(browser: &Browser, text: &str) {
    let contains = format!("document.querySelector('.rows')?.innerText.includes('{text}')");
    browser.until(&contains).await;
}

/// Takes the choice that has the focus before a rotation, which changes nothing.
async fn cancel_rotation(browser: &Browser) {
    browser.click("[aria-label^=Rotate]").await;
    browser
        .until("document.activeElement.innerText === 'Cancel'")
        .await;
    browser.press(ENTER).await;
    browser.until("!document.querySelector('dialog')").await;
    let sent = "return [main.inert, document.querySelectorAll('.failure').length]";
    assert_eq!(browser.run(sent).await, json!([false, 0]));
}

#[tokio::test(flavor = "multi_thread")]
async fn console_administers_callers_and_keys() {
    let (app, browser, _) = console(&[]).await;
    enter(&app, &browser, "callers", "Callers").await;
    is_accessible(&browser, "callers").await;
    browser.click("summary").await;
    browser.enter("#name", "acme").await;
    browser.choose("#plan", "pro").await;
    browser.click("#new-caller button").await;
    browser.until_text("h1", "acme").await;
    let title = browser.run("return document.title").await;
    assert_eq!(title, "acme – Pet inventory");

    browser.click("section summary").await;
    assert_eq!(browser.run(IS_ASKED).await, false);
    browser.enter("#key-name", "till 3").await;
    assert_eq!(browser.run(IS_ASKED).await, true);
    browser.click("#new-key button").await;
    // A secret is not lost by accident.
    browser.until_text("dialog h2", "The key").await;
    browser.press(ESCAPE).await;
    browser
        .until_text("dialog h2", "Close without a copy?")
        .await;
    is_accessible(&browser, "secret").await;
    browser.press(ESCAPE).await;
    let first = secret(&browser).await;
    assert_eq!(status(&app, &first).await, 404);
    cancel_rotation(&browser).await;
    browser.click("[aria-label^=Rotate]").await;
    browser.click("dialog button:nth-child(3)").await;
    let second = secret(&browser).await;
    until_keys(&browser, "expired").await;
    eventually(async || status(&app, &first).await == 401).await;
    assert_eq!(status(&app, &second).await, 404);
    is_accessible(&browser, "caller").await;

    browser.click("#toggle").await;
    browser.until_text("dialog h2", "Disable").await;
    browser.click("dialog button").await;
    browser.until_text(".title", "disabled").await;
    eventually(async || status(&app, &second).await == 401).await;
    browser.click("#toggle").await;
    browser
        .until("!document.querySelector('.title strong')")
        .await;
    browser.choose("#plan", "enterprise").await;
    browser.click("[value='write:pets']").await;
    browser.click("#save").await;
    let callers = async || {
        let caller = app.get("/admin/callers?name=acme").is(200).await.json();
        caller[0]["plan"] == "enterprise"
            && caller[0]["scopes"] == json!(["read:pets", "read:orders", "write:orders"])
    };
    eventually(callers).await;
    // The focus stays where the person goes on.
    browser.until("document.activeElement.id === 'save'").await;
    browser.click("[aria-label^=Revoke]").await;
    browser.click("dialog button").await;
    until_keys(&browser, "revoked").await;
    eventually(async || status(&app, &second).await == 401).await;

    // Clients, too.
    browser
        .until("document.querySelector('.rows').innerText.includes('till 3')")
        .await;
    browser.click("[aria-label=Clients] summary").await;
    browser.click("#new-client [value='read:orders']").await;
    assert_eq!(browser.run(IS_ASKED).await, true);
    browser.click("#new-client button").await;
    // Copied by hand.
    let client = browser.text(".secret").await;
    let copy = "const code = document.querySelector('.secret code');
         getSelection().selectAllChildren(code);
         code.dispatchEvent(new Event('copy', { bubbles: true }))";
    browser.run(copy).await;
    browser.click("dialog form button").await;
    assert!(client.starts_with("pcs_"), "{client}");
    let clients = "document.querySelector('[aria-label=Clients] .rows')?.innerText";
    browser.until(&format!("{clients}.includes('pic_')")).await;
    is_accessible(&browser, "clients").await;
    browser.click("[aria-label^='Revoke client']").await;
    browser.click("dialog button").await;
    browser
        .until(&format!("{clients}.includes('revoked')"))
        .await;

    // Secrets are nowhere after their dialogs.
    let page = browser
        .run("return document.documentElement.outerHTML + JSON.stringify(sessionStorage)")
        .await;
    assert!(!page.as_str().is_some_and(|it| it.contains(&second)));
    browser.click("#delete").await;
    browser.click("dialog button").await;
    browser.until_text("h1", "Callers").await;
    show(&browser, "callers?name=acme", "Callers").await;
    browser.until_text("main", "No caller matches.").await;

    // The last administrator stays.
    let no_other = "update callers set scopes = '{read:pets}' where name = 'shop'";
    app.database.run(no_other).await;
    browser.run("location.hash = '#/callers/1'").await;
    browser.click("#toggle").await;
    browser.click("dialog button").await;
    browser
        .until_text(".failure", "This would leave no administrator")
        .await;
    browser.is_clean(app.address, &[REFUSED]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn console_shows_sessions_and_the_record() {
    let (app, browser, _) = console(&[]).await;
    app.sign_up("ada").await;
    let token = app.log_in("ada").await;
    app.pet("Rex").await;
    enter(&app, &browser, "sessions", "Sessions").await;
    browser.until_text(".rows", "Session").await;
    is_accessible(&browser, "sessions").await;
    browser.click("[aria-label^=End]").await;
    browser.until_text("main", "").await;
    eventually(async || status(&app, &token).await == 401).await;

    show(&browser, "changes", "Changes").await;
    browser.until_text(".rows", "Time").await;
    is_accessible(&browser, "changes").await;
    browser.enter("#kind", "session").await;
    browser.click("main form button:not(.fold)").await;
    browser
        .until("document.querySelectorAll('.rows tbody tr').length === 1")
        .await;
    browser.enter("#kind", "pet").await;
    browser.enter("#resource", &format!("1{ENTER}")).await;
    browser
        .until("document.querySelector('.rows').innerText.includes('pet 1 created')")
        .await;
    let hash = browser.run("return location.hash").await;
    assert_eq!(hash, "#/changes?kind=pet&resource=1");
    // New ones are put before the others, and nothing more is offered than there is.
    app.pet("Ada").await;
    app.patch("/pet/1", &json!({"name": "Max"})).is(200).await;
    let first =
        "document.querySelector('.rows tbody tr.marked')?.innerText.includes('pet 1 changed')";
    browser.until(first).await;
    let shown = "return [document.querySelectorAll('.rows tbody tr').length, document.querySelector('main > div > div:last-child > button').hidden]";
    assert_eq!(browser.run(shown).await, json!([2, true]));
    is_accessible(&browser, "new-changes").await;
    // A number without a kind is not left out: the browser asks for the kind.
    browser.enter("#kind", "all").await;
    browser.click("main form button:not(.fold)").await;
    let asked = "return [document.activeElement.id, document.activeElement.validity.valueMissing, location.hash, document.querySelector('#resource').value]";
    let expected = json!(["kind", true, "#/changes?kind=pet&resource=1", "1"]);
    assert_eq!(browser.run(asked).await, expected);
    browser.enter("#resource", BACKSPACE).await;
    browser.enter("#actor", &format!("nobody{ENTER}")).await;
    browser
        .until_text("main", "No changes in the record.")
        .await;
    browser.enter("#actor", &format!("tester{ENTER}")).await;
    browser.until_text(".rows tbody", "").await;
    for number in 0..60 {
        app.pet(&format!("Pet {number}")).await;
    }
    show(&browser, "changes?kind=pet", "Changes").await;
    let rows = "document.querySelectorAll('.rows tbody tr').length";
    browser.until(&format!("{rows} === 50")).await;
    browser.click("main > div > div:last-child > button").await;
    browser.until(&format!("{rows} === 63")).await;
    let focused = "return [document.activeElement.className, document.querySelector('main > div > div:last-child > button').hidden]";
    assert_eq!(browser.run(focused).await, json!(["rows", true]));
    browser.is_clean(app.address, &[]).await;
}

/// People have names: in histories, sessions, the list of callers and its search, and the filter of changes.
#[tokio::test(flavor = "multi_thread")]
async fn console_names_people() {
    let (app, browser, _) = console(&[]).await;
    let id = app.sign_up("Anna").await;
    app.sign_up("Annabel").await;
    let caller = app
        .get(&format!("/admin/callers?name=user:{id}"))
        .is(200)
        .await
        .ids()[0];
    let scopes = json!({"scopes": ["read:pets", "write:pets"]});
    app.patch(&format!("/admin/callers/{caller}"), &scopes)
        .is(200)
        .await;
    let token = app.log_in("anna").await;
    let pet = app
        .anonymous(Method::POST, "/pet")
        .json(&json!({"name": "Rex"}));
    let pet = pet.bearer_auth(&token).is(201).await.id();
    enter(&app, &browser, &format!("pets/{pet}"), "Rex").await;
    browser.until_text("#history [data-title=By]", "Anna").await;
    show(&browser, "sessions", "Sessions").await;
    browser.until_text("[data-title=Caller]", "Anna").await;
    show(&browser, "callers?name=ann", "Callers").await;
    let names = "[...document.querySelectorAll('[data-title=Name]')].map((it) => it.innerText).sort().join()";
    browser.until(&format!("{names} === 'Anna,Annabel'")).await;
    show(&browser, &format!("callers/{caller}"), "Anna").await;
    show(&browser, "changes", "Changes").await;
    browser.enter("#actor", &format!("anna{ENTER}")).await;
    let found = "[...document.querySelectorAll('.rows tbody tr')].map((it) => it.cells[1].innerText + it.cells[2].innerText).join()";
    browser
        .until(&format!("{found} === 'pet {pet} createdAnna'"))
        .await;
    is_accessible(&browser, "changes-of-a-person").await;
    browser.is_clean(app.address, &[]).await;
}

/// A change that is committed between the read of an empty list and the beginning of its stream is shown, too.
#[tokio::test(flavor = "multi_thread")]
async fn console_misses_no_first_change() {
    let (app, browser, _) = console(&[]).await;
    enter(&app, &browser, "pets", "Pets").await;
    let gate = "const sent = fetch;
         const gate = new Promise((resolve) => { window.open = resolve; });
         window.fetch = async (...request) => {
             if (request[1]?.headers?.accept === 'text/event-stream') await gate;
             return sent(...request);
         }";
    browser.run(gate).await;
    show(&browser, "changes?kind=pet", "Changes").await;
    browser
        .until_text("main", "No changes in the record.")
        .await;
    app.pet("Rex").await;
    browser.run("window.open()").await;
    browser
        .until("document.querySelector('.rows tbody')?.innerText.includes('pet 1 created')")
        .await;
}

/// Places an order for a new pet.
async fn place_order(app: &TestApp, pet: u64) {
    let new = json!({"id": pet, "name": "Rex"});
    app.post("/pet", &new).is(201).await;
    let order = json!({"petId": pet});
    app.post("/store/order", &order).is(201).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn console_manages_webhooks() {
    let allow_private = ("PET_INVENTORY__WEBHOOKS__ALLOW_PRIVATE", "true");
    let (app, browser, _) = console(&[allow_private]).await;
    // The first test, and the first attempt of a delivery.
    let tests = AtomicUsize::new(0);
    let fails_first = move |message: &Message, before| {
        let is_test = message.what().starts_with("test");
        let before = if is_test {
            tests.fetch_add(1, Relaxed)
        } else {
            before
        };
        if before == 0 { 503 } else { 204 }
    };
    // The service would send the delivery again by itself.
    let in_an_hour = |status| ResponseTemplate::new(status).insert_header("retry-after", "3600");
    let receiver = Receiver::with_responses(fails_first, in_an_hour).await;
    enter(&app, &browser, "webhooks", "Webhooks").await;
    browser.until_text("main p", "No webhooks yet").await;
    browser.click("summary").await;
    browser.enter("#url", "ftp://example.com/").await;
    browser.click("#new-webhook button").await;
    browser.until_text(".failure", "URL must be a URL").await;
    browser.enter("#url", &receiver.url()).await;
    browser.click("[value=order]").await;
    browser.click("#new-webhook button").await;
    let secret = secret(&browser).await;
    assert!(secret.starts_with("whsec_"), "{secret}");
    browser.until_text("h1", "Webhook 1").await;
    browser.until_text("section p", "None:").await;
    is_accessible(&browser, "webhook").await;

    // The outcome of a test is shown at once.
    browser.click("#test").await;
    browser
        .until_text("#outcome", "Not accepted: the response has status 503")
        .await;
    browser.click("#test").await;
    browser
        .until_text("#outcome", "Accepted with status 204")
        .await;
    assert_eq!(receiver.accepted(), ["test "]);
    // So are the attempts, the accepted ones too.
    let attempts = "[...document.querySelectorAll('#attempts tbody tr')].map(it => [it.cells[1].innerText, it.cells[2].innerText])";
    let expected = json!([
        ["test", "accepted with status 204"],
        ["test", "the response has status 503 Service Unavailable"],
    ]);
    browser
        .until(&format!(
            "JSON.stringify({attempts}) === JSON.stringify({expected})"
        ))
        .await;
    is_accessible(&browser, "attempts").await;
    // A URL that is not saved is not tested.
    browser.enter("#url", "https://example.com/").await;
    browser.click("#test").await;
    browser.until_text("#outcome", "Save the URL first").await;
    browser.enter("#url", &receiver.url()).await;
    // A new secret is shown once.
    browser.click("#rotate").await;
    browser.click("dialog button:nth-child(2)").await;
    let rotated = self::secret(&browser).await;
    assert!(
        rotated.starts_with("whsec_") && rotated != secret,
        "{rotated}"
    );
    browser.until("!document.querySelector('dialog')").await;
    // A delivery fails, is shown with its reason, and is sent again.
    place_order(&app, 900).await;
    let failed = async || app.get("/admin/webhooks/1/deliveries").is(200).await.json() != json!([]);
    eventually(failed).await;
    browser.click("#toggle").await;
    browser.until_text(".title", "disabled").await;
    browser.click("#toggle").await;
    let row = "document.querySelector('.rows')?.innerText.includes('503')";
    browser.until(row).await;
    browser
        .until("!document.querySelector('.title strong') && !main.inert")
        .await;
    is_accessible(&browser, "deliveries").await;
    browser.click("[aria-label^='Send again']").await;
    eventually(async || receiver.accepted().len() == 2).await;
    browser.click("#toggle").await;
    browser.until_text(".title", "disabled").await;
    browser.click("[value=pet]").await;
    browser.click("#webhook-form button").await;
    browser.until_text("#announcement", "Saved.").await;
    let stored = async || app.get("/admin/webhooks/1").is(200).await.json();
    eventually(async || stored().await["kinds"] == json!(["pet", "order"])).await;
    show(&browser, "webhooks", "Webhooks").await;
    browser.until_text(".rows tbody", "1").await;
    is_accessible(&browser, "webhooks").await;
    show(&browser, "webhooks/1", "Webhook 1").await;
    browser.click("#delete").await;
    browser.click("dialog button").await;
    browser.until_text("h1", "Webhooks").await;
    app.get("/admin/webhooks/1").is(404).await;
    browser.is_clean(app.address, &[REFUSED]).await;
}

/// All deliveries that were given up are sent again at once; those that wait are not among them.
#[tokio::test(flavor = "multi_thread")]
async fn console_sends_given_up_deliveries_again() {
    let allow_private = ("PET_INVENTORY__WEBHOOKS__ALLOW_PRIVATE", "true");
    let (app, browser, _) = console(&[allow_private]).await;
    let receiver = Receiver::with(|_, _| 204).await;
    let webhook = json!({"url": receiver.url(), "kinds": ["order"]});
    app.post("/admin/webhooks", &webhook).is(201).await;
    place_order(&app, 900).await;
    // Until the turn has ended: its end deletes the delivery that waits.
    let attempts = "/admin/webhooks/1/attempts";
    eventually(async || app.get(attempts).is(200).await.json()[0].is_object()).await;
    let wait = "insert into webhook_retries (webhook_id, position, kind, resource, attempts, next_at)
         select 1, position, kind, resource, 3, now() + interval '1 hour' from changes where kind = 'order'";
    app.database.run(wait).await;
    enter(&app, &browser, "webhooks/1", "Webhook 1").await;
    browser.until_text(".rows", "Position").await;
    let offers = "return document.querySelectorAll('#retry-all').length";
    assert_eq!(browser.run(offers).await, 0);
    let give_up = "update webhook_retries set parked_at = now()";
    app.database.run(give_up).await;
    show(&browser, "webhooks", "Webhooks").await;
    show(&browser, "webhooks/1", "Webhook 1").await;
    browser.click("#retry-all").await;
    browser
        .until_text("#announcement", "1 delivery is sent again.")
        .await;
    eventually(async || receiver.accepted().len() == 2).await;
    browser.is_clean(app.address, &[]).await;
}

/// An account for staff is made under Callers, with its scopes; it can sign in at once. The refusal of a name tells what is wrong with it.
#[tokio::test(flavor = "multi_thread")]
async fn console_makes_staff_accounts() {
    let (app, browser, _) = console(&[]).await;
    enter(&app, &browser, "callers", "Callers").await;
    browser.click("details:last-of-type summary").await;
    is_accessible(&browser, "new-staff").await;
    for (name, refusal) in [
        ("Partner GmbH", "Username must have no spaces;"),
        ("berta", "Berta"),
    ] {
        browser
            .run("document.querySelector('#username').value = ''")
            .await;
        browser.enter("#username", name).await;
        browser
            .run("document.querySelector('#password').value = 'correct horse battery'")
            .await;
        if name != "berta" {
            browser.click("#new-staff button").await;
            browser.until_text(".failure", refusal).await;
            continue;
        }
        browser.click("#new-staff [value='write:orders']").await;
        browser.click("#new-staff button").await;
        browser.until_text("h1", name).await;
    }
    let berta = app.get("/admin/callers?name=berta").is(200).await.json();
    assert_eq!(
        [&berta[0]["plan"], &berta[0]["scopes"]],
        [
            &json!("pro"),
            &json!(["read:pets", "write:pets", "read:orders", "read:changes"])
        ]
    );
    browser.click("#sign-out").await;
    browser.until_text("h1", "Sign in").await;
    browser.enter("#username", "berta").await;
    browser
        .enter("#password", &format!("correct horse battery{ENTER}"))
        .await;
    browser
        .until_text("main", "The scope admin is required.")
        .await;
    browser.is_clean(app.address, &[REFUSED]).await;
}

/// What a partner needs is copied from one dialog: the key and its address; the secret of a client, its name, and where tokens are.
#[tokio::test(flavor = "multi_thread")]
async fn console_hands_over_keys_and_clients() {
    let (app, browser, _) = console(&[]).await;
    enter(&app, &browser, "callers/1", "tester").await;
    browser
        .run("navigator.clipboard.writeText = async (text) => { window.copied = text }")
        .await;
    browser.click("[aria-label=Keys] summary").await;
    browser.click("#new-key button").await;
    let key = browser.text(".secret").await;
    let address = format!("http://{}/api/v3", app.address);
    is_accessible(&browser, "handed-over-key").await;
    for (label, text) in [
        ("Copy: Address", address.clone()),
        (
            "Copy: To try it",
            format!("curl -H 'api_key: {key}' '{address}/limits'"),
        ),
    ] {
        browser.click(&format!("[aria-label='{label}']")).await;
        browser
            .until(&format!("window.copied === {}", json!(text)))
            .await;
    }
    // The curl line has the key, so it is not lost.
    browser.click("dialog form button").await;
    browser.until("!document.querySelector('dialog')").await;
    browser.click("[aria-label=Clients] summary").await;
    browser.click("#new-client button").await;
    browser.until_text("dialog h2", "The secret of pic_").await;
    browser.click("[aria-label='Copy: To get a token']").await;
    let line = "return window.copied";
    let line = browser.run(line).await;
    let line = line.as_str().expect("a line");
    let output = tokio::process::Command::new("sh")
        .args(["-c", line])
        .output()
        .await;
    let output = output.expect("curl");
    let token: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(token["access_token"].is_string(), "{line}: {token}");
    browser.click("dialog form button").await;
    // A key that was replaced at once is over.
    browser
        .click("[aria-label=Keys] tr:last-child [aria-label^=Rotate]")
        .await;
    browser.click("dialog button:nth-child(3)").await;
    secret(&browser).await;
    until_keys(&browser, "expired").await;
    browser.is_clean(app.address, &[]).await;
}

/// The page of a webhook shows what happens to its deliveries, and the list shows a receiver that fails.
#[tokio::test(flavor = "multi_thread")]
async fn console_follows_deliveries() {
    let allow_private = ("PET_INVENTORY__WEBHOOKS__ALLOW_PRIVATE", "true");
    let (app, browser, _) = console(&[allow_private]).await;
    let is_up = Arc::new(AtomicBool::new(false));
    let status = is_up.clone();
    let respond = move |_: &Message, _| if status.load(Relaxed) { 204 } else { 503 };
    let in_an_hour = |status| ResponseTemplate::new(status).insert_header("retry-after", "3600");
    let receiver = Receiver::with_responses(respond, in_an_hour).await;
    let webhook = json!({"url": receiver.url(), "kinds": ["order"]});
    app.post("/admin/webhooks", &webhook).is(201).await;
    enter(&app, &browser, "webhooks/1", "Webhook 1").await;
    browser.until_text("#deliveries", "None:").await;
    place_order(&app, 900).await;
    let failed = "document.querySelector('#deliveries').innerText.includes('503') && document.querySelector('#attempts').innerText.includes('503')";
    browser.until(failed).await;
    // With its seconds.
    let time = "return /\\d\\d:\\d\\d:\\d\\d/.test(document.querySelector('#attempts [data-title=Time]').innerText)";
    assert_eq!(browser.run(time).await, true);
    app.database
        .run("update webhook_retries set position = position - 7200 * 1000000::bigint")
        .await;
    show(&browser, "webhooks", "Webhooks").await;
    browser
        .until_text("[data-title='Late by'] .problem", "2 h ")
        .await;
    is_accessible(&browser, "late-webhook").await;
    app.database
        .run("update webhook_retries set position = position + 7200 * 1000000::bigint")
        .await;
    is_up.store(true, Relaxed);
    show(&browser, "webhooks/1", "Webhook 1").await;
    browser.click("[aria-label^='Send again']").await;
    browser
        .until("document.querySelector('#attempts').innerText.includes('accepted with status 204')")
        .await;
    browser.until_text("#deliveries", "None:").await;
    browser.is_clean(app.address, &[]).await;
}
