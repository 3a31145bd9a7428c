//! Pets: add, get, replace, patch, update with form, and delete.

use test_support::*;

use super::conditional::assert_unchanged;

const MAX_ID: i64 = (1 << 53) - 1;

/// Maximum size of a pet in bytes.
const MAX_SIZE: usize = 16 << 10;

fn rex() -> Value {
    json!({
        "name": "Rex",
        "category": {"id": -5, "name": "Dogs"},
        "photoUrls": ["https://example.com/rex.jpg", "/img/rex.png?size=2#top"],
        "tags": [{"id": 0, "name": "friendly"}, {"name": ""}, {"id": 7}, {}],
        "status": "pending",
    })
}

fn with_id(mut pet: Value, id: impl Into<Value>) -> Value {
    pet["id"] = id.into();
    pet
}

#[tokio::test(flavor = "multi_thread")]
async fn add_pet_stores_and_returns_it_as_sent() {
    let app = TestApp::start().await;
    let added = app.post("/pet", &rex()).is(201).await;
    let id = added.id();
    assert_eq!(added.json(), with_id(rex(), id), "{added}");
    assert_eq!(added.header("content-type"), "application/json");
    assert_eq!(added.header("location"), format!("/api/v3/pet/{id}"));
    let etag = added.etag();

    let fetched = app.get(&format!("/pet/{id}")).is(200).await;
    assert_eq!(fetched.body, added.body, "{fetched}");
    assert_eq!(fetched.header("content-type"), "application/json");
    assert_eq!(fetched.etag(), etag);
}

#[tokio::test(flavor = "multi_thread")]
async fn pet_json_is_compact_starts_with_id_and_omits_absent_fields() {
    let app = TestApp::start().await;
    let added = app
        .post("/pet", &json!({"id": 10, "name": "Ada"}))
        .is(201)
        .await;
    assert_eq!(
        added.text(),
        r#"{"id":10,"name":"Ada","photoUrls":[],"tags":[],"status":"available"}"#
    );
    let whole = app.post("/pet", &with_id(rex(), 11)).is(201).await;
    assert_eq!(
        whole.text(),
        r#"{"id":11,"category":{"id":-5,"name":"Dogs"},"name":"Rex","photoUrls":["https://example.com/rex.jpg","/img/rex.png?size=2#top"],"tags":[{"id":0,"name":"friendly"},{"name":""},{"id":7},{}],"status":"pending"}"#
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn add_pet_without_id_or_with_null_or_zero_gets_a_new_id() {
    let app = TestApp::start().await;
    let mut ids = HashSet::new();
    for body in [
        json!({"name": "a"}),
        json!({"name": "a", "id": null}),
        json!({"name": "a", "id": 0}),
    ] {
        let added = app.post("/pet", &body).is(201).await;
        assert!((1..=MAX_ID).contains(&added.id()), "{added}");
        assert!(ids.insert(added.id()), "given twice: {added}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn add_pet_ignores_null_and_unknown_fields() {
    let app = TestApp::start().await;
    let body = json!({
        "id": 3, "name": "a", "category": null, "photoUrls": null, "tags": null, "status": null,
        "breed": {"unknown": [1, 2]}, "tag_names": ["x"], "version": 9,
    });
    let added = app.post("/pet", &body).is(201).await;
    assert_eq!(
        added.text(),
        r#"{"id":3,"name":"a","photoUrls":[],"tags":[],"status":"available"}"#
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn add_pet_with_taken_id_is_409_and_changes_nothing() {
    let app = TestApp::start().await;
    let first = app.post("/pet", &with_id(rex(), 5)).is(201).await;
    let second = app.post("/pet", &json!({"id": 5, "name": "Other"})).await;
    second.problem(409);
    let fetched = app.get("/pet/5").is(200).await;
    assert_eq!(fetched.body, first.body, "{fetched}");
    assert_eq!(fetched.etag(), first.etag());
    assert_eq!(app.count().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn add_pet_without_id_skips_ids_that_clients_chose() {
    let app = TestApp::start().await;
    let mut taken = HashSet::new();
    let highest = with_id(rex(), MAX_ID);
    taken.insert(app.post("/pet", &highest).is(201).await.id());
    let given = app.pet("given").await;
    taken.insert(given);
    // The next 100 ids of the sequence.
    for id in given + 1..=given + 100 {
        let chosen = app.post("/pet", &with_id(rex(), id)).is(201).await;
        assert_eq!(chosen.id(), id);
        taken.insert(id);
    }
    for _ in 0..5 {
        let id = app.pet("given").await;
        assert!(taken.insert(id), "{id} was given although it is in use");
    }
    assert_eq!(app.count().await, taken.len());
}

/// More than are skipped at once.
#[tokio::test(flavor = "multi_thread")]
async fn add_pet_without_id_skips_hundreds_of_thousands_of_ids() {
    let app = TestApp::start().await;
    let insert = "insert into pets (id, status, details)
         select id, 'sold', json_build_object('name', 'Rex', 'photoUrls', '[]'::json, 'tags', '[]'::json)
         from generate_series(1, 250000) as id";
    app.database.run(insert).await;
    assert_eq!(app.pet("given").await, 250_001);
    assert_eq!(app.pet("given").await, 250_002);
}

#[tokio::test(flavor = "multi_thread")]
async fn add_pet_without_id_concurrently_gets_distinct_ids() {
    let app = TestApp::start().await;
    let first = app.pet("first").await;
    for id in (first + 1..first + 60).step_by(2) {
        app.post("/pet", &with_id(rex(), id)).is(201).await;
    }
    let adding = (0..40).map(|_| app.pet("given"));
    let ids: HashSet<i64> = join_all(adding).await.into_iter().collect();
    assert_eq!(ids.len(), 40, "{ids:?}");
    assert_eq!(app.count().await, 1 + 30 + 40);
}

#[tokio::test(flavor = "multi_thread")]
async fn add_pet_with_one_id_twice_concurrently_is_201_and_409() {
    let app = TestApp::start().await;
    for id in 1..=20 {
        let (one, other) = (
            json!({"id": id, "name": "one"}),
            json!({"id": id, "name": "other"}),
        );
        let (one, other) = tokio::join!(app.post("/pet", &one), app.post("/pet", &other));
        let (winner, loser) = if one.status == 201 {
            (one, other)
        } else {
            (other, one)
        };
        let winner = winner.is(201);
        loser.problem(409);
        let fetched = app.get(&format!("/pet/{id}")).is(200).await;
        assert_eq!(fetched.body, winner.body, "round {id}");
    }
    assert_eq!(app.count().await, 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn update_pet_replaces_all_fields() {
    let app = TestApp::start().await;
    let added = app.post("/pet", &with_id(rex(), 5)).is(201).await;
    let replaced = app
        .put("/pet", &json!({"id": 5, "name": "Max"}))
        .is(200)
        .await;
    assert_eq!(
        replaced.text(),
        r#"{"id":5,"name":"Max","photoUrls":[],"tags":[],"status":"available"}"#
    );
    assert_ne!(replaced.etag(), added.etag());
    assert_unchanged(&app, &replaced).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn update_pet_without_id_is_400_and_with_unknown_id_is_404() {
    let app = TestApp::start().await;
    for id in [
        json!(null),
        json!(0),
        json!("5"),
        json!(-1),
        json!(MAX_ID + 1),
    ] {
        let body = json!({"id": id, "name": "Max"});
        let response = app.put("/pet", &body).await;
        assert_eq!(response.invalid_fields(), ["id"], "{body}");
    }
    let response = app.put("/pet", &json!({"name": "Max"})).await;
    assert_eq!(response.invalid_fields(), ["id"]);
    app.put("/pet", &json!({"id": 77, "name": "Max"}))
        .await
        .problem(404);
    assert_eq!(app.count().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn patch_pet_merges_by_rfc_7396() {
    let app = TestApp::start().await;
    app.post("/pet", &with_id(rex(), 5)).is(201).await;
    let mut expected = with_id(rex(), 5);

    // Present members are changed; absent ones stay.
    let patched = app
        .patch(
            "/pet/5",
            &json!({"status": "sold", "category": {"name": "Cats"}}),
        )
        .is(200)
        .await;
    expected["status"] = json!("sold");
    expected["category"] = json!({"id": -5, "name": "Cats"});
    assert_eq!(patched.json(), expected, "{patched}");

    // null removes a member or restores its default; arrays are replaced; unknown members are ignored.
    let patch = json!({"status": null, "photoUrls": null, "category": {"id": null}, "tags": [{"id": 1}], "x": 1});
    let patched = app.patch("/pet/5", &patch).is(200).await;
    let expected = json!({
        "id": 5, "category": {"name": "Cats"}, "name": "Rex", "photoUrls": [], "tags": [{"id": 1}], "status": "available",
    });
    assert_eq!(patched.json(), expected, "{patched}");

    // Missing members are created; the pet's own id is allowed.
    let patch = json!({"id": 5, "category": null});
    app.patch("/pet/5", &patch).is(200).await;
    let patched = app
        .patch("/pet/5", &json!({"category": {"id": 1}}))
        .is(200)
        .await;
    assert_eq!(patched.json()["category"], json!({"id": 1}), "{patched}");

    assert_unchanged(&app, &patched).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_pets_have_a_visible_character() {
    let app = TestApp::start().await;
    app.add_pet(1).await;
    for blank in [
        " ",
        "\t\n",
        "\u{a0}",
        "\u{3000}",
        "\u{200b}",
        "\u{ad}",
        "\u{3164}",
        "\u{202e}",
        "\u{feff}\u{2060}",
        "\u{7f}\u{1b}",
        "\u{e0041}",
    ] {
        let name = json!({"name": blank});
        for request in [
            app.post("/pet", &name),
            app.put("/pet", &json!({"id": 1, "name": blank})),
            app.patch("/pet/1", &name),
            app.request(Method::POST, "/pet/1")
                .query(&[("name", blank)]),
        ] {
            assert_eq!(request.await.invalid_fields(), ["name"], "{blank:?}");
        }
    }
    for name in [" x ", "🦊", "é\u{200b}", "👩\u{200d}🚀", "\u{2800}"] {
        let added = app.post("/pet", &json!({"name": name})).is(201).await;
        assert_eq!(added.json()["name"], name);
    }
    // One that is stored stays readable.
    app.database
        .run("update pets set details = jsonb_set(details::jsonb, '{name}', '\" \"')::json where id = 1")
        .await;
    assert_eq!(app.get("/pet/1").is(200).await.json()["name"], " ");
}

#[tokio::test(flavor = "multi_thread")]
async fn patch_pet_with_invalid_result_is_400_and_changes_nothing() {
    let app = TestApp::start().await;
    let added = app.post("/pet", &with_id(rex(), 5)).is(201).await;
    for (patch, field) in [
        (json!({"name": null}), "name"),
        (json!({"name": ""}), "name"),
        (json!({"id": 6}), "id"),
        (json!({"id": null}), "id"),
        (json!({"status": "lost"}), "status"),
        (json!({"tags": {"a": 1}}), "tags"),
        (json!([1]), "body"),
        (json!("text"), "body"),
        (json!(null), "body"),
    ] {
        let response = app.patch("/pet/5", &patch).await;
        assert_eq!(response.invalid_fields(), [field], "{patch}");
    }
    app.patch("/pet/6", &json!({"name": "x"}))
        .await
        .problem(404);
    assert_unchanged(&app, &added).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn patch_pet_accepts_json_and_merge_patch_media_types() {
    let app = TestApp::start().await;
    let id = app.pet("a").await;
    for media_type in [
        "application/json",
        "application/merge-patch+json; charset=utf-8",
    ] {
        let patched = app
            .request(Method::PATCH, &format!("/pet/{id}"))
            .header("content-type", media_type)
            .body(json!({"name": media_type}).to_string())
            .is(200)
            .await;
        assert_eq!(patched.json()["name"], media_type);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn update_pet_with_form_reads_query_and_form() {
    let app = TestApp::start().await;
    let added = app.post("/pet", &with_id(rex(), 5)).is(201).await;
    let mut expected = added.json();

    let by_query = app
        .request(Method::POST, "/pet/5?name=Max+%26%20Moritz&status=sold")
        .is(200)
        .await;
    expected["name"] = json!("Max & Moritz");
    expected["status"] = json!("sold");
    assert_eq!(by_query.json(), expected, "{by_query}");
    assert_ne!(by_query.etag(), added.etag());

    let by_form = app
        .request(Method::POST, "/pet/5")
        .form(&[("name", "Ümläut + plus"), ("unknown", "x")])
        .is(200)
        .await;
    expected["name"] = json!("Ümläut + plus");
    assert_eq!(by_form.json(), expected, "{by_form}");

    let both = app
        .request(Method::POST, "/pet/5?status=available")
        .form(&[("name", "Both")])
        .is(200)
        .await;
    expected["name"] = json!("Both");
    expected["status"] = json!("available");
    assert_eq!(both.json(), expected, "{both}");
    assert_unchanged(&app, &both).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn update_pet_with_form_invalid_value_is_400_and_unknown_id_is_404() {
    let app = TestApp::start().await;
    let added = app.post("/pet", &with_id(rex(), 5)).is(201).await;
    for (path, field) in [
        ("/pet/5", "name"),
        ("/pet/5?name=", "name"),
        ("/pet/5?name=a%00b", "name"),
        ("/pet/5?name=%FF", "query"),
        ("/pet/5?name=a&name=b", "name"),
        ("/pet/5?status=lost", "status"),
        ("/pet/5?status=", "status"),
        ("/pet/0?name=a", "petId"),
    ] {
        let response = app.request(Method::POST, path).await;
        assert_eq!(response.invalid_fields(), [field], "{path}");
    }
    let both = app.request(Method::POST, "/pet/5?name=&status=lost").await;
    assert_eq!(both.invalid_fields(), ["name", "status"]);
    app.post("/pet/5", &json!({"name": "a"})).await.problem(415);
    app.request(Method::POST, "/pet/6?name=a")
        .await
        .problem(404);
    assert_unchanged(&app, &added).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pet_has_at_most_16_kib() {
    let app = TestApp::start().await;
    let added = app
        .post("/pet", &pet_of_size("largest", MAX_SIZE))
        .is(201)
        .await;
    let id = added.id();
    let path = format!("/pet/{id}");
    let too_large = pet_of_size("larger", MAX_SIZE + 1);
    let tag = json!({"tags": [{"name": "larger"}]});
    let form = || app.request(Method::POST, &format!("{path}?name=a%20longer%20one"));
    for refused in [
        app.post("/pet", &too_large).await,
        app.put("/pet", &with_id(too_large.clone(), id)).await,
        app.patch(&path, &tag).await,
        form().await,
        form().header("idempotency-key", "a").await,
    ] {
        assert_eq!(refused.invalid_fields(), ["body"], "{refused}");
    }
    let fetched = app.get(&path).is(200).await;
    assert_eq!(fetched.text(), added.text());
    let largest = with_id(pet_of_size("another", MAX_SIZE), id);
    app.put("/pet", &largest).is(200).await;
    app.patch(&path, &json!({"tags": []})).is(200).await;
    let tag = json!({"tags": [{"name": "short"}]});
    app.patch(&path, &tag).is(200).await;
}

/// PostgreSQL refuses what clients could not read. With a folded name, as the service gives it, it takes any object: such a pet harms no
/// other, and is replaced or deleted.
#[tokio::test(flavor = "multi_thread")]
async fn invalid_pets_of_plain_sql_are_refused_or_harm_no_other() {
    let app = TestApp::start().await;
    app.add_pet(1).await;
    let mut connection = app.database.connect().await;
    let long = "x".repeat(256);
    let of_members = |members: &str| format!(r#"{{"photoUrls": [], "tags": [], {members}}}"#);
    for (details, reason) in [
        ("{}".to_owned(), "pets_details_valid"),
        ("[]".to_owned(), "pets_details_valid"),
        (of_members(r#""name": null"#), "pets_details_valid"),
        (of_members(r#""name": 1"#), "pets_details_valid"),
        (
            of_members(&format!(r#""name": "{long}""#)),
            "pets_details_valid",
        ),
        (of_members(r#""name": "a", "id": 2"#), "pets_details_valid"),
        (
            of_members(r#""name": "a", "status": "sold""#),
            "pets_details_valid",
        ),
        (
            r#"{"name": "a", "tags": []}"#.to_owned(),
            "pets_details_valid",
        ),
        (
            r#"{"name": "a", "photoUrls": [], "tags": {}}"#.to_owned(),
            "array",
        ),
        (
            r#"{"name": "a", "photoUrls": [], "tags": [{"name": "\u0000"}]}"#.to_owned(),
            "Unicode",
        ),
        (of_members(r#""name": "\u0000""#), "Unicode"),
        (r#"{"name": "a""#.to_owned(), "json"),
    ] {
        let insert = "insert into pets (id, status, details) values (9, 'sold', $1::text::json)";
        let insert = sqlx::query(insert).bind(&details);
        let refused = insert.execute(&mut connection).await.expect_err(&details);
        assert!(refused.to_string().contains(reason), "{details}: {refused}");
    }
    let odd = "insert into pets (id, status, details, folded_name) values
        (2, 'available', '{}', ''), (3, 'available', E'{\\n \"name\": 1\\n}', '')";
    app.database.run(odd).await;

    // Not checked against the document.
    let read = async |path: &str| -> Value {
        let response = app.get(path).send().await.expect("a response");
        response.json().await.expect("JSON")
    };
    let odd = [
        json!({"id": 2, "status": "available"}),
        json!({"id": 3, "name": 1, "status": "available"}),
    ];
    let found = read("/pet/findByStatus?status=available").await;
    assert_eq!(found, json!([read("/pet/1").await, odd[0], odd[1]]));
    for pet in odd {
        let id = &pet["id"];
        let path = format!("/pet/{id}");
        assert_eq!(read(&path).await, pet);
        let sold = json!({"status": "sold"});
        let (odd, other) = tokio::join!(
            app.patch(&path, &sold).into_future(),
            app.patch("/pet/1", &json!({"name": format!("Rex {id}")}))
                .into_future(),
        );
        odd.problem(500);
        other.is(200);
        let mended = json!({"name": "Max", "photoUrls": [], "tags": []});
        let mend = format!("update pets set details = '{mended}' where id = {id}");
        app.database.run(&mend).await;
        app.patch(&path, &sold).is(200).await;
        app.delete(&path).is(200).await;
    }
}

/// One that was stored before there was the bound.
#[tokio::test(flavor = "multi_thread")]
async fn stored_pet_above_16_kib_is_readable_and_can_be_ordered_and_deleted() {
    let app = TestApp::start().await;
    let id = app.pet("Rex").await;
    let path = format!("/pet/{id}");
    let image = app.upload(id, png(8, 8)).is(200).await.image_path();
    let enlarge = "update pets set details = jsonb_set(details::jsonb, '{photoUrls}', details::jsonb -> 'photoUrls'
        || to_jsonb(array_fill('/' || repeat('y', 2000), array[20])))::json";
    app.database.run(enlarge).await;
    let pet = app.get(&path).is(200).await;
    assert!(pet.body.len() > 40_000);
    let found = app.get("/pet/findByStatus?status=available").is(200).await;
    assert_eq!(found.json(), json!([pet.json()]));
    let unchanged = app.patch(&path, &json!({"status": "sold"})).await;
    assert_eq!(unchanged.invalid_fields(), ["body"]);
    app.upload(id, png(9, 9)).await.problem(409);

    let order = app.post("/store/order", &json!({"petId": id}));
    order.is(201).await;
    assert_eq!(app.get(&path).is(200).await.json()["status"], "pending");
    app.delete(&image).is(200).await;
    let urls = app.get(&path).is(200).await.json()["photoUrls"].clone();
    assert_eq!(urls.as_array().map(Vec::len), Some(20));
    app.delete(&path).is(200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn head_pet_is_get_without_body() {
    let app = TestApp::start().await;
    let id = app.pet("a").await;
    let path = format!("/pet/{id}");
    let fetched = app.get(&path).is(200).await;
    let head = app.request(Method::HEAD, &path).is(200).await;
    assert!(head.body.is_empty(), "{head}");
    for name in ["etag", "content-type", "content-length"] {
        assert_eq!(head.header(name), fetched.header(name), "{head}");
    }
    let head = app.request(Method::HEAD, "/pet/999").is(404).await;
    assert!(head.body.is_empty(), "{head}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pet_id_invalid_is_400_and_unknown_is_404_for_every_method() {
    let app = TestApp::start().await;
    let bad = [
        "0",
        "-1",
        "+1",
        "01",
        "1.0",
        "1e3",
        "0x1",
        "abc",
        "9007199254740992",
        "9223372036854775808",
        "99999999999999999999999",
        "%20",
        "1%20",
        "%00",
        "%FF",
        "%D9%A1",
    ];
    for method in [
        Method::GET,
        Method::HEAD,
        Method::PATCH,
        Method::POST,
        Method::DELETE,
    ] {
        let send = async |id: &str| {
            let request = app.request(method.clone(), &format!("/pet/{id}?name=a"));
            let request = match method {
                Method::PATCH => request
                    .header("content-type", "application/json")
                    .body("{}"),
                _ => request,
            };
            request.await
        };
        for id in bad {
            let response = send(id).await.is(400);
            if method != Method::HEAD {
                response.problem(400);
            }
        }
        let response = send(&MAX_ID.to_string()).await.is(404);
        if method != Method::HEAD {
            response.problem(404);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn delete_pet_returns_its_id_and_then_is_404() {
    let app = TestApp::start().await;
    app.post("/pet", &with_id(rex(), 5)).is(201).await;
    let kept = app.pet("kept").await;
    let deleted = app.delete("/pet/5").is(200).await;
    assert_eq!(
        deleted.text(),
        r#"{"code":200,"type":"deleted","message":"5"}"#
    );
    assert_eq!(deleted.header("content-type"), "application/json");
    app.get("/pet/5").await.problem(404);
    app.delete("/pet/5").await.problem(404);
    app.get(&format!("/pet/{kept}")).is(200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn add_pet_within_bounds_is_201_and_beyond_is_400() {
    let app = TestApp::start().await;
    let name = |length| "🦊".repeat(length);
    let url = |length: usize| format!("https://example.com/{}", "é".repeat(length - 20));
    let many = |count: usize, item: Value| Value::from(vec![item; count]);
    let mut within = json!({
        "id": MAX_ID, "name": name(255),
        "category": {"id": -MAX_ID, "name": name(255)},
        "photoUrls": many(100, json!("/a")),
        "tags": many(100, json!({"id": MAX_ID})),
    });
    within["photoUrls"][99] = json!(url(2_048));
    within["tags"][99]["name"] = json!(name(255));
    let added = app.post("/pet", &within).is(201).await;
    let mut expected = within.clone();
    expected["status"] = json!("available");
    assert_eq!(added.json(), expected);

    for (field, value, at) in [
        ("id", json!(MAX_ID + 1), "id"),
        ("id", json!(-1), "id"),
        ("id", json!(1.5), "id"),
        ("id", json!("1"), "id"),
        ("id", json!(u64::MAX), "id"),
        ("name", json!(name(256)), "name"),
        ("name", json!(""), "name"),
        ("name", json!(null), "name"),
        ("name", json!("a\0b"), "name"),
        ("name", json!(5), "name"),
        ("category", json!("Dogs"), "category"),
        ("category", json!({"id": "1"}), "category.id"),
        ("category", json!({"id": u64::MAX}), "category.id"),
        ("category", json!({"id": -MAX_ID - 1}), "category.id"),
        ("category", json!({"name": name(256)}), "category.name"),
        ("category", json!({"name": "\0"}), "category.name"),
        ("photoUrls", json!("https://example.com"), "photoUrls"),
        ("photoUrls", many(101, json!("/a")), "photoUrls"),
        ("photoUrls", json!(["/a", url(2_049)]), "photoUrls[1]"),
        ("photoUrls", json!(["/a", null]), "photoUrls[1]"),
        ("photoUrls", json!([""]), "photoUrls[0]"),
        ("photoUrls", json!(["javascript:alert(1)"]), "photoUrls[0]"),
        ("photoUrls", json!(["data:text/html,x"]), "photoUrls[0]"),
        ("photoUrls", json!(["ftp://example.com/a"]), "photoUrls[0]"),
        ("photoUrls", json!(["https://"]), "photoUrls[0]"),
        ("photoUrls", json!(["a b"]), "photoUrls[0]"),
        ("photoUrls", json!(["/a\0"]), "photoUrls[0]"),
        ("tags", many(101, json!({})), "tags"),
        ("tags", json!({"name": "a"}), "tags"),
        ("tags", json!([{}, "a"]), "tags[1]"),
        ("tags", json!([{}, null]), "tags[1]"),
        ("tags", json!([{"name": ["a"]}]), "tags[0].name"),
        ("tags", json!([{"id": 1.5}]), "tags[0].id"),
        ("tags", json!([{"id": MAX_ID + 1}]), "tags[0].id"),
        ("tags", json!([{"name": name(256)}]), "tags[0].name"),
        ("status", json!("lost"), "status"),
        ("status", json!("Available"), "status"),
        ("status", json!(""), "status"),
        ("status", json!(["sold"]), "status"),
    ] {
        let mut body = json!({"id": 1, "name": "a"});
        body[field] = value;
        let response = app.post("/pet", &body).await;
        assert_eq!(response.invalid_fields(), [at], "{body}");
    }
    assert_eq!(app.count().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn add_pet_with_array_for_object_is_400() {
    let app = TestApp::start().await;
    let pet = json!([null, null, "Rex", [], [], "sold"]);
    let response = app.post("/pet", &pet).await;
    assert_eq!(response.invalid_fields(), ["body"], "{response}");
    for (field, at) in [("category", "category"), ("tags", "tags[0]")] {
        let label = json!([1, "Dogs"]);
        let mut pet = json!({"name": "Rex"});
        pet[field] = if field == "tags" {
            json!([label])
        } else {
            label
        };
        let response = app.post("/pet", &pet).await;
        assert_eq!(response.invalid_fields(), [at], "{response}");
    }
    assert_eq!(app.count().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn add_pet_accepts_integers_in_any_notation() {
    let app = TestApp::start().await;
    let written = r#"{"id": 5.0, "name": "a", "tags": [{"id": 1e3}, {"id": -6.5e15}]}"#;
    let post = |body: String| {
        let request = app.request(Method::POST, "/pet");
        request
            .header("content-type", "application/json")
            .body(body)
    };
    let added = post(written.to_owned()).is(201).await.json();
    assert_eq!(added["id"], json!(5));
    assert_eq!(
        added["tags"],
        json!([{"id": 1_000}, {"id": -6_500_000_000_000_000_i64}])
    );
    // The last two are the first integers beyond 64 bits; as doubles they equal `i64::MAX` and `i64::MIN`.
    for number in [
        "1.5",
        "9007199254740992",
        "-9.007199254740992e15",
        "1e300",
        "9223372036854775808",
        "-9223372036854775809",
    ] {
        let body = format!(r#"{{"name": "a", "tags": [{{"id": {number}}}]}}"#);
        let response = post(body).await;
        assert_eq!(response.invalid_fields(), ["tags[0].id"], "{number}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn condition_headers_and_tag_names_beyond_bounds_are_400() {
    let app = TestApp::start().await;
    let id = app.pet("a").await;
    let tags = format!("\"{}\"", "a".repeat(4_095));
    for name in ["if-match", "if-none-match", "if-range", "range"] {
        let response = app.get(&format!("/pet/{id}")).header(name, &tags).await;
        assert_eq!(response.invalid_fields(), [name]);
        let get = app.get(&format!("/pet/{id}"));
        // Malformed: only If-Match must not be ignored.
        let status = if name == "if-match" { 400 } else { 200 };
        get.header(name, &tags[1..]).is(status).await;
    }
    let find = |length| app.get(&format!("/pet/findByTags?tags={}", "a".repeat(length)));
    find(255).is(200).await;
    assert_eq!(find(256).await.invalid_fields(), ["tags"]);
}
