//! Orders in the console in a browser: placed, found, advanced and deleted, also by others meanwhile.

use test_support::*;

use crate::{
    browser::Browser,
    console::{
        ENTER, OFFERS_TO_REPEAT, REFUSED, console, console_with_pet, enter, is_accessible, show,
        sign_in, until_place,
    },
};

#[tokio::test(flavor = "multi_thread")]
async fn console_places_and_advances_orders() {
    let (app, browser, id) = console_with_pet(&[]).await;
    enter(&app, &browser, "orders", "Orders").await;
    browser.until_text("main", "No orders yet.").await;
    let place = async || {
        browser.enter("#pet", &id.to_string()).await;
        browser.click("main form button:not(.fold)").await;
    };
    place().await;
    browser.until_text(".rows", "Order").await;
    // Fields have the names of the page.
    browser.enter("#pet", &format!("12{ENTER}")).await;
    browser.until_text(".failure", "There is no pet 12.").await;
    // 409: what can be done is in the text.
    place().await;
    browser
        .until_text(".failure", &format!("Pet {id} has an open order"))
        .await;
    assert_eq!(browser.run(OFFERS_TO_REPEAT).await, 0);
    is_accessible(&browser, "orders").await;
    // A long number stays in one line.
    let long = json!({"id": 9_007_199_254_740_991_u64, "petId": app.pet("Ada").await});
    let shopper = scopes(&[Scope::ReadOrders, Scope::WriteOrders]);
    let shopper = app.make_key("shopper", shopper).await.secret;
    let request = app.anonymous(Method::POST, "/store/order").json(&long);
    let placed = request.header("api_key", &shopper).is(201).await.json();
    browser.run("location.hash = '#/orders?'").await;
    browser.click("dialog button").await;
    // The newest is the first one.
    let number = "document.querySelector('.rows tbody td:first-child')";
    browser
        .until(&format!("{number}?.innerText === '9007199254740991'"))
        .await;
    let lines = "const range = document.createRange();";
    let lines =
        format!("{lines} range.selectNodeContents({number}); return range.getClientRects().length");
    assert_eq!(browser.run(&lines).await, 1);
    // The pets have their names; all are read at once, and a deleted one has its number.
    let names = "[...document.querySelectorAll('.rows tbody tr')].map((it) => it.cells[1].innerText.trim()).join()";
    browser
        .until(&format!("{names} === 'A\\nAda,R\\nRex'"))
        .await;
    let cells = |title: &str| {
        format!("[...document.querySelectorAll('[data-title={title}]')].map((it) => it.innerText)")
    };
    let callers = browser.run(&format!("return {}", cells("By"))).await;
    assert_eq!(callers, json!(["shopper", "tester"]));
    let time = format!(
        "return document.querySelector('[data-title=Placed] time').title
             === new Intl.DateTimeFormat(undefined, {{ dateStyle: 'medium', timeStyle: 'medium' }}).format(new Date({}))",
        placed["createdAt"]
    );
    assert_eq!(browser.run(&time).await, true);
    is_accessible(&browser, "ordered").await;
    app.delete("/pet/2").is(200).await;
    browser.choose("#state", "placed").await;
    browser.click("#order-filters button:not(.fold)").await;
    until_place(&browser, "orders?status=placed").await;
    browser
        .until(&format!("{names} === '2 (the pet was deleted),R\\nRex'"))
        .await;
    show(&browser, "account", "Account").await;
    browser.run("performance.clearResourceTimings()").await;
    show(&browser, "orders", "Orders").await;
    browser
        .until(&format!("{names} === '2 (the pet was deleted),R\\nRex'"))
        .await;
    let read = "return performance.getEntriesByType('resource').filter(({ name }) => /pet\\?id=/.test(name)).length";
    assert_eq!(browser.run(read).await, 1);
    // The order of a caller that is deleted has no name.
    let caller = app.get("/admin/callers?name=shopper").is(200).await.ids()[0];
    app.delete(&format!("/admin/callers/{caller}"))
        .is(200)
        .await;
    browser.run("location.hash = '#/orders?'").await;
    browser
        .until(&format!("{}.join() === '–,tester'", cells("By")))
        .await;
    show(&browser, "orders?status=approved", "Orders").await;
    browser.until_text("main", "No order matches.").await;
    app.delete("/store/order/9007199254740991").is(200).await;
    browser.run("location.hash = '#/orders'").await;
    browser
        .until("document.querySelectorAll('.rows tbody tr').length === 1")
        .await;
    for (action, status) in [("Approve", "approved"), ("Deliver", "delivered")] {
        browser.click(&format!("[aria-label^={action}]")).await;
        let orders = async || app.get("/store/orders").is(200).await.json()[0]["status"] == status;
        eventually(orders).await;
        let shown = format!("document.querySelector('.rows').innerText.includes('{status}')");
        browser.until(&shown).await;
    }
    browser.click("[aria-label^=Delete]").await;
    browser.click("dialog button").await;
    browser.until_text("main", "No orders yet.").await;
    browser.is_clean(app.address, &[REFUSED]).await;
}

/// The names of pets come when a limit allows it.
#[tokio::test(flavor = "multi_thread")]
async fn console_names_the_pets_of_orders_after_a_limit() {
    let (app, browser, id) = console_with_pet(&[]).await;
    let order = json!({ "petId": id });
    app.post("/store/order", &order).is(201).await;
    sign_in(&browser, &app.key).await;
    let limited = "const sent = fetch;
         window.refused = 0;
         window.fetch = (...request) => {
             if (!/\\/pet\\?id=/.test(request[0]) || window.refused === 2) return sent(...request);
             window.refused += 1;
             const headers = { 'retry-after': '1' };
             return Promise.resolve(Response.json({ detail: 'limit reached' }, { status: 429, headers }));
         }";
    browser.run(limited).await;
    show(&browser, "orders", "Orders").await;
    browser.until_text("table.rows tbody .name", "Rex").await;
    assert_eq!(browser.run("return window.refused").await, 2);
}

/// A failure is shown where the person looks, also on a phone, and a change of one order leaves the others as they are, and what is typed.
#[tokio::test(flavor = "multi_thread")]
async fn console_keeps_the_place_among_orders() {
    let (app, browser, id) = console_with_pet(&[]).await;
    let order = json!({ "petId": id });
    app.post("/store/order", &order).is(201).await;
    enter(&app, &browser, "orders", "Orders").await;
    browser.set_viewport(320, 300, "light").await;
    browser
        .run("document.querySelector('[aria-label=\"New order\"] button').scrollIntoView({ block: 'start' })")
        .await;
    browser.enter("#pet", &format!("{id}{ENTER}")).await;
    browser
        .until("document.querySelector('.failure')?.getBoundingClientRect().top >= 0")
        .await;
    browser.set_viewport(1280, 800, "light").await;
    browser
        .run("window.table = document.querySelector('.rows')")
        .await;
    // A double click advances an order once.
    browser
        .run(
            "const button = document.querySelector('[aria-label^=Approve]');
             button.dispatchEvent(new MouseEvent('click', { detail: 2, bubbles: true }))",
        )
        .await;
    browser.click("[aria-label^=Approve]").await;
    browser.until("table.innerText.includes('approved')").await;
    browser
        .until("document.activeElement.ariaLabel?.startsWith('Deliver')")
        .await;
    let kept = "return [document.querySelector('#pet').value, table.isConnected]";
    assert_eq!(browser.run(kept).await, json!([id.to_string(), true]));
    browser.click("[aria-label^=Delete]").await;
    browser.click("dialog button").await;
    browser.until_text("main", "No orders yet.").await;
    browser.is_clean(app.address, &[REFUSED]).await;
}

/// Presses the button of the filters.
async fn filter(browser: &Browser) {
    browser.click("#order-filters button:not(.fold)").await;
}

/// Orders are found by their number, their pet, their status, and the name of their caller or its user.
#[tokio::test(flavor = "multi_thread")]
async fn console_finds_orders() {
    let (app, browser, id) = console_with_pet(&[]).await;
    app.sign_up("Anna").await;
    let token = app.log_in("anna").await;
    let body = json!({ "petId": app.pet("Ada").await });
    let order = app.anonymous(Method::POST, "/store/order").json(&body);
    let hers = order.bearer_auth(&token).is(201).await.id();
    let body = json!({ "petId": id });
    let mine = app.post("/store/order", &body).is(201).await.id();
    enter(&app, &browser, "orders", "Orders").await;
    let numbers = "[...document.querySelectorAll('.rows tbody td:first-child')].map((it) => it.innerText).join()";
    browser
        .until(&format!("{numbers} === '{mine},{hers}'"))
        .await;
    browser.enter("#only-number", &hers.to_string()).await;
    filter(&browser).await;
    browser.until(&format!("{numbers} === '{hers}'")).await;
    // She has a name, which leads to her orders.
    browser.until_text("[data-title=By]", "Anna").await;
    browser.click("[data-title=By] a").await;
    until_place(&browser, "orders?by=Anna").await;
    browser.until(&format!("{numbers} === '{hers}'")).await;
    for (field, text, found) in [
        ("#only-by", "anna", hers.to_string()),
        ("#only-by", "tester", mine.to_string()),
        ("#only-by", "nobody", String::new()),
        ("#only-pet", &id.to_string(), mine.to_string()),
        ("#only-number", "999", String::new()),
    ] {
        show(&browser, "orders", "Orders").await;
        browser
            .until(&format!("{numbers} === '{mine},{hers}'"))
            .await;
        browser.enter(field, text).await;
        filter(&browser).await;
        let place = format!("location.hash !== '#/orders' && {numbers} === '{found}'");
        browser.until(&place).await;
        if found.is_empty() {
            browser.until_text("main", "No order matches.").await;
        }
    }
    is_accessible(&browser, "orders-found").await;
    browser.is_clean(app.address, &["404"]).await;
}

/// What others do with orders is shown where they are: new ones, new states, and those that are gone. An import changes no place.
#[tokio::test(flavor = "multi_thread")]
async fn console_follows_orders() {
    let (app, browser, id) = console_with_pet(&[]).await;
    let other = app.pet("Ada").await;
    let place = async |pet: i64| {
        let order = json!({ "petId": pet });
        app.post("/store/order", &order).is(201).await.id()
    };
    let first = place(id).await;
    enter(&app, &browser, "orders", "Orders").await;
    browser
        .until_text(".rows [data-title=Status]", "placed")
        .await;
    browser
        .run("window.table = document.querySelector('.rows')")
        .await;
    let second = place(other).await;
    let numbers =
        "[...table.querySelectorAll('tbody td:first-child')].map((it) => it.innerText).join()";
    browser
        .until(&format!("{numbers} === '{second},{first}'"))
        .await;
    // Another administrator is faster.
    let path = format!("/store/order/{first}");
    let approved = json!({"status": "approved", "shipDate": "2031-05-06T07:08:09Z"});
    app.patch(&path, &approved).is(200).await;
    let row = format!(
        "[...table.querySelectorAll('tbody tr')].find((it) => it.cells[0].innerText === '{first}')"
    );
    browser
        .until(&format!(
            "{row}.querySelector('.state.approved') && {row}.innerText.includes('2031')"
        ))
        .await;
    app.delete(&path).is(200).await;
    browser.until(&format!("{numbers} === '{second}'")).await;
    browser
        .until_text("#announcement", &format!("Order {first} is deleted."))
        .await;
    // Without the record, an order that is gone leaves the list with the next click on its buttons.
    let reader = "const sent = fetch; window.fetch = (...request) => /changes\\?/.test(request[0])
        ? Promise.resolve(new Response(null, { status: 403 })) : sent(...request)";
    browser.run(reader).await;
    show(&browser, "account", "Account").await;
    show(&browser, "orders", "Orders").await;
    browser
        .until_text(".rows [data-title=Status]", "placed")
        .await;
    app.delete(&format!("/store/order/{second}")).is(200).await;
    browser.click("[aria-label^=Approve]").await;
    let gone = format!("Order {second} was deleted by somebody else.");
    browser.until_text("#announcement", &gone).await;
    browser.until_text("main", "No orders yet.").await;
    browser.is_clean(app.address, &["404"]).await;
}

/// A pet with an open order is deleted knowingly, and its order says so. A date in the past asks.
#[tokio::test(flavor = "multi_thread")]
async fn console_tells_of_open_orders_and_past_dates() {
    let (app, browser, id) = console_with_pet(&[]).await;
    enter(&app, &browser, "orders", "Orders").await;
    browser.enter("#pet", &id.to_string()).await;
    browser
        .run("document.querySelector('#ships').value = '2021-03-04T05:06'")
        .await;
    browser.click("main form button:not(.fold)").await;
    browser.until_text("dialog", "Ship at Mar 4, 2021").await;
    browser.click("dialog .plain").await;
    assert_eq!(app.get("/store/orders").is(200).await.ids(), [0; 0]);
    browser.click("main form button:not(.fold)").await;
    browser.click("dialog button:not(.plain)").await;
    browser
        .until_text(".rows [data-title=Ships]", "Mar 4, 2021")
        .await;
    let order = app.get("/store/orders").is(200).await.ids()[0];
    show(&browser, &format!("pets/{id}"), "Rex").await;
    browser.click("#delete").await;
    browser
        .until_text("dialog .problem", &format!("Order {order} is open."))
        .await;
    is_accessible(&browser, "delete-ordered").await;
    browser.click("dialog button").await;
    browser.until_text("h1", "Pets").await;
    show(&browser, "orders", "Orders").await;
    browser
        .until_text(
            ".rows [data-title=Pet]",
            &format!("{id} (the pet was deleted)"),
        )
        .await;
    let hidden =
        "getComputedStyle(document.querySelector('[aria-label^=Approve]')).display === 'none'";
    browser.until(hidden).await;
    is_accessible(&browser, "orders-without-pet").await;
    // The record may tell of the deletion before the page is left.
    browser.is_clean(app.address, &["404"]).await;
}

/// A page of twenty orders of a customer on Free costs two requests, so it can be opened all day.
#[tokio::test(flavor = "multi_thread")]
async fn console_opens_orders_of_a_customer_on_free_twenty_times() {
    let (app, browser, key) = console(&[]).await;
    for _ in 0..20 {
        let order = json!({ "petId": app.pet("Rex").await });
        app.post("/store/order", &order).is(201).await;
    }
    let customer = app.get("/admin/callers?name=shop").is(200).await.ids()[0];
    app.database
        .run(&format!("update orders set owner = {customer}"))
        .await;
    let scopes = json!({"scopes": ["read:pets", "read:orders", "write:orders"]});
    let path = format!("/admin/callers/{customer}");
    app.patch(&path, &scopes).is(200).await;
    sign_in(&browser, &key).await;
    for time in 0..=20 {
        browser.run("performance.clearResourceTimings()").await;
        show(&browser, "orders", "Orders").await;
        browser
            .until("document.querySelectorAll('.rows tbody .name').length === 20")
            .await;
        let sent = "return performance.getEntriesByType('resource').filter(({ name }) => /api.v3/.test(name)).length";
        // At the first time, the scopes of the key may be asked for, too.
        if time > 0 {
            assert_eq!(browser.run(sent).await, 2, "{time}");
        }
        browser.run("location.hash = '#/nothing'").await;
        browser.until_text("h1", "There is no such page").await;
    }
    browser.is_clean(app.address, &[]).await;
}
