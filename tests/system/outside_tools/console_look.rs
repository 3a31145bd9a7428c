//! The look of the console in a browser: at all widths, in the dark, and on paper.

use test_support::*;

use crate::{
    browser::Browser,
    console::{console_with_pet, enter, show},
};

async fn is_shown(browser: &Browser, selector: &str) -> bool {
    let shown = format!(
        "return [...document.querySelectorAll({})].some((it) => it.checkVisibility() && it.offsetHeight > 0)",
        json!(selector)
    );
    browser.run(&shown).await == true
}

/// The header leaves the room to what a person works on, also while it tells of an outage.
#[tokio::test(flavor = "multi_thread")]
async fn console_header_is_low_at_every_width() {
    let (app, browser, id) = console_with_pet(&[]).await;
    enter(&app, &browser, &format!("pets/{id}"), "Rex").await;
    let outage = "document.querySelector('#status').textContent = 'Not ready: the database is not available right now'";
    for text in ["", outage] {
        browser.run(text).await;
        for width in [
            320, 360, 480, 481, 640, 768, 1_000, 1_001, 1_100, 1_280, 2_560,
        ] {
            browser.set_viewport(width, 800, "light").await;
            let height = browser
                .run("return document.querySelector('header').offsetHeight")
                .await;
            assert!(height.as_u64() <= Some(96), "{width}: {height}");
            let overflow = "return document.documentElement.scrollWidth > innerWidth";
            assert_eq!(browser.run(overflow).await, false, "{width}");
        }
    }
}

/// On a phone, the form of a pet comes before its pictures, and filters are folded.
#[tokio::test(flavor = "multi_thread")]
async fn console_begins_with_what_matters_on_a_phone() {
    let (app, browser, id) = console_with_pet(&[]).await;
    let image = png(2_000, 1_500);
    app.upload(id, image).is(200).await;
    browser.set_viewport(360, 800, "light").await;
    enter(&app, &browser, &format!("pets/{id}"), "Rex").await;
    let top = "return document.querySelector('#save').getBoundingClientRect().bottom";
    let top = browser.run(top).await;
    assert!(top.as_f64() < Some(800.0), "{top}");
    for (place, title) in [
        ("pets", "Pets"),
        ("orders", "Orders"),
        ("changes", "Changes"),
    ] {
        show(&browser, place, title).await;
        browser
            .until("document.querySelector('.fold')?.ariaExpanded === 'false'")
            .await;
        let last = ".filters:has(.fold) > :last-child";
        assert!(!is_shown(&browser, last).await, "{place}");
        browser.click(".fold").await;
        assert!(is_shown(&browser, last).await, "{place}");
        browser.set_viewport(1_280, 800, "light").await;
        assert!(!is_shown(&browser, ".fold").await, "{place}");
        browser.set_viewport(360, 800, "light").await;
    }
}

/// A person chooses between light and dark; paper has neither menus nor buttons.
#[tokio::test(flavor = "multi_thread")]
async fn console_is_dark_or_light_as_one_likes_and_prints() {
    let (app, browser, _) = console_with_pet(&[]).await;
    enter(&app, &browser, "pets", "Pets").await;
    let ground = "getComputedStyle(document.body).backgroundColor";
    let [light, dark] = ["rgb(251, 250, 248)", "rgb(22, 24, 27)"];
    browser.until(&format!("{ground} === '{light}'")).await;
    browser.click("#look").await;
    browser.until(&format!("{ground} === '{dark}'")).await;
    browser.reload().await;
    browser.until_text("#pets h2", "Rex").await;
    browser.until(&format!("{ground} === '{dark}'")).await;
    browser.until_text("#look", "Light").await;
    browser.click("#look").await;
    browser.until(&format!("{ground} === '{light}'")).await;
    browser.print().await;
    assert!(is_shown(&browser, ".pet h2").await);
    for hidden in ["header", "footer", ".filters", "button", ".choose"] {
        assert!(!is_shown(&browser, hidden).await, "{hidden}");
    }
    browser.screenshot("console-print.png").await;
    browser.is_clean(app.address, &[]).await;
}
