//! Edits in the console: they survive what others do meanwhile, and change nothing else.

use test_support::*;

use crate::console::{ESCAPE, REFUSED, console, console_with_pet, enter, enter_key, show, sign_in};

const SAVE: &str = "#pet-form .choices button";

/// Without a choice between two versions, and after the key is revoked, the form keeps what was typed.
#[tokio::test(flavor = "multi_thread")]
async fn console_keeps_edits_until_a_person_chooses() {
    let (app, browser, id) = console_with_pet(&[]).await;
    let path = format!("/pet/{id}");
    let key = app
        .make_key("clerk", scopes(&[Scope::ReadPets, Scope::WritePets]))
        .await;
    sign_in(&browser, &key.secret).await;
    show(&browser, &format!("pets/{id}"), "Rex").await;
    let typed = "return document.querySelector('#name').value";

    browser.enter("#name", "Mine").await;
    app.patch(&path, &json!({"name": "Theirs"})).is(200).await;
    for (button, yours) in [
        (SAVE, "Name\tMine\tTheirs"),
        ("#delete", "Name\tdeleted\tTheirs"),
    ] {
        browser.click(button).await;
        if button == "#delete" {
            browser.click("dialog button.bad").await;
        }
        browser.until_text("dialog table", yours).await;
        let choices =
            "return [...document.querySelectorAll('dialog button')].map(it => it.innerText)";
        let choices = browser.run(choices).await;
        let is_deletion = choices == json!(["Delete", "Keep"]);
        assert_eq!(is_deletion, button == "#delete", "{choices}");
        browser.press(ESCAPE).await;
        browser
            .until("!document.querySelector('dialog') && !main.inert")
            .await;
        assert_eq!(browser.run(typed).await, "Mine");
        assert_ne!(
            browser.run("return document.activeElement.tagName").await,
            "BODY"
        );
    }
    app.get(&path).is(200).await;

    let revoked = app.delete(&format!("/admin/keys/{}", key.id));
    revoked.is(200).await;
    browser.click(SAVE).await;
    browser.until_text("dialog h2", "You are signed out").await;
    browser.click("dialog button:nth-child(2)").await;
    assert_eq!(browser.run(typed).await, "Mine");
    browser.is_clean(app.address, &[REFUSED]).await;
}

/// Saving sends only what was edited: neither what others have changed since, nor what an input cannot show.
#[tokio::test(flavor = "multi_thread")]
async fn console_changes_only_what_was_edited() {
    let (app, browser, _) = console(&[]).await;
    let pet = json!({"name": "two\r\nlines", "category": {"id": 5, "name": "  Dogs "}, "status": "available"});
    let id = app.post("/pet", &pet).is(201).await.id();
    let stored = async || app.get(&format!("/pet/{id}")).is(200).await.json();
    enter(&app, &browser, &format!("pets/{id}"), "two").await;
    browser.click(SAVE).await;
    browser
        .until_text("#announcement", "Nothing has changed.")
        .await;
    browser.choose("#state", "sold").await;
    browser.click(SAVE).await;
    browser.until_text("#announcement", "Saved.").await;
    let changed = stored().await;
    assert_eq!(
        [&changed["name"], &changed["category"], &changed["status"]],
        [&pet["name"], &pet["category"], &json!("sold")]
    );

    let caller = json!({"name": "acme", "plan": "free", "scopes": ["read:pets", "admin"]});
    let caller = app.post("/admin/callers", &caller).is(201).await.id();
    let path = format!("/admin/callers/{caller}");
    show(&browser, &format!("callers/{caller}"), "acme").await;
    app.patch(&path, &json!({"scopes": ["read:pets"]}))
        .is(200)
        .await;
    browser.choose("#plan", "pro").await;
    browser.click("#caller-form .choices button").await;
    browser.until_text("#announcement", "Saved.").await;
    let saved = app.get(&path).is(200).await.json();
    assert_eq!(
        [&saved["plan"], &saved["scopes"]],
        [&json!("pro"), &json!(["read:pets"])]
    );
    browser.is_clean(app.address, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn console_tells_what_is_missing_and_leads_back() {
    let (app, browser, id) = console_with_pet(&[]).await;
    enter(&app, &browser, "pets", "Pets").await;
    for (place, heading, link) in [
        (format!("nonsense/{id}"), "There is no such page", "#/pets"),
        ("orders/5".into(), "There is no such page", "#/pets"),
        ("pets/999999".into(), "Pet 999999", "#/pets"),
        ("callers/999999".into(), "Caller 999999", "#/callers"),
        ("webhooks/999".into(), "Webhook 999", "#/webhooks"),
        ("orders?status=bogus".into(), "Orders", "#/orders"),
    ] {
        show(&browser, &place, heading).await;
        let leads = format!("document.querySelector('main p a')?.hash === '{link}'");
        browser.until(&leads).await;
    }
    // A file that is no image.
    show(&browser, &format!("pets/{id}"), "Rex").await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("empty.png");
    fs::write(&file, b"").expect("a file");
    browser.enter("#files", &file.display().to_string()).await;
    browser
        .until_text(".uploads", "empty.png: The file is required")
        .await;

    // An import, which is one change, leaves the list where it is.
    show(&browser, "pets", "Pets").await;
    let home = Home::on(app.database.url());
    home.write("pets.ndjson", "{\"name\": \"Imported\"}\n");
    home.run(&["import", "pets.ndjson"]).await.is(0);
    browser
        .until_text(".outdated", "The list has changed.")
        .await;
    browser.until_text("#pets h2", "Rex").await;
    browser.click(".outdated button").await;
    browser.until_text("#pets h2", "Imported").await;
    browser
        .until("!document.querySelector('.outdated').innerText")
        .await;

    let reader = app.make_key("reader", scopes(&[Scope::ReadPets])).await;
    browser.click("#sign-out").await;
    browser.until_text("h1", "Sign in").await;
    enter_key(&browser, &reader.secret).await;
    browser.until_text("h1", "Pets").await;
    for (place, heading, scope) in [
        ("orders", "Orders", "read:orders"),
        ("pets/new", "New pet", "write:pets"),
    ] {
        show(&browser, place, heading).await;
        browser
            .until(&format!(
                "main.innerText.includes('The scope {scope} is required.')"
            ))
            .await;
    }
    browser.is_clean(app.address, &[REFUSED]).await;
}
