//! Tests of `GET /pet`: pages by identifier and by name, parameters, and names that change. `finds` tests the query plan.

use test_support::*;

use crate::{cli::Commands, finds::next_path};

async fn named(app: &TestApp, id: i64, name: &str, status: &str) {
    let pet = json!({"id": id, "name": name, "status": status});
    app.post("/pet", &pet).is(201).await;
}

async fn some_pets() -> TestApp {
    let app = TestApp::start().await;
    for (id, name, status) in [
        (10, "rexona", "sold"),
        (20, "Rex", "available"),
        (30, "REX II", "pending"),
        (40, "rex", "sold"),
        (50, "Straße", "available"),
        (60, "éclair", "available"),
        (70, "E\u{301}CLAIR", "pending"),
        (80, "50 % off", "sold"),
        (90, "ΣΟΦΟΣ", "available"),
        (91, "İstanbul", "available"),
        (92, "I\u{307}zmir", "available"),
        (93, "ısırgan", "sold"),
    ] {
        named(&app, id, name, status).await;
    }
    app
}

#[tokio::test(flavor = "multi_thread")]
async fn list_is_in_the_order_of_ids_or_of_names() {
    let app = some_pets().await;
    for (query, ids) in [
        ("", &[10, 20, 30, 40, 50, 60, 70, 80, 90, 91, 92, 93][..]),
        ("?status=sold&status=pending", &[10, 30, 40, 70, 80, 93]),
        ("?name=istanbul", &[91]),
        ("?name=İST", &[91]),
        ("?name=i̇stan", &[91]),
        ("?name=Izm", &[92]),
        ("?name=isir", &[]),
        ("?name=ısır", &[93]),
        ("?name=re", &[20, 40, 30, 10]),
        ("?name=REX", &[20, 40, 30, 10]),
        ("?name=rex%20", &[30]),
        ("?name=Re&status=sold", &[40, 10]),
        ("?name=re&status=available,pending", &[20, 30]),
        ("?name=STRASS", &[50]),
        ("?name=straß", &[50]),
        ("?name=É", &[60, 70]),
        ("?name=ΣοΦος", &[90]),
        ("?name=σοφοσ", &[90]),
        ("?name=50%20%25", &[80]),
        ("?name=%25", &[]),
        ("?name=r_x", &[]),
        ("?name=rexonaa", &[]),
    ] {
        let found = app.get(&format!("/pet{query}")).is(200).await;
        assert_eq!(found.ids(), ids, "{query}");
        assert_eq!(found.optional_header("link"), None, "{found}");
    }
    let found = app.get("/pet?name=rex%20").await;
    let pet = app.get("/pet/30").await;
    assert_eq!(found.text(), format!("[{}]", pet.text()));
}

#[tokio::test(flavor = "multi_thread")]
async fn list_with_invalid_parameter_is_400() {
    let app = TestApp::start().await;
    let long = "x".repeat(256);
    // The cursor of a position by id, of one with NUL, and of one with a name that is too long.
    for (query, field) in [
        ("name=", "name"),
        ("name=a&name=b", "name"),
        ("name=a%00", "name"),
        (&format!("name={long}"), "name"),
        ("status=lost", "status"),
        ("status=", "status"),
        ("tag=", "tag"),
        ("tag=a%00", "tag"),
        (&format!("tag={long}"), "tag"),
        ("sort=name", "sort"),
        ("sort=id&sort=id", "sort"),
        ("sort=created", "sort"),
        ("sort=-id&name=a", "sort"),
        ("sort=-created&name=a", "sort"),
        ("sort=-created&cursor=MjA", "cursor"),
        ("name=a&name=b&cursor=NzphYg", "name"),
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("cursor=!", "cursor"),
        ("name=a&cursor=MjA", "cursor"),
        ("name=a&cursor=NzoA", "cursor"),
        ("cursor=Nzph", "cursor"),
    ] {
        let response = app.get(&format!("/pet?{query}")).await;
        assert_eq!(response.invalid_fields(), [field], "{query}: {response}");
    }
}

/// Returns the identifiers of all pages, none of which is empty unless it is the only one or `may_end_early`.
async fn pages(app: &TestApp, query: &str, limit: usize, may_end_early: bool) -> Vec<i64> {
    let mut found = Vec::new();
    let mut next = Some(format!("/pet?limit={limit}{query}"));
    while let Some(path) = next {
        let page = app.get(&path).is(200).await;
        let count = page.ids().len();
        next = next_path(app, &page);
        assert!(count <= limit, "{path}");
        assert!(count == limit || next.is_none() || may_end_early, "{path}");
        assert!(count > 0 || found.is_empty() || may_end_early, "{path}");
        found.extend(page.ids());
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn list_combines_name_status_tags_and_order() {
    const PETS: i64 = 300;
    // Created before the service kept the order of creation.
    const BEFORE: i64 = 50;
    let app = TestApp::start().await;
    // Every pet has a tag, every second one another, and one of them a third; "none" is a tag of no pet.
    app.database
        .run(&format!(
            "insert into pets (id, status, details, folded_name)
             select id, (array['available', 'pending', 'sold'])[1 + id % 3],
                    json_build_object('name', 'Pet' || id % 2, 'photoUrls', '[]'::json,
                                      'tags', '[{{\"name\": \"all\"}}, {{\"name\": \"a,b\"}}]'::jsonb
                    || case id % 2 when 0 then '[{{\"name\": \"even\"}}]' else '[{{}}]' end::jsonb
                    || case id when 77 then '[{{\"name\": \"one\"}}]' else '[]' end::jsonb), 'pet' || id % 2
             from generate_series(1, {PETS}) as id
             order by id * 37 % 301;
             update pets set created_order = 0 where id <= {BEFORE};
             update pet_tags set created_order = 0 where pet_id <= {BEFORE}"
        ))
        .await;
    let is_status = |id: i64, status: &str| {
        status.contains(match id % 3 {
            0 => "available",
            1 => "pending",
            _ => "sold",
        })
    };
    let has_tag = |id: i64, tag: &str| match tag {
        "" | "all" | "a%2Cb" => true,
        "even" | "even,none" => id % 2 == 0,
        "even&tag=one" => id % 2 == 0 || id == 77,
        "one" => id == 77,
        _ => false,
    };
    for tag in [
        "",
        "all",
        "a%2Cb",
        "even",
        "even,none",
        "even&tag=one",
        "one",
        "none",
    ] {
        for status in ["", "available", "pending,sold", "available,pending,sold"] {
            let mut expected: Vec<i64> = (1..=PETS)
                .filter(|id| has_tag(*id, tag) && (status.is_empty() || is_status(*id, status)))
                .collect();
            let parameters = [("tag", tag), ("status", status)].into_iter();
            let query: String = parameters
                .filter(|(_, value)| !value.is_empty())
                .flat_map(|(name, value)| ["&", name, "=", value])
                .collect();
            assert_eq!(pages(&app, &query, 40, false).await, expected, "{query}");
            let named = format!("{query}&name=PET");
            let mut by_name = expected.clone();
            by_name.sort_by_key(|id| (id % 2, *id));
            assert_eq!(pages(&app, &named, 40, false).await, by_name, "{named}");
            let sorted = format!("{query}&sort=id");
            assert_eq!(
                pages(&app, &sorted, 1_000, false).await,
                expected,
                "{sorted}"
            );
            expected.reverse();
            let mut newest = expected.clone();
            newest.sort_by_key(|id| if *id <= BEFORE { 0 } else { -(id * 37 % 301) });
            for (sort, expected) in [("-id", expected), ("-created", newest)] {
                let sorted = format!("{query}&sort={sort}");
                for limit in [7, 1_000] {
                    let found = pages(&app, &sorted, limit, false).await;
                    assert_eq!(found, expected, "{sorted}");
                }
            }
        }
    }
}

/// Neither an identifier that a client chose nor a change makes a pet newer; to be created again does.
#[tokio::test(flavor = "multi_thread")]
async fn newest_pets_are_those_that_were_created_last() {
    let app = TestApp::start().await;
    for id in [500, 7, 90] {
        let pet = json!({"id": id, "name": "Rex", "tags": [{"name": "a"}]});
        app.post("/pet", &pet).is(201).await;
    }
    let newest = async |query: &str| {
        let list = format!("/pet?sort=-created{query}");
        app.get(&list).is(200).await.ids()
    };
    assert_eq!(newest("").await, [90, 7, 500]);
    let changed =
        json!({"id": 500, "name": "Max", "status": "sold", "tags": [{"name": "a"}, {"name": "b"}]});
    app.put("/pet", &changed).is(200).await;
    app.patch("/pet/7", &json!({"status": "sold"}))
        .is(200)
        .await;
    assert_eq!(newest("").await, [90, 7, 500]);
    assert_eq!(newest("&status=sold&tag=a,b").await, [7, 500]);
    assert_eq!(newest("&status=available,pending").await, [90]);
    app.delete("/pet/7").is(200).await;
    app.post(
        "/pet",
        &json!({"id": 7, "name": "Rex", "tags": [{"name": "b"}]}),
    )
    .is(201)
    .await;
    assert_eq!(newest("").await, [7, 90, 500]);
    assert_eq!(newest("&tag=b").await, [7, 500]);
}

#[tokio::test(flavor = "multi_thread")]
async fn list_by_tag_and_status_follows_changes() {
    let app = TestApp::start().await;
    let pet = |status: &str, tags: &[&str]| {
        let tags: Vec<_> = tags.iter().map(|name| json!({ "name": name })).collect();
        json!({"id": 1, "name": "Rex", "status": status, "tags": tags})
    };
    let found = async |query: &str| app.get(&format!("/pet?{query}")).is(200).await.ids();
    app.post("/pet", &pet("available", &["a", "b"]))
        .is(201)
        .await;
    assert_eq!(found("tag=a&status=available").await, [1]);
    app.post("/store/order", &json!({"petId": 1})).is(201).await;
    assert_eq!(found("tag=a&status=available").await, [0; 0]);
    assert_eq!(found("tag=b&status=pending").await, [1]);
    app.put("/pet", &pet("sold", &["b", "c"])).is(200).await;
    assert_eq!(found("tag=a").await, [0; 0]);
    assert_eq!(found("tag=b&status=pending").await, [0; 0]);
    assert_eq!(found("tag=b,c&status=sold&sort=-id").await, [1]);
    app.database
        .run("update pets set status = 'pending'; update pets set details = jsonb_set(details::jsonb, '{name}', '\"Max\"')::json")
        .await;
    assert_eq!(found("tag=c&status=pending").await, [1]);
    app.delete("/pet/1").is(200).await;
    assert_eq!(found("tag=c").await, [0; 0]);
}

/// A page by name and tag ends early in place of reading all pets with the name.
#[tokio::test(flavor = "multi_thread")]
async fn list_by_name_and_tag_ends_a_page_early() {
    let app = TestApp::start().await;
    app.database
        .run(
            "insert into pets (id, status, details, folded_name)
             select id, (array['available', 'sold'])[1 + id % 2],
                    json_build_object('name', 'Pet', 'photoUrls', '[]'::json,
                                      'tags', case id when 8999 then '[{\"name\": \"rare\"}]' else '[{\"name\": \"common\"}]' end::jsonb), 'pet'
             from generate_series(1, 9000) as id",
        )
        .await;
    assert_eq!(pages(&app, "&name=pet&tag=rare", 20, true).await, [8_999]);
    let first = app.get("/pet?name=pet&tag=rare").is(200).await;
    assert_eq!(first.ids(), [0; 0]);
    assert!(next_path(&app, &first).is_some(), "{first}");
    let common = app.get("/pet?name=pet&tag=common").is(200).await;
    assert_eq!(common.ids(), (1..=20).collect::<Vec<i64>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn tags_in_use_are_suggested() {
    let app = TestApp::start().await;
    app.database
        .run(
            "insert into pets (id, status, details)
             select id, 'sold',
                    json_build_object('name', 'Pet', 'photoUrls', '[]'::json, 'tags', jsonb_build_array(
                 jsonb_build_object('name', 'tag ' || to_char(id, 'FM0000')),
                 jsonb_build_object('name', (array['Friendly', 'FRISKY', 'straße', 'a_b', 'frost'])[1 + id % 5])))
             from generate_series(1, 2500) as id",
        )
        .await;
    let suggested = async |prefix: &str| {
        let names = app.get(&format!("/pet/tags?prefix={prefix}")).is(200).await;
        names.json().as_array().expect("an array").clone()
    };
    eventually(async || suggested("tag%202500").await == ["tag 2500"]).await;
    assert_eq!(suggested("fr").await, ["Friendly", "FRISKY", "frost"]);
    assert_eq!(suggested("FRI").await, ["Friendly", "FRISKY"]);
    assert_eq!(suggested("STRASS").await, ["straße"]);
    assert_eq!(suggested("a_").await, ["a_b"]);
    assert_eq!(suggested("%25").await, [""; 0]);
    assert_eq!(suggested("%F4%8F%BF%BF").await, [""; 0]);
    let first = suggested("Tag").await;
    assert_eq!((first.len(), &first[0]), (20, &json!("tag 0001")));
    // Names that no pet has any more are suggested no longer, and go.
    app.database
        .run("update pets set details = jsonb_set(details::jsonb, '{tags}', '[{\"name\": \"frozen\"}]')::json
              where id % 5 = 4 or id < 100")
        .await;
    assert_eq!(suggested("frost").await, [""; 0]);
    assert_eq!(suggested("tag%20000").await, [""; 0]);
    eventually(async || suggested("fro").await == ["frozen"]).await;
    let mut connection = app.database.connect().await;
    eventually(async || {
        let names = sqlx::query_scalar("select count(*) from tag_names where name like 'tag 00%'");
        let names: i64 = names.fetch_one(&mut connection).await.expect("a number");
        names == 0
    })
    .await;
    for query in ["", "?prefix=", "?prefix=a%00", "?prefix=a&prefix=b"] {
        let response = app.get(&format!("/pet/tags{query}")).await;
        assert_eq!(response.invalid_fields(), ["prefix"], "{query}");
    }
    app.anonymous(Method::GET, "/pet/tags?prefix=a")
        .is(401)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_tags_that_no_pet_has_go_and_delay_no_new_one() {
    const STALE: i64 = 100_000;
    let app = TestApp::start().await;
    let insert = format!(
        "insert into tag_names (name, folded_name)
         select 'stale ' || id, 'stale ' || id from generate_series(1, {STALE}) id"
    );
    app.database.run(&insert).await;
    let pet = json!({"name": "Rex", "tags": [{"name": "zebra"}]});
    let started = Instant::now();
    app.post("/pet", &pet).is(201).await;
    let suggested =
        async || app.get("/pet/tags?prefix=zeb").is(200).await.json() == json!(["zebra"]);
    eventually(suggested).await;
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "{:?}",
        started.elapsed()
    );
    let left = "select count(*) from tag_names where name like 'stale %'";
    eventually(async || app.database.number(left).await <= STALE - 2_000).await;
    assert!(
        app.database.number(left).await > 0,
        "a bounded number at a time"
    );
    assert!(suggested().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_by_name_add_up() {
    let app = TestApp::start().await;
    // Names of three lengths, each of many pets, and some large pets.
    app.database
        .run(
            "insert into pets (id, status, details, folded_name)
             select id, (array['available', 'pending', 'sold'])[1 + id % 3],
                    json_build_object('name', name, 'photoUrls', case when id % 50 = 0 then array_fill('/' || repeat('y', 2000), array[50]) else '{}' end,
                                      'tags', '[]'::json), lower(name)
             from generate_series(1, 600) as id
             cross join lateral (values ('Pet' || repeat('x', id % 4))) as named (name)",
        )
        .await;
    for (query, limit, is_match) in [
        ("name=pet", None, (|_| true) as fn(i64) -> bool),
        ("name=petx", Some(7), |id| id % 4 > 0),
        ("name=PETXX&status=sold", Some(100), |id| {
            id % 4 > 1 && id % 3 == 2
        }),
        ("name=petxxx&status=sold,available", Some(1_000), |id| {
            id % 4 == 3 && id % 3 != 1
        }),
        ("status=pending", None, |id| id % 3 == 1),
    ] {
        let mut expected: Vec<i64> = (1..=600).filter(|id| is_match(*id)).collect();
        if query.contains("name") {
            expected.sort_by_key(|id| (id % 4, *id));
        }
        let size = limit.map(|limit| format!("&limit={limit}"));
        let mut found = Vec::new();
        let mut next = Some(format!("/pet?{query}{}", size.unwrap_or_default()));
        while let Some(path) = next {
            let page = app.get(&path).is(200).await;
            let count = page.ids().len();
            next = next_path(&app, &page);
            assert!(count <= limit.unwrap_or(20), "{path}");
            assert!(count == limit.unwrap_or(20) || next.is_none(), "{path}");
            found.extend(page.ids());
        }
        assert_eq!(found, expected, "{query}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn renamed_pets_are_found_by_their_new_names() {
    let app = some_pets().await;
    let found = async |name: &str| app.get(&format!("/pet?name={name}")).is(200).await.ids();
    let rename = async |id: i64, name: &str| {
        let patch = json!({ "name": name });
        let changed = app.request(Method::PATCH, &format!("/pet/{id}"));
        changed.json(&patch).is(200).await;
    };
    rename(20, "Max").await;
    assert_eq!(found("max").await, [20]);
    rename(20, "MAX").await;
    assert_eq!(found("max").await, [20]);
    let replacement = json!({"id": 20, "name": "ÉCLAIR"});
    app.put("/pet", &replacement).is(200).await;
    let replacement = json!({"id": 20, "name": "Éclair"});
    app.put("/pet", &replacement).is(200).await;
    assert_eq!(found("éc").await, [20, 60, 70]);
    assert_eq!(found("max").await, [0; 0]);
    app.delete("/pet/60").is(200).await;
    assert_eq!(found("éc").await, [20, 70]);

    let before = app.get("/pet/70").is(200).await;
    app.database
        .run(
            "update pets set details = jsonb_set(details::jsonb, '{name}', '\"BELLO\"')::json, folded_name = null where id = 20;
             insert into pets (id, status, details)
             select id, 'sold', json_build_object('name', 'Belle ' || id, 'photoUrls', '[]'::json, 'tags', '[]'::json)
             from generate_series(1001, 3000) as id;
             update pets set status = 'sold' where id = 70",
        )
        .await;
    assert_eq!(found("éc").await, [70]);
    eventually(async || found("bello").await == [20]).await;
    eventually(async || found("belle%203000").await == [3_000]).await;
    assert_eq!(found("belle").await[..2], [1_001, 1_002]);
    let after = app.get("/pet/70").is(200).await;
    assert_eq!(before.header("etag"), after.header("etag"));
}

#[tokio::test(flavor = "multi_thread")]
async fn imported_pets_are_found_by_their_names() {
    let commands = Commands::on(TestDatabase::migrated().await);
    let pets = commands.path().join("pets.ndjson");
    fs::write(pets, "{\"name\":\"Straße\"}\n{\"name\":\"Rex\"}\n").expect("a file");
    commands.run(&["import", "pets.ndjson"]).await.is(0);
    let mut connection = commands.database.connect().await;
    let folded = sqlx::query_scalar("select folded_name from pets order by id");
    let folded: Vec<String> = folded.fetch_all(&mut connection).await.expect("names");
    assert_eq!(folded, ["strasse", "rex"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn list_has_the_pets_with_given_ids() {
    let app = some_pets().await;
    let tagged = json!({"tags": [{"name": "a"}]});
    for id in [20, 80] {
        app.patch(&format!("/pet/{id}"), &tagged).is(200).await;
    }
    let hundred: Vec<_> = (1..=100).map(|id| id.to_string()).collect();
    let hundred = hundred.join(",");
    for (query, ids) in [
        ("id=20", &[20][..]),
        ("id=80&id=10,30%2C20&id=10&id=5", &[10, 20, 30, 80]),
        ("id=9007199254740991", &[]),
        ("id=10,20,80&status=sold", &[10, 80]),
        ("id=10,20,80&tag=a,b", &[20, 80]),
        ("id=10,20,80&tag=a&status=sold,pending", &[80]),
        (
            &format!("id={hundred}"),
            &[10, 20, 30, 40, 50, 60, 70, 80, 90, 91, 92, 93],
        ),
    ] {
        let found = app.get(&format!("/pet?{query}")).is(200).await;
        assert_eq!(found.ids(), ids, "{query}");
        assert_eq!(found.optional_header("link"), None, "{found}");
    }
    for (query, field) in [
        ("id=", "id"),
        ("id=1,", "id"),
        ("id=0", "id"),
        ("id=01", "id"),
        ("id=x", "id"),
        (&format!("id={hundred},101"), "id"),
        ("id=1&name=a", "name"),
        ("id=1&sort=id", "sort"),
        ("id=1&limit=5", "limit"),
        ("id=1&cursor=MQ", "cursor"),
        ("id=1&status=gone", "status"),
    ] {
        let response = app.get(&format!("/pet?{query}")).await;
        assert_eq!(response.invalid_fields(), [field], "{query}: {response}");
    }
    // More than one part: a hundred pets of 16 KiB.
    let photo_urls = json!(vec![
        format!("https://example.com/{}", "x".repeat(2_000));
        7
    ]);
    for id in 101..=200 {
        let pet = json!({"id": id, "name": "Rex", "photoUrls": photo_urls});
        app.post("/pet", &pet).is(201).await;
    }
    let ids: Vec<i64> = (101..=200).collect();
    let query: Vec<_> = ids.iter().rev().map(i64::to_string).collect();
    let found = app.get(&format!("/pet?id={}", query.join(",")));
    assert_eq!(found.is(200).await.ids(), ids);
}
