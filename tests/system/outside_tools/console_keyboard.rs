//! The console by keyboard alone: a pet, an order, and a caller with its keys.

use test_support::*;

use crate::{
    browser::Browser,
    console::{ENTER, TAB, console, sign_in},
};

const SPACE: &str = " ";
/// Script that returns the name of the focused element.
const NAME: &str = "
    const it = document.activeElement;
    return (it.ariaLabel ?? it.labels?.[0]?.innerText ?? it.innerText).trim()";

/// Moves the focus to the next element with a name, and presses keys on it.
pub(super) async fn press_on(browser: &Browser, name: &str, keys: &str) {
    for _ in 0..200 {
        browser.press(TAB).await;
        if browser.run(NAME).await == name {
            browser.press(keys).await;
            return;
        }
    }
    let page = browser.run("return document.body.innerText").await;
    panic!("no {name}: {page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn console_is_used_by_keyboard_alone() {
    let (app, browser, _) = console(&[]).await;
    sign_in(&browser, &app.key).await;

    press_on(&browser, "Pets", ENTER).await;
    browser.until_text("h1", "Pets").await;
    press_on(&browser, "New pet", ENTER).await;
    browser.until_text("h1", "New pet").await;
    press_on(&browser, "Name", "Rex").await;
    press_on(&browser, "Category", "Dogs").await;
    press_on(&browser, "Save", ENTER).await;
    browser.until_text("h1", "Rex").await;
    press_on(&browser, "Name", &format!("Max{ENTER}")).await;
    browser.until_text("h1", "Max").await;
    let pet = app.get("/pet").is(200).await.json();
    assert_eq!(pet[0]["name"], "Max");
    assert_eq!(pet[0]["category"], json!({"name": "Dogs"}));

    press_on(&browser, "Order", ENTER).await;
    browser.until_text("h1", "Orders for pet").await;
    browser
        .until("document.activeElement.id === 'quantity'")
        .await;
    browser.press(ENTER).await;
    browser.until_text(".rows", "Order").await;
    let order = app.get("/store/order/1").is(200).await.json();
    assert_eq!(order["petId"], pet[0]["id"]);
    press_on(&browser, "Approve order 1", ENTER).await;
    let is_approved =
        async || app.get("/store/order/1").is(200).await.json()["status"] == "approved";
    eventually(is_approved).await;
    press_on(&browser, "Delete order 1", ENTER).await;
    press_on(&browser, "Delete", ENTER).await;
    browser.until_text("main", "No orders for this pet.").await;

    press_on(&browser, "Callers", ENTER).await;
    browser.until_text("h1", "Callers").await;
    press_on(&browser, "New caller", ENTER).await;
    press_on(&browser, "Name", "acme").await;
    press_on(&browser, "Plan", "p").await;
    press_on(&browser, "write:pets", SPACE).await;
    press_on(&browser, "Create", ENTER).await;
    browser.until_text("h1", "acme").await;
    let caller = app.get("/admin/callers?name=acme").is(200).await.json();
    assert_eq!(caller[0]["plan"], "pro");
    assert_eq!(
        caller[0]["scopes"],
        json!(["read:pets", "read:orders", "write:orders"])
    );

    press_on(&browser, "New key", ENTER).await;
    press_on(&browser, "Create", ENTER).await;
    browser.until_text("dialog", "The key").await;
    press_on(&browser, "Copy", ENTER).await;
    browser.until_text("dialog [role=status]", "Copied.").await;
    press_on(&browser, "Done", ENTER).await;
    let keys = format!("/admin/callers/{}/keys", caller[0]["id"]);
    let first = app.get(&keys).is(200).await.ids()[0];
    press_on(&browser, &format!("Rotate key {first}"), ENTER).await;
    press_on(&browser, "Not at all", ENTER).await;
    browser.until_text("dialog", "The new key").await;
    press_on(&browser, "Copy", ENTER).await;
    browser.until_text("dialog [role=status]", "Copied.").await;
    press_on(&browser, "Done", ENTER).await;
    let second = app.get(&keys).is(200).await.ids().into_iter().max();
    let second = second.expect("a key");
    press_on(&browser, &format!("Revoke key {second}"), ENTER).await;
    press_on(&browser, "Revoke", ENTER).await;
    browser
        .until("document.querySelector('.rows').innerText.includes('revoked')")
        .await;
    press_on(&browser, "Disable", ENTER).await;
    press_on(&browser, "Disable", ENTER).await;
    browser.until_text(".title", "disabled").await;
    press_on(&browser, "Delete", ENTER).await;
    press_on(&browser, "Delete", ENTER).await;
    browser.until_text("h1", "Callers").await;

    press_on(&browser, "Pets", ENTER).await;
    browser.until_text("h1", "Pets").await;
    press_on(&browser, "Max", ENTER).await;
    browser.until_text("h1", "Max").await;
    press_on(&browser, "Delete", ENTER).await;
    press_on(&browser, "Delete", ENTER).await;
    browser.until_text("h1", "Pets").await;
    assert_eq!(app.get("/pet").is(200).await.json(), json!([]));
    press_on(&browser, "Sign out", ENTER).await;
    browser.until_text("h1", "Sign in").await;
}
