//! Tests of `Idempotency-Key`: a repeated POST gets the response to the first one and has no effect.

use std::future::IntoFuture as _;

use test_support::*;

fn post(app: &TestApp, key: &str, pet: &Value) -> Call {
    app.post("/pet", pet).header("idempotency-key", key)
}

#[track_caller]
fn assert_replayed(response: &Response, first: &Response) {
    assert_eq!(response.header("idempotent-replayed"), "true", "{response}");
    assert_eq!(response.status, first.status, "{response}");
    for name in ["content-type", "etag", "location"] {
        assert_eq!(
            response.optional_header(name),
            first.optional_header(name),
            "{response}"
        );
    }
    assert_ne!(
        response.header("x-request-id"),
        first.header("x-request-id"),
        "{response}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_post_is_replayed_without_effect() {
    let app = TestApp::start().await;
    let pet = json!({"name": "Rex", "tags": [{"name": "ü"}]});
    let first = post(&app, "k-1", &pet).is(201).await;
    assert_eq!(
        first.optional_header("idempotent-replayed"),
        None,
        "{first}"
    );
    // The pet is deleted meanwhile; the key may be bare or quoted.
    app.delete(&format!("/pet/{}", first.id())).is(200).await;
    for key in ["k-1", "\"k-1\""] {
        let again = post(&app, key, &pet).await;
        assert_replayed(&again, &first);
        assert_eq!(again.body, first.body);
    }
    assert_eq!(app.count().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn form_update_is_replayed() {
    let app = TestApp::start().await;
    let id = app.pet("first").await;
    let update = |name: &str| {
        let form = [("name", name)];
        let request = app.request(Method::POST, &format!("/pet/{id}?status=sold"));
        request.form(&form).header("idempotency-key", "k")
    };
    let first = update("second").is(200).await;
    app.request(Method::POST, &format!("/pet/{id}?name=third"))
        .is(200)
        .await;
    let again = update("second").await;
    assert_replayed(&again, &first);
    assert_eq!(again.body, first.body);
    update("fourth").await.problem(422);
    let fetched = app.get(&format!("/pet/{id}")).await;
    assert_eq!(fetched.json()["name"], "third");
}

#[tokio::test(flavor = "multi_thread")]
async fn key_reused_for_another_request_is_422() {
    let app = TestApp::start().await;
    let pet = json!({"id": 5, "name": "Rex"});
    post(&app, "k", &pet).is(201).await;
    let other_body = post(&app, "k", &json!({"id": 6, "name": "Rex"}));
    other_body.await.problem(422);
    let other_path = app
        .request(Method::POST, "/pet/5?name=Max")
        .header("idempotency-key", "k");
    other_path.await.problem(422);
    assert_eq!(app.count().await, 1);
    assert_eq!(app.get("/pet/5").await.json()["name"], "Rex");
}

#[tokio::test(flavor = "multi_thread")]
async fn error_is_replayed_although_the_request_would_succeed_now() {
    let app = TestApp::start().await;
    app.post("/pet", &json!({"id": 5, "name": "in the way"}))
        .is(201)
        .await;
    let pet = json!({"id": 5, "name": "Rex"});
    let first = post(&app, "taken", &pet).await;
    first.problem(409);
    let update = || {
        app.request(Method::POST, "/pet/6?name=a")
            .header("idempotency-key", "unknown")
    };
    let unknown = update().await;
    unknown.problem(404);

    app.delete("/pet/5").is(200).await;
    app.post("/pet", &json!({"id": 6, "name": "six"}))
        .is(201)
        .await;
    let again = post(&app, "taken", &pet).await;
    assert_replayed(&again, &first);
    // `problem` checks that `instance` is that of the repeated request.
    again.problem(409);
    let again = update().await;
    assert_replayed(&again, &unknown);
    again.problem(404);
    assert_eq!(app.count().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn validation_error_is_replayed() {
    let app = TestApp::start().await;
    let wrong = json!({"name": ""});
    let first = post(&app, "k", &wrong).await;
    first.problem(400);
    let again = post(&app, "k", &wrong).await;
    assert_replayed(&again, &first);
    again.problem(400);
    post(&app, "k", &json!({"name": "Rex"})).await.problem(422);
}

#[tokio::test(flavor = "multi_thread")]
async fn key_is_scoped_to_its_caller() {
    let app = TestApp::start().await;
    let other = app.make_key("other", Scopes::all()).await.secret;
    let same = app.make_key("tester", Scopes::all()).await.secret;
    let pet = json!({"name": "Rex"});
    let send = async |api_key: &str| {
        let request = app.anonymous(Method::POST, "/pet").json(&pet);
        request
            .header("api_key", api_key)
            .header("idempotency-key", "k")
            .is(201)
            .await
    };
    let first = send(&app.key).await;
    let others = send(&other).await;
    assert_eq!(
        others.optional_header("idempotent-replayed"),
        None,
        "{others}"
    );
    assert_ne!(others.id(), first.id());
    // The scope is the caller, not its API key.
    assert_replayed(&send(&same).await, &first);
    assert_eq!(app.count().await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn key_of_an_anonymous_caller_is_scoped_to_its_address() {
    let settings = [
        ("PET_INVENTORY__AUTH__ANONYMOUS_SCOPES", "write:pets"),
        ("PET_INVENTORY__LIMITS__TRUSTED_PROXIES", "127.0.0.1"),
    ];
    let app = TestApp::with(&settings).await;
    let send = async |address: &str| {
        let request = app.anonymous(Method::POST, "/pet");
        let request = request.json(&json!({"name": "Rex"}));
        request
            .header("x-forwarded-for", address)
            .header("idempotency-key", "k")
            .is(201)
            .await
    };
    let first = send("198.51.100.1").await;
    let others = send("198.51.100.2").await;
    assert_ne!(others.id(), first.id());
    assert_replayed(&send("198.51.100.1").await, &first);
}

#[tokio::test(flavor = "multi_thread")]
async fn key_outside_1_to_255_characters_or_repeated_is_400() {
    let app = TestApp::start().await;
    let pet = json!({"name": "Rex"});
    let longest = "k".repeat(255);
    for key in [
        "k",
        &longest,
        &format!("\"{longest}\""),
        "a b\"c",
        "\"with, comma\"",
    ] {
        post(&app, key, &pet).is(201).await;
    }
    let before = app.count().await;
    for key in [
        "",
        "\"\"",
        &"k".repeat(256),
        &format!("\"{}\"", "k".repeat(256)),
        "\"open",
        "a\tb",
    ] {
        let response = post(&app, key, &pet).await;
        assert_eq!(response.invalid_fields(), ["Idempotency-Key"], "{key}");
    }
    let twice = post(&app, "a", &pet).header("idempotency-key", "b").await;
    assert_eq!(twice.invalid_fields(), ["Idempotency-Key"]);
    let latin1 = reqwest::header::HeaderValue::from_bytes(b"caf\xe9").expect("a value");
    let foreign = app.post("/pet", &pet).header("idempotency-key", latin1);
    assert_eq!(foreign.await.invalid_fields(), ["Idempotency-Key"]);
    assert_eq!(app.count().await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn put_ignores_the_idempotency_key() {
    let app = TestApp::start().await;
    let id = app.pet("a").await;
    for name in ["b", "c"] {
        let put = app.put("/pet", &json!({"id": id, "name": name}));
        let response = put.header("idempotency-key", "k").is(200).await;
        assert_eq!(response.json()["name"], name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn key_in_progress_is_409_and_a_5xx_is_not_stored() {
    let app = TestApp::start().await;
    let pet = json!({"name": "Rex"});
    let mut blocker = app.database.lock("pets in exclusive mode").await;

    let started = Instant::now();
    loop {
        assert!(started.elapsed() < PATIENCE, "never 409");
        // Waits for the lock until its timeout.
        let first = tokio::spawn(post(&app, "k", &pet).into_future());
        while app.database.waiting_for_locks().await == 0 && !first.is_finished() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let second = post(&app, "k", &pet).await;
        let first = first.await.expect("a response");
        // On a busy machine, the first may have ended before the second began, which then waits itself, and may hold the key
        // for a moment longer.
        if first.status == 409 || second.status == 503 {
            continue;
        }
        first.problem(503);
        assert_eq!(first.header("retry-after"), "1", "{first}");
        second.problem(409);
        assert_eq!(second.header("retry-after"), "1", "{second}");
        break;
    }

    blocker.execute("rollback").await.expect("unlocked");
    let third = post(&app, "k", &pet).is(201).await;
    assert_eq!(
        third.optional_header("idempotent-replayed"),
        None,
        "{third}"
    );
    assert_eq!(app.count().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn key_expires_after_a_day() {
    let app = TestApp::start().await;
    let pet = json!({"name": "Rex"});
    let first = post(&app, "k", &pet).is(201).await;
    let age = |interval: &str| {
        format!("update idempotency_keys set created_at = now() - interval '{interval}'")
    };
    app.database.run(&age("23 hours 59 minutes")).await;
    assert_replayed(&post(&app, "k", &pet).await, &first);
    app.database.run(&age("24 hours 1 second")).await;
    let second = post(&app, "k", &pet).is(201).await;
    assert_ne!(second.id(), first.id());
    assert_replayed(&post(&app, "k", &pet).await, &second);
    assert_eq!(app.count().await, 2);
}

/// No operation has this method: nothing is stored, and the same key with another body is no error.
#[tokio::test(flavor = "multi_thread")]
async fn key_on_an_unsupported_method_is_ignored() {
    let app = TestApp::start().await;
    let request = app.anonymous(Method::POST, "/pet/findByStatus");
    request
        .header("idempotency-key", "k")
        .body("a")
        .is(405)
        .await;
    let request = app.anonymous(Method::POST, "/pet/findByStatus");
    request
        .header("idempotency-key", "k")
        .body("b")
        .is(405)
        .await;
    let request = app.request(Method::POST, "/pet/findByStatus");
    request.header("idempotency-key", "k").is(405).await;
    let kept = "select count(*) from idempotency_keys";
    assert_eq!(app.database.number(kept).await, 0);
}

/// Usernames are unique, so that neither a fast hash of a password nor a second slow one is stored for a replay.
#[tokio::test(flavor = "multi_thread")]
async fn sign_ups_ignore_the_key_and_happen_once() {
    let app = TestApp::start().await;
    let ada = json!({"username": "ada", "password": PASSWORD});
    let list = json!([{"username": "bob", "password": PASSWORD}, {"username": "eve"}]);
    let sign_up = || app.anonymous(Method::POST, "/user").json(&ada);
    let with_list = || app.post("/user/createWithList", &list);
    let created = [
        sign_up().header("idempotency-key", "k").await,
        with_list().header("idempotency-key", "k").await,
    ];
    assert_eq!(created.each_ref().map(|it| it.status), [201, 200]);
    let rows = "select string_agg(users::text, ' ' order by id) from users";
    let stored = async || {
        let mut connection = app.database.connect().await;
        let text = sqlx::query_scalar(rows).fetch_one(&mut connection).await;
        text.expect("the accounts")
    };
    let before: String = stored().await;
    for key in ["k", "k", "other", "", &"k".repeat(256)] {
        for repeated in [sign_up(), with_list()] {
            let refused = repeated.header("idempotency-key", key.to_owned()).await;
            assert_eq!(refused.optional_header("idempotent-replayed"), None);
            refused.problem(409);
        }
    }
    let kept = "select count(*) from idempotency_keys";
    assert_eq!(app.database.number(kept).await, 0);
    assert_eq!(stored().await, before);
}

/// Covers the moment in which the second request finds that there are pets, but not yet the stored response.
#[tokio::test(flavor = "multi_thread")]
async fn second_request_whose_check_fails_after_the_first_has_the_response_of_the_first() {
    let app = TestApp::start().await;
    let post = || {
        let post = app.request(Method::POST, "/admin/sample-store");
        post.header("idempotency-key", "k")
    };
    let first = post().await.is(201);
    // Restores the moment before the first commit: its response is not visible yet, and the check for pets waits.
    app.database
        .run("create table aside as table idempotency_keys; delete from idempotency_keys")
        .await;
    let mut connection = app.database.connect().await;
    connection
        .execute("begin; lock table pets; insert into idempotency_keys select * from aside")
        .await
        .expect("locked");
    let second = tokio::spawn(post().into_future());
    eventually(async || app.database.waiting_for_locks().await > 0).await;
    connection.execute("commit").await.expect("committed");
    let second = second.await.expect("a response").is(201);
    assert_eq!(second.header("idempotent-replayed"), "true", "{second}");
    assert_eq!(second.body, first.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn limit_of_stored_bytes_counts_what_they_take_on_disk() {
    // So much that pages that PostgreSQL adds in advance, and its maps of free space, which are 24 KiB each, matter little.
    const LIMIT: i64 = 1 << 20;
    let settings = [("PET_INVENTORY__LIMITS__IDEMPOTENCY_BYTES_PER_DAY", "1MiB")];
    for (key_length, photos) in [(36, 1), (255, 1), (255, 4)] {
        let app = TestApp::with(&settings).await;
        let key = |number: usize| format!("{number:0key_length$}");
        // Not compressible.
        let part = |_| format!("{:016x}", getrandom::u64().expect("random"));
        let photos: Vec<String> = (0..photos).map(|_| (0..50).map(part).collect()).collect();
        let pet = json!({"name": "a", "photoUrls": photos});
        let mut number = 0;
        let refused = loop {
            let response = post(&app, &key(number), &pet).await;
            if response.status != 201 {
                break response;
            }
            number += 1;
        };
        let violated = &refused.problem(429)["violated-policies"];
        assert_eq!(violated, &json!(["idempotency-bytes"]));
        let size = "select pg_total_relation_size('idempotency_keys')";
        let size = app.database.number(size).await;
        let is_near = (LIMIT * 2 / 3..LIMIT * 3 / 2).contains(&size);
        assert!(is_near, "{key_length}, {} photos: {size}", photos.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn caller_stores_a_limited_number_of_bytes() {
    let settings = [("PET_INVENTORY__LIMITS__IDEMPOTENCY_BYTES_PER_DAY", "4KiB")];
    let app = TestApp::with(&settings).await;
    let add = |app: &TestApp, number: usize| {
        let pet = json!({"name": format!("pet {number}"), "photoUrls": ["x".repeat(500)]});
        post(app, &format!("k{number}"), &pet)
    };
    let first = add(&app, 0).await.is(201);
    let mut stored = 1;
    let refused = loop {
        let response = add(&app, stored).await;
        if response.status == 429 {
            break response;
        }
        response.is(201);
        stored += 1;
        assert!(stored < 20, "no limit");
    };
    assert!(stored > 2, "{stored}");
    let problem = refused.problem(429);
    assert_eq!(problem["violated-policies"], json!(["idempotency-bytes"]));
    let retry_after: u64 = refused.header("retry-after").parse().expect("a number");
    assert!((86_000..=86_400).contains(&retry_after), "{retry_after}");
    // Nothing is executed, neither here nor by another replica or after a restart.
    let other = TestApp::replica_of(&app, &settings).await;
    for app in [&app, &other] {
        let request = app
            .request(Method::POST, "/pet")
            .header("idempotency-key", "other");
        request.json(&json!({"name": "a"})).is(429).await;
    }
    assert_eq!(app.count().await, stored);

    // Replays, requests without a key and other callers are not affected.
    assert_replayed(&add(&app, 0).await, &first);
    app.post("/pet", &json!({"name": "a"})).is(201).await;
    let key = app.make_key("other", Scopes::all()).await.secret;
    let request = app.with_key(&key, Method::POST, "/pet");
    let request = request.header("idempotency-key", "k");
    request.json(&json!({"name": "a"})).is(201).await;

    let age = "update idempotency_keys set created_at = created_at - interval '25 hours'";
    app.database.run(age).await;
    let later = TestApp::replica_of(&app, &settings).await;
    add(&later, stored).await.is(201);
}
