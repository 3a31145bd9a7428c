//! The documentation page in a browser.

use test_support::*;

use crate::{browser::Browser, console::axe};

const NO_OVERFLOW: &str =
    "return [...document.querySelectorAll('body, body *')].every(it => it.getBoundingClientRect().right <= innerWidth)
     && document.documentElement.scrollWidth <= innerWidth";

/// Returns a selector for a part of an operation of pets on the documentation page.
fn operation(id: &str, part: &str) -> String {
    format!("#operations-pet-{id} {part}")
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
    fs::write(&photo, png(320, 200)).expect("a file");

    let browser = Browser::start().await;
    browser.set_viewport(1100, 760, "light").await;
    browser.open(&format!("{origin}/docs")).await;
    browser.click("button.authorize").await;
    browser.enter("#api_key_value", "special-key").await;
    browser.click(".auth-container button.authorize").await;
    browser.click(".btn-done").await;
    browser.screenshot("docs.png").await;

    browser.expand_operation("pet", "getPetById").await;
    execute(&browser, "getPetById").await;
    let shown = browser
        .text(&operation("getPetById", ".live-responses-table"))
        .await;
    assert!(shown.contains("\"name\": \"Rex\""), "{shown}");

    browser.expand_operation("pet", "uploadFile").await;
    let file = operation("uploadFile", "input[type=file]");
    browser.enter(&file, &photo.display().to_string()).await;
    execute(&browser, "uploadFile").await;
    // Fields of opened operations have names.
    let critical = format!(
        "{}; return axe.run().then(({{ violations }}) => violations
             .filter(({{ impact }}) => impact === 'critical')
             .map(({{ id, nodes }}) => `${{id}}: ${{nodes.map(it => it.html).join()}}`))",
        axe()
    );
    assert_eq!(browser.run(&critical).await, json!([]));
    let images = service.request(Method::GET, "/pet/1/images", "special-key");
    let images = images.is(200).await.json();
    let image = images[0]["id"].as_str().expect("an image");

    // The page displays the image.
    browser.expand_operation("pet", "getImage").await;
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
    browser.expand_operation("pet", "getPetById").await;
    browser.is_clean(service.address, &[]).await;
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
            service.address,
            &["/api/v3/pet/1 - Failed to load resource: the server responded with a status of 401"],
        )
        .await;
    service.stop().await;
}
