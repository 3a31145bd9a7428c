//! Pets in the console: the grid with its filters, changes as they happen, and the page of a pet.

use test_support::postgres::run;
use test_support::*;

use crate::{
    browser::Browser,
    console::{
        ENTER, OFFERS_TO_REPEAT, REFUSED, TAB, console, console_with_pet, enter, enter_key,
        is_accessible, lock_out, show, sign_in, until_place,
    },
};

async fn add_sample_store(app: &TestApp) {
    let request = app.request(Method::POST, "/admin/sample-store");
    request.is(201).await;
}

/// Waits until the cards have these names.
async fn until_names(browser: &Browser, names: &[&str]) {
    let names = json!(names);
    let shown = "JSON.stringify([...document.querySelectorAll('.pet h2')].map(it => it.innerText))";
    browser
        .until(&format!("{shown} === JSON.stringify({names})"))
        .await;
}

async fn until_cards(browser: &Browser, count: usize) {
    let shown = format!("document.querySelectorAll('.pet').length === {count}");
    browser.until(&shown).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn console_shows_the_pets_that_match() {
    let (app, browser, _) = console(&[]).await;
    add_sample_store(&app).await;
    enter(&app, &browser, "pets", "Pets").await;
    until_cards(&browser, 30).await;
    browser.until_text("#inventory", "24 available").await;
    // Without colours, states have different shapes.
    browser.force_colours().await;
    let shapes = "return new Set([...document.querySelectorAll('#inventory .state')].map((it) => {
             const { borderRadius, transform } = getComputedStyle(it, '::before');
             return borderRadius + transform;
         })).size";
    assert_eq!(browser.run(shapes).await, 3);
    browser.screenshot("console-forced-colours.png").await;
    browser.set_viewport(1280, 800, "light").await;
    browser
        .until("[...document.querySelectorAll('.pet img')].slice(0, 4).every(it => it.complete && it.naturalWidth === 384)")
        .await;
    is_accessible(&browser, "pets").await;

    // Filters are in the URL, and stay behind a reload.
    browser.enter("#name", "B").await;
    until_names(&browser, &["Bella", "Biscuit", "Bramble"]).await;
    browser.enter("#tag", "likes children").await;
    until_names(&browser, &["Bella", "Biscuit"]).await;
    let hash = browser.run("return location.hash").await;
    assert_eq!(hash, "#/pets?name=B&tag=likes+children");
    browser.reload().await;
    until_names(&browser, &["Bella", "Biscuit"]).await;
    show(&browser, "pets?status=pending&status=sold", "Pets").await;
    until_cards(&browser, 6).await;
    browser.click("[value=sold]").await;
    until_cards(&browser, 4).await;
    browser.enter("#name", "nobody").await;
    browser.until_text("#pets", "No pet matches.").await;
    browser.is_clean(app.address, &[]).await;
}

/// Adds 2,000 pets with the tag `friendly`, of which one is sold, and some with other tags.
async fn add_tagged_pets(app: &TestApp) {
    let pets = "insert into pets (id, status, details)
                select id, case id when 7 then 'sold' else 'available' end,
                       json_build_object('name', 'Pet ' || id, 'photoUrls', '[]'::json,
                                         'tags', jsonb_build_array(jsonb_build_object('name', case when id <= 2000 then 'friendly' else 'Frisky' end)))
                from generate_series(1, 2010) as id";
    app.database.run(pets).await;
}

/// All filters are one search of the service.
#[tokio::test(flavor = "multi_thread")]
async fn console_finds_pets_by_all_filters() {
    let (app, browser, _) = console(&[]).await;
    add_tagged_pets(&app).await;
    sign_in(&browser, &app.key).await;
    browser.run("performance.clearResourceTimings()").await;
    show(&browser, "pets?tag=friendly&status=sold", "Pets").await;
    until_names(&browser, &["Pet 7"]).await;
    browser.until_text("#inventory", "Whole store:").await;
    browser.until_text("#inventory", "2,009 available").await;
    let requests = "return performance.getEntriesByType('resource').filter(({ name }) =>
         new URL(name).pathname === '/api/v3/pet').length";
    let requests = browser.run(requests).await.as_u64();
    assert!(requests.is_some_and(|it| it <= 3), "{requests:?}");
    is_accessible(&browser, "filtered").await;

    // The page of a pet leads back to them.
    browser.click(".pet a").await;
    browser.until_text("h1", "Pet 7").await;
    browser.click("main p a").await;
    until_place(&browser, "pets?tag=friendly&status=sold").await;
    until_names(&browser, &["Pet 7"]).await;

    // The newest come first, unless one chooses otherwise; a search by name has its own order.
    let first = async |name: &str| {
        let shown = "document.querySelector('.pet h2')?.innerText";
        browser.until(&format!("{shown} === '{name}'")).await;
    };
    show(&browser, "pets", "Pets").await;
    first("Pet 2010").await;
    browser
        .until("document.querySelector('#inventory')?.innerText.startsWith('2,009 available')")
        .await;
    browser.enter("#sort", "B").await;
    first("Pet 1").await;
    let place = "return [location.hash, document.querySelector('#sort').value, document.querySelector('#sort').disabled]";
    let expected = json!(["#/pets?sort=id", "id", false]);
    assert_eq!(browser.run(place).await, expected);
    browser.reload().await;
    first("Pet 1").await;
    browser.enter("#name", "Pet 20").await;
    first("Pet 20").await;
    let expected = json!(["#/pets?name=Pet+20", "name", true]);
    assert_eq!(browser.run(place).await, expected);
    is_accessible(&browser, "by-name").await;
    // A pet that is added is not put before others, unless the order is that of the newest.
    show(&browser, "pets?sort=id", "Pets").await;
    first("Pet 1").await;
    let pet = json!({"id": 3_000, "name": "Pet 3000"});
    app.post("/pet", &pet).is(201).await;
    browser.until_text("#inventory", "2,010 available").await;
    first("Pet 1").await;
    browser.is_clean(app.address, &[]).await;
}

/// Tags in use are suggested in the filter and in the form of a pet, and others are offered for one that no pet has.
/// A number finds the pet that has it, too; tags, and the states of the inventory, lead to the pets that have them.
#[tokio::test(flavor = "multi_thread")]
async fn console_finds_pets_by_number_and_by_links() {
    let (app, browser, _) = console(&[]).await;
    add_pets(&app, 100_000).await;
    app.database
        .run("update pets set folded_name = 'pet ' || id")
        .await;
    let body = json!({"name": "77 Sunset", "tags": [{"name": "tall & small"}, {"name": "old"}]});
    let named = app.post("/pet", &body).is(201).await.id();
    app.patch(&format!("/pet/{named}"), &json!({"status": "sold"}))
        .is(200)
        .await;
    enter(&app, &browser, "pets", "Pets").await;
    browser.enter("#name", "77").await;
    until_names(&browser, &["Pet 77", "77 Sunset"]).await;
    // With the other filters, and only once.
    browser.click("[name=status][value=sold]").await;
    until_names(&browser, &["77 Sunset"]).await;
    app.patch("/pet/77", &json!({"name": "77", "status": "sold"}))
        .is(200)
        .await;
    show(&browser, "account", "Account").await;
    show(&browser, "pets?name=77&status=sold", "Pets").await;
    until_names(&browser, &["77", "77 Sunset"]).await;
    browser.click(".pet:last-child .tag").await;
    until_place(&browser, "pets?tag=tall+%26+small").await;
    until_names(&browser, &["77 Sunset"]).await;
    is_accessible(&browser, "tag-links").await;
    show(&browser, &format!("pets/{named}"), "77 Sunset").await;
    browser.click("#tag-list li:last-child a").await;
    until_place(&browser, "pets?tag=old").await;
    until_names(&browser, &["77 Sunset"]).await;
    browser.click("#inventory a.sold").await;
    until_place(&browser, "pets?status=sold").await;
    until_cards(&browser, 2).await;
    browser.is_clean(app.address, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn console_suggests_tags() {
    let (app, browser, _) = console(&[]).await;
    // So many tags begin alike that the last one is not suggested with the first ones.
    let rare = "insert into pets (id, status, details)
                select id, 'available',
                       json_build_object('name', 'Pet ' || id, 'photoUrls', '[]'::json,
                                         'tags', jsonb_build_array(jsonb_build_object('name', case id when 3000 then 'rarest' else 'rare ' || id end)))
                from generate_series(3000, 3030) as id";
    app.database.run(rare).await;
    add_tagged_pets(&app).await;
    let is_suggested = async || {
        app.get("/pet/tags?prefix=fr").is(200).await.json() == json!(["friendly", "Frisky"])
    };
    eventually(is_suggested).await;
    enter(&app, &browser, "pets", "Pets").await;
    let suggestions = |id: &str| {
        format!(
            "[...document.querySelector('#{id}').list.options].map(({{ value }}) => value).join()"
        )
    };
    browser.enter("#tag", "fr").await;
    let suggested = format!("{} === 'friendly,Frisky'", suggestions("tag"));
    browser.until(&suggested).await;
    browser
        .until_text("#pets", "No pet has the tag “fr”.")
        .await;
    browser
        .until_text("#other-tags", "Tags that begin with “fr”: friendly Frisky")
        .await;
    is_accessible(&browser, "other-tags").await;
    // What the browser does when a suggestion is chosen.
    let choose = "const input = document.querySelector('#tag');
         input.value = input.list.options[1].value;
         input.dispatchEvent(new InputEvent('input', { bubbles: true, inputType: 'insertReplacementText' }))";
    browser.run(choose).await;
    until_cards(&browser, 10).await;

    show(&browser, "pets?tag=frost&status=sold", "Pets").await;
    browser.until_text("#pets", "No pet matches.").await;
    browser.click("#other-tags a").await;
    until_names(&browser, &["Pet 7"]).await;
    let place = "return [location.hash, document.querySelector('#tag').value]";
    let expected = json!(["#/pets?tag=friendly&status=sold", "friendly"]);
    assert_eq!(browser.run(place).await, expected);
    show(&browser, "pets?tag=Frisky&status=sold", "Pets").await;
    browser.until_text("#pets", "No pet matches.").await;
    let offers = "return document.querySelector('#other-tags')";
    assert_eq!(browser.run(offers).await, Value::Null);
    show(&browser, "pets?tag=rarest&status=sold", "Pets").await;
    browser
        .until("performance.getEntriesByType('resource').some(({ name }) => name.endsWith('/tags?prefix=rarest'))")
        .await;
    // An offer would be shown by now.
    browser
        .run("return new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(() => resolve(true))))")
        .await;
    browser.until_text("#pets", "No pet matches.").await;
    assert_eq!(browser.run(offers).await, Value::Null);
    // A tag without the blanks around it is offered first.
    show(&browser, "pets?tag=rarest%20", "Pets").await;
    browser
        .until_text("#other-tags", "Tags that begin with “ra”: rarest rare 3001")
        .await;
    browser.click("#other-tags a").await;
    until_names(&browser, &["Pet 3000"]).await;

    // A new tag is found before it is suggested.
    show(&browser, "pets/7", "Pet 7").await;
    browser.enter("#tags", "fri").await;
    let suggested = format!("{} === 'friendly,Frisky'", suggestions("tags"));
    browser.until(&suggested).await;
    is_accessible(&browser, "suggested-tags").await;
    browser.enter("#tags", &format!("frail{ENTER}")).await;
    browser.click("#pet-form .choices button").await;
    browser.until_text("#announcement", "Saved.").await;
    show(&browser, "pets", "Pets").await;
    browser.enter("#tag", "frail").await;
    until_names(&browser, &["Pet 7"]).await;
    browser.is_clean(app.address, &[]).await;
}

/// Pages without a match are passed, a bounded number at once, and the inventory comes back after a limit.
#[tokio::test(flavor = "multi_thread")]
async fn console_searches_on() {
    let (app, browser, id) = console_with_pet(&[]).await;
    sign_in(&browser, &app.key).await;
    let answers = format!(
        "const sent = fetch, pet = {{ id: {id}, name: 'Rex', status: 'sold', photoUrls: [], tags: [] }};
         window.searched = 0;
         window.limited = 0;
         window.fetch = (...request) => {{
             const {{ pathname, search }} = new URL(request[0]);
             if (pathname.endsWith('/store/inventory') && limited++ === 0) {{
                 return Promise.resolve(Response.json({{}}, {{ status: 429, headers: {{ 'retry-after': '1' }} }}));
             }}
             if (!pathname.endsWith('/pet') || !search.includes('name=')) return sent(...request);
             const headers = {{ link: '</api/v3/pet?name=R&tag=small&cursor=a>; rel=\"next\"' }};
             searched += 1;
             return Promise.resolve(Response.json([7, 8].includes(searched) ? [pet] : [], {{ headers: searched > 7 ? {{}} : headers }}));
         }}"
    );
    browser.run(&answers).await;
    show(&browser, "pets?name=R&tag=small", "Pets").await;
    browser.until_text("#pets", "No match so far.").await;
    assert_eq!(browser.run("return searched").await, 5);
    is_accessible(&browser, "searching").await;
    browser.click("#pets .more").await;
    until_names(&browser, &["Rex"]).await;
    browser.until("searched === 8").await;
    browser.until_text("#inventory", "1 available").await;
    until_cards(&browser, 1).await;
    browser
        .until("document.querySelector('.end').innerText === ''")
        .await;
    assert_eq!(browser.run("return limited").await, 2);
}

/// Names break between words, and are cut where a word is too long.
#[tokio::test(flavor = "multi_thread")]
async fn console_cuts_long_names() {
    let (app, browser, _) = console(&[]).await;
    let letters = "x".repeat(255);
    let words = "Rex of the long name ".repeat(12);
    let tags = json!([{"name": letters}]);
    let category = json!({"name": letters});
    let pet = json!({"name": letters, "tags": tags, "category": category});
    let id = app.post("/pet", &pet).is(201).await.id();
    app.pet(words.trim()).await;
    app.pet("Hippopotamus-Rhinoceros").await;
    enter(&app, &browser, "pets", "Pets").await;
    until_cards(&browser, 3).await;
    is_accessible(&browser, "long-names").await;
    let whole = "return document.querySelector('.pet:last-child a').title";
    assert_eq!(browser.run(whole).await, letters);
    show(&browser, &format!("pets/{id}"), &letters).await;
    browser.until_text("#history", "Time").await;
    is_accessible(&browser, "long-name").await;
    browser.set_viewport(320, 800, "light").await;
    browser.click("#delete").await;
    browser.until_text("dialog h2", "Delete \u{2068}xxx").await;
    is_accessible(&browser, "long-question").await;
    let shown = "return [document.querySelector('h1').title, document.title]";
    let expected = json!([letters, format!("{letters} – Pet inventory")]);
    assert_eq!(browser.run(shown).await, expected);
}

async fn add_pets(app: &TestApp, count: u32) {
    let pets = format!(
        "insert into pets (id, status, details)
         select id, 'available', json_build_object('name', 'Pet ' || id, 'photoUrls', '[]'::json, 'tags', '[]'::json)
         from generate_series(1, {count}) as id"
    );
    app.database.run(&pets).await;
}

/// Back returns to the same part of the list, also behind its first pages, and to the link that was followed.
#[tokio::test(flavor = "multi_thread")]
async fn console_returns_to_the_place_in_a_list() {
    let (app, browser, _) = console(&[]).await;
    add_pets(&app, 400).await;
    let callers = "insert into callers (name, plan, scopes) select 'caller ' || id, 'free', '{}' from generate_series(100, 220) as id";
    app.database.run(callers).await;
    enter(&app, &browser, "pets?status=available", "Pets").await;
    let cases = [
        ("#/pets/250", "h1", "Pet 250", "#/pets?status=available"),
        ("#/callers/110", "h1", "caller", "#/callers"),
    ];
    for (link, title, name, list) in cases {
        browser.run(&format!("location.hash = '{list}'")).await;
        let look = format!(
            "(() => {{
                 const link = document.querySelector('a[href=\"{link}\"]');
                 if (!link) {{
                     scrollBy(0, 1000);
                     document.querySelector('.more:not([hidden])')?.click();
                 }}
                 return link !== null;
             }})()"
        );
        browser.until(&look).await;
        let follow = format!(
            "const link = document.querySelector('a[href=\"{link}\"]');
             link.scrollIntoView({{ block: 'center' }});
             window.left = scrollY;
             link.click();
             return window.left"
        );
        let left = browser.run(&follow).await.as_f64().expect("a number");
        assert!(left > 1_000.0, "{left}");
        browser.until_text(title, name).await;
        assert_eq!(browser.run("return scrollY").await, 0);
        browser.run("history.back()").await;
        browser
            .until(&format!(
                "location.hash === '{list}' && document.activeElement.hash === '{link}'"
            ))
            .await;
        let place = browser.run("return scrollY").await.as_f64();
        let place = place.expect("a number");
        assert!((place - left).abs() < 800.0, "{place}, {left}");
    }
    browser.is_clean(app.address, &[]).await;
}

/// The grid keeps a bounded part of many pets in the document.
#[tokio::test(flavor = "multi_thread")]
async fn console_scrolls_through_many_pets() {
    let (app, browser, _) = console(&[]).await;
    add_pets(&app, 1_000).await;
    enter(&app, &browser, "pets", "Pets").await;
    let scroll = "
        window.most = 0;
        window.timer = setInterval(() => {
            scrollBy(0, 2000);
            const cards = document.querySelectorAll('.pet');
            window.most = Math.max(window.most, cards.length);
            window.last = cards[cards.length - 1]?.querySelector('h2').innerText;
        }, 20)";
    browser.run(scroll).await;
    browser.until("window.last === 'Pet 1'").await;
    let most = browser.run("return window.most").await;
    assert!(
        most.as_u64().is_some_and(|it| (60..=360).contains(&it)),
        "{most}"
    );
    // Emptied pages are filled again.
    browser.run("clearInterval(window.timer)").await;
    browser.run("scrollTo(0, 0)").await;
    browser
        .until("document.querySelector('.pet h2')?.innerText === 'Pet 1000'")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn console_follows_changes() {
    let (app, browser, _) = console(&[]).await;
    for name in ["Rex", "Ada"] {
        app.pet(name).await;
    }
    enter(&app, &browser, "pets", "Pets").await;
    until_names(&browser, &["Ada", "Rex"]).await;
    browser.until_text("#inventory", "2 available").await;
    let change = json!({"name": "Max", "status": "sold"});
    // Again and again, because the stream may begin behind the first change. Only that one changes the status.
    eventually(async || {
        app.patch("/pet/1", &change).is(200).await;
        browser
            .run("return [...document.querySelectorAll('.pet h2')].at(-1).innerText")
            .await
            == "Max"
    })
    .await;
    browser.until_text("#inventory", "1 sold").await;
    // A status that changes unseen is counted at the next change.
    app.database
        .run("update pets set status = 'pending' where id = 2")
        .await;
    let other = json!({"category": {"name": "Cats"}});
    app.patch("/pet/2", &other).is(200).await;
    browser.until_text("#inventory", "1 pending").await;
    // Texts are texts, and pictures of other hosts are not loaded.
    let hostile = json!({
        "name": "<img src=x onerror=\"document.title='x'\">",
        "photoUrls": ["https://example.com/x.png", "/javascript:document.title='x'"],
    });
    let hostile = app.post("/pet", &hostile).is(201).await.id();
    until_names(
        &browser,
        &["<img src=x onerror=\"document.title='x'\">", "Ada", "Max"],
    )
    .await;
    app.delete("/pet/2").is(200).await;
    until_cards(&browser, 2).await;
    show(&browser, &format!("pets/{hostile}"), "<img").await;
    browser
        .click("#gallery + details summary, p + details summary")
        .await;
    browser
        .until_text("#links", "https://example.com/x.png")
        .await;
    let links = browser
        .run("return document.querySelectorAll('#links a').length")
        .await;
    assert_eq!(links, 1);
    browser.until_text("#history", "Time").await;
    let title = browser.run("return document.title").await;
    assert_eq!(
        title,
        "<img src=x onerror=\"document.title='x'\"> – Pet inventory"
    );
    browser.is_clean(app.address, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn console_changes_a_pet() {
    let (app, browser, id) = console_with_pet(&[]).await;
    enter(&app, &browser, "pets", "Pets").await;
    until_names(&browser, &["Rex"]).await;

    // By keyboard alone.
    let is_on_card = "return document.activeElement.matches('.pet a')";
    while browser.run(is_on_card).await != true {
        browser.press(TAB).await;
    }
    browser.press(ENTER).await;
    browser.until_text("h1", "Rex").await;
    while browser.run("return document.activeElement.id").await != "name" {
        browser.press(TAB).await;
    }
    browser.run("document.activeElement.select()").await;
    browser.press(&format!("Max{ENTER}")).await;
    browser.until_text("h1", "Max").await;
    browser
        .enter("#tags", &format!("small{ENTER}friendly"))
        .await;
    browser.enter("#category", "Dogs").await;
    browser.enter("#state", &format!("pending{ENTER}")).await;
    browser.click("#pet-form .choices button").await;
    browser.until_text(".title", "pending").await;
    let path = format!("/pet/{id}");
    let stored = app.get(&path).is(200).await.json();
    let expected = json!({
        "id": id, "name": "Max", "category": {"name": "Dogs"}, "photoUrls": [],
        "tags": [{"name": "small"}, {"name": "friendly"}], "status": "pending",
    });
    assert_eq!(stored, expected);

    // Another person changes it meanwhile: this one chooses.
    for (choice, mine, name) in [(1, "Mine", "Mine"), (2, "Ours", "Theirs")] {
        browser.enter("#name", mine).await;
        app.patch(&path, &json!({"name": "Theirs"})).is(200).await;
        browser.click("#pet-form .choices button").await;
        browser
            .until_text("dialog table", &format!("Name\t{mine}\tTheirs"))
            .await;
        browser
            .click(&format!("dialog button:nth-child({choice})"))
            .await;
        browser.until_text("h1", name).await;
        assert_eq!(app.get(&path).is(200).await.json()["name"], name);
    }

    browser.click("#delete").await;
    browser.click("dialog button").await;
    browser.until_text("#pets", "The store is empty.").await;
    app.get(&path).is(404).await;
    show(&browser, "pets/new", "New pet").await;
    browser.enter("#name", &format!("Neo{ENTER}")).await;
    browser.until_text("h1", "Neo").await;
    browser.is_clean(app.address, &[REFUSED]).await;
}

/// The page of a pet shows what others change, and takes no edits away.
#[tokio::test(flavor = "multi_thread")]
async fn console_follows_a_pet() {
    let (app, browser, id) = console_with_pet(&[]).await;
    let path = format!("/pet/{id}");
    enter(&app, &browser, &format!("pets/{id}"), "Rex").await;
    browser.until_text("#history", "Time").await;
    browser.run("document.querySelector('#name').focus()").await;
    app.patch(&path, &json!({"name": "Max"})).is(200).await;
    browser.until_text("h1", "Max").await;
    let focused = "return [document.activeElement.id, document.activeElement.value]";
    assert_eq!(browser.run(focused).await, json!(["name", "Max"]));
    // The focus stays on a link, and goes to the pictures if the link is gone.
    let link = "return document.activeElement.innerText";
    browser
        .run("document.querySelector('.title a').focus()")
        .await;
    app.patch(&path, &json!({"name": "Ada"})).is(200).await;
    browser.until_text("h1", "Ada").await;
    assert_eq!(browser.run(link).await, "Order");
    app.patch(&path, &json!({"status": "pending"}))
        .is(200)
        .await;
    browser.until_text(".title .state", "pending").await;
    browser
        .until("document.activeElement.querySelector('p')?.innerText === 'No pictures yet.'")
        .await;
    let title = browser.run("return document.title").await;
    assert_eq!(title, "Ada – Pet inventory");

    browser.enter("#name", "Mine").await;
    let theirs = json!({"name": "Theirs", "status": "sold"});
    app.patch(&path, &theirs).is(200).await;
    browser
        .until_text("#elsewhere", "Somebody else has changed this pet.")
        .await;
    assert_eq!(browser.run(focused).await, json!(["name", "Mine"]));
    is_accessible(&browser, "elsewhere").await;
    browser.click("#pet-form .choices button").await;
    browser
        .until_text("dialog table", "Name\tMine\tTheirs")
        .await;
    browser
        .until_text("dialog table", "Status\tnot changed\tsold")
        .await;
    is_accessible(&browser, "versions").await;
    browser.click("dialog button").await;
    browser.until_text("h1", "Mine").await;
    let stored = app.get(&path).is(200).await.json();
    assert_eq!(
        [&stored["name"], &stored["status"]],
        [&json!("Mine"), &json!("sold")]
    );

    // The newest change is the first one, and there are no more.
    let rows =
        "[...document.querySelectorAll('#history tbody tr')].map(it => it.cells[1].innerText)";
    let expected = json!([
        format!("pet {id} changed"),
        format!("pet {id} changed"),
        format!("pet {id} changed"),
        format!("pet {id} changed"),
        format!("pet {id} changed"),
        format!("pet {id} created"),
    ]);
    browser
        .until(&format!(
            "JSON.stringify({rows}) === JSON.stringify({expected})"
        ))
        .await;
    browser
        .until("document.querySelector('#history > div > div:last-child > button').hidden")
        .await;
    // Nothing can be changed after its end, and what was typed can be copied.
    browser.enter("#name", "Typed").await;
    app.delete(&path).is(200).await;
    browser
        .until_text("#elsewhere", "This pet has been deleted.")
        .await;
    let left = "const name = document.querySelector('#name');
         return [name.value, name.readOnly, document.querySelectorAll('#pet-form button, .drop, .gallery .choices').length]";
    assert_eq!(browser.run(left).await, json!(["Typed", true, 0]));
    is_accessible(&browser, "deleted").await;
    browser.is_clean(app.address, &[REFUSED]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn console_tells_what_is_saved_and_loaded() {
    let (app, browser, id) = console_with_pet(&[]).await;
    let path = format!("pets/{id}");
    enter(&app, &browser, &path, "Rex").await;
    let marks = "return [...document.querySelectorAll('#pet-form :required')].map(it =>
         [it.id, getComputedStyle(it.labels[0], '::after').content])";
    let expected = json!([["name", "\" required\""]]);
    assert_eq!(browser.run(marks).await, expected);
    browser.click("#pet-form .choices button").await;
    browser
        .until_text("#announcement", "Nothing has changed.")
        .await;
    let lengths = "return ['name', 'category'].map(it => document.getElementById(it).maxLength)";
    assert_eq!(browser.run(lengths).await, json!([255, 255]));
    browser
        .run("document.querySelector('#name').removeAttribute('maxlength')")
        .await;
    browser
        .enter("#name", &format!("{}{ENTER}", "x".repeat(300)))
        .await;
    browser.until_text(".failure", "Name must be at most").await;

    // Edits are asked for before they are lost.
    let is_asked = "const event = new Event('beforeunload', { cancelable: true });
         return !dispatchEvent(event)";
    assert_eq!(browser.run(is_asked).await, true);
    browser.enter("#name", "Max").await;
    browser.click("#views a").await;
    browser
        .until_text("dialog h2", "Go on without saving?")
        .await;
    is_accessible(&browser, "edits").await;
    browser.click("dialog button:nth-child(2)").await;
    browser.until("!document.querySelector('dialog')").await;
    let place = "return [location.hash, document.querySelector('#name').value]";
    let expected = json!([format!("#/{path}"), "Max"]);
    assert_eq!(browser.run(place).await, expected);
    browser.enter("#name", &format!("Max{ENTER}")).await;
    browser.until_text("h1", "Max").await;
    browser.until_text("#announcement", "Saved.").await;
    assert_eq!(browser.run(is_asked).await, false);
    is_accessible(&browser, "saved").await;
    browser.enter("#name", "Lost").await;
    browser.click("#views a").await;
    browser.click("dialog button").await;
    browser.until_text("h1", "Pets").await;

    // A request that takes long is shown: that of a view, and that of a change.
    let slow = "window.sent ??= fetch;
         const wait = new Promise((resolve) => { window.answer = resolve; });
         window.fetch = (...request) => wait.then(() => sent(...request))";
    let is_shown = "getComputedStyle(document.body, '::after').opacity === '1'";
    browser.run(slow).await;
    browser.run(&format!("location.hash = '#/{path}'")).await;
    browser.until(is_shown).await;
    browser.screenshot("console-loading.png").await;
    let places =
        "return [[document.body, '::after'], [document.querySelector('#announcement'), null]]
         .map(([it, pseudo]) => getComputedStyle(it, pseudo).bottom)";
    assert_eq!(browser.run(places).await, json!(["72px", "16px"]));
    browser.run("answer()").await;
    browser.until_text("h1", "Max").await;
    browser.until("document.body.className === ''").await;
    browser.run(slow).await;
    browser.enter("#name", &format!("Slow{ENTER}")).await;
    browser.until(is_shown).await;
    browser.run("answer()").await;
    browser.until_text("h1", "Slow").await;
    browser.until("document.body.className === ''").await;
    browser.is_clean(app.address, &[REFUSED]).await;
}

/// A person who stays with edits has the same history as before.
#[tokio::test(flavor = "multi_thread")]
async fn console_keeps_the_history_beside_edits() {
    let (app, browser, id) = console_with_pet(&[]).await;
    enter(&app, &browser, "orders", "Orders").await;
    show(&browser, "pets?status=available", "Pets").await;
    show(&browser, &format!("pets/{id}"), "Rex").await;
    browser.enter("#name", "Max").await;
    for (back, place) in [
        ("history.back()", "#/orders"),
        ("history.go(-2)", "#/account"),
    ] {
        browser.run(back).await;
        browser
            .until_text("dialog h2", "Go on without saving?")
            .await;
        // Another step does not ask once more.
        browser.run("history.back()").await;
        browser.until(&format!("location.hash === '{place}'")).await;
        let dialogs = "return document.querySelectorAll('dialog').length";
        assert_eq!(browser.run(dialogs).await, 1);
        browser.click("dialog button:nth-child(2)").await;
        until_place(&browser, &format!("pets/{id}")).await;
    }
    browser.enter("#name", "Rex").await;
    browser.run("history.back()").await;
    browser.until_text("h1", "Pets").await;
    until_place(&browser, "pets?status=available").await;
    browser.run("history.forward()").await;
    browser.until_text("h1", "Rex").await;
}

/// Tags are what they were after each change, but for the one that is added or removed.
#[tokio::test(flavor = "multi_thread")]
async fn console_keeps_other_tags() {
    let (app, browser, _) = console(&[]).await;
    let tags = json!([{"id": 7, "name": "a, b"}, {"id": 8}, {"name": "  spaced  "}, {"id": 9, "name": "a"}]);
    let pet = json!({"name": "Rex", "tags": tags});
    let id = app.post("/pet", &pet).is(201).await.id();
    let path = format!("/pet/{id}");
    let stored = async || app.get(&path).is(200).await.json()["tags"].take();
    enter(&app, &browser, &format!("pets/{id}"), "Rex").await;
    is_accessible(&browser, "tags").await;
    browser.enter("#name", &format!("Max{ENTER}")).await;
    browser.until_text("h1", "Max").await;
    assert_eq!(stored().await, tags);

    // By keyboard alone.
    let focused = "return document.activeElement.ariaLabel ?? document.activeElement.id";
    while browser.run(focused).await != "tags" {
        browser.press(TAB).await;
    }
    browser.press(&format!("new, too{ENTER}")).await;
    for removed in ["a, b", "  spaced  "] {
        while browser.run(focused).await != format!("Remove tag {removed}") {
            browser.press(TAB).await;
        }
        browser.press(ENTER).await;
    }
    assert_eq!(browser.run(focused).await, "Remove tag a");
    browser.press(ENTER).await;
    assert_eq!(browser.run(focused).await, "Remove tag new, too");
    browser.press(ENTER).await;
    assert_eq!(browser.run(focused).await, "tags");
    // What is in the input when the form is saved is a tag.
    browser.enter("#name", "Moritz").await;
    browser.enter("#tags", " last ").await;
    browser.click("#pet-form .choices button").await;
    browser.until_text("h1", "Moritz").await;
    assert_eq!(stored().await, json!([{"id": 8}, {"name": "last"}]));
    browser.click("#tag-list button").await;
    browser.enter("#name", &format!("Rex{ENTER}")).await;
    browser.until_text("h1", "Rex").await;
    assert_eq!(stored().await, json!([{"id": 8}]));
    browser.is_clean(app.address, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn console_uploads_and_arranges_pictures() {
    let max_size = ("PET_INVENTORY__IMAGES__MAX_SIZE", "200KiB");
    let (app, browser, id) = console_with_pet(&[max_size]).await;
    let path = format!("/pet/{id}");
    enter(&app, &browser, &format!("pets/{id}"), "Rex").await;
    let pictures = repository().join("src/sample_store/pictures");
    let count = async |count: usize| {
        let shown = format!("document.querySelectorAll('#gallery li').length === {count}");
        browser.until(&shown).await;
    };
    let mut ids = Vec::new();
    for (number, name) in ["bella.png", "milo.png"].into_iter().enumerate() {
        choose(&browser, &pictures.join(name)).await;
        count(number + 1).await;
        ids.push(last_url(&app, &path).await);
    }
    is_accessible(&browser, "pet").await;
    browser.click("[title='Move later']:enabled").await;
    eventually(async || last_url(&app, &path).await == ids[0]).await;
    browser.click("#gallery .picture").await;
    browser
        .until("document.querySelector('dialog .large').naturalWidth === 480")
        .await;
    browser.click("dialog button").await;
    browser.click("[title=Remove]").await;
    browser.click("dialog button").await;
    count(1).await;
    assert_eq!(last_url(&app, &path).await, ids[0]);
    // The focus goes on from there.
    let focused = "document.activeElement.ariaLabel === 'Remove: picture 1'";
    browser.until(focused).await;

    // Dropped files, of which one is cancelled.
    let drop = "
        const response = await fetch(document.querySelector('#gallery img').src);
        const dataTransfer = new DataTransfer(), image = await response.blob();
        for (const name of ['one.png', 'two.png']) dataTransfer.items.add(new File([image], name));
        const dropped = new DragEvent('drop', { dataTransfer, bubbles: true, cancelable: true });
        document.querySelector('.drop').dispatchEvent(dropped);
        document.querySelectorAll('.uploads button')[1].click()";
    browser
        .run(&format!("return (async () => {{ {drop} }})()"))
        .await;
    count(2).await;
    browser.until_text(".uploads", "two.png: cancelled.").await;
    let hold = "window.fetch = () => new Promise(() => {});
         const dataTransfer = new DataTransfer();
         dataTransfer.items.add(new File([new Uint8Array(100)], 'three.png'));
         const dropped = new DragEvent('drop', { dataTransfer, bubbles: true, cancelable: true });
         XMLHttpRequest.prototype.send = function () {};
         document.querySelector('.drop').dispatchEvent(dropped);
         window.asked = !dispatchEvent(new Event('beforeunload', { cancelable: true }));
         document.querySelector('.uploads button').focus();
         document.querySelector('.uploads button').click()";
    let restored = "window.sent = [window.fetch, XMLHttpRequest.prototype.send];";
    browser.run(&format!("{restored} {hold}")).await;
    browser.until("document.activeElement.id === 'files'").await;
    // Only a running upload is a reason to ask before the page is left.
    let asked = "return [asked, !dispatchEvent(new Event('beforeunload', { cancelable: true }))]";
    assert_eq!(browser.run(asked).await, json!([true, false]));
    browser
        .run("[window.fetch, XMLHttpRequest.prototype.send] = window.sent")
        .await;

    // Refused uploads: no image, and too large.
    let large = tempfile::NamedTempFile::with_suffix(".png").expect("a file");
    fs::write(large.path(), vec![0; 400_000]).expect("written");
    for (file, text) in [
        (repository().join("Cargo.toml"), "The file must be a PNG"),
        (large.path().to_owned(), "The file is larger than 200 kB"),
    ] {
        choose(&browser, &file).await;
        let shown = format!(
            "document.querySelector('.uploads').innerText.includes({})",
            json!(text)
        );
        browser.until(&shown).await;
    }

    browser.is_clean(app.address, &[REFUSED]).await;
}

/// Chooses a file to upload. The driver takes canonical paths only.
pub(super) async fn choose(browser: &Browser, file: &Path) {
    let file = file.canonicalize().expect("a file");
    browser
        .enter("#files", file.to_str().expect("a path"))
        .await;
}

/// After a refusal by a limit, the console waits and then shows what was asked for.
#[tokio::test(flavor = "multi_thread")]
async fn console_repeats_after_a_limit() {
    let (app, browser, key) = console(&[]).await;
    app.pet("Rex").await;
    for _ in 0..60 {
        let request = app.anonymous(Method::GET, "/pet/1").header("api_key", &key);
        request.is(200).await;
    }
    sign_in(&browser, &key).await;
    show(&browser, "pets", "Pets").await;
    browser
        .until_text(".failure", "Limit reached: minute.")
        .await;
    browser.until_text(".failure", "Try again").await;
    is_accessible(&browser, "limit").await;
    let plan = "update callers set plan = 'enterprise' where name = 'shop'";
    app.database.run(plan).await;
    browser
        .run("const now = Date.now; Date.now = () => now() + 61000")
        .await;
    until_names(&browser, &["Rex"]).await;
}

/// A change that is refused by a limit is not repeated by itself, and the button sends what is in the form by then.
#[tokio::test(flavor = "multi_thread")]
async fn console_repeats_no_change_by_itself() {
    let (app, browser, id) = console_with_pet(&[]).await;
    enter(&app, &browser, &format!("pets/{id}"), "Rex").await;
    let limited = "const sent = fetch;
         window.changes = 0;
         window.fetch = (...request) => {
             if (request[1]?.method !== 'PATCH') return sent(...request);
             window.changes += 1;
             if (window.changes > 1) return sent(...request);
             const headers = { 'retry-after': '2' };
             return Promise.resolve(Response.json({ detail: 'limit reached' }, { status: 429, headers }));
         }";
    browser.run(limited).await;
    browser.enter("#name", &format!("Max{ENTER}")).await;
    browser
        .until_text(".failure", "You can try again in ")
        .await;
    is_accessible(&browser, "limited-change").await;
    browser.enter("#name", "Moritz").await;
    browser
        .until_text(".failure", "You can try again now.")
        .await;
    assert_eq!(browser.run("return window.changes").await, 1);
    browser.click(".failure button").await;
    browser.until_text("h1", "Moritz").await;
    let stored = app.get(&format!("/pet/{id}")).is(200).await.json();
    assert_eq!(stored["name"], "Moritz");
}

#[tokio::test(flavor = "multi_thread")]
async fn console_tells_of_an_unavailable_database() {
    let (app, browser, _) = console(&[]).await;
    app.pet("Rex").await;
    enter(&app, &browser, "pets", "Pets").await;
    until_names(&browser, &["Rex"]).await;
    // The inventory comes back with the grid.
    let (server, name) = lock_out(&app).await;
    let allow = format!("alter database {name} allow_connections true");
    browser
        .run("location.hash = '#/pets?status=available'")
        .await;
    browser
        .until_text(".failure", "The database is not available right now.")
        .await;
    run(&server, &allow).await;
    until_names(&browser, &["Rex"]).await;
    browser.until_text("#inventory", "1 available").await;

    lock_out(&app).await;
    browser.run("location.hash = '#/pets/1'").await;
    browser
        .until_text(".failure", "The database is not available right now.")
        .await;
    run(&server, &allow).await;
    // The view is loaded again by itself.
    browser.until_text("h1", "Rex").await;
    browser.until("!document.querySelector('.failure')").await;
    browser.until_text("#status", "Ready").await;
}

async fn last_url(app: &TestApp, path: &str) -> Value {
    let pet = app.get(path).is(200).await.json();
    let urls = pet["photoUrls"].as_array().expect("an array");
    urls.last().cloned().unwrap_or_default()
}

/// A caller with few scopes is shown what it may do, and told of a scope that it has no longer.
#[tokio::test(flavor = "multi_thread")]
async fn console_tells_missing_scopes() {
    let (app, browser, id) = console_with_pet(&[]).await;
    let path = format!("/pet/{id}");
    let writer = scopes(&[Scope::ReadPets, Scope::WritePets]);
    let writer = app.make_key("writer", writer).await.secret;
    enter_key(&browser, &writer).await;
    browser
        .until("[...document.querySelectorAll('#views a:not([hidden])')].map(it => it.innerText).join() === 'Pets,Account'")
        .await;
    show(&browser, &format!("pets/{id}"), "Rex").await;
    let take_away = "update callers set scopes = '{read:pets}' where name = 'writer'";
    app.database.run(take_away).await;
    let is_refused = async || {
        let request = app.anonymous(Method::PATCH, &path).json(&json!({}));
        request.header("api_key", &writer).await.status == 403
    };
    eventually(is_refused).await;
    browser.enter("#name", &format!("Max{ENTER}")).await;
    browser
        .until_text(".failure", "The scope write:pets is required")
        .await;
    // Trying again does not help.
    assert_eq!(browser.run(OFFERS_TO_REPEAT).await, 0);
    browser.run("location.hash = '#/pets'").await;
    browser.click("dialog button").await;
    browser.until_text("h1", "Pets").await;
    until_names(&browser, &["Rex"]).await;
    let buttons = "return document.querySelectorAll('main .button').length";
    assert_eq!(browser.run(buttons).await, 0);
    show(&browser, &format!("pets/{id}"), "Rex").await;
    browser
        .until("document.querySelector('main form') === null")
        .await;
    assert_eq!(browser.run(buttons).await, 0);

    // One that may order, and read no orders.
    let buyer = scopes(&[Scope::ReadPets, Scope::WriteOrders]);
    let buyer = app.make_key("buyer", buyer).await.secret;
    browser.click("#sign-out").await;
    browser.until_text("h1", "Sign in").await;
    enter_key(&browser, &buyer).await;
    browser.until_text("h1", "Rex").await;
    browser.click(".title .button").await;
    browser.until_text("h1", "Orders for pet").await;
    browser
        .until("document.activeElement.id === 'quantity'")
        .await;
    browser.press(ENTER).await;
    browser.until_text("#announcement", "Saved.").await;
    assert_eq!(app.get("/store/orders").is(200).await.ids().len(), 1);

    // One that sees its own orders only.
    let shopper = scopes(&[Scope::ReadPets, Scope::ReadOrders, Scope::WriteOrders]);
    let shopper = app.make_key("shopper", shopper).await.secret;
    let order = json!({"petId": app.pet("Ada").await});
    let request = app.anonymous(Method::POST, "/store/order").json(&order);
    request.header("api_key", &shopper).is(201).await;
    browser.click("#sign-out").await;
    browser.until_text("h1", "Sign in").await;
    enter_key(&browser, &shopper).await;
    show(&browser, "orders", "Orders").await;
    let titles =
        "[...document.querySelectorAll('.rows tbody td')].map((it) => it.dataset.title).join()";
    browser
        .until(&format!(
            "{titles} === 'Order,Pet,Quantity,Placed,Ships,Status,'"
        ))
        .await;
}

/// Each change is a line. The newest one of a pet can be undone, unless it is that of an image, and a deleted pet restored.
#[tokio::test(flavor = "multi_thread")]
async fn console_undoes_the_newest_change_and_restores_a_deleted_pet() {
    let (app, browser, id) = console_with_pet(&[]).await;
    let path = format!("/pet/{id}");
    let tags = |names: &[&str]| {
        json!(
            names
                .iter()
                .map(|name| json!({"name": name}))
                .collect::<Vec<_>>()
        )
    };
    let before = json!({"tags": tags(&["big", "calm"]), "category": {"id": 1, "name": "Dogs"}});
    app.patch(&path, &before).is(200).await;
    let before = app.get(&path).is(200).await.json();
    let change = json!({"name": "Max", "tags": tags(&["calm", "small"]), "category": {"id": null, "name": "Cats"}});
    app.patch(&path, &change).is(200).await;
    enter(&app, &browser, &format!("pets/{id}"), "Max").await;
    browser.until_text("#history", "Time").await;
    let facts = "[...document.querySelectorAll('#history [data-title=Facts] .long')].map((it) => it.innerText)";
    let expected = json!([
        "name Rex → Max, tags + small − big, category Dogs → Cats",
        "tags + big + calm, category – → Dogs",
        "name Rex, status available",
    ]);
    assert_eq!(browser.run(&format!("return {facts}")).await, expected);
    let offered =
        "[...document.querySelectorAll('.undo')].filter((it) => it.checkVisibility()).length";
    browser.until(&format!("{offered} === 1")).await;
    is_accessible(&browser, "history").await;
    browser.click(".undo").await;
    browser
        .until_text("#announcement", "The change is undone.")
        .await;
    browser.until_text("h1", "Rex").await;
    assert_eq!(app.get(&path).is(200).await.json(), before);

    app.upload(id, png(2, 2)).is(200).await;
    browser
        .until(&format!("{facts}[0] === 'pictures 1 added'"))
        .await;
    browser.until(&format!("{offered} === 0")).await;
    app.delete(&path).is(200).await;
    show(&browser, "changes?kind=pet", "Changes").await;
    browser.until_text(".rows", "Time").await;
    browser.click(".restore").await;
    browser
        .until_text(
            "#announcement",
            "\u{2068}Rex\u{2069} is restored. Its picture is lost.",
        )
        .await;
    until_place(&browser, &format!("pets/{id}")).await;
    assert_eq!(app.get(&path).is(200).await.json(), before);

    // What is a list is none of two values.
    let scopes = json!({"scopes": ["read:pets", "write:pets"]});
    let callers = app.get("/admin/callers?name=tester").is(200).await.ids();
    app.post(&format!("/admin/callers/{}/keys", callers[0]), &scopes)
        .is(201)
        .await;
    show(&browser, "changes?kind=key", "Changes").await;
    browser
        .until("document.querySelector('.rows .long')?.innerText.includes('scopes read:pets, write:pets') === true")
        .await;
    browser.is_clean(app.address, &[REFUSED]).await;
}

/// Fifteen pets are changed with five clicks and fifteen requests, and all of that is undone with one.
#[tokio::test(flavor = "multi_thread")]
async fn console_changes_many_pets_at_once() {
    let (app, browser, _) = console(&[]).await;
    add_pets(&app, 20).await;
    enter(&app, &browser, "pets", "Pets").await;
    until_cards(&browser, 20).await;
    let limited = "const sent = fetch;
         window.changes = 0;
         window.fetch = (...request) => {
             if (request[1]?.method !== 'PATCH') return sent(...request);
             window.changes += 1;
             if (window.changes !== 5) return sent(...request);
             const headers = { 'retry-after': '1' };
             return Promise.resolve(Response.json({ detail: 'limit reached' }, { status: 429, headers }));
         }";
    browser.run(limited).await;
    let choose_up_to = async |place: usize| {
        let click = format!(
            "document.querySelectorAll('.choose')[{place}].dispatchEvent(new MouseEvent('click', {{ shiftKey: true, bubbles: true }}))"
        );
        browser.run(&click).await;
    };
    let sold = "select count(*) from pets where status = 'sold'";
    // A blank is the key that chooses a box.
    browser.enter(".choose", " ").await;
    browser.until_text("#many h2", "1 pet is chosen").await;
    choose_up_to(14).await;
    browser.until_text("#many h2", "15 pets are chosen").await;
    for width in [360, 768, 1_280] {
        browser.set_viewport(width, 800, "light").await;
        is_accessible(&browser, &format!("chosen-{width}")).await;
    }
    browser.choose("#many-status", "sold").await;
    browser.click("#many form button").await;
    browser
        .until_text("#announcement", "15 pets are changed.")
        .await;
    assert_eq!(app.database.number(sold).await, 15);
    // One was repeated after the limit.
    assert_eq!(browser.run("return window.changes").await, 16);
    let shown = "[...document.querySelectorAll('.pet .sold')].length";
    browser.until(&format!("{shown} === 15")).await;
    is_accessible(&browser, "changed").await;
    browser.click("#undo-all").await;
    browser
        .until_text("#announcement", "15 pets are as before.")
        .await;
    assert_eq!(app.database.number(sold).await, 0);

    // What fails is told, with its reason; the others are changed.
    app.post("/store/order", &json!({"petId": 20}))
        .is(201)
        .await;
    browser.click(".choose").await;
    choose_up_to(2).await;
    browser.choose("#many-status", "available").await;
    browser.click("#many form button").await;
    browser
        .until_text("#many-outcome", "2 pets are changed.")
        .await;
    browser
        .until_text(
            "#many-outcome",
            "\u{2068}Pet 20\u{2069}: Pet 20 has an open order",
        )
        .await;
    browser.is_clean(app.address, &[REFUSED]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn console_tags_categorizes_and_deletes_many_pets() {
    let (app, browser, _) = console(&[]).await;
    add_pets(&app, 70).await;
    app.patch(
        "/pet/70",
        &json!({"tags": [{"name": "big"}], "category": {"id": 1, "name": "Dogs"}}),
    )
    .is(200)
    .await;
    enter(&app, &browser, "pets", "Pets").await;
    until_cards(&browser, 60).await;
    let tagged = async |name: &str| {
        let tagged = format!("select count(*) from pet_tags where tag = '{name}'");
        app.database.number(&tagged).await
    };
    let act = async |name: &str, announced: &str| {
        browser.choose("#many-act", name).await;
        if name.ends_with("tag") {
            browser.enter("#many-tag", "small").await;
        }
        if name.ends_with("category") {
            browser.enter("#many-category", "Cats").await;
        }
        browser.click("#many form button").await;
        if name == "Delete" {
            browser.click("dialog .bad").await;
        }
        browser.until_text("#announcement", announced).await;
    };
    let choose_all = async || {
        browser.click(".choose").await;
        browser.click("#choose-all").await;
        browser.until_text("#many h2", "70 pets are chosen").await;
    };
    choose_all().await;
    act("Add a tag", "70 pets are changed.").await;
    assert_eq!([tagged("small").await, tagged("big").await], [70, 1]);
    browser.click("#undo-all").await;
    browser
        .until_text("#announcement", "70 pets are as before.")
        .await;
    assert_eq!([tagged("small").await, tagged("big").await], [0, 1]);
    choose_all().await;
    act("Set the category", "70 pets are changed.").await;
    let cats = "select count(*) from pets where details -> 'category' ->> 'name' = 'Cats'";
    assert_eq!(app.database.number(cats).await, 70);
    browser.click("#undo-all").await;
    browser
        .until_text("#announcement", "70 pets are as before.")
        .await;
    let pet = app.get("/pet/70").is(200).await.json();
    assert_eq!(pet["category"], json!({"id": 1, "name": "Dogs"}));
    choose_all().await;
    act("Delete", "70 pets are deleted.").await;
    assert_eq!(app.count().await, 0);
    browser.click("#undo-all").await;
    browser
        .until_text("#announcement", "70 pets are as before.")
        .await;
    assert_eq!(app.get("/pet/70").is(200).await.json(), pet);
    assert_eq!(app.count().await, 70);
    browser.is_clean(app.address, &[]).await;
}
