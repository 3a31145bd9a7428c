//! Store orders and inventory: effects on pets, visibility, and concurrent requests.

use pet_inventory::db::{
    PLANNER_SETTINGS, inventory,
    orders::{LISTS_OF_ALL, LISTS_OF_OWNER, LISTS_OF_PET},
};
use test_support::*;

use crate::finds::{explain, next_path};

fn order(app: &TestApp, pet: i64) -> Call {
    app.post("/store/order", &json!({ "petId": pet }))
}

async fn status(app: &TestApp, pet: i64) -> String {
    let pet = app.get(&format!("/pet/{pet}")).is(200).await;
    pet.json()["status"].as_str().expect("a status").to_owned()
}

/// Creates a caller and returns its key, with all scopes but `admin`.
async fn caller(app: &TestApp, name: &str) -> String {
    app.make_key(name, Scopes::of_new_callers()).await.secret
}

/// Returns an order without the time at which it was placed, which is now.
fn timeless(mut order: Value) -> Value {
    let removed = order
        .as_object_mut()
        .expect("an object")
        .remove("createdAt");
    let time = removed.expect("a time");
    let time: DateTime<Utc> = time.as_str().expect("a text").parse().expect("RFC 3339");
    let age = Utc::now() - time;
    assert!((-5..60).contains(&age.num_seconds()), "{time}");
    order
}

#[tokio::test(flavor = "multi_thread")]
async fn order_is_placed_read_listed_and_deleted() {
    let app = TestApp::start().await;
    let pet = app.pet("Rex").await;
    let body = json!({
        "petId": pet, "quantity": 3, "shipDate": "2026-01-31T13:30:00.123456+01:30",
        "status": "approved", "complete": false, "unknown": 1
    });
    let placed = app.post("/store/order", &body).is(201).await;
    let id = placed.id();
    let expected = json!({
        "id": id, "petId": pet, "quantity": 3, "shipDate": "2026-01-31T12:00:00.123456Z",
        "status": "approved", "complete": false, "caller": "tester"
    });
    assert_eq!(timeless(placed.json()), expected);
    assert!(placed.text().starts_with("{\"id\":"), "{placed}");
    let path = format!("/store/order/{id}");
    assert_eq!(placed.header("location"), format!("/api/v3{path}"));
    assert_eq!(app.get(&path).is(200).await.body, placed.body);
    let list = app.get("/store/orders").is(200).await;
    assert_eq!(list.json(), json!([placed.json()]));
    let deleted = app.delete(&path).is(200).await;
    let message = json!({"code": 200, "type": "deleted", "message": id.to_string()});
    assert_eq!(deleted.json(), message);
    for request in [app.get(&path), app.delete(&path)] {
        request.await.problem(404);
    }
    // Absent fields get their defaults.
    let placed = order(&app, pet).is(201).await;
    let expected = json!({
        "id": placed.id(), "petId": pet, "quantity": 1, "status": "placed", "complete": false,
        "caller": "tester"
    });
    assert_eq!(timeless(placed.json()), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn place_order_changes_pet_status_and_is_409_unless_available() {
    let app = TestApp::start().await;
    let pet = app.pet("Rex").await;
    let path = async || {
        let placed = order(&app, pet).is(201).await;
        format!("/store/order/{}", placed.id())
    };
    let by_hand = async |status: &str| {
        let query = format!("/pet/{pet}?status={status}");
        app.request(Method::POST, &query).is(200).await;
    };
    let refused = async |word: &str| {
        let problem = order(&app, pet).await.problem(409);
        let detail = problem["detail"].as_str().expect("a text").to_owned();
        assert!(detail.ends_with(word), "{detail}");
    };
    let before = app.get(&format!("/pet/{pet}")).await.etag();
    let first = path().await;
    assert_eq!(status(&app, pet).await, "pending");
    let after = app.get(&format!("/pet/{pet}")).await.etag();
    assert_ne!(before, after, "an order is a change of the pet");
    refused("has an open order").await;
    app.delete(&first).is(200).await;
    assert_eq!(status(&app, pet).await, "available");

    // A pet with an open order can be set to sold, and stays sold.
    let second = path().await;
    by_hand("sold").await;
    refused("is sold").await;
    // The delivery of its order alters nothing of it.
    let sold = app.get(&format!("/pet/{pet}")).await.etag();
    let delivered = json!({"status": "delivered"});
    app.patch(&second, &delivered).is(200).await;
    assert_eq!(app.get(&format!("/pet/{pet}")).await.etag(), sold);
    let changes = app
        .get("/changes?order=desc&limit=2")
        .is(200)
        .await
        .changes();
    let kinds: Vec<_> = changes.iter().map(|it| &it["kind"]).collect();
    assert_eq!(kinds, ["order", "pet"], "{changes:?}");
    app.delete(&second).is(200).await;
    assert_eq!(status(&app, pet).await, "sold");
    by_hand("pending").await;
    refused("is pending").await;
    by_hand("available").await;

    // A delivered or complete order sells the pet; the pet stays sold when the order is deleted.
    for closed in [
        json!({"petId": pet, "status": "delivered"}),
        json!({"petId": pet, "complete": true}),
    ] {
        let placed = app.post("/store/order", &closed).is(201).await;
        assert_eq!(status(&app, pet).await, "sold");
        refused("is sold").await;
        let path = format!("/store/order/{}", placed.id());
        app.delete(&path).is(200).await;
        assert_eq!(status(&app, pet).await, "sold");
        by_hand("available").await;
    }
    let unknown = order(&app, pet + 1).await;
    assert_eq!(unknown.invalid_fields(), ["petId"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn order_of_deleted_pet_stays_and_does_not_hold_a_new_pet() {
    let app = TestApp::start().await;
    let rex = json!({"id": 7, "name": "Rex"});
    app.post("/pet", &rex).is(201).await;
    let first = order(&app, 7).is(201).await;
    app.delete("/pet/7").is(200).await;
    let first = format!("/store/order/{}", first.id());
    assert_eq!(app.get(&first).is(200).await.json()["petId"], 7);
    // It is not approved or delivered: there is nothing to deliver.
    for status in ["approved", "delivered"] {
        let refused = app.patch(&first, &json!({"status": status})).is(409).await;
        assert!(refused.text().contains("deleted"), "{refused}");
    }
    let shipped = json!({"shipDate": "2026-01-31T12:00:00Z"});
    app.patch(&first, &shipped).is(200).await;
    assert_eq!(order(&app, 7).await.invalid_fields(), ["petId"]);
    // A new pet with the same id can be ordered, and stays ordered when the old order is deleted.
    app.post("/pet", &rex).is(201).await;
    let second = order(&app, 7).is(201).await;
    app.delete(&first).is(200).await;
    assert_eq!(status(&app, 7).await, "pending");
    app.delete(&format!("/store/order/{}", second.id()))
        .is(200)
        .await;
    assert_eq!(status(&app, 7).await, "available");
    // Deleting the order does not bring back a deleted pet.
    let third = order(&app, 7).is(201).await;
    app.delete("/pet/7").is(200).await;
    let third_order = format!("/store/order/{}", third.id());
    app.patch(&third_order, &json!({"complete": true}))
        .is(200)
        .await;
    app.delete(&third_order).is(200).await;
    app.get("/pet/7").is(404).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn place_order_with_taken_id_is_409_and_without_id_gets_an_unused_one() {
    let app = TestApp::start().await;
    let place = async |id: Option<i64>| {
        let pet = app.pet("a").await;
        let body = json!({"id": id, "petId": pet});
        (app.post("/store/order", &body).await, pet)
    };
    for id in 1..=3 {
        assert_eq!(place(Some(id)).await.0.is(201).id(), id);
    }
    let (taken, pet) = place(Some(2)).await;
    taken.problem(409);
    assert_eq!(
        status(&app, pet).await,
        "available",
        "a refused order changes nothing"
    );
    let given = [
        place(None).await.0.is(201).id(),
        place(Some(0)).await.0.is(201).id(),
    ];
    assert_eq!(given, [4, 5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn place_order_with_idempotency_key_is_done_once() {
    let app = TestApp::start().await;
    let pet = app.pet("a").await;
    let send = || order(&app, pet).header("idempotency-key", "k");
    let first = send().await.is(201);
    let again = send().await.is(201);
    assert_eq!(again.header("idempotent-replayed"), "true");
    assert_eq!(
        (first.body, first.headers.get("location")),
        (again.body.clone(), again.headers.get("location"))
    );
    assert_eq!(app.database.number("select count(*) from orders").await, 1);
}

/// What a response shows is what every later one shows, for each way in.
#[tokio::test(flavor = "multi_thread")]
async fn ship_date_is_stored_as_it_is_answered() {
    let app = TestApp::start().await;
    let (pet, other) = (app.pet("Rex").await, app.pet("Tom").await);
    let patched = format!("/store/order/{}", order(&app, other).is(201).await.id());
    let years = [1, 1600, 1969, 1970, 2255, 2300, 9999];
    let fractions = (0..=9).map(|digits| match digits {
        0 => String::new(),
        _ => format!(".{}", &"999008457"[..digits]),
    });
    let offsets = ["Z", "+14:00", "-14:00"];
    let latest: DateTime<Utc> = "9999-12-31T23:59:59.999999999Z".parse().expect("RFC 3339");
    let ends = fractions.flat_map(|fraction| offsets.map(|offset| format!("{fraction}{offset}")));
    for text in ends.flat_map(|end| years.map(|year| format!("{year:04}-12-31T23:59:59{end}"))) {
        let place = app.post("/store/order", &json!({"petId": pet, "shipDate": text}));
        let change = app.patch(&patched, &json!({ "shipDate": text }));
        let instant = DateTime::parse_from_rfc3339(&text)
            .expect("RFC 3339")
            .to_utc();
        if instant > latest {
            for refused in [place, change] {
                assert_eq!(refused.await.invalid_fields(), ["shipDate"], "{text}");
            }
            continue;
        }
        let acknowledged = [place.is(201).await, change.is(200).await];
        let path = format!("/store/order/{}", acknowledged[0].id());
        let read = [
            app.get(&path).is(200).await,
            app.get(&patched).is(200).await,
        ];
        let expected = DateTime::from_timestamp_micros(instant.timestamp_micros());
        for response in acknowledged.iter().chain(&read) {
            let shown = response.json()["shipDate"].clone();
            let shown: Option<DateTime<Utc>> = shown.as_str().and_then(|it| it.parse().ok());
            assert_eq!(shown, expected, "{text}: {response}");
        }
        app.delete(&path).is(200).await;
    }
    // As earlier builds stored them.
    for (stored, shown) in [
        ("10000-01-01Z", "9999-12-31T23:59:59.999999Z"),
        ("0001-12-31Z BC", "0001-01-01T00:00:00Z"),
    ] {
        let update = format!("update orders set ship_date = '{stored}'");
        app.database.run(&update).await;
        let read = app.get(&patched).is(200).await.json();
        assert_eq!(read["shipDate"], shown);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn place_order_names_all_invalid_fields() {
    let app = TestApp::start().await;
    let pet = app.pet("a").await;
    let body = json!({
        "id": -1, "petId": "1", "quantity": 0, "shipDate": "tomorrow", "status": "lost", "complete": "no"
    });
    let response = app.post("/store/order", &body).await;
    let fields = ["id", "petId", "quantity", "shipDate", "status", "complete"];
    assert_eq!(response.invalid_fields(), fields);
    for (field, value) in [
        ("id", json!(1.5)),
        ("id", json!(1_i64 << 53)),
        ("petId", Value::Null),
        ("petId", json!(0)),
        ("quantity", json!(1_i64 << 31)),
        ("quantity", json!("1")),
        ("shipDate", json!("2026-02-30T00:00:00Z")),
        ("shipDate", json!("2026-01-31T00:00:00")),
        ("shipDate", json!(0)),
        ("status", json!("Placed")),
        ("status", json!("a\0")),
        ("complete", json!(1)),
    ] {
        let mut body = json!({ "petId": pet });
        body[field] = value;
        let response = app.post("/store/order", &body).await;
        assert_eq!(response.invalid_fields(), [field], "{body}");
    }
    for id in [
        "0",
        "-1",
        "+1",
        "%2B1",
        "x",
        "01",
        "9007199254740992",
        "1%00",
    ] {
        let path = format!("/store/order/{id}");
        let change = app.patch(&path, &json!({}));
        for request in [app.get(&path), app.delete(&path), change] {
            assert_eq!(request.await.invalid_fields(), ["orderId"]);
        }
    }
    for (query, field) in [
        ("status=", "status"),
        ("status=lost", "status"),
        ("petId=0", "petId"),
        ("petId=1&petId=2", "petId"),
        ("limit=0", "limit"),
        ("cursor=x", "cursor"),
    ] {
        let response = app.get(&format!("/store/orders?{query}")).await;
        assert_eq!(response.invalid_fields(), [field], "{query}");
    }
    assert_eq!(status(&app, pet).await, "available");
}

#[tokio::test(flavor = "multi_thread")]
async fn order_of_another_caller_is_404_except_for_admins() {
    let app = TestApp::start().await;
    let (alice, bob) = (caller(&app, "alice").await, caller(&app, "bob").await);
    let admin = app
        .make_key(
            "boss",
            scopes(&[Scope::ReadOrders, Scope::WriteOrders, Scope::Admin]),
        )
        .await
        .secret;
    let send = async |key: &str, method: Method, path: &str| app.with_key(key, method, path).await;
    let place = async |key: &str| {
        let body = json!({"petId": app.pet("a").await});
        let request = app.anonymous(Method::POST, "/store/order").json(&body);
        request.header("api_key", key).is(201).await.id()
    };
    let (hers, his) = (place(&alice).await, place(&bob).await);
    for (key, sees, names) in [
        (&alice, vec![hers], [Value::Null, Value::Null]),
        (&bob, vec![his], [Value::Null, Value::Null]),
        (&admin, vec![hers, his], [json!("alice"), json!("bob")]),
    ] {
        let list = send(key, Method::GET, "/store/orders").await.is(200);
        assert_eq!(list.ids(), sees);
        for (order, name) in list.json().as_array().expect("an array").iter().zip(&names) {
            assert_eq!(&order["caller"], name);
            let of_pet = format!("/store/orders?petId={}", order["petId"]);
            let of_pet = send(key, Method::GET, &of_pet).await.is(200);
            assert_eq!(&of_pet.json()[0], order);
            let single = format!("/store/order/{}", order["id"]);
            let single = send(key, Method::GET, &single).await.is(200);
            assert_eq!(&single.json(), order);
        }
        for id in [hers, his] {
            let response = send(key, Method::GET, &format!("/store/order/{id}")).await;
            if sees.contains(&id) {
                response.is(200);
            } else {
                response.problem(404);
            }
        }
    }
    // The response for another caller's order equals that for an unknown order.
    let strip = |problem: Value| {
        problem["detail"]
            .as_str()
            .expect("a text")
            .replace(|c: char| c.is_ascii_digit(), "")
    };
    let others = send(&bob, Method::DELETE, &format!("/store/order/{hers}"))
        .await
        .problem(404);
    let missing = send(&bob, Method::DELETE, "/store/order/999")
        .await
        .problem(404);
    assert_eq!(strip(others), strip(missing));
    send(&alice, Method::GET, &format!("/store/order/{hers}"))
        .await
        .is(200);
    send(&admin, Method::DELETE, &format!("/store/order/{hers}"))
        .await
        .is(200);
    let change = app.with_key(&admin, Method::PATCH, &format!("/store/order/{his}"));
    let patched = change.json(&json!({"status": "approved"})).is(200).await;
    assert_eq!(patched.json()["caller"], "bob");
    send(&bob, Method::DELETE, &format!("/store/order/{his}"))
        .await
        .is(200);
    // The orders of a caller outlive it, without its name.
    let last = place(&alice).await;
    let callers = app.get("/admin/callers?name=alice").is(200).await;
    let path = format!("/admin/callers/{}", callers.json()[0]["id"]);
    app.delete(&path).is(200).await;
    let order = send(&admin, Method::GET, &format!("/store/order/{last}"))
        .await
        .is(200);
    assert_eq!(order.json()["caller"], Value::Null);
}

/// In every other round, ten requests set the pet to available again while callers order it.
#[tokio::test(flavor = "multi_thread")]
async fn place_order_by_fifty_concurrent_callers_succeeds_for_one() {
    const CALLERS: usize = 50;
    let app = TestApp::start().await;
    let mut keys = Vec::new();
    for number in 0..CALLERS {
        keys.push(caller(&app, &format!("caller {number}")).await);
    }
    for round in 0..20 {
        let pet = app.pet("the last one").await;
        let replacement = json!({"id": pet, "name": "renamed", "status": "available"});
        let orders = keys.iter().map(|key| {
            let body = json!({ "petId": pet });
            app.with_key(key, Method::POST, "/store/order").json(&body)
        });
        let puts = async {
            for _ in 0..10 * (round % 2) {
                let put = app.put("/pet", &replacement).await;
                assert!([200, 409].contains(&put.status), "{put}");
            }
        };
        let (statuses, ()) = tokio::join!(statuses_of(orders), puts);
        let expected = [vec![201], vec![409; CALLERS - 1]].concat();
        assert_eq!(statuses, expected, "round {round}");
        app.put("/pet", &replacement).await.problem(409);
        assert_eq!(status(&app, pet).await, "pending", "round {round}");
    }
    let held = "select count(*) from orders where held_pet is not null";
    assert_eq!(app.database.number(held).await, 20);
}

/// Runs all operations that lock pets and orders at once over a few rows. No deadlock and no 5xx may occur.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_changes_of_pets_and_orders_stay_consistent() {
    let app = TestApp::start().await;
    app.add_pets(3).await;
    let worker = async |seed: u64| {
        let mut random = seed;
        let mut next = |bound: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % bound
        };
        for _ in 0..60 {
            let (pet, id) = (1 + next(3), 1 + next(4));
            let request = match next(10) {
                0..=2 => app.post(
                    "/store/order",
                    &json!({"id": id, "petId": pet, "complete": next(3) == 0}),
                ),
                3..=4 => app.delete(&format!("/store/order/{id}")),
                5 => app.put("/pet", &json!({"id": pet, "name": "b"})),
                6 => app.delete(&format!("/pet/{pet}")),
                7 => app.patch(
                    &format!("/store/order/{id}"),
                    &json!({"status": "approved", "complete": next(3) == 0}),
                ),
                8 => app.patch(&format!("/pet/{pet}"), &json!({"status": "available"})),
                _ => app.post("/pet", &json!({"id": pet, "name": "c"})),
            };
            let response = request.await;
            assert!(response.status < 500, "{response}");
        }
    };
    join_all((1..=8).map(worker)).await;
    let lonely = "select count(*) from orders left join pets on pets.id = held_pet
                  where held_pet is not null and pets.id is null";
    assert_eq!(app.database.number(lonely).await, 0);
    // No request has set `pending` by hand, so that each pending pet has an order.
    let unheld = "select count(*) from pets where status = 'pending'
                  and not exists (select from orders where held_pet = pets.id)";
    assert_eq!(app.database.number(unheld).await, 0);
    let released = "select count(*) from orders join pets on pets.id = held_pet
                    where pets.status <> 'pending'";
    assert_eq!(app.database.number(released).await, 0);
    assert_inventory(&app).await;
}

/// Returns a request for each way to make the pet available, the last one with the idempotency key `key`.
fn ways_to_release(app: &TestApp, pet: i64, key: &str) -> Vec<Call> {
    let path = format!("/pet/{pet}");
    let tags: Vec<Value> = (0..30).map(|tag| json!({"id": tag})).collect();
    let put = json!({"id": pet, "name": "a", "status": "available"});
    // Too large for a batch.
    let large = json!({"id": pet, "name": "a", "status": "available", "tags": tags});
    let form = || app.request(Method::POST, &format!("{path}?status=available"));
    vec![
        app.put("/pet", &put),
        app.put("/pet", &large),
        app.patch(&path, &json!({"status": "available"})),
        app.patch(&path, &json!({"status": null})),
        form(),
        form().header("idempotency-key", key),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn pet_with_an_open_order_cannot_be_made_available() {
    let app = TestApp::start().await;
    for by_hand in ["pending", "sold"] {
        let pet = app.pet("Rex").await;
        let path = format!("/pet/{pet}");
        let placed = order(&app, pet).is(201).await;
        let set = app.patch(&path, &json!({ "status": by_hand }));
        let etag = set.is(200).await.etag();
        for request in ways_to_release(&app, pet, &format!("held {pet}")) {
            let problem = request.await.problem(409);
            assert_eq!(problem["detail"], format!("pet {pet} has an open order"));
        }
        assert_eq!(app.get(&path).await.etag(), etag);
        // A stale `If-Match` comes first, and a change without a status succeeds.
        for request in ways_to_release(&app, pet, &format!("stale {pet}")) {
            request.header("if-match", "\"0\"").await.problem(412);
        }
        let tags: Vec<Value> = (0..30).map(|tag| json!({"id": tag})).collect();
        for request in [
            app.put("/pet", &json!({"id": pet, "name": "b"})),
            app.put("/pet", &json!({"id": pet, "name": "b", "status": null})),
            app.put("/pet", &json!({"id": pet, "name": "b", "tags": tags})),
            app.patch(&path, &json!({"name": "b"})),
            app.request(Method::POST, &format!("{path}?name=b")),
        ] {
            let changed = request.is(200).await.json();
            assert_eq!(
                (&changed["name"], &changed["status"]),
                (&json!("b"), &json!(by_hand))
            );
            assert_eq!(status(&app, pet).await, by_hand);
        }
        let order = format!("/store/order/{}", placed.id());
        app.delete(&order).is(200).await;
        let after = if by_hand == "sold" {
            "sold"
        } else {
            "available"
        };
        assert_eq!(status(&app, pet).await, after);
        for request in ways_to_release(&app, pet, &format!("free {pet}")) {
            let changed = request.is(200).await.json();
            assert_eq!(changed["status"], "available");
        }
    }
    // Without an order, a replacement without a status makes the pet available.
    let pet = app.pet("Rex").await;
    for before in ["pending", "sold"] {
        let set = app.patch(&format!("/pet/{pet}"), &json!({ "status": before }));
        set.is(200).await;
        let put = app.put("/pet", &json!({"id": pet, "name": "b"}));
        assert_eq!(put.is(200).await.json()["status"], "available");
    }
}

/// Changes that arrive together share a statement, which reads the orders of several pets.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_changes_make_only_pets_without_an_order_available() {
    let app = TestApp::start().await;
    for id in 1..=40 {
        let pet = json!({"id": id, "name": "a", "status": if id % 4 == 0 { "sold" } else { "available" }});
        app.post("/pet", &pet).is(201).await;
        if id % 4 == 1 {
            order(&app, id).is(201).await;
        }
    }
    for _ in 0..5 {
        let changes = (1..=40).map(async |id| {
            let request = match id % 8 {
                0..4 => app.put("/pet", &json!({"id": id, "name": "b"})),
                _ => app.put(
                    "/pet",
                    &json!({"id": id, "name": "b", "status": "available"}),
                ),
            };
            (id, request.await)
        });
        for (id, response) in join_all(changes).await {
            match id % 8 {
                5 => drop(response.problem(409)),
                1 => assert_eq!(response.is(200).json()["status"], "pending"),
                _ => assert_eq!(response.is(200).json()["status"], "available"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_admins_place_orders_in_another_state_than_the_first() {
    let app = TestApp::with(&[("PET_INVENTORY__AUTH__ANONYMOUS_SCOPES", "write:orders")]).await;
    let pet = app.pet("Rex").await;
    app.sign_up("ada").await;
    let session = app.log_in("ada").await;
    let key = caller(&app, "alice").await;
    let changes = [
        json!({"complete": true}),
        json!({"status": "approved"}),
        json!({"status": "delivered"}),
        json!({"status": "delivered", "complete": true}),
    ];
    for (number, changes) in changes.iter().enumerate() {
        let mut body = changes.clone();
        body["petId"] = pet.into();
        let place = || app.anonymous(Method::POST, "/store/order").json(&body);
        for request in [
            place(),
            place().bearer_auth(&session),
            place().header("api_key", &key),
            place()
                .header("api_key", &key)
                .header("idempotency-key", format!("k{number}")),
        ] {
            let refused = request.await;
            let challenge = refused.header("www-authenticate");
            assert!(
                challenge.contains("scope=\"write:orders admin\""),
                "{refused}"
            );
            refused.problem(403);
        }
        assert_eq!(status(&app, pet).await, "available", "{changes}");
    }
    assert_eq!(app.database.number("select count(*) from orders").await, 0);
    let body = json!({"petId": pet, "status": "placed", "complete": false});
    let place = app.anonymous(Method::POST, "/store/order").json(&body);
    let place = place.header("api_key", &key).header("idempotency-key", "k");
    place.is(201).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn patch_order_moves_it_forward_and_sells_its_pet() {
    let app = TestApp::start().await;
    for steps in [
        &[
            json!({"status": "approved"}),
            json!({"status": "delivered"}),
            json!({"complete": true}),
        ][..],
        &[json!({"status": "delivered", "complete": true})],
        &[json!({"complete": true}), json!({"status": "delivered"})],
    ] {
        let pet = app.pet("Rex").await;
        let placed = order(&app, pet).is(201).await;
        let path = format!("/store/order/{}", placed.id());
        let mut expected = placed.json();
        for step in steps {
            for (field, value) in step.as_object().expect("fields") {
                expected[field] = value.clone();
            }
            let is_closed = expected["status"] == "delivered" || expected["complete"] == true;
            let after = if is_closed { "sold" } else { "pending" };
            let etag = app.get(&format!("/pet/{pet}")).await.etag();
            let before = status(&app, pet).await;
            let patched = app.patch(&path, step).is(200).await;
            assert_eq!(patched.json(), expected);
            assert_eq!(app.get(&path).await.body, patched.body);
            assert_eq!(status(&app, pet).await, after);
            let changed = etag != app.get(&format!("/pet/{pet}")).await.etag();
            assert_eq!(changed, before != after, "{step}");
            // The same patch again changes nothing.
            assert_eq!(app.patch(&path, step).is(200).await.body, patched.body);
        }
        for back in [
            json!({"status": "placed"}),
            json!({"status": null}),
            json!({"complete": false}),
            json!({"complete": null, "shipDate": "2026-01-31T12:00:00Z"}),
        ] {
            app.patch(&path, &back).await.problem(409);
            assert_eq!(app.get(&path).await.json(), expected, "{back}");
        }
        // The pet is no longer the order's.
        let release = app.patch(&format!("/pet/{pet}"), &json!({"status": "available"}));
        release.is(200).await;
        app.patch(&path, &json!({"complete": true})).is(200).await;
        app.delete(&path).is(200).await;
        assert_eq!(status(&app, pet).await, "available");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn patch_order_changes_its_date_and_ignores_other_fields() {
    let app = TestApp::start().await;
    let pet = app.pet("Rex").await;
    let placed = order(&app, pet).is(201).await;
    let path = format!("/store/order/{}", placed.id());
    let body =
        json!({"shipDate": "2026-01-31T13:30:00+01:30", "id": 99, "petId": "x", "quantity": 7});
    let mut expected = placed.json();
    expected["shipDate"] = json!("2026-01-31T12:00:00Z");
    assert_eq!(app.patch(&path, &body).is(200).await.json(), expected);
    for date in ["2026-01-31T12:00Z", "2026-01-31T13:30+01:30"] {
        let without_seconds = app.patch(&path, &json!({ "shipDate": date }));
        assert_eq!(without_seconds.is(200).await.json(), expected);
    }
    let as_json = app.request(Method::PATCH, &path).json(&json!({}));
    assert_eq!(as_json.is(200).await.json(), expected);
    let removed = app.patch(&path, &json!({"shipDate": null}));
    assert_eq!(removed.is(200).await.body, placed.body);

    let lost = json!({"status": "lost", "complete": 1, "shipDate": "tomorrow"});
    let invalid = app.patch(&path, &lost).await;
    assert_eq!(invalid.invalid_fields(), ["shipDate", "status", "complete"]);
    let id = app.patch("/store/order/0", &json!({})).await;
    assert_eq!(id.invalid_fields(), ["orderId"]);
    app.patch("/store/order/999", &json!({})).await.problem(404);
    let text = app.request(Method::PATCH, &path).body("a");
    text.await.problem(415);
    for scopes in [Scopes::of_new_callers(), scopes(&[Scope::WriteOrders])] {
        let key = app.make_key("alice", scopes).await.secret;
        let request = app
            .anonymous(Method::PATCH, &path)
            .json(&json!({"complete": true}));
        request.header("api_key", key).await.problem(403);
    }
    // An order outlives its pet.
    app.delete(&format!("/pet/{pet}")).is(200).await;
    app.patch(&path, &json!({"complete": true})).is(200).await;
    app.get(&format!("/pet/{pet}")).is(404).await;
    assert_inventory(&app).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn delivered_or_complete_order_is_deleted_by_admins_only() {
    let app = TestApp::start().await;
    let key = caller(&app, "alice").await;
    for closed in [json!({"complete": true}), json!({"status": "delivered"})] {
        let pet = app.pet("Rex").await;
        let place = app
            .anonymous(Method::POST, "/store/order")
            .json(&json!({ "petId": pet }));
        let placed = place.header("api_key", &key).is(201).await;
        let path = format!("/store/order/{}", placed.id());
        app.patch(&path, &closed).is(200).await;
        let delete = |path: &str| app.with_key(&key, Method::DELETE, path);
        for _ in 0..2 {
            delete(&path).await.problem(409);
        }
        // The orders of other callers do not exist, in whichever state they are.
        let place = json!({"petId": app.pet("Max").await, "complete": true});
        let other = app.post("/store/order", &place).is(201).await;
        let other = format!("/store/order/{}", other.id());
        delete(&other).await.problem(404);
        app.get(&path).is(200).await;
        app.delete(&path).is(200).await;
        assert_eq!(status(&app, pet).await, "sold");
        delete(&path).await.problem(404);
    }
}

/// An owner deletes the order while an administrator delivers it: the pet is sold exactly if the order was delivered.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_deletion_and_delivery_have_one_winner() {
    let app = TestApp::start().await;
    let key = caller(&app, "alice").await;
    let rounds = (0..40).map(async |_| {
        let pet = app.pet("Rex").await;
        let place = app
            .anonymous(Method::POST, "/store/order")
            .json(&json!({ "petId": pet }));
        let placed = place.header("api_key", &key).is(201).await;
        let path = format!("/store/order/{}", placed.id());
        let (deleted, delivered) = tokio::join!(
            app.with_key(&key, Method::DELETE, &path),
            app.patch(&path, &json!({"status": "delivered"})),
        );
        let outcome = (deleted.status, delivered.status);
        let after = match outcome {
            (200, 404) => "available",
            (409, 200) => "sold",
            _ => panic!("{deleted} {delivered}"),
        };
        assert_eq!(status(&app, pet).await, after);
    });
    join_all(rounds).await;
    assert_inventory(&app).await;
}

/// Compares the inventory with a count of the pets and returns it.
async fn assert_inventory(app: &TestApp) -> Value {
    let response = app.get("/store/inventory").is(200).await.json();
    for status in ["available", "pending", "sold"] {
        let count = format!("select count(*) from pets where status = '{status}'");
        assert_eq!(
            response[status],
            app.database.number(&count).await,
            "{status}: {response}"
        );
    }
    response
}

#[tokio::test(flavor = "multi_thread")]
async fn inventory_is_exact_after_any_change_of_pets() {
    let app = TestApp::start().await;
    let none = json!({"available": 0, "pending": 0, "sold": 0});
    assert_eq!(assert_inventory(&app).await, none);
    let insert = |from: u32, to: u32| {
        format!(
            "insert into pets (id, status, details)
             select id, (array['available', 'pending', 'sold'])[1 + id % 3],
                    json_build_object('name', 'a', 'photoUrls', '[]'::json, 'tags', '[]'::json)
             from generate_series({from}, {to}) as id on conflict do nothing"
        )
    };
    let mut connection = app.database.connect().await;
    let rows = "insert into pets (id, status, details)
                values (2000, 'sold', json_build_object('name', 'a', 'photoUrls', '[]'::json, 'tags', '[]'::json)),
             (1, 'available', json_build_object('name', 'a', 'photoUrls', '[]'::json, 'tags', '[]'::json))
                on conflict (id) do update set status = excluded.status";
    for statement in [
        insert(1, 900),
        insert(500, 1_000),
        rows.to_owned(),
        "update pets set status = 'sold' where id % 2 = 0".to_owned(),
        "update pets set details = '{\"name\": \"b\", \"photoUrls\": [], \"tags\": []}'".to_owned(),
        "delete from pets where id between 100 and 199".to_owned(),
        "delete from pets where id = 5000".to_owned(),
    ] {
        connection
            .execute(AssertSqlSafe(statement))
            .await
            .expect("a change");
        assert_inventory(&app).await;
    }
    let mut copy = PgConnection::copy_in_raw(
        &mut connection,
        "copy pets (id, status, details) from stdin",
    )
    .await
    .expect("a copy");
    let lines: Vec<String> = (3_000..3_500)
        .map(|id| format!("{id}\tpending\t{{\"name\": \"a\", \"photoUrls\": [], \"tags\": []}}\n"))
        .collect();
    copy.send(lines.concat().as_bytes()).await.expect("rows");
    copy.finish().await.expect("a copy");
    assert_inventory(&app).await;
    // A change that is rolled back does not count.
    connection
        .execute("begin; delete from pets; rollback")
        .await
        .expect("undone");
    let exact = assert_inventory(&app).await;
    // Folding changes no count and leaves few rows.
    connection.execute("do $$ begin for n in 10000..10200 loop
            insert into pets (id, status, details) values (n, 'sold', json_build_object('name', 'a', 'photoUrls', '[]'::json,
                    'tags', '[]'::json));
            delete from pets where id = n; end loop; end $$").await.expect("changes");
    while inventory::fold(&mut connection).await.expect("folded") > 0 {}
    assert_eq!(assert_inventory(&app).await, exact);
    assert!(
        app.database
            .number("select count(*) from inventory_changes")
            .await
            < 50
    );
    connection
        .execute("truncate pets cascade")
        .await
        .expect("emptied");
    assert_eq!(assert_inventory(&app).await, none);
}

/// Reads the inventory while orders change pets to pending: each response counts all 20 pets.
#[tokio::test(flavor = "multi_thread")]
async fn inventory_is_a_consistent_snapshot_during_changes() {
    let app = TestApp::start().await;
    app.add_pets(20).await;
    let orders = async {
        for id in 1..=20 {
            order(&app, id).is(201).await;
        }
    };
    let folds = async {
        let mut connection = app.database.connect().await;
        for _ in 0..50 {
            inventory::fold(&mut connection).await.expect("folded");
        }
    };
    let reads = async {
        for _ in 0..30 {
            // Requests that arrive together share a statement.
            let all = (0..8).map(|_| app.get("/store/inventory"));
            for response in send_all(all).await {
                let inventory = response.is(200).json();
                let of = |status: &str| inventory[status].as_i64().expect("a number");
                assert_eq!(of("available") + of("pending"), 20, "{inventory}");
            }
        }
    };
    tokio::join!(orders, folds, reads);
    assert_eq!(assert_inventory(&app).await["pending"], 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn inventory_is_folded_in_the_background() {
    let app = TestApp::start().await;
    app.database
        .run("insert into inventory_changes select 'sold', 0 from generate_series(1, 20000)")
        .await;
    let few = async || {
        app.database
            .number("select count(*) from inventory_changes")
            .await
            < 50
    };
    // Folding runs every 5 s.
    for _ in 0..5 {
        if few().await {
            break;
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    eventually(few).await;
    assert_inventory(&app).await;
}

async fn many_orders(app: &TestApp, number: i64) {
    app.database
        .run(&format!(
            "insert into orders (id, owner, pet_id, quantity, status, complete)
             select id * 2, (select id from callers where name = 'tester') + id % 2, 1 + id % 100, 1,
                    (array['placed', 'approved', 'delivered'])[1 + id % 3], false
             from generate_series(1, {number}) as id"
        ))
        .await;
    app.database.run("analyze orders").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn list_orders_returns_pages_of_100_by_default() {
    let app = TestApp::start().await;
    many_orders(&app, 700).await;
    let all: Vec<i64> = (1..=700).map(|id| id * 2).collect();
    let matching = |filter: &dyn Fn(i64) -> bool| -> Vec<i64> {
        all.iter().copied().filter(|id| filter(id / 2)).collect()
    };
    for (query, ids) in [
        ("", all.clone()),
        ("status=placed", matching(&|id| id % 3 == 0)),
        ("status=placed,delivered", matching(&|id| id % 3 != 1)),
        ("petId=8", matching(&|id| id % 100 == 7)),
        (
            "petId=8&status=approved&status=approved",
            matching(&|id| id % 100 == 7 && id % 3 == 1),
        ),
        ("petId=999", vec![]),
    ] {
        let first = app.get(&format!("/store/orders?{query}")).is(200).await;
        assert_eq!(first.ids(), ids[..ids.len().min(100)], "{query}");
        let has_more = first.optional_header("link").is_some();
        assert_eq!(has_more, ids.len() > 100, "{first}");
        let mut paged = Vec::new();
        let mut next = Some(format!("/api/v3/store/orders?limit=97&{query}"));
        while let Some(path) = next {
            let page = app
                .bare(Method::GET, &path)
                .header("api_key", &app.key)
                .is(200)
                .await;
            paged.extend(page.ids());
            next = page.optional_header("link").map(|link| {
                let url = link
                    .strip_prefix('<')
                    .and_then(|link| link.strip_suffix(">; rel=\"next\""));
                url.unwrap_or_else(|| panic!("{link}")).to_owned()
            });
        }
        assert_eq!(paged, ids, "{query}");
        for limit in [1_000, 50] {
            let newest = app.get(&format!("/store/orders?sort=-id&limit={limit}&{query}"));
            let newest = newest.is(200).await;
            let expected: Vec<i64> = ids.iter().rev().copied().take(limit).collect();
            assert_eq!(newest.ids(), expected, "{query}");
            let Some(next) = next_path(&app, &newest) else {
                continue;
            };
            let expected: Vec<i64> = ids.iter().rev().copied().skip(limit).take(limit).collect();
            assert_eq!(app.get(&next).is(200).await.ids(), expected, "{next}");
        }
    }
    let response = app.get("/store/orders?sort=petId").await;
    assert_eq!(response.invalid_fields(), ["sort"]);
}

/// Checks the query plans, and that a page reads only what it returns: for a caller with few orders, for one with most of
/// all orders and a rare status, for a rare status of all orders, and for one pet.
#[tokio::test(flavor = "multi_thread")]
async fn list_orders_reads_indexes() {
    let app = TestApp::start().await;
    app.database
        .run(
            "insert into orders (id, owner, pet_id, quantity, status, complete)
             select id, case when id % 1000 = 7 then 1 + id % 9 else 10 end, 1 + id % 1000, 1,
                    case when id % 5000 = 0 then 'delivered' when id % 2 = 0 then 'approved' else 'placed' end, false
             from generate_series(1, 50000) as id",
        )
        .await;
    app.database
        .run("set default_statistics_target = 1000; analyze orders")
        .await;
    let mut connection = app.database.connect().await;
    let arguments = "(text[], bigint, bigint, bigint, bigint, boolean)";
    let lists = [
        (
            LISTS_OF_OWNER,
            "orders_by_owner",
            "'{placed,approved,delivered}', 20000, 20, 7, null",
        ),
        (
            LISTS_OF_OWNER,
            "orders_by_owner",
            "'{delivered}', 20000, 20, 10, null",
        ),
        (
            LISTS_OF_ALL,
            "orders_by_status",
            "'{delivered}', 20000, 20, null, null",
        ),
        (
            LISTS_OF_PET,
            "orders_by_pet",
            "'{placed,approved,delivered}', 20000, 20, null, 7",
        ),
    ];
    let directions = lists
        .into_iter()
        .flat_map(|(statements, index, values)| statements.map(|it| (it, index, values)));
    for (number, (statement, index, values)) in directions.enumerate() {
        // A page of each status; each order reads up to three blocks of an index and one of the table.
        const MAX_BLOCKS: u64 = 3 * 20 * 4;
        let name = format!("list{number}");
        let prepare = format!("{PLANNER_SETTINGS}; prepare {name} {arguments} as {statement}");
        let prepared = sqlx::raw_sql(AssertSqlSafe(prepare));
        prepared.execute(&mut connection).await.expect("prepared");
        let (plan, blocks) = explain(&mut connection, &format!("{name} ({values}, true)")).await;
        assert!(plan.contains(index) && !plan.contains("Seq Scan"), "{plan}");
        assert!(blocks <= MAX_BLOCKS, "{values}: {blocks} blocks\n{plan}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn list_orders_of_one_caller_is_for_admins() {
    let app = TestApp::start().await;
    let (alice, bob) = (caller(&app, "alice").await, caller(&app, "bob").await);
    let place = async |key: &str| {
        let body = json!({"petId": app.pet("a").await});
        let request = app.anonymous(Method::POST, "/store/order").json(&body);
        request.header("api_key", key).is(201).await.id()
    };
    let (first, second, _) = (place(&alice).await, place(&alice).await, place(&bob).await);
    let id = app.get("/admin/callers?name=alice").is(200).await.ids()[0];
    let path = format!("/store/orders?callerId={id}");
    let list = app.get(&path).is(200).await;
    assert_eq!(list.ids(), [first, second]);
    assert_eq!(list.json()[0]["caller"], "alice");
    let newest = app.get(&format!("{path}&sort=-id&limit=1")).is(200).await;
    assert_eq!(newest.ids(), [second]);
    let next = next_path(&app, &newest).expect("another page");
    assert_eq!(app.get(&next).is(200).await.ids(), [first]);
    let of_pet = app.get(&format!("{path}&petId=1")).is(200).await;
    assert_eq!(of_pet.ids(), [first]);
    assert_eq!(of_pet.json()[0]["caller"], "alice");
    let none = app.get(&format!("{path}&petId=3")).is(200).await;
    assert_eq!(none.ids(), [0; 0]);
    app.with_key(&alice, Method::GET, &path).is(403).await;
    let response = app.get("/store/orders?callerId=0").await;
    assert_eq!(response.invalid_fields(), ["callerId"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn anonymous_callers_share_their_orders() {
    let settings = [(
        "PET_INVENTORY__AUTH__ANONYMOUS_SCOPES",
        "read:orders,write:orders",
    )];
    let app = TestApp::with(&settings).await;
    let body = json!({"petId": app.pet("a").await});
    let placed = app
        .anonymous(Method::POST, "/store/order")
        .json(&body)
        .is(201)
        .await;
    let path = format!("/store/order/{}", placed.id());
    app.anonymous(Method::GET, &path).is(200).await;
    let alice = caller(&app, "alice").await;
    app.with_key(&alice, Method::GET, &path).await.problem(404);
    assert_eq!(app.get(&path).is(200).await.json()["caller"], Value::Null);
    app.anonymous(Method::DELETE, &path).is(200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn store_trailing_slash_is_200_unknown_order_404_and_put_405() {
    let app = TestApp::start().await;
    app.get("/store/inventory").is(200).await;
    app.get("/store/inventory/").is(200).await;
    app.get("/store/order/1").is(404).await;
    app.request(Method::PUT, "/store/order").is(405).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn administrators_see_the_usernames_of_orders_and_callers() {
    let app = TestApp::start().await;
    app.add_pets(2).await;
    let id = app.sign_up("Ada").await;
    let caller = format!("user:{id}");
    let token = app.log_in("ada").await;
    let place = async |pet: i64| {
        let order = app.anonymous(Method::POST, "/store/order");
        order
            .bearer_auth(&token)
            .json(&json!({"petId": pet}))
            .is(201)
            .await
    };
    let order = place(1).await;
    let path = format!("/store/order/{}", order.id());
    let own = app.anonymous(Method::GET, &path).bearer_auth(&token);
    for seen in [order, own.is(200).await] {
        assert_eq!(
            [&seen.json()["caller"], &seen.json()["username"]],
            [&Value::Null; 2]
        );
    }
    let seen = [
        app.get(&path).is(200).await.json(),
        app.get("/store/orders").is(200).await.json()[0].clone(),
        app.get("/store/orders?petId=1&sort=-id")
            .is(200)
            .await
            .json()[0]
            .clone(),
        app.patch(&path, &json!({"status": "approved"}))
            .is(200)
            .await
            .json(),
    ];
    for order in seen {
        assert_eq!(
            [&order["caller"], &order["username"]],
            [&*caller, "Ada"],
            "{order}"
        );
    }
    let callers = format!("/admin/callers?name={caller}&name=tester");
    let callers = app.get(&callers).is(200).await.json();
    assert_eq!(
        [&callers[0]["name"], &callers[0]["username"]],
        [&json!("tester"), &Value::Null]
    );
    assert_eq!(
        [&callers[1]["name"], &callers[1]["username"]],
        [&*caller, "Ada"]
    );
    let scopes = json!({"scopes": ["read:pets", "write:orders", "admin"]});
    app.patch(&format!("/admin/callers/{}", callers[1]["id"]), &scopes)
        .is(200)
        .await;
    let token = app.log_in("ada").await;
    let order = app
        .anonymous(Method::POST, "/store/order")
        .bearer_auth(&token);
    let order = order.json(&json!({"petId": 2})).is(201).await.json();
    assert_eq!([&order["caller"], &order["username"]], [&*caller, "Ada"]);
}
