//! Tests of `findByStatus` and `findByTags`: matches, order, streaming, paging, parameters and query plans.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use test_support::*;

/// Number of pets that fills more than one chunk of a streamed response, the last one only in part.
const MANY: i64 = 700;

async fn add(app: &TestApp, id: i64, status: &str, tags: &[&str]) {
    let tags: Vec<Value> = tags.iter().map(|name| json!({ "name": name })).collect();
    let pet = json!({"id": id, "name": "pet", "status": status, "tags": tags});
    app.post("/pet", &pet).is(201).await;
}

async fn some_pets() -> TestApp {
    let app = TestApp::start().await;
    add(&app, 40, "available", &["red", "big"]).await;
    add(&app, 10, "sold", &["red"]).await;
    add(&app, 30, "pending", &["big", "red", "red"]).await;
    add(&app, 20, "available", &["a,b", "ünï & co"]).await;
    let nameless = json!({"id": 50, "name": "pet", "status": "sold", "tags": [{"id": 1}, {}]});
    app.post("/pet", &nameless).is(201).await;
    app
}

async fn many_pets() -> TestApp {
    let app = TestApp::start().await;
    app.database
        .run(&format!(
            "insert into pets (id, status, details)
             select id * 3, (array['available', 'pending', 'sold'])[1 + id % 3],
                    json_build_object('name', 'pet', 'photoUrls', '[]'::json,
                                      'tags', case id % 2 when 0 then '[{{\"name\":\"even\"}},{{\"name\":\"all\"}},{{\"name\":\"black,white\"}}]'
                                else '[{{\"name\":\"all\"}}]' end::jsonb)
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
        ("status=sold,%70ending&unknown=%2C", vec![10, 30, 50]),
        ("status=sold%2Cpending", vec![10, 30, 50]),
        (
            "status[]=sold%2cpending,available",
            vec![10, 20, 30, 40, 50],
        ),
        ("status[]=sold&status[]=available", vec![10, 20, 40, 50]),
        ("status%5B%5D=pending", vec![30]),
        ("status[0]=sold&status[1]=pending,pending", vec![10, 30, 50]),
    ] {
        let found = app.get(&format!("/pet/findByStatus?{query}")).is(200).await;
        assert_eq!(found.ids(), ids, "{query}");
        assert_eq!(found.header("content-type"), "application/json");
        assert_eq!(found.optional_header("link"), None, "{found}");
    }
    let found = app.get("/pet/findByStatus?status=pending").await;
    let pet = app.get("/pet/30").await;
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
        // An encoded comma is a character of a name.
        ("tags=a%2Cb", vec![20]),
        ("tags=a,b", vec![]),
        ("tags=a%2cb,red", vec![10, 20, 30, 40]),
        ("tags=big&tags[]=a%2Cb", vec![20, 30, 40]),
        ("tags=a%2Cb,%C3%BCn%C3%AF+%26+co&match=all", vec![20]),
        ("tags=red%2Cbig", vec![]),
        ("tags[]=red&tags[]=big&match=all", vec![30, 40]),
        ("tags[0]=red&tags%5B1%5D=big&match=all", vec![30, 40]),
    ] {
        let found = app.get(&format!("/pet/findByTags?{query}")).is(200).await;
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
        assert_eq!(app.get(path).is(200).await.text(), "[]", "{path}");
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
        ("findByStatus?status=sold%2C", "status"),
        ("findByStatus?status=Sold", "status"),
        ("findByStatus?Status=sold", "status"),
        ("findByStatus?status=%00", "status"),
        ("findByStatus?status[]=", "status"),
        ("findByStatus?status[]=lost", "status"),
        ("findByStatus?status[x]=sold", "status"),
        ("findByStatus?status[=sold", "status"),
        ("findByStatus?statuses[]=sold", "status"),
        ("findByStatus?status=%FF", "query"),
        ("findByTags", "tags"),
        ("findByTags?tags=", "tags"),
        ("findByTags?tags=a,,b", "tags"),
        ("findByTags?tags=a,%C3,%BC", "query"),
        ("findByTags?tags=a%00b", "tags"),
        ("findByTags?tags=%C3%28", "query"),
        (&format!("findByTags?tags={names}"), "tags"),
        ("findByTags?tags=a&match=some", "match"),
        ("findByTags?tags=a&match=", "match"),
        ("findByTags?tags=a&match=any&match=all", "match"),
        ("findByTags?tags=a&limit=0", "limit"),
        ("findByTags?tags=a&limit=1001", "limit"),
        ("findByTags?tags=a&limit=-1", "limit"),
        ("findByTags?tags=a&limit=+1", "limit"),
        ("findByTags?tags=a&limit=%2B1", "limit"),
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
        let response = app.get(&format!("/pet/{query}")).await;
        assert_eq!(response.invalid_fields(), [field], "{query}: {response}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn find_lists_all_invalid_parameters() {
    let app = TestApp::start().await;
    let path = "/pet/findByStatus?status=lost&limit=0&cursor=!";
    let mut fields = app.get(path).await.invalid_fields();
    fields.sort_unstable();
    assert_eq!(fields, ["cursor", "limit", "status"]);
    let path = "/pet/findByTags?match=some&limit=0";
    let mut fields = app.get(path).await.invalid_fields();
    fields.sort_unstable();
    assert_eq!(fields, ["limit", "match", "tags"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn find_without_limit_streams_every_match() {
    let app = many_pets().await;
    let all: Vec<i64> = (1..=MANY).map(|id| id * 3).collect();
    let every_status = "/pet/findByStatus?status=available,pending,sold";
    for path in [every_status, "/pet/findByTags?tags=all,even"] {
        let found = app.get(path).is(200).await;
        assert_eq!(found.ids(), all, "{path}");
        assert_eq!(
            found.optional_header("content-length"),
            None,
            "it is streamed"
        );
    }
    let sold = app.get("/pet/findByStatus?status=sold").is(200).await;
    let expected: Vec<i64> = (1..=MANY)
        .filter(|id| id % 3 == 2)
        .map(|id| id * 3)
        .collect();
    assert_eq!(sold.ids(), expected);
    let head = app.request(Method::HEAD, every_status).is(200).await;
    assert!(head.body.is_empty());

    // Fewer matches, so that the response ends elsewhere within a chunk.
    app.database
        .run(&format!("delete from pets where id > {}", 512 * 3))
        .await;
    let found = app.get(every_status).is(200).await;
    assert_eq!(found.ids().len(), 512);
}

#[tokio::test(flavor = "multi_thread")]
async fn find_pages_add_up_to_the_unpaged_response() {
    let app = many_pets().await;
    for (query, limit) in [
        ("findByStatus?status[]=available&status[1]=sold", 100),
        ("findByStatus?status=available,sold", 100),
        ("findByStatus?status=pending", 1_000),
        ("findByTags?tags=even", 7),
        ("findByTags?tags=all,even&match=all", 350),
        ("findByTags?tags=all&unknown=%C3%BC", 299),
        ("findByTags?tags=black%2Cwhite", 70),
        ("findByTags?tags=black%2cwhite,even&match=all", 70),
        ("findByTags?tags=none&tags[]=black%2Cwhite", 70),
    ] {
        let whole = app.get(&format!("/pet/{query}")).is(200).await;
        let mut walked = Vec::new();
        let mut next = Some(app.url(&format!("/pet/{query}&limit={limit}")));
        while let Some(url) = next {
            let path = url
                .strip_prefix(&app.url(""))
                .expect("a URL of the API")
                .to_owned();
            let page = app.get(&path).is(200).await;
            assert!((1..=limit).contains(&page.ids().len()), "{path}: {page}");
            walked.extend(page.json().as_array().expect("an array").clone());
            next = next_page(&app, &page);
            assert!(
                next.is_none() || page.ids().len() == limit,
                "{path}: {page}"
            );
        }
        assert!(!walked.is_empty(), "{query}");
        assert_eq!(Value::from(walked), whole.json(), "{query}");
    }
}

/// Many HTTP libraries encode the commas of lists.
#[tokio::test(flavor = "multi_thread")]
async fn encoded_comma_separates_statuses_and_kinds() {
    let app = some_pets().await;
    let orders = [10, 30].map(|pet| app.post("/store/order", &json!({"petId": pet})));
    statuses_of(orders).await;
    for (path, encoded) in [
        ("/pet?status=sold,pending", "/pet?status=sold%2Cpending"),
        (
            "/store/orders?status=placed,delivered",
            "/store/orders?status=placed%2cdelivered",
        ),
        ("/changes?kind=pet,order", "/changes?kind[]=pet%2Corder"),
    ] {
        let expected = app.get(path).is(200).await;
        assert_eq!(app.get(encoded).is(200).await.body, expected.body, "{path}");
    }
}

/// `Link` has what curl sends as raw UTF-8 percent-encoded: clients read header fields as Latin-1.
#[tokio::test(flavor = "multi_thread")]
async fn links_are_uris_and_lead_through_all_pages() {
    let app = TestApp::start().await;
    let odd = [
        "é clair",
        "100%",
        "a\"<b>",
        "50%2C5",
        "{|}\\^`",
        "日本",
        "a,b&c=d+e#f",
    ];
    for (id, name) in (1..).zip(odd.into_iter().flat_map(|name| [name, name])) {
        add(&app, id, "sold", &[name]).await;
        let pet = json!({"id": id, "name": name, "status": "sold", "tags": [{"name": name}]});
        app.put("/pet", &pet).is(200).await;
        app.make_key(&format!("{name} {id}"), Scopes::default())
            .await;
    }
    // As curl sends it: what is not ASCII, and what URIs do not have, as it is.
    let raw = |name: &str| {
        "% ,&=+#\"<>".chars().fold(name.to_owned(), |name, it| {
            name.replace(it, &format!("%{:02X}", u32::from(it)))
        })
    };
    for (index, name) in odd.into_iter().enumerate() {
        let ids = [2 * index + 1, 2 * index + 2];
        for name in [
            raw(name),
            utf8_percent_encode(name, NON_ALPHANUMERIC).to_string(),
        ] {
            for path in [
                format!("/pet?name={name}"),
                format!("/pet?tag={name}&tag[]=x,y&sort=id"),
                format!("/pet/findByTags?tags={name},x,%2C&match=any&unknown=é"),
                format!("/pet/findByStatus?status=sold&unknown={name}"),
                format!("/admin/callers?name={name}"),
            ] {
                let mut walked = Vec::new();
                let mut next = Some(format!("{path}&limit=1"));
                while let Some(path) = next {
                    let head = format!(
                        "GET /api/v3{path} HTTP/1.1\r\nHost: {}\r\napi_key: {}\r\n\r\n",
                        app.address, app.key,
                    );
                    let page = RawConnection::exchange(app.address, head).await.is(200);
                    let (template, _) = path.split_once('?').expect("a query");
                    document::check(&Method::GET, template, &page);
                    walked.extend(page.ids());
                    next = next_path(&app, &page);
                }
                if path.starts_with("/admin") || path.contains("Status") {
                    assert!(walked.len() >= 2, "{path}: {walked:?}");
                } else {
                    let ids = ids.map(|id| i64::try_from(id).expect("small"));
                    assert_eq!(walked, ids, "{path}");
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn find_pages_are_stable_under_inserts_and_deletes() {
    let app = many_pets().await;
    let page = app
        .get("/pet/findByStatus?status=sold,available,pending&limit=5")
        .is(200)
        .await;
    assert_eq!(page.ids(), [3, 6, 9, 12, 15]);
    let next = next_page(&app, &page).expect("more remains");
    let next = next.strip_prefix(&app.url("")).expect("a URL of the API");
    app.delete("/pet/15").is(200).await;
    app.delete("/pet/3").is(200).await;
    add(&app, 14, "sold", &[]).await;
    add(&app, 17, "sold", &[]).await;
    let page = app.get(next).is(200).await;
    assert_eq!(page.ids(), [17, 18, 21, 24, 27]);
}

#[tokio::test(flavor = "multi_thread")]
async fn find_with_cursor_and_large_limit_returns_the_rest() {
    let app = some_pets().await;
    let page = app.get("/pet/findByTags?tags=red&limit=1").is(200).await;
    assert_eq!(page.ids(), [10]);
    let next = next_path(&app, &page).expect("more remains");
    let next = next.replace("limit=1", "limit=1000");
    let rest = app.get(&next).is(200).await;
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

/// Returns the `next` URL like [`next_page`], relative to the base of the API.
pub fn next_path(app: &TestApp, page: &Response) -> Option<String> {
    let url = next_page(app, page)?;
    let path = url.strip_prefix(&app.url("")).expect("a URL of the API");
    Some(path.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn find_waiting_for_postgresql_does_not_block_other_operations() {
    let app = TestApp::with(&[("PET_INVENTORY__DATABASE__MAX_CONNECTIONS", "2")]).await;
    let blocker = app.database.lock("pets").await;
    let finds: Vec<_> = (0..20)
        .map(|_| tokio::spawn(app.get("/pet/findByStatus?status=sold").into_future()))
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
        waiting >= 1
    })
    .await;
    app.get("/store/order/1").is(404).await;
    assert!(finds.iter().any(|find| !find.is_finished()));
    drop(blocker);
    for find in finds {
        find.await.expect("a response");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn find_by_all_tags_equals_the_intersection_of_the_tags() {
    let app = TestApp::start().await;
    app.database
        .run(
            "insert into pets (id, status, details)
             select id, 'sold',
                    json_build_object('name', 'pet', 'photoUrls', '[]'::json,
                                      'tags', (select coalesce(jsonb_agg(jsonb_build_object('name', 'every' || n)), '[]')
                     from unnest(array[1, 2, 3, 7, 40]) as n where id % n = 0))
             from generate_series(1, 2000) as id",
        )
        .await;
    for numbers in [
        &[1, 2][..],
        &[2, 3, 7],
        &[40, 7],
        &[1, 2, 3, 7, 40],
        &[7, 9],
        &[3, 3],
    ] {
        let names: Vec<_> = numbers.iter().map(|n| format!("every{n}")).collect();
        let matches = |id: &i64| numbers.iter().all(|n| *n != 9 && id % n == 0);
        let expected: Vec<i64> = (1..=2000).filter(matches).collect();
        let path = format!("/pet/findByTags?match=all&tags={}", names.join(","));
        let whole = app.get(&path).is(200).await;
        assert_eq!(whole.ids(), expected, "{path}");
        let mut paged = Vec::new();
        let mut next = Some(format!("{path}&limit=30"));
        while let Some(path) = next {
            let page = app.get(&path).is(200).await;
            assert!(page.ids().len() == 30 || page.optional_header("link").is_none());
            paged.extend(page.ids());
            next = next_path(&app, &page);
        }
        assert_eq!(paged, expected, "{path}");
    }
}

/// Two tags that no pet has together, each of many pets: a page ends early in place of reading all of them.
#[tokio::test(flavor = "multi_thread")]
async fn find_by_all_tags_ends_a_page_early_when_its_budget_is_spent() {
    const PETS: usize = 9_000;
    let app = TestApp::start().await;
    app.database
        .run(&format!(
            "insert into pets (id, status, details)
             select id, 'sold',
                    json_build_object('name', 'pet', 'photoUrls', '[]'::json,
                                      'tags', jsonb_build_array(jsonb_build_object('name', case id % 2 when 0 then 'even' else 'odd' end)))
             from generate_series(1, {PETS}) as id;
             insert into pets (id, status, details)
             values (30000, 'sold', json_build_object('name', 'both', 'photoUrls', '[]'::json,
                                                      'tags', '[{{\"name\": \"even\"}}, {{\"name\": \"odd\"}}]'::json))"
        ))
        .await;
    let path = "/pet/findByTags?match=all&tags=even,odd";
    let mut pages = Vec::new();
    let mut next = Some(format!("{path}&limit=20"));
    while let Some(path) = next {
        let page = app.get(&path).is(200).await;
        pages.push(page.ids());
        next = next_path(&app, &page);
    }
    let (last, earlier) = pages.split_last().expect("a page");
    assert_eq!(last, &[30_000]);
    assert_eq!(earlier.len(), 4);
    assert!(earlier.iter().all(Vec::is_empty), "{earlier:?}");
    let whole = app.get(path).is(200).await;
    assert_eq!(whole.ids(), [30_000]);
}

#[tokio::test(flavor = "multi_thread")]
async fn find_by_tags_follows_changes_by_the_api_and_by_plain_sql() {
    let app = some_pets().await;
    let found = async |tag: &str| {
        let path = format!("/pet/findByTags?tags={tag}");
        app.get(&path).is(200).await.ids()
    };
    let patch = json!({"tags": [{"name": "green"}, {"name": "red"}]});
    let changed = app.request(Method::PATCH, "/pet/40").json(&patch);
    changed.is(200).await;
    app.delete("/pet/30").is(200).await;
    for (tag, ids) in [
        ("red", &[10, 40][..]),
        ("green", &[40]),
        ("big", &[]),
        ("ünï%20%26%20co", &[20]),
    ] {
        assert_eq!(found(tag).await, ids, "{tag}");
    }
    let long = "x".repeat(255);
    app.database
        .run(&format!(
            "update pets set details = jsonb_set(details::jsonb, '{{tags}}',
                 '[{{\"name\": \"green\"}}, {{\"name\": \"{long}\"}}, {{\"name\": \"\"}}]')::json
             where id in (10, 50);
             update pets set id = 11 where id = 10"
        ))
        .await;
    assert_eq!(found("green").await, [11, 40, 50]);
    assert_eq!(found("red").await, [40]);
    app.database.run("truncate pets cascade").await;
    assert_eq!(found("green").await, [] as [i64; 0]);
    let mut connection = app.database.connect().await;
    let left: i64 = sqlx::query_scalar("select count(*) from pet_tags")
        .fetch_one(&mut connection)
        .await
        .expect("a count");
    assert_eq!(left, 0);
}

/// Checks that no statistics change the plan of a find: neither none, nor those of a nearly empty table, nor fresh ones.
#[tokio::test(flavor = "multi_thread")]
async fn find_plans_do_not_depend_on_statistics() {
    let app = TestApp::start().await;
    let insert = |first, last| {
        format!(
            "insert into pets (id, status, details, folded_name)
             select id, case when id % 1000 = 0 then 'pending' when id % 3 = 0 then 'sold' else 'available' end,
                    json_build_object('name', 'pet ' || id, 'photoUrls', '[]'::json,
                                      'tags', jsonb_build_array(jsonb_build_object('id', id, 'name', 'tag' || id % 500),
                                      jsonb_build_object('name', 'common'))), 'pet ' || id
             from generate_series({first}, {last}) as id"
        )
    };
    let database = &app.database;
    database
        .run("alter table pets set (autovacuum_enabled = off); alter table pet_tags set (autovacuum_enabled = off)")
        .await;
    let mut plans = Vec::new();
    for (statistics, statements) in [
        ("none", insert(1, 60)),
        ("stale", format!("analyze; {}", insert(61, 60_000))),
        ("fresh", "analyze".to_owned()),
    ] {
        database.run(&statements).await;
        plans.push((statistics, find_plans(database).await));
    }
    let (_, fresh) = plans.last().expect("plans");
    for (statistics, plans) in &plans {
        for (plan, fresh) in plans.iter().zip(fresh) {
            assert_eq!(plan, fresh, "{statistics} and fresh statistics");
        }
    }
}

/// Finds, with the indexes that they use.
const FINDS: [(&str, &[&str]); 24] = [
    (
        "by_status ('{pending}', '{1}', '{1}', '{0}', '{20}', '{2048}')",
        &["pets_by_status "],
    ),
    (
        "by_status ('{available,sold}', '{1}', '{2}', '{500}', '{20}', '{2048}')",
        &["pets_by_status "],
    ),
    (
        "by_status ('{}', '{1}', '{0}', '{500}', '{20}', '{2048}')",
        &["pets_pkey"],
    ),
    (
        "by_any ('{tag7}', '{1}', '{1}', '{0}', '{20}', '{2048}')",
        &["pet_tags_pkey", "pets_pkey"],
    ),
    (
        "by_any ('{common}', '{1}', '{1}', '{0}', '{20}', '{2048}')",
        &["pet_tags_pkey", "pets_pkey"],
    ),
    (
        "by_any ('{none,tag7,common}', '{1,2}', '{1,3}', '{0,500}', '{20,20}', '{2048,2048}')",
        &["pet_tags_pkey", "pets_pkey"],
    ),
    (
        "by_all ('{common,tag7}', 0, 20, 4000, 2048)",
        &["pet_tags_pkey", "pets_pkey"],
    ),
    (
        "by_name ('{available,pending,sold}', 'pet ', 0, ':pet!', 20, 2048)",
        &["pets_by_name "],
    ),
    (
        "by_name ('{pending}', 'pet 1', 500, ':pet 2', 20, 2048)",
        &["pets_by_name "],
    ),
    (
        "by_name ('{sold,pending}', 'none', 0, ':nonf', 20, 2048)",
        &["pets_by_name "],
    ),
    (
        "by_name_and_tag ('{sold,pending}', 'pet ', 0, ':pet!', 20, 2048, '{common,none}', 60)",
        &["pets_by_name ", "pets_pkey"],
    ),
    (
        "list_by_tag ('{sold,available}', 0, 20, 2048, '{common,none}')",
        &["pet_tags_by_status ", "pets_pkey"],
    ),
    (
        "list_by_tag ('{sold}', 500, 20, 2048, '{tag0,none}')",
        &["pet_tags_by_status ", "pets_pkey"],
    ),
    (
        "list_by_tag ('{pending}', 500, 20, 2048, '{tag7}')",
        &["pet_tags_by_status ", "pets_pkey"],
    ),
    (
        "list_by_tag_descending ('{sold}', 50000, 20, 2048, '{common,tag7}')",
        &["pet_tags_by_status ", "pets_pkey"],
    ),
    (
        "list_descending ('{}', 9223372036854775807, 20, 2048)",
        &["pets_pkey"],
    ),
    (
        "list_descending ('{available,sold}', 500, 20, 2048)",
        &["pets_by_status "],
    ),
    (
        "list_newest ('{available,pending,sold}', 9223372036854775807, 9223372036854775807, 20, 2048)",
        &["pets_by_creation "],
    ),
    (
        "list_newest ('{pending}', 500, 500, 20, 2048)",
        &["pets_by_creation "],
    ),
    (
        "list_newest_by_tag ('{sold,available}', 9223372036854775807, 9223372036854775807, 20, 2048, '{common,none}')",
        &["pet_tags_by_creation ", "pets_pkey"],
    ),
    (
        "list_newest_by_tag ('{pending}', 500, 500, 20, 2048, '{tag0,none}')",
        &["pet_tags_by_creation ", "pets_pkey"],
    ),
    (
        "list_by_id ('{available,sold}', 0, 20, 2048, '{common}', '{1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20}')",
        &["pets_pkey"],
    ),
    (
        "suggest_tags ('c', 'd', 200, 20)",
        &["tag_names_by_folded_name ", "pet_tags_pkey"],
    ),
    (
        "suggest_tags ('tag', 'tah', 20, 20)",
        &["tag_names_by_folded_name ", "pet_tags_pkey"],
    ),
];

/// Returns the plan of each find, without its costs. Fails if it reads more than its page needs.
async fn find_plans(database: &TestDatabase) -> Vec<String> {
    use pet_inventory::db::{
        PLANNER_SETTINGS,
        pets::{
            FIND_BY_ALL_TAGS, FIND_BY_ANY_TAG, FIND_BY_NAME, FIND_BY_NAME_AND_TAG, FIND_BY_STATUS,
            LIST_BY_ID, LIST_BY_TAG, LIST_BY_TAG_DESCENDING, LIST_DESCENDING, LIST_NEWEST,
            LIST_NEWEST_BY_TAG, SUGGEST_TAGS,
        },
    };
    let mut connection = database.connect().await;
    let prepare = format!(
        "{PLANNER_SETTINGS};
         prepare by_status (text[], int[], int[], bigint[], bigint[], int[]) as {FIND_BY_STATUS};
         prepare by_any (text[], int[], int[], bigint[], bigint[], int[]) as {FIND_BY_ANY_TAG};
         prepare by_all (text[], bigint, bigint, int, int) as {FIND_BY_ALL_TAGS};
         prepare by_name (text[], text, bigint, text, bigint, int) as {FIND_BY_NAME};
         prepare by_name_and_tag (text[], text, bigint, text, bigint, int, text[], bigint) as {FIND_BY_NAME_AND_TAG};
         prepare list_by_tag (text[], bigint, bigint, int, text[]) as {LIST_BY_TAG};
         prepare list_by_tag_descending (text[], bigint, bigint, int, text[]) as {LIST_BY_TAG_DESCENDING};
         prepare list_descending (text[], bigint, bigint, int) as {LIST_DESCENDING};
         prepare list_newest (text[], bigint, bigint, bigint, int) as {LIST_NEWEST};
         prepare list_newest_by_tag (text[], bigint, bigint, bigint, int, text[]) as {LIST_NEWEST_BY_TAG};
         prepare list_by_id (text[], bigint, bigint, int, text[], bigint[]) as {LIST_BY_ID};
         prepare suggest_tags (text, text, bigint, bigint) as {SUGGEST_TAGS}"
    );
    let prepared = sqlx::raw_sql(AssertSqlSafe(prepare));
    prepared.execute(&mut connection).await.expect("prepared");
    let mut plans = Vec::new();
    for (execute, indexes) in FINDS {
        // Two pages, and each row of one reads up to four blocks of an index and one of the table.
        const MAX_BLOCKS: u64 = 2 * 20 * 3 * 5;
        let (plan, blocks) = explain(&mut connection, execute).await;
        for index in indexes {
            assert!(plan.contains(index), "{execute}:\n{plan}");
        }
        for other in ["Seq Scan", "Bitmap", "Hash Join", "Merge Join"] {
            assert!(!plan.contains(other), "{execute}:\n{plan}");
        }
        assert!(blocks <= MAX_BLOCKS, "{execute}: {blocks} blocks\n{plan}");
        plans.push(plan);
    }
    plans
}

/// Returns the plan of a statement without its figures, and the number of blocks that the statement read.
pub(crate) async fn explain(connection: &mut PgConnection, execute: &str) -> (String, u64) {
    let explain = |options: &str| AssertSqlSafe(format!("explain ({options}) execute {execute}"));
    let plan = sqlx::query_scalar(explain("costs off"));
    let plan: Result<Vec<String>, _> = plan.fetch_all(&mut *connection).await;
    let counted = sqlx::query_scalar(explain("analyze, buffers, format json"));
    let counted: Value = counted.fetch_one(connection).await.expect("a plan");
    let blocks = |kind: &str| counted[0]["Plan"][kind].as_u64().expect("a number");
    let plan = plan.expect("a plan").join("\n");
    (
        plan,
        blocks("Shared Hit Blocks") + blocks("Shared Read Blocks"),
    )
}
