//! Tests of conditional requests: `ETag`, `If-Match` and `If-None-Match` (RFC 9110 §13).

use test_support::*;

/// Returns a request for each operation that updates or deletes pet 5.
fn changes(app: &TestApp) -> [(&'static str, Call); 4] {
    [
        ("PUT", app.put("/pet", &json!({"id": 5, "name": "put"}))),
        ("PATCH", app.patch("/pet/5", &json!({"name": "patched"}))),
        ("POST", app.request(Method::POST, "/pet/5?name=posted")),
        ("DELETE", app.delete("/pet/5")),
    ]
}

/// Checks that each change with these tags gets a problem document with this status.
async fn assert_refused(app: &TestApp, tags: &str, status: u16) {
    for (name, change) in changes(app) {
        let response = change.header("if-match", tags).await;
        assert_eq!(response.status, status, "{name} if {tags}: {response}");
        response.problem(status);
    }
}

/// Checks that pet 5 is as in an earlier response.
pub async fn assert_unchanged(app: &TestApp, earlier: &Response) {
    let fetched = app.get("/pet/5").is(200).await;
    assert_eq!(
        (fetched.text(), fetched.etag()),
        (earlier.text(), earlier.etag())
    );
}

async fn add_pet_5(app: &TestApp) -> Response {
    let pet = json!({"id": 5, "name": "five", "status": "sold"});
    app.post("/pet", &pet).is(201).await
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_if_match_is_412_and_changes_nothing() {
    let app = TestApp::start().await;
    let stale = add_pet_5(&app).await.etag();
    let current = app.request(Method::POST, "/pet/5?name=newer").is(200).await;
    for tags in [
        stale.clone(),
        format!("{stale}, \"no\""),
        "\"\"".into(),
        "\"0\"".into(),
        "\"a,b\"".into(),
        // A weak tag never matches `If-Match` (RFC 9110 §13.1.1), not even that of the current version.
        format!("W/{}", current.etag()),
        format!("\"0{}", &current.etag()[1..]),
        format!("\"+{}", &current.etag()[1..]),
    ] {
        assert_refused(&app, &tags, 412).await;
    }
    assert_unchanged(&app, &current).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn matching_if_match_allows_the_change() {
    let app = TestApp::start().await;
    for index in 0..4 {
        for form in [
            "{}",
            "\"999\", {}",
            "{} , W/\"9\"",
            "W/\"x\",,{}",
            ", ,{},",
            "*",
        ] {
            let etag = add_pet_5(&app).await.etag();
            let tags = form.replace("{}", &etag);
            let (name, change) = changes(&app).into_iter().nth(index).expect("four");
            let response = change.header("if-match", &tags).await;
            assert_eq!(response.status, 200, "{name} if {tags}: {response}");
            if name != "DELETE" {
                assert_ne!(response.etag(), etag, "{name}");
                app.delete("/pet/5").is(200).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_if_match_headers_are_one_list() {
    let app = TestApp::start().await;
    let etag = add_pet_5(&app).await.etag();
    let change = app.request(Method::POST, "/pet/5?name=a");
    let change = change
        .header("if-match", "\"999\"")
        .header("if-match", etag);
    change.is(200).await;
    // `*` is no element of a list.
    for [first, second] in [["\"999\"", "*"], ["*", "\"999\""], ["*", "*"]] {
        let change = app.request(Method::POST, "/pet/5?name=b");
        let change = change.header("if-match", first).header("if-match", second);
        let refused = change.await;
        assert_eq!(refused.invalid_fields(), ["If-Match"], "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn if_match_on_unknown_pet_is_404() {
    let app = TestApp::start().await;
    for tags in ["*", "\"1\""] {
        assert_refused(&app, tags, 404).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_if_match_is_400_and_changes_nothing() {
    let app = TestApp::start().await;
    let added = add_pet_5(&app).await;
    let bare = added.etag().replace('"', "");
    for tags in [
        bare.as_str(),
        "",
        "\"5",
        "\"5\" \"6\"",
        "W/",
        "*, \"5\"",
        "w/\"5\"",
        "'5'",
    ] {
        for (name, change) in changes(&app) {
            let response = change.header("if-match", tags).await;
            assert_eq!(
                response.invalid_fields(),
                ["If-Match"],
                "{name} if {tags}: {response}"
            );
        }
    }
    assert_unchanged(&app, &added).await;
}

/// Each condition, the form of its value (`{}` is the current ETag), and whether it is true.
pub const CONDITIONS: [(&str, &str, bool); 10] = [
    ("if-match", "*", true),
    ("if-match", "{}", true),
    ("if-match", "W/{}", false),
    ("if-match", "\"x\", {}", true),
    ("if-match", "\"x\"", false),
    ("if-none-match", "*", false),
    ("if-none-match", "{}", false),
    ("if-none-match", "W/{}", false),
    ("if-none-match", "\"x\", {}", false),
    ("if-none-match", "\"x\"", true),
];

#[tokio::test(flavor = "multi_thread")]
async fn refusal_of_a_weak_tag_says_why() {
    let app = TestApp::start().await;
    let added = add_pet_5(&app).await;
    let replace = app.put("/pet", &json!({"id": 5, "name": "a"}));
    let refused = replace
        .header("if-match", format!("W/{}", added.etag()))
        .await;
    let detail = refused.problem(412)["detail"].to_string();
    assert!(
        detail.contains("weak") && detail.contains("compress"),
        "{detail}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_operation_on_a_pet_evaluates_both_conditions() {
    let app = TestApp::start().await;
    let mut unchanged = None;
    for (name, form, holds) in CONDITIONS {
        for index in 0..4 {
            if unchanged.is_none() {
                unchanged = Some(add_pet_5(&app).await);
            }
            let added = unchanged.as_ref().expect("it was added");
            let tags = form.replace("{}", &added.etag());
            for method in [Method::GET, Method::HEAD] {
                let status = match (holds, name) {
                    (true, _) => 200,
                    (false, "if-match") => 412,
                    (false, _) => 304,
                };
                let read = app.request(method, "/pet/5").header(name, &tags);
                assert_eq!(read.await.status, status, "GET {name}: {tags}");
            }
            let (method, change) = changes(&app).into_iter().nth(index).expect("four");
            let response = change.header(name, &tags).await;
            if holds {
                assert_eq!(response.status, 200, "{method} {name}: {tags}: {response}");
                unchanged = None;
                if method != "DELETE" {
                    app.delete("/pet/5").is(200).await;
                }
            } else {
                assert_eq!(response.status, 412, "{method} {name}: {tags}: {response}");
                response.problem(412);
                assert_unchanged(&app, added).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn if_match_comes_before_if_none_match_and_both_after_404() {
    let app = TestApp::start().await;
    for (name, change) in changes(&app) {
        let refused = change.header("if-none-match", "*").await;
        assert_eq!(refused.status, 404, "{name}: {refused}");
    }
    let added = add_pet_5(&app).await;
    for (if_match, if_none_match, status) in [
        ("\"x\"", added.etag(), 412),
        ("*", added.etag(), 304),
        ("*", "\"x\"".into(), 200),
    ] {
        let read = app.get("/pet/5").header("if-match", if_match);
        let read = read.header("if-none-match", &if_none_match).await;
        assert_eq!(read.status, status, "{if_match}, {if_none_match}: {read}");
    }
    for (name, change) in changes(&app) {
        let change = change.header("if-match", added.etag());
        let refused = change.header("if-none-match", added.etag()).await;
        assert_eq!(refused.status, 412, "{name}: {refused}");
    }
    assert_unchanged(&app, &added).await;
}

/// Also in a batch, and of a pet that is too large for one.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_changes_with_if_none_match_change_nothing() {
    let app = TestApp::start().await;
    add_pet_5(&app).await;
    let tags: Vec<_> = (0..50).map(|number| json!({"id": number})).collect();
    let large = json!({"id": 5, "name": "large", "tags": tags});
    let added = app.put("/pet", &large).is(200).await;
    let refused = (0..5).flat_map(|_| changes(&app)).map(|(_, change)| change);
    let refused = refused.chain([app.put("/pet", &large)]);
    let refused = refused.map(|change| change.header("if-none-match", "*"));
    for response in send_all(refused).await {
        response.problem(412);
    }
    assert_unchanged(&app, &added).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_conditions_of_a_change_are_reported_together() {
    let app = TestApp::start().await;
    let added = add_pet_5(&app).await;
    for (name, change) in changes(&app) {
        let change = change.header("if-match", "5");
        let refused = change.header("if-none-match", "\"5").await;
        let fields = ["If-Match", "If-None-Match"];
        assert_eq!(refused.invalid_fields(), fields, "{name}: {refused}");
    }
    assert_unchanged(&app, &added).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn matching_if_none_match_is_304() {
    let app = TestApp::start().await;
    let etag = add_pet_5(&app).await.etag();
    for tags in [
        etag.clone(),
        format!("W/{etag}"),
        format!("\"1\", \"a,b\", {etag}"),
        "*".into(),
    ] {
        for method in [Method::GET, Method::HEAD] {
            let request = app.request(method, "/pet/5").header("if-none-match", &tags);
            let response = request.is(304).await;
            assert!(response.body.is_empty(), "{response}");
            assert_eq!(response.etag(), etag);
        }
    }
    // Malformed tags are ignored.
    for tags in ["\"999\"", "", "x", "\"5", &etag.replace('"', "")] {
        let request = app.get("/pet/5").header("if-none-match", tags);
        assert_eq!(request.is(200).await.id(), 5, "{tags}");
    }
    app.get("/pet/6")
        .header("if-none-match", "*")
        .await
        .problem(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn change_that_alters_nothing_keeps_the_etag_and_is_not_recorded() {
    let app = TestApp::start().await;
    let pet = json!({
        "id": 5, "category": {"id": 1, "name": "Dogs"}, "name": "five", "photoUrls": ["/a.jpg"],
        "tags": [{"id": 1, "name": "b"}, {"name": "a"}, {}], "status": "sold",
    });
    let added = app.post("/pet", &pet).is(201).await;
    let patches = [
        "{}",
        r#"{"name":"five"}"#,
        r#"{"tags":[{"id":1.0,"name":"b"},{"name":"a"},{}]}"#,
    ];
    let keyed = app
        .request(Method::POST, "/pet/5?status=sold")
        .header("idempotency-key", "a");
    let same = || {
        let patches =
            patches.map(|patch| app.patch("/pet/5", &serde_json::from_str(patch).expect("JSON")));
        let others = [
            app.put("/pet", &pet),
            app.request(Method::POST, "/pet/5?name=five"),
            keyed.clone(),
        ];
        others
            .into_iter()
            .chain(patches)
            .map(|call| call.header("if-match", added.etag()))
    };
    // One after the other, and as one batch.
    let mut responses = Vec::new();
    for call in same() {
        responses.push(call.is(200).await);
    }
    responses.extend(send_all(same().chain(same())).await);
    for response in &responses {
        assert_eq!(
            (response.text(), response.etag()),
            (added.text(), added.etag()),
            "{response}"
        );
    }
    assert_unchanged(&app, &added).await;
    let records = async || app.get("/changes?kind=pet").is(200).await.changes().len();
    assert_eq!(records().await, 1, "the addition");
    let stale = app.put("/pet", &pet).header("if-match", "\"1\"");
    stale.await.problem(412);
    // The order of tags and of members of an array is a difference.
    let other = json!({"tags": [{"name": "a"}, {"id": 1, "name": "b"}, {}]});
    let changed = app.patch("/pet/5", &other).is(200).await;
    assert_ne!(changed.etag(), added.etag());
    app.put("/pet", &pet).is(200).await;
    assert_eq!(records().await, 3);
}

/// A request that alters nothing, in a batch with one that does, has the version that it led to.
#[tokio::test(flavor = "multi_thread")]
async fn same_changes_in_a_batch_make_one_version() {
    let app = TestApp::start().await;
    let added = add_pet_5(&app).await;
    let mut lock = app.database.connect().await;
    lock.execute("begin; select from pets where id = 5 for update")
        .await
        .expect("a lock");
    let changes = (0..20).map(|number| match number % 2 {
        0 => app.put("/pet", &json!({"id": 5, "name": "new", "status": "sold"})),
        _ => app.patch("/pet/5", &json!({"name": "new"})),
    });
    let unlock = async {
        eventually(async || app.database.waiting_for_locks().await > 0).await;
        lock.execute("commit").await.expect("a commit");
    };
    let (responses, ()) = tokio::join!(send_all(changes), unlock);
    for response in &responses {
        assert_eq!(response.status, 200, "{response}");
    }
    let etags: HashSet<_> = responses.iter().map(|it| it.etag()).collect();
    assert_eq!(etags.len(), 1, "{etags:?}");
    assert!(!etags.contains(&added.etag()));
    let changes = app.get("/changes?kind=pet").is(200).await.changes();
    assert_eq!(changes.len(), 2, "{changes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn etag_of_a_recreated_pet_is_new() {
    let app = TestApp::start().await;
    let first = add_pet_5(&app).await;
    app.delete("/pet/5").is(200).await;
    let second = add_pet_5(&app).await;
    assert_eq!(first.body, second.body);
    assert_ne!(first.etag(), second.etag());
    let delete = app.delete("/pet/5").header("if-match", first.etag());
    delete.await.problem(412);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_patches_are_all_applied() {
    let app = TestApp::start().await;
    add_pet_5(&app).await;
    let patch = [
        json!({"name": "patched"}),
        json!({"category": {"id": 1}}),
        json!({"category": {"name": "c"}}),
    ];
    let patches = (0..12).map(|number| app.patch("/pet/5", &patch[number % 3]));
    for response in send_all(patches).await {
        response.is(200);
    }
    let fetched = app.get("/pet/5").is(200).await;
    let expected = json!({
        "id": 5, "category": {"id": 1, "name": "c"}, "name": "patched", "photoUrls": [], "tags": [], "status": "sold",
    });
    assert_eq!(fetched.json(), expected);
}

/// Operations on the other resources refuse both fields, with any value and before they change anything.
#[tokio::test(flavor = "multi_thread")]
async fn conditions_without_an_etag_are_400_in_every_operation() {
    const WITH_ETAG: [&str; 8] = [
        "updatePet",
        "getPetById",
        "patchPet",
        "updatePetWithForm",
        "deletePet",
        "uploadFile",
        "getImage",
        "deleteImage",
    ];
    let app = TestApp::start().await;
    add_pet_5(&app).await;
    let document = app.bare(Method::GET, "/api/v3/openapi.json");
    let document = document.is(200).await.json();
    let mut refused = 0;
    for (path, item) in document["paths"].as_object().expect("paths") {
        let target = path.replace("{petId}", "5").replace("{orderId}", "5");
        let target = target
            .replace("{username}", "ada")
            .replace("{imageId}", &"0".repeat(32));
        for (method, operation) in item.as_object().expect("operations") {
            let Some(name) = operation["operationId"].as_str() else {
                continue;
            };
            let method: Method = method.to_uppercase().parse().expect("a method");
            let values = ["*", "\"1\"", "W/\"1\"", "5"];
            let fields = ["If-Match", "If-None-Match"];
            for (field, value) in fields
                .into_iter()
                .flat_map(|it| values.map(|value| (it, value)))
            {
                let request = app.bare(method.clone(), &format!("/api/v3{target}"));
                let request = request
                    .header("api_key", &app.key)
                    .header(&field.to_lowercase(), value);
                let body = json!({"id": 6, "name": "a", "petId": 5, "username": "ada"});
                let response = request.json(&body).await;
                if WITH_ETAG.contains(&name) {
                    assert!(
                        !response.text().contains("has no ETag"),
                        "{name}: {response}"
                    );
                    continue;
                }
                assert_eq!(response.invalid_fields(), [field], "{name}: {response}");
                refused += 1;
            }
        }
    }
    assert!(refused >= 8 * 20, "{refused}");
    assert_eq!(
        app.count().await,
        0,
        "only the pet with an ETag was deleted"
    );
    let created = "select (select count(*) from users) + (select count(*) from orders)";
    assert_eq!(app.database.number(created).await, 0);
    // Another method of the path is not an operation.
    let put = app.put("/store/order", &json!({})).header("if-match", "*");
    put.await.problem(405);
    let nothing = app.get("/nothing").header("if-match", "*");
    nothing.await.problem(404);
    let both = app.get("/limits").header("if-match", "*");
    let both = both.header("if-none-match", "*").await;
    assert_eq!(both.invalid_fields(), ["If-Match", "If-None-Match"]);
}
