//! New pets in the console: one after the other, with their pictures and suggestions.

use test_support::*;

use crate::{
    browser::Browser,
    console::{
        ENTER, REFUSED, TAB, console, console_with_pet, enter, is_accessible, show, sign_in, spend,
        until_place,
    },
    console_keyboard::press_on,
    console_pets::choose,
};

const CONTROL: &str = "\u{E009}";
const SPACE: &str = " ";

/// Maximum number of key presses for a pet, besides its text.
const MAX_PRESSES: usize = 4;

fn picture(name: &str) -> PathBuf {
    repository().join("src/sample_store/pictures").join(name)
}

/// Waits until the new form tells that a pet is added.
async fn until_added(browser: &Browser, name: &str) {
    browser
        .until_text("#added", &format!("{name} is added (pet "))
        .await;
}

async fn until_count(browser: &Browser, selector: &str, count: usize) {
    let shown = format!("document.querySelectorAll('{selector}').length === {count}");
    browser.until(&shown).await;
}

/// Waits until an item of the uploads has this text.
async fn until_told(browser: &Browser, text: &str) {
    let text = json!(text);
    let told = format!("document.querySelector('.uploads').innerText.includes({text})");
    browser.until(&told).await;
}

/// Number of images of a pet.
async fn images(app: &TestApp, pet: i64) -> usize {
    let images = app.get(&format!("/pet/{pet}/images")).is(200).await.json();
    images.as_array().expect("a list").len()
}

#[tokio::test(flavor = "multi_thread")]
async fn console_adds_twenty_pets_by_keyboard() {
    let (app, browser, _) = console(&[]).await;
    enter(&app, &browser, "pets", "Pets").await;
    press_on(&browser, "New pet", ENTER).await;
    browser.until_text("h1", "New pet").await;
    browser.until("document.activeElement.id === 'name'").await;
    is_accessible(&browser, "new-pet").await;
    for width in [360, 768, 1280] {
        browser.set_viewport(width, 800, "light").await;
        browser
            .screenshot(&format!("console-new-pet-{width}.png"))
            .await;
    }

    let mut most = 0;
    for number in 1..=20 {
        let name = format!("Pet {number}");
        // The first pets of a kind have other keys than those that follow.
        let keys: &[&str] = match number {
            1 => &[&name, TAB, "Dogs", TAB, "calm", CONTROL, ENTER],
            11 => &[&name, TAB, "Cats", ENTER],
            _ => &[&name, ENTER],
        };
        let is_key = |key: &&&str| [TAB, CONTROL, ENTER].contains(*key);
        most = most.max(keys.iter().filter(is_key).count());
        match keys {
            [typed @ .., CONTROL, key] => {
                browser.press(&typed.concat()).await;
                browser.press_with(CONTROL, key).await;
            }
            typed => browser.press(&typed.concat()).await,
        }
        until_added(&browser, &name).await;
        browser.until("document.activeElement.id === 'name'").await;
    }
    assert!(most <= MAX_PRESSES, "{most} key presses");

    let stored = app.get("/pet?limit=100").is(200).await.json();
    let stored = stored.as_array().expect("a list");
    assert_eq!(stored.len(), 20);
    for (place, pet) in stored.iter().enumerate() {
        let category = if place < 10 { "Dogs" } else { "Cats" };
        assert_eq!(pet["name"], format!("Pet {}", place + 1));
        assert_eq!(pet["category"], json!({ "name": category }));
        assert_eq!(pet["tags"], json!([{"name": "calm"}]));
        assert_eq!(pet["status"], "available");
    }
    is_accessible(&browser, "added").await;

    // The kept fields are no edits, and the message leads to the pet.
    press_on(&browser, "Pet 20", ENTER).await;
    browser.until_text("h1", "Pet 20").await;
    browser.is_clean(app.address, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn console_uploads_pictures_that_were_chosen_before_a_pet_was_stored() {
    let (app, browser, _) = console(&[]).await;
    enter(&app, &browser, "pets/new", "New pet").await;
    let folder = tempfile::tempdir().expect("a folder");
    let text = folder.path().join("text.png");
    fs::write(&text, "no picture").expect("a file");

    // A series stays in the form.
    browser.enter("#name", "Rex").await;
    browser.choose("#state", "pending").await;
    choose(&browser, &picture("milo.png")).await;
    choose(&browser, &picture("bella.png")).await;
    choose(&browser, &text).await;
    until_count(&browser, ".chosen li", 3).await;
    browser
        .until("document.querySelector('.chosen img').naturalWidth > 0")
        .await;
    is_accessible(&browser, "chosen-pictures").await;
    browser.set_viewport(360, 800, "light").await;
    browser.screenshot("console-chosen-pictures-360.png").await;
    browser.set_viewport(1280, 800, "light").await;
    press_on(&browser, "Remove: milo.png", SPACE).await;
    until_count(&browser, ".chosen li", 2).await;
    let focused = "document.activeElement.ariaLabel === 'Remove: bella.png'";
    browser.until(focused).await;
    browser.click("#add-another").await;
    until_added(&browser, "Rex").await;
    until_count(&browser, ".chosen li", 0).await;
    until_told(&browser, "text.png: The file must be a PNG").await;
    let link = "return document.querySelector('.uploads a').hash";
    let pets = app.get("/pet").is(200).await;
    let rex = pets.ids()[0];
    assert_eq!(browser.run(link).await, format!("#/pets/{rex}"));
    assert_eq!(images(&app, rex).await, 1);
    is_accessible(&browser, "failed-picture").await;

    // Otherwise, the page of the pet uploads them.
    browser.enter("#name", "Max").await;
    choose(&browser, &picture("milo.png")).await;
    choose(&browser, &text).await;
    browser.click("#pet-form .choices button").await;
    browser.until_text("h1", "Max").await;
    until_count(&browser, "#gallery li", 1).await;
    until_told(&browser, "text.png: The file must be a PNG").await;
    // Both are stored once.
    let pets = app.get("/pet").is(200).await.json();
    let facts = |place: usize| [&pets[place]["name"], &pets[place]["status"]];
    assert_eq!(facts(0), ["Rex", "pending"]);
    assert_eq!(facts(1), ["Max", "pending"]);
    assert_eq!(pets[2], Value::Null);
    browser.is_clean(app.address, &[REFUSED]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn console_suggests_categories_and_tags_of_new_pets() {
    let (app, browser, _) = console(&[]).await;
    for category in ["Dogs", "Cats", "Dogs"] {
        let pet =
            json!({"name": "Rex", "category": {"name": category}, "tags": [{"name": "calm"}]});
        app.post("/pet", &pet).is(201).await;
    }
    let is_suggested =
        async || app.get("/pet/tags?prefix=ca").is(200).await.json() == json!(["calm"]);
    eventually(is_suggested).await;
    enter(&app, &browser, "pets/new", "New pet").await;
    let suggested = async |id: &str, expected: &str| {
        let options = format!(
            "[...document.querySelector('#{id}').list.options].map(({{ value }}) => value).join()"
        );
        browser.until(&format!("{options} === '{expected}'")).await;
    };
    browser.enter("#category", "Birds").await;
    suggested("category", "Cats,Dogs").await;
    browser.enter("#tags", "ca").await;
    suggested("tags", "calm").await;
    suggested("category", "Birds,Cats,Dogs").await;
    // They are read once.
    browser.click("#category").await;
    let read = "return performance.getEntriesByType('resource').filter(({ name }) => name.includes('/pet?')).length";
    assert_eq!(browser.run(read).await, 1);
    browser.is_clean(app.address, &[]).await;
}

/// Script that defines `transfer`, which returns a picture with a name as it is dropped or pasted, and `drop`.
const TRANSFER: &str = "
    const transfer = async (name, width = 2) => {
        const canvas = document.createElement('canvas');
        canvas.width = canvas.height = width;
        const context = canvas.getContext('2d'), pixels = context.createImageData(width, width);
        for (let place = 0; place < pixels.data.length; place += 1) {
            pixels.data[place] = place % 4 === 3 ? 255 : Math.random() * 256;
        }
        context.putImageData(pixels, 0, 0);
        const blob = await new Promise((resolve) => { canvas.toBlob(resolve); });
        const data = new DataTransfer();
        data.items.add(new File([blob], name));
        return data;
    };
    const drop = (target, dataTransfer) =>
        target.dispatchEvent(new DragEvent('drop', { dataTransfer, bubbles: true, cancelable: true }));
    const paste = (target, clipboardData) =>
        target.dispatchEvent(new ClipboardEvent('paste', { clipboardData, bubbles: true, cancelable: true }));";

/// Runs the body of an asynchronous function behind [`TRANSFER`].
async fn run_with_transfer(browser: &Browser, script: &str) -> Value {
    browser
        .run(&format!("{TRANSFER} return (async () => {{ {script} }})()"))
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn console_takes_pictures_anywhere_on_the_page_of_a_pet() {
    let (app, browser, id) = console_with_pet(&[]).await;
    enter(&app, &browser, "pets", "Pets").await;
    // Elsewhere, a dropped file opens no tab.
    let beside = "return drop(document.querySelector('h1'), await transfer('one.png'))";
    assert_eq!(run_with_transfer(&browser, beside).await, false);

    show(&browser, "pets/new", "New pet").await;
    let act = "drop(document.querySelector('header'), await transfer('one.png'));
        paste(document.querySelector('#name'), await transfer('two.png'));
        const text = await transfer('three.png');
        text.setData('text/plain', 'Rex');
        return paste(document.querySelector('#name'), text)";
    assert_eq!(run_with_transfer(&browser, act).await, true);
    until_count(&browser, ".chosen li", 2).await;
    let shown = "return [...document.querySelectorAll('.chosen img')].map(({ alt }) => alt)";
    assert_eq!(browser.run(shown).await, json!(["one.png", "two.png"]));
    browser.enter("#name", &format!("Max{ENTER}")).await;
    browser.until_text("h1", "Max").await;
    until_count(&browser, "#gallery li", 2).await;

    show(&browser, &format!("pets/{id}"), "Rex").await;
    let act = "drop(document.querySelector('h1'), await transfer('one.png'));
        paste(document.body, await transfer('two.png'))";
    run_with_transfer(&browser, act).await;
    until_count(&browser, "#gallery li", 2).await;
    assert_eq!(images(&app, id).await, 2);
    until_place(&browser, &format!("pets/{id}")).await;

    // A question takes none.
    browser.click("#delete").await;
    browser.until_text("dialog h2", "Delete").await;
    let act = "return drop(document.querySelector('dialog'), await transfer('three.png'))";
    assert_eq!(run_with_transfer(&browser, act).await, false);
    until_count(&browser, ".uploads li", 0).await;
    browser.is_clean(app.address, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn console_makes_pictures_smaller_after_asking() {
    let max_size = ("PET_INVENTORY__IMAGES__MAX_SIZE", "200KiB");
    let (app, browser, _) = console(&[max_size]).await;
    enter(&app, &browser, "pets/new", "New pet").await;
    // Noise is compressed badly. The second one has too many pixels, and the third is none that this browser can decode.
    let act = "drop(document.body, await transfer('large.png', 1200));
        const wide = new DataTransfer(), canvas = document.createElement('canvas');
        [canvas.width, canvas.height] = [9000, 2];
        canvas.getContext('2d').fillRect(0, 0, 9000, 2);
        wide.items.add(new File([await new Promise((resolve) => { canvas.toBlob(resolve); })], 'wide.png'));
        drop(document.body, wide);
        const unknown = new DataTransfer();
        unknown.items.add(new File(['ftypheic'], 'phone.heic'));
        drop(document.body, unknown)";
    run_with_transfer(&browser, act).await;
    until_count(&browser, ".chosen li", 3).await;
    browser.enter("#name", &format!("Rex{ENTER}")).await;
    browser.until_text("h1", "Rex").await;
    until_told(&browser, "large.png: The file is larger than 200 kB").await;
    until_told(
        &browser,
        "wide.png: The file must be at most 8192 pixels wide and high",
    )
    .await;
    until_told(&browser, "from the content. Save it as JPEG first.").await;
    until_count(&browser, ".uploads button", 2).await;
    is_accessible(&browser, "large-pictures").await;
    assert_eq!(app.get("/pet/1/images").is(200).await.json(), json!([]));
    press_on(&browser, "Make such pictures smaller", SPACE).await;
    until_count(&browser, "#gallery li", 2).await;
    let images = app.get("/pet/1/images").is(200).await.json();
    for (place, width) in [(0, 1..=1_200), (1, 4_096..=4_096)] {
        let image = &images[place];
        assert_eq!(image["type"], "image/jpeg", "{image}");
        assert!(
            width.contains(&image["width"].as_i64().expect("a number")),
            "{image}"
        );
    }
    // A further one is made smaller at once.
    let act = "drop(document.body, await transfer('large.png', 600))";
    run_with_transfer(&browser, act).await;
    until_count(&browser, "#gallery li", 3).await;
    browser.is_clean(app.address, &[REFUSED]).await;
}

/// The limit is reached between two pets, and between a pet and its picture.
#[tokio::test(flavor = "multi_thread")]
async fn console_loses_nothing_at_a_limit() {
    let (app, browser, key) = console(&[]).await;
    sign_in(&browser, &key).await;
    show(&browser, "pets/new", "New pet").await;
    spend(&app, &key, 59).await;
    browser.enter("#name", "Rex").await;
    choose(&browser, &picture("bella.png")).await;
    browser.click("#add-another").await;
    until_added(&browser, "Rex").await;
    until_told(&browser, "The limit is reached; going on in ").await;
    is_accessible(&browser, "limited-upload").await;

    browser.enter("#name", &format!("Max{ENTER}")).await;
    browser
        .until_text(".failure", "Limit reached: minute.")
        .await;
    browser
        .until_text(".failure", "You can try again in ")
        .await;
    let typed = "return document.querySelector('#name').value";
    assert_eq!(browser.run(typed).await, "Max");
    is_accessible(&browser, "limited-pet").await;

    let plan = "update callers set plan = 'enterprise' where name = 'shop'";
    app.database.run(plan).await;
    let is_set = async || {
        let request = app.anonymous(Method::GET, "/pet/1").header("api_key", &key);
        request.await.status == 200
    };
    eventually(is_set).await;
    browser
        .run("const now = Date.now; Date.now = () => now() + 61000")
        .await;
    press_on(&browser, "Try again", ENTER).await;
    until_added(&browser, "Max").await;
    until_count(&browser, ".uploads li", 0).await;
    let pets = app.get("/pet").is(200).await;
    assert_eq!(pets.ids().len(), 2, "{pets}");
    assert_eq!(images(&app, pets.ids()[0]).await, 1);
    browser.is_clean(app.address, &[REFUSED]).await;
}

/// A response that is lost adds no second pet, also if the person presses the button again.
#[tokio::test(flavor = "multi_thread")]
async fn console_adds_a_pet_once_after_a_lost_response() {
    let (app, browser, _) = console(&[]).await;
    enter(&app, &browser, "pets/new", "New pet").await;
    let lost = "const sent = fetch;
         window.fetch = async (...request) => {
             const response = await sent(...request);
             if (request[1]?.method !== 'POST') return response;
             window.fetch = sent;
             throw new TypeError('lost');
         }";
    browser.run(lost).await;
    browser.enter("#name", &format!("Rex{ENTER}")).await;
    browser
        .until_text(".failure", "The server did not respond.")
        .await;
    browser.click("#add-another").await;
    until_added(&browser, "Rex").await;
    assert_eq!(app.get("/pet").is(200).await.ids().len(), 1);
    // The same pet again is another one.
    browser.enter("#name", &format!("Rex{ENTER}")).await;
    eventually(async || app.get("/pet").is(200).await.ids().len() == 2).await;
    browser.is_clean(app.address, &[]).await;
}
