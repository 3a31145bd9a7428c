//! Tests of the header `Pet-Inventory-Consistency`, where no standby can serve a read. `tests/system/faults` has standbys.

use reqwest::Method;
use serde_json::json;
use test_support::{Home, Output, TestApp, TestDatabase, images::png};

/// Transaction id after the last one that has ended.
const NEXT: &str = "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint";
const HEADER: &str = "pet-inventory-consistency";

/// Starts a service whose "standby" is the primary itself, which it refuses.
async fn without_standby() -> TestApp {
    let database = TestDatabase::migrated().await;
    let url = database.url();
    let settings = [("PET_INVENTORY__DATABASE__READ_URL", &*url)];
    TestApp::on(database, &settings).await
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_to_changes_have_a_position_that_moves_on() {
    let app = without_standby().await;
    let position = |text: &str| {
        let (timeline, next) = text.split_once('.').expect("two numbers");
        let number = |digits| i64::from_str_radix(digits, 16).expect("a number");
        (number(timeline), number(next))
    };
    let added = app.post("/pet", &json!({"name": "Rex"})).is(201).await;
    let id = added.id();
    let mut last = position(added.header(HEADER));
    let pet = json!({"id": id, "name": "Max"});
    for change in [
        app.put("/pet", &pet),
        app.patch(&format!("/pet/{id}"), &json!({"status": "pending"})),
        app.post("/pet", &json!({"name": "Ace"}))
            .header("idempotency-key", "a"),
        app.delete(&format!("/pet/{id}")),
        app.post("/admin/callers", &json!({"name": "acme", "plan": "free"})),
    ] {
        let response = change.await;
        assert!(response.status < 300, "{response}");
        let position = position(response.header(HEADER));
        assert!(position > last, "{response}");
        last = position;
    }
    // Also those that go on in tasks of their own.
    let rex = app.pet("Rex").await;
    let upload = || {
        app.request(Method::POST, &format!("/pet/{rex}/uploadImage"))
            .body(png(2, 2))
    };
    let order = json!({"petId": rex});
    let user = json!({"username": "ada", "password": "correct horse battery"});
    for change in [
        upload(),
        upload().header("idempotency-key", "b"),
        app.post("/store/order", &order),
        app.post("/user", &user),
    ] {
        let before = app.database.number(NEXT).await;
        let response = change.await;
        assert!(response.status < 300, "{response}");
        let position = position(response.header(HEADER));
        assert!(position.1 > before, "{before}: {response}");
    }
    // A replayed response is followed by reads at the primary.
    let replayed = app.post("/pet", &json!({"name": "Ace"}));
    let replayed = replayed.header("idempotency-key", "a").is(201).await;
    assert_eq!(replayed.header("idempotent-replayed"), "true");
    assert!(replayed.headers.contains_key(HEADER), "{replayed}");
    // Refused changes and reads have none.
    let refused = app
        .put("/pet", &json!({"id": id, "name": "Max"}))
        .is(404)
        .await;
    assert!(!refused.headers.contains_key(HEADER), "{refused}");
    let read = app.get("/store/inventory").is(200).await;
    assert!(!read.headers.contains_key(HEADER), "{read}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_go_to_the_primary_if_no_standby_can_serve_them() {
    let app = without_standby().await;
    for number in 0..20 {
        let name = format!("Rex {number}");
        let added = app.post("/pet", &json!({ "name": name })).is(201).await;
        let get = app.get(&format!("/pet/{}", added.id()));
        let read = get.header(HEADER, added.header(HEADER)).is(200).await;
        assert_eq!(read.json()["name"], name);
    }
    let id = app.pet("Rex").await;
    for ignored in [
        "",
        "primary",
        "1",
        "x.y",
        "1.ffffffffffffffffff",
        "-1.-1",
        "ffffffff.1",
    ] {
        let get = app.get(&format!("/pet/{id}")).header(HEADER, ignored);
        get.is(200).await;
        let page = app.get("/pet/findByStatus?status=available&limit=5");
        page.header(HEADER, ignored).is(200).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn there_is_no_position_without_standbys() {
    let app = TestApp::start().await;
    let added = app.post("/pet", &json!({"name": "Rex"})).is(201).await;
    assert!(!added.headers.contains_key(HEADER), "{added}");
    let get = app.with_key(&app.key, Method::GET, &format!("/pet/{}", added.id()));
    get.header(HEADER, "1.1").is(200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn check_reports_a_read_url_without_a_standby() {
    let (home, database) = (Home::new(), TestDatabase::migrated().await);
    let run = async |pooler: &str, argument: &str| {
        let mut command = home.command([argument]);
        command
            .env("DATABASE_URL", database.url())
            .env("PET_INVENTORY__DATABASE__READ_URL", database.url())
            .env("PET_INVENTORY__DATABASE__POOLER", pooler);
        Output::of(command).await
    };
    let checked = run("none", "check").await.is(1).stdout;
    let line = checked
        .lines()
        .find(|line| line.starts_with("FAILED  standbys"));
    let line = line.unwrap_or_else(|| panic!("{checked}"));
    for reason in [
        "the server is no standby",
        "database.read_url must lead to standbys",
    ] {
        assert!(line.contains(reason), "{checked}");
    }
    let refused = run("transaction", "check").await.is(1).stderr;
    assert!(refused.contains("database.read_url"), "{refused}");
    assert!(refused.contains("without a connection pooler"), "{refused}");
}
