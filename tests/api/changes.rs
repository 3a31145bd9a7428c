//! Batched changes of pets and orders: each request gets the response of a sequential execution.

use test_support::*;

/// Starts the service on a database that delays each statement which makes such changes to resources of this kind by 5 ms,
/// so that concurrent requests share statements, and that notes the transaction of each change.
async fn start_with_slow_changes(kind: &str, actions: &[&str]) -> TestApp {
    let app = TestApp::start().await;
    let events = actions.iter().map(|action| match *action {
        "created" => "insert",
        "changed" => "update",
        _ => "delete",
    });
    let events = events.collect::<Vec<_>>().join(" or ");
    let actions = actions.join("', '");
    app.database
        .run(&format!(
            "create function wait() returns trigger language plpgsql as $$
             begin
                 perform pg_sleep(0.005);
                 return null;
             end
             $$;
             create trigger slow after {events} on {kind}s for each statement execute function wait();
             create table recorded (transaction xid8 default pg_current_xact_id());
             create function note() returns trigger language plpgsql as $$
             begin
                 insert into recorded default values;
                 return null;
             end
             $$;
             create trigger noted after insert on new_changes
                 for each row when (new.kind = '{kind}' and new.action in ('{actions}')) execute function note()",
        ))
        .await;
    app
}

/// Checks that changes shared a transaction.
async fn assert_batched(app: &TestApp) {
    let shared = "select count(*) - count(distinct transaction) from recorded";
    assert!(app.database.number(shared).await > 0);
}

fn form(app: &TestApp, id: i64, query: &str) -> Call {
    app.request(Method::POST, &format!("/pet/{id}?{query}"))
}

/// Sends a change, and again as long as the response says that the pet was locked for too long: such a change was not made.
/// All changes of these tests are of few pets, and wait for each other longer than a lock may take if the machine stalls.
async fn decided(change: Call) -> Response {
    for _ in 0..5 {
        let response = change.clone().await;
        if response.status != 503 {
            return response;
        }
        let pause = response.header("retry-after").parse().expect("seconds");
        tokio::time::sleep(Duration::from_secs(pause)).await;
    }
    change.await
}

/// Adds pets, and returns the ETag of each.
async fn add_pets(app: &TestApp, ids: impl Iterator<Item = i64>) -> Vec<String> {
    let add = async |id| {
        let pet = json!({"id": id, "name": "new", "status": "sold"});
        app.post("/pet", &pet).is(201).await.etag()
    };
    join_all(ids.map(add)).await
}

/// Returns the request of one of five kinds of changes.
fn numbered_change(app: &TestApp, id: i64, number: i64) -> Call {
    let path = format!("/pet/{id}");
    match number % 5 {
        0 => app.put("/pet", &replacement(id, number)),
        1 => app.patch(&path, &json!({"category": {"name": format!("c {number}")}})),
        2 => app.patch(&path, &json!({"tags": [{"id": number}]})),
        3 => form(app, id, &format!("name=form+{number}")),
        _ => app.patch(
            &path,
            &json!({"status": null, "category": {"id": null}, "photoUrls": [format!("/{number}")]}),
        ),
    }
}

fn replacement(id: i64, number: i64) -> Value {
    json!({
        "id": id, "category": {"id": number, "name": "put"}, "name": format!("put {number}"),
        "photoUrls": [format!("/{number}")], "tags": [{"name": "a,\"b\""}, {}], "status": "pending",
    })
}

/// Applies a [`numbered_change`] to the JSON of a pet.
fn apply(pet: &mut Value, number: i64) {
    match number % 5 {
        0 => *pet = replacement(pet["id"].as_i64().expect("an id"), number),
        1 => pet["category"]["name"] = json!(format!("c {number}")),
        2 => pet["tags"] = json!([{"id": number}]),
        3 => pet["name"] = json!(format!("form {number}")),
        _ => {
            pet["status"] = json!("available");
            pet["photoUrls"] = json!([format!("/{number}")]);
            let category = pet["category"].as_object_mut().expect("a category");
            category.remove("id");
        }
    }
}

/// The versions of a pet give the order of its changes. Replays them in this order, and compares each response.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_changes_of_few_pets_have_a_sequential_order() {
    const CLIENTS: i64 = 40;
    const CHANGES: i64 = 6;
    let app = start_with_slow_changes("pet", &["changed", "deleted"]).await;
    add_pets(&app, 1..=3).await;
    for id in 1..=3 {
        let pet = replacement(id, 0);
        app.put("/pet", &pet).is(200).await;
    }
    let client = async |client: i64| {
        let mut done = Vec::new();
        for change in 0..CHANGES {
            let number = 1 + client * CHANGES + change;
            let id = 1 + number % 3;
            let started = Instant::now();
            let response = decided(numbered_change(&app, id, number)).await.is(200);
            done.push((
                id,
                response.version(),
                number,
                started,
                Instant::now(),
                response,
            ));
        }
        done
    };
    let mut done: Vec<_> = join_all((0..CLIENTS).map(client)).await.concat();
    assert_batched(&app).await;

    done.sort_by_key(|(id, version, ..)| (*id, *version));
    for id in 1..=3 {
        let mut pet = replacement(id, 0);
        let (mut last, mut last_start) = (None, None);
        for (of, version, number, started, ended, response) in &done {
            if *of != id {
                continue;
            }
            apply(&mut pet, *number);
            assert_eq!(response.json(), pet, "change {number} of pet {id}");
            assert_ne!(last.replace(*version), Some(*version), "pet {id}");
            // A change that began after another had ended comes after it.
            assert!(last_start.is_none_or(|start| *ended >= start), "{number}");
            last_start = last_start.max(Some(*started));
        }
        let stored = app.get(&format!("/pet/{id}")).is(200).await;
        assert_eq!(stored.json(), pet);
        assert_eq!(Some(stored.version()), last);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn patches_of_different_fields_of_a_pet_lose_no_update() {
    // Of one pet, only the first patch of each kind makes a change: these may all come one after the other.
    const PETS: i64 = 5;
    let app = start_with_slow_changes("pet", &["changed", "deleted"]).await;
    add_pets(&app, 1..=PETS).await;
    let patches = (0..60).map(async |number| {
        let id = 1 + number % PETS;
        let path = format!("/pet/{id}");
        let request = match number % 6 {
            0 => app.patch(&path, &json!({"category": {"id": 1}})),
            1 => app.patch(&path, &json!({"category": {"name": "c"}})),
            2 => app.patch(&path, &json!({"photoUrls": ["/a", "/b"]})),
            3 => app.patch(&path, &json!({"tags": [{"name": "t"}]})),
            4 => form(&app, id, "name=patched"),
            _ => form(&app, id, "status=pending"),
        };
        decided(request).await.is(200).etag()
    });
    let mut etags = join_all(patches).await;
    assert_batched(&app).await;
    for id in 1..=PETS {
        let stored = app.get(&format!("/pet/{id}")).is(200).await;
        let expected = json!({
            "id": id, "category": {"id": 1, "name": "c"}, "name": "patched", "photoUrls": ["/a", "/b"],
            "tags": [{"name": "t"}], "status": "pending"
        });
        assert_eq!(stored.json(), expected);
    }
    etags.sort_unstable();
    etags.dedup();
    assert_eq!(
        etags.len(),
        30,
        "the first of each kind alters each of the five pets"
    );
}

/// Replacements of another pet share the batches, and do not fail.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_replacements_with_one_etag_have_one_winner() {
    const CLIENTS: usize = 30;
    let app = start_with_slow_changes("pet", &["changed", "deleted"]).await;
    let etag = add_pets(&app, 1..=2).await.swap_remove(0);
    let put = |id, number| app.put("/pet", &json!({"id": id, "name": format!("by {number}")}));
    let conditional = (0..CLIENTS).map(|number| put(1, number).header("if-match", &etag));
    let others = (0..CLIENTS).map(|number| put(2, number));
    let (responses, others) = tokio::join!(
        join_all(conditional.map(decided)),
        join_all(others.map(decided))
    );
    for response in others {
        response.is(200);
    }
    let (won, lost): (Vec<_>, Vec<_>) =
        (responses.into_iter()).partition(|response| response.status == 200);
    assert_eq!(won.len(), 1, "{won:?}");
    for response in lost {
        response.problem(412);
    }
    assert_batched(&app).await;
    let stored = app.get("/pet/1").is(200).await;
    assert_eq!(
        (stored.text(), stored.etag()),
        (won[0].text(), won[0].etag())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_changes_of_all_kinds_get_their_own_responses() {
    let app = start_with_slow_changes("pet", &["changed", "deleted"]).await;
    let etags = add_pets(&app, 1..=80).await;
    let tags: Vec<Value> = (0..30)
        .map(|tag| json!({"name": tag.to_string()}))
        .collect();
    let changes = (1..=80).zip(&etags).map(async |(id, etag)| {
        let path = format!("/pet/{id}");
        let name = json!(format!("name {id}"));
        let (request, status) = match id % 8 {
            0 => (app.put("/pet", &json!({"id": id, "name": name})), 200),
            1 => (
                app.put("/pet", &json!({"id": id + 1_000, "name": name})),
                404,
            ),
            2 => (
                app.patch(&path, &json!({"name": name}))
                    .header("if-match", "\"0\""),
                412,
            ),
            3 => (
                app.patch(&path, &json!({"name": name}))
                    .header("if-match", etag),
                200,
            ),
            4 => (app.delete(&path).header("if-match", "\"1000000\""), 412),
            5 => (app.delete(&path).header("if-match", etag), 200),
            6 => (app.delete(&format!("/pet/{}", id + 1_000)), 404),
            // Too large for a batch.
            _ => (
                app.put("/pet", &json!({"id": id, "name": name, "tags": tags})),
                200,
            ),
        };
        let response = request.await;
        assert_eq!(response.status, status, "{id}: {response}");
        (id, etag, response)
    });
    let done = join_all(changes).await;
    assert_batched(&app).await;
    for (id, etag, response) in done {
        let stored = app.get(&format!("/pet/{id}")).await;
        match id % 8 {
            0 | 3 | 7 => {
                assert_eq!(
                    (stored.text(), stored.etag()),
                    (response.text(), response.etag())
                );
                assert_eq!(stored.json()["name"], format!("name {id}"));
            }
            5 => {
                assert_eq!(response.json()["message"], id.to_string());
                stored.problem(404);
            }
            _ => assert_eq!(stored.etag(), *etag, "{id}"),
        }
    }
}

/// A batch executes the patch of a pet with many tags separately, also if the patch itself is small.
#[tokio::test(flavor = "multi_thread")]
async fn small_patch_of_a_pet_with_many_tags_among_changes_keeps_the_tags() {
    let app = start_with_slow_changes("pet", &["changed", "deleted"]).await;
    add_pets(&app, 1..=40).await;
    let tags: Vec<Value> = (0..30).map(|tag| json!({"id": tag})).collect();
    let large = json!({"id": 1, "name": "large", "tags": tags});
    app.put("/pet", &large).is(200).await;
    app.database.run("truncate recorded").await;
    let changes = (1..=40).map(async |id| {
        let patch = app.patch(&format!("/pet/{id}"), &json!({"status": "pending"}));
        (id, patch.is(200).await)
    });
    let patched = join_all(changes).await;
    assert_batched(&app).await;
    for (id, response) in patched {
        let stored = app.get(&format!("/pet/{id}")).is(200).await;
        assert_eq!(stored.text(), response.text(), "{id}");
        assert_eq!(stored.json()["status"], "pending", "{id}");
        let expected = if id == 1 { json!(tags) } else { json!([]) };
        assert_eq!(stored.json()["tags"], expected, "{id}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deletion_among_changes_of_one_pet_happens_once() {
    let app = start_with_slow_changes("pet", &["changed", "deleted"]).await;
    add_pets(&app, 1..=20).await;
    let rounds = (1..=20).map(async |id| {
        let path = format!("/pet/{id}");
        let changes = (0..6).map(async |number| {
            let request = match number % 3 {
                0 => app.put("/pet", &json!({"id": id, "name": "a"})),
                1 => app.patch(&path, &json!({"name": "b"})),
                _ => app.delete(&path),
            };
            (number, decided(request).await)
        });
        let mut deleted = 0;
        for (number, response) in join_all(changes).await {
            match response.status {
                200 => deleted += usize::from(number % 3 == 2),
                _ => drop(response.problem(404)),
            }
        }
        assert_eq!(deleted, 1, "pet {id}");
        app.get(&path).await.problem(404);
    });
    join_all(rounds).await;
    assert_batched(&app).await;
    assert_eq!(app.count().await, 0);
    let inventory = app.get("/store/inventory").is(200).await;
    assert_eq!(
        inventory.json(),
        json!({"available": 0, "pending": 0, "sold": 0})
    );
}

/// Another transaction holds the lock of a pet: the changes of that pet time out, the others succeed.
#[tokio::test(flavor = "multi_thread")]
async fn blocked_change_is_503_and_its_batch_succeeds() {
    let app = start_with_slow_changes("pet", &["changed", "deleted"]).await;
    add_pets(&app, 1..=30).await;
    let mut other = app.database.connect().await;
    let lock = "begin; select from pets where id = 15 for update";
    other.execute(lock).await.expect("locked");
    let changes = (1..=30).map(async |id| {
        let response = app.put("/pet", &json!({"id": id, "name": "b"}));
        (id, response.await)
    });
    for (id, response) in join_all(changes).await {
        if id == 15 {
            response.problem(503);
        } else {
            response.is(200);
        }
    }
    other.execute("commit").await.expect("committed");
    app.patch("/pet/15", &json!({"name": "c"})).is(200).await;
}

/// Two orders for each of 30 pets; one of each is refused. Others have a taken id, an unknown pet, or a sold pet.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_orders_get_their_own_responses() {
    let app = start_with_slow_changes("order", &["created"]).await;
    add_pets(&app, 1..=40).await;
    let available = "update pets set status = 'available' where id <> 40";
    app.database.run(available).await;
    let taken = json!({"id": 500, "petId": 39});
    app.post("/store/order", &taken).is(201).await;
    let orders = (0..75).map(async |number| {
        let order = match number {
            // Some have chosen ids, which the sequence reaches.
            0..30 if number % 3 == 0 => json!({"petId": 1 + number % 30, "id": 1 + number}),
            0..60 => json!({"petId": 1 + number % 30, "complete": number % 2 == 0}),
            60..65 => json!({"petId": 31 + number % 5, "id": 500}),
            65..70 => json!({"petId": 1_000}),
            _ => json!({"petId": 40}),
        };
        (number, app.post("/store/order", &order).await)
    });
    let mut placed: Vec<(i64, i64)> = Vec::new();
    for (number, response) in join_all(orders).await {
        match number {
            0..60 if response.status == 201 => {
                let order = app.get(&format!("/store/order/{}", response.id()));
                assert_eq!(order.is(200).await.text(), response.text());
                placed.push((1 + number % 30, response.id()));
            }
            0..65 => drop(response.problem(409)),
            65..70 => assert_eq!(response.invalid_fields(), ["petId"]),
            _ => drop(response.problem(409)),
        }
    }
    assert_batched(&app).await;
    let unique = |values: Vec<i64>| values.into_iter().collect::<BTreeSet<_>>().len();
    assert_eq!(unique(placed.iter().map(|(pet, _)| *pet).collect()), 30);
    assert_eq!(
        unique(placed.iter().map(|(_, id)| *id).collect()),
        placed.len()
    );
    assert_eq!(placed.len(), 30, "{placed:?}");
    // A refused order changes no pet, and each accepted one changes its pet.
    for (statuses, pets) in [("'available'", 8), ("'pending', 'sold'", 32)] {
        let count = format!("select count(*) from pets where status in ({statuses})");
        assert_eq!(app.database.number(&count).await, pets, "{statuses}");
    }
    let held = "select count(*) from pets join orders on held_pet = pets.id where pets.status <> 'pending'";
    assert_eq!(app.database.number(held).await, 0);
    let counted = "select count(*) from pets where status = 'pending'";
    let inventory = app.get("/store/inventory").is(200).await.json();
    assert_eq!(inventory["pending"], app.database.number(counted).await);
}

/// Two deletions of each order; one of each is refused.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_deletions_of_orders_release_their_pets_once() {
    let app = start_with_slow_changes("order", &["deleted"]).await;
    add_pets(&app, 1..=30).await;
    app.database
        .run("update pets set status = 'available'")
        .await;
    let other = app.make_key("other", Scopes::of_new_callers()).await.secret;
    let place = (1..=30).map(async |id| {
        let order = json!({"petId": id, "complete": id % 3 == 0});
        let placed = app.post("/store/order", &order).is(201).await;
        if id % 3 == 1 {
            // A status set by hand is kept.
            form(&app, id, "status=sold").is(200).await;
        }
        placed.id()
    });
    let orders = join_all(place).await;
    let deletions = orders.iter().chain(&orders).map(async |id| {
        let path = format!("/store/order/{id}");
        let by_other = app.with_key(&other, Method::DELETE, &path);
        by_other.await.problem(404);
        let response = app.delete(&path).await;
        (id, response.status)
    });
    let mut responses = join_all(deletions).await;
    assert_batched(&app).await;
    responses.sort_unstable();
    let mut expected: Vec<_> = orders
        .iter()
        .flat_map(|id| [(id, 200), (id, 404)])
        .collect();
    expected.sort_unstable();
    assert_eq!(responses, expected);
    for id in 1..=30 {
        let pet = app.get(&format!("/pet/{id}")).is(200).await;
        let status = if id % 3 == 2 { "available" } else { "sold" };
        assert_eq!(pet.json()["status"], status, "{id}");
    }
    let inventory = app.get("/store/inventory").is(200).await.json();
    assert_eq!(
        inventory,
        json!({"available": 10, "pending": 0, "sold": 20})
    );
}
