//! Tests of `findByStatus` and `findByTags`: matches, order, streaming, paging, parameters and query plans.

use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgConnection};
use test_support::{RequestExt, Response, TestApp, eventually};

/// Number of pets that fills more than one chunk of a streamed response, the last one only in part.
const MANY: i64 = 700;

async fn add(app: &TestApp, id: i64, status: &str, tags: &[&str]) {
    let tags: Vec<Value> = tags.iter().map(|name| json!({ "name": name })).collect();
    let pet = json!({"id": id, "name": "pet", "status": status, "tags": tags});
    app.post("/pet", &pet).response().await.is(201);
}

async fn some_pets() -> TestApp {
    let app = TestApp::start().await;
    add(&app, 40, "available", &["red", "big"]).await;
    add(&app, 10, "sold", &["red"]).await;
    add(&app, 30, "pending", &["big", "red", "red"]).await;
    add(&app, 20, "available", &["a,b", "ünï & co"]).await;
    let nameless = json!({"id": 50, "name": "pet", "status": "sold", "tags": [{"id": 1}, {}]});
    app.post("/pet", &nameless).response().await.is(201);
    app
}

async fn many_pets() -> TestApp {
    let app = TestApp::start().await;
    app.database
        .run(&format!(
            "insert into pets (id, status, name, photo_urls, tags)
             select id * 3, (array['available', 'pending', 'sold'])[1 + id % 3], 'pet', '{{}}',
                    case id % 2 when 0 then '[{{\"name\":\"even\"}},{{\"name\":\"all\"}}]'
                                else '[{{\"name\":\"all\"}}]' end::jsonb
             from generate_series(1, {MANY}) as id"
        ))
        .await;
    app
}

#[tokio::test(flavor = "multi_thread")]
async fn find_by_status_returns_matches_of_any_status_in_id_order() {
    let app = some_pets().await;
    for (query, ids) in [
        ("status=available", vec![20, 40]),
        ("status=pending", vec![30]),
        ("status=sold,available", vec![10, 20, 40, 50]),
        ("status=sold&status=available", vec![10, 20, 40, 50]),
        (
            "status=sold&status=available,pending",
            vec![10, 20, 30, 40, 50],
        ),
        ("status=sold,sold&status=sold", vec![10, 50]),
        ("status=sold%2Cpending&unknown=1", vec![10, 30, 50]),
    ] {
        let found = app
            .get(&format!("/pet/findByStatus?{query}"))
            .response()
            .await
            .is(200);
        assert_eq!(found.ids(), ids, "{query}");
        assert_eq!(found.header("content-type"), "application/json");
        assert_eq!(found.optional_header("link"), None, "{found}");
    }
    let found = app.get("/pet/findByStatus?status=pending").response().await;
    let pet = app.get("/pet/30").response().await;
    assert_eq!(found.text(), format!("[{}]", pet.text()));
}

#[tokio::test(flavor = "multi_thread")]
async fn find_by_tags_returns_each_pet_once_for_any_or_all_tags() {
    let app = some_pets().await;
    for (query, ids) in [
        ("tags=red", vec![10, 30, 40]),
        ("tags=red,big", vec![10, 30, 40]),
        ("tags=big&tags=red", vec![10, 30, 40]),
        ("tags=red,big&match=any", vec![10, 30, 40]),
        ("tags=red,big&match=all", vec![30, 40]),
        ("tags=red&tags=big&tags=red&match=all", vec![30, 40]),
        ("tags=red,none&match=all", vec![]),
        ("tags=none", vec![]),
        ("tags=Red", vec![]),
        ("tags=%C3%BCn%C3%AF+%26+co", vec![20]),
        ("tags=pet", vec![]),
    ] {
        let found = app
            .get(&format!("/pet/findByTags?{query}"))
            .response()
            .await
            .is(200);
        assert_eq!(found.ids(), ids, "{query}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn find_without_matches_is_an_empty_array() {
    let app = TestApp::start().await;
    for path in [
        "/pet/findByStatus?status=sold",
        "/pet/findByTags?tags=x",
        "/pet/findByTags?tags=x&limit=5",
    ] {
        assert_eq!(
            app.get(path).response().await.is(200).text(),
            "[]",
            "{path}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn find_with_invalid_parameter_is_400() {
    let app = TestApp::start().await;
    let names = vec!["a"; 101].join(",");
    for (query, field) in [
        ("findByStatus", "status"),
        ("findByStatus?status", "status"),
        ("findByStatus?status=", "status"),
        ("findByStatus?status=,", "status"),
        ("findByStatus?status=sold,", "status"),
        ("findByStatus?status=sold&status=", "status"),
        ("findByStatus?status=lost", "status"),
        ("findByStatus?status=sold,lost", "status"),
        ("findByStatus?status=Sold", "status"),
        ("findByStatus?Status=sold", "status"),
        ("findByStatus?status=%00", "status"),
        ("findByStatus?status=%FF", "query"),
        ("findByTags", "tags"),
        ("findByTags?tags=", "tags"),
        ("findByTags?tags=a,,b", "tags"),
        ("findByTags?tags=a%00b", "tags"),
        ("findByTags?tags=%C3%28", "query"),
        (&format!("findByTags?tags={names}"), "tags"),
        ("findByTags?tags=a&match=some", "match"),
        ("findByTags?tags=a&match=", "match"),
        ("findByTags?tags=a&match=any&match=all", "match"),
        ("findByTags?tags=a&limit=0", "limit"),
        ("findByTags?tags=a&limit=1001", "limit"),
        ("findByTags?tags=a&limit=-1", "limit"),
        ("findByTags?tags=a&limit=", "limit"),
        ("findByTags?tags=a&limit=ten", "limit"),
        ("findByTags?tags=a&limit=1.5", "limit"),
        ("findByTags?tags=a&limit=5&limit=6", "limit"),
        ("findByTags?tags=a&limit=99999999999999999999999", "limit"),
        ("findByStatus?status=sold&cursor=", "cursor"),
        ("findByStatus?status=sold&cursor=5", "cursor"),
        ("findByStatus?status=sold&cursor=%FF", "query"),
        ("findByStatus?status=sold&limit=5&cursor=!!!", "cursor"),
        ("findByStatus?status=sold&limit=5&cursor=LTE", "cursor"),
    ] {
        let response = app.get(&format!("/pet/{query}")).response().await;
        assert_eq!(response.invalid_fields(), [field], "{query}: {response}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn find_lists_all_invalid_parameters() {
    let app = TestApp::start().await;
    let path = "/pet/findByStatus?status=lost&limit=0&cursor=!";
    let mut fields = app.get(path).response().await.invalid_fields();
    fields.sort_unstable();
    assert_eq!(fields, ["cursor", "limit", "status"]);
    let path = "/pet/findByTags?match=some&limit=0";
    let mut fields = app.get(path).response().await.invalid_fields();
    fields.sort_unstable();
    assert_eq!(fields, ["limit", "match", "tags"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn find_without_limit_streams_every_match() {
    let app = many_pets().await;
    let all: Vec<i64> = (1..=MANY).map(|id| id * 3).collect();
    let every_status = "/pet/findByStatus?status=available,pending,sold";
    for path in [every_status, "/pet/findByTags?tags=all,even"] {
        let found = app.get(path).response().await.is(200);
        assert_eq!(found.ids(), all, "{path}");
        assert_eq!(
            found.optional_header("content-length"),
            None,
            "it is streamed"
        );
    }
    let sold = app
        .get("/pet/findByStatus?status=sold")
        .response()
        .await
        .is(200);
    let expected: Vec<i64> = (1..=MANY)
        .filter(|id| id % 3 == 2)
        .map(|id| id * 3)
        .collect();
    assert_eq!(sold.ids(), expected);
    let head = app
        .request(Method::HEAD, every_status)
        .response()
        .await
        .is(200);
    assert!(head.body.is_empty());

    // Fewer matches, so that the response ends elsewhere within a chunk.
    app.database
        .run(&format!("delete from pets where id > {}", 512 * 3))
        .await;
    let found = app.get(every_status).response().await.is(200);
    assert_eq!(found.ids().len(), 512);
}

#[tokio::test(flavor = "multi_thread")]
async fn find_pages_add_up_to_the_unpaged_response() {
    let app = many_pets().await;
    for (query, limit) in [
        ("findByStatus?status=available,sold", 100),
        ("findByStatus?status=pending", 1_000),
        ("findByTags?tags=even", 7),
        ("findByTags?tags=all%2Ceven&match=all", 350),
        ("findByTags?tags=all&unknown=%C3%BC", 299),
    ] {
        let whole = app.get(&format!("/pet/{query}")).response().await.is(200);
        let mut walked = Vec::new();
        let mut next = Some(app.url(&format!("/pet/{query}&limit={limit}")));
        while let Some(url) = next {
            let path = url
                .strip_prefix(&app.url(""))
                .expect("a URL of the API")
                .to_owned();
            let page = app.get(&path).response().await.is(200);
            assert!((1..=limit).contains(&page.ids().len()), "{path}: {page}");
            walked.extend(page.json().as_array().expect("an array").clone());
            next = next_page(&app, &page);
            assert!(
                next.is_none() || page.ids().len() == limit,
                "{path}: {page}"
            );
        }
        assert_eq!(Value::from(walked), whole.json(), "{query}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn find_pages_are_stable_under_inserts_and_deletes() {
    let app = many_pets().await;
    let page = app
        .get("/pet/findByStatus?status=sold,available,pending&limit=5")
        .response()
        .await
        .is(200);
    assert_eq!(page.ids(), [3, 6, 9, 12, 15]);
    let next = next_page(&app, &page).expect("more remains");
    let next = next.strip_prefix(&app.url("")).expect("a URL of the API");
    app.delete("/pet/15").response().await.is(200);
    app.delete("/pet/3").response().await.is(200);
    add(&app, 14, "sold", &[]).await;
    add(&app, 17, "sold", &[]).await;
    let page = app.get(next).response().await.is(200);
    assert_eq!(page.ids(), [17, 18, 21, 24, 27]);
}

#[tokio::test(flavor = "multi_thread")]
async fn find_with_cursor_and_large_limit_returns_the_rest() {
    let app = some_pets().await;
    let page = app
        .get("/pet/findByTags?tags=red&limit=1")
        .response()
        .await
        .is(200);
    assert_eq!(page.ids(), [10]);
    let next = next_page(&app, &page).expect("more remains");
    let next = next.strip_prefix(&app.url("")).expect("a URL of the API");
    let next = next.replace("limit=1", "limit=1000");
    let rest = app.get(&next).response().await.is(200);
    assert_eq!(rest.ids(), [30, 40]);
    assert_eq!(rest.optional_header("link"), None, "{rest}");
}

/// Returns the `next` URL of the `Link` header (RFC 8288), resolved against the request's, or `None` on the last page.
fn next_page(app: &TestApp, page: &Response) -> Option<String> {
    let link = page.optional_header("link")?;
    let target = link
        .strip_prefix('<')
        .and_then(|link| link.strip_suffix(">; rel=\"next\""))
        .unwrap_or_else(|| panic!("not RFC 8288: {link}"));
    let base: url::Url = app.url("/").parse().expect("a URL");
    Some(base.join(target).expect("a URL reference").into())
}

#[tokio::test(flavor = "multi_thread")]
async fn find_waiting_for_postgresql_does_not_block_other_operations() {
    let app = TestApp::with(&[("PET_INVENTORY__DATABASE__MAX_CONNECTIONS", "2")]).await;
    let mut blocker = app.database.connect().await;
    sqlx::raw_sql("begin; lock table pets")
        .execute(&mut blocker)
        .await
        .expect("locked");
    let finds: Vec<_> = (0..20)
        .map(|_| tokio::spawn(app.get("/pet/findByStatus?status=sold").response()))
        .collect();
    let mut observer = app.database.connect().await;
    eventually(async || {
        let waiting: i64 = sqlx::query_scalar(
            "select count(*) from pg_locks join pg_database on pg_database.oid = database
             where datname = current_database() and not granted",
        )
        .fetch_one(&mut observer)
        .await
        .expect("a count");
        waiting >= 2
    })
    .await;
    app.get("/store/order/1").response().await.is(404);
    assert!(finds.iter().any(|find| !find.is_finished()));
    drop(blocker);
    for find in finds {
        find.await.expect("a response");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn find_plans_use_indexes_on_100_000_pets() {
    use pet_inventory::db::pets::{FIND_BY_ANY_TAG, FIND_BY_EVERY_STATUS, FIND_BY_STATUS};
    let app = TestApp::start().await;
    app.database
        .run(
            "insert into pets (id, status, name, photo_urls, tags)
             select id, case when id % 1000 = 0 then 'pending' when id % 3 = 0 then 'sold' else 'available' end,
                    'pet ' || id, '{}',
                    jsonb_build_array(jsonb_build_object('id', id, 'name', 'tag' || id % 1000),
                                      jsonb_build_object('name', 'common'))
             from generate_series(1, 100000) as id",
        )
        .await;
    app.database
        .run("set default_statistics_target = 1000; analyze pets")
        .await;
    let mut connection = app.database.connect().await;
    for prepare in [
        format!("prepare by_status (text[], bigint, bigint) as {FIND_BY_STATUS}"),
        format!("prepare by_every_status (text[], bigint, bigint) as {FIND_BY_EVERY_STATUS}"),
        format!("prepare by_tags (text[], bigint, bigint) as {FIND_BY_ANY_TAG}"),
    ] {
        sqlx::raw_sql(AssertSqlSafe(prepare))
            .execute(&mut connection)
            .await
            .expect("prepared");
    }
    // The service sets this on its connections, so that each query is planned for its values.
    sqlx::raw_sql("set plan_cache_mode = force_custom_plan")
        .execute(&mut connection)
        .await
        .expect("a setting");
    for (execute, index) in [
        ("by_status ('{pending}', 0, 256)", "pets_by_status"),
        (
            "by_status ('{available,sold}', 50000, 256)",
            "pets_by_status",
        ),
        ("by_every_status (null, 0, 1001)", "pets_pkey"),
        ("by_tags ('{tag7}', 0, 256)", "pets_by_tag_name"),
        (
            "by_tags ('{tag7,tag8,none}', 50000, 1001)",
            "pets_by_tag_name",
        ),
        // Every pet has this tag, so reading in the order of identifiers finds 256 of them sooner.
        ("by_tags ('{common}', 0, 256)", "pets_pkey"),
    ] {
        let plan = explain(&mut connection, execute).await;
        assert!(plan.contains(index), "{execute}:\n{plan}");
        assert!(!plan.contains("Seq Scan"), "{execute}:\n{plan}");
    }
}

async fn explain(connection: &mut PgConnection, execute: &str) -> String {
    let lines: Vec<String> =
        sqlx::query_scalar(AssertSqlSafe(format!("explain analyze execute {execute}")))
            .fetch_all(connection)
            .await
            .expect("a plan");
    lines.join("\n")
}
