//! Record of changes: what each request records, and in which order.

use pet_inventory::db;
use test_support::*;

/// Publishes what has been recorded, and returns it in the order of positions, without changes by commands.
async fn published(app: &TestApp) -> Vec<Value> {
    let mut connection = app.database.connect().await;
    db::changes::publish_all(&mut connection)
        .await
        .expect("a database");
    let changes = "select to_jsonb(change) - 'at' - 'position'
                   from (select * from changes where kind <> 'feed' and actor is distinct from 'operator'
                         order by position) change";
    let changes = sqlx::query_scalar(changes).fetch_all(&mut connection).await;
    changes.expect("a database")
}

/// Returns a change by the caller `tester`, without its request id.
fn change(
    kind: &str,
    resource: i64,
    action: &str,
    response: Option<&Response>,
    data: &Value,
) -> Value {
    let version = response.map(Response::version);
    json!({
        "kind": kind, "resource": resource.to_string(), "action": action, "version": version, "owner": null,
        "actor": "tester", "data": data
    })
}

fn without_request_id(mut change: Value) -> Value {
    let id = change["request_id"].take();
    assert!(id.is_string(), "{change}");
    change
        .as_object_mut()
        .expect("an object")
        .remove("request_id");
    change
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_a_pet_are_recorded() {
    let app = TestApp::start().await;
    let added = app.post("/pet", &json!({"id": 7, "name": "Rex"}));
    let added = added.header("x-request-id", "add-7").is(201).await;
    let replaced = app.put("/pet", &json!({"id": 7, "name": "Max", "status": "sold"}));
    let replaced = replaced.is(200).await;
    let same = app.put("/pet", &json!({"id": 7, "name": "Max", "status": "sold"}));
    assert_eq!(same.is(200).await.version(), replaced.version());
    let patched = app
        .patch("/pet/7", &json!({"status": "available"}))
        .is(200)
        .await;
    let form = app.request(Method::POST, "/pet/7?name=Ace").is(200).await;
    let idempotent = app.post(
        "/pet",
        &json!({"id": 8, "name": "Ace", "status": "pending"}),
    );
    let idempotent = idempotent.header("idempotency-key", "k");
    let again = idempotent.clone();
    let idempotent = idempotent.is(201).await;
    again.is(201).await;
    app.delete("/pet/7").is(200).await;
    // These change nothing.
    app.delete("/pet/7").is(404).await;
    app.put("/pet", &json!({"id": 7, "name": "Max"}))
        .is(404)
        .await;
    app.patch("/pet/7", &json!({"name": "Max"})).is(404).await;
    app.post("/pet", &json!({"id": 8, "name": "Ace"}))
        .is(409)
        .await;
    for request in [
        app.patch("/pet/8", &json!({})),
        app.delete("/pet/8"),
        app.put("/pet", &json!({"id": 8, "name": "A"})),
    ] {
        request.header("if-match", "\"1\"").is(412).await;
    }

    let changes = published(&app).await;
    assert_eq!(changes[0]["request_id"], "add-7");
    let changes: Vec<_> = changes.into_iter().map(without_request_id).collect();
    let status = |old: &str, new: &str| json!({"status": [old, new]});
    let new = |name: &str, status: &str| json!({"name": [null, name], "photoUrls": [null, []], "tags": [null, []], "status": [null, status]});
    let expected = [
        change("pet", 7, "created", Some(&added), &new("Rex", "available")),
        change(
            "pet",
            7,
            "changed",
            Some(&replaced),
            &json!({"name": ["Rex", "Max"], "status": ["available", "sold"]}),
        ),
        change(
            "pet",
            7,
            "changed",
            Some(&patched),
            &status("sold", "available"),
        ),
        change(
            "pet",
            7,
            "changed",
            Some(&form),
            &json!({"name": ["Max", "Ace"]}),
        ),
        change(
            "pet",
            8,
            "created",
            Some(&idempotent),
            &new("Ace", "pending"),
        ),
        change("pet", 7, "deleted", None, &json!({"was": form.json()})),
    ];
    assert_eq!(changes, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_orders_and_images_are_recorded_with_those_of_their_pet() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("file://{}", folder.path().display());
    let app = TestApp::with(&[("PET_INVENTORY__IMAGES__URL", &url)]).await;
    let customer = app.make_key("customer", Scopes::all()).await;
    let owner = app
        .database
        .number("select id from callers where name = 'customer'")
        .await;
    app.add_pet(7).await;
    let place = || {
        let order = app.with_key(&customer.secret, Method::POST, "/store/order");
        order.json(&json!({"petId": 7}))
    };
    let first = place().is(201).await.id();
    place().is(409).await;
    app.delete(&format!("/store/order/{first}")).is(200).await;
    let second = place().is(201).await.id();
    app.patch(
        &format!("/store/order/{second}"),
        &json!({"shipDate": "2026-01-31T12:00:00Z"}),
    )
    .is(200)
    .await;
    app.patch(
        &format!("/store/order/{second}"),
        &json!({"status": "delivered"}),
    )
    .is(200)
    .await;
    let upload = || app.upload(7, png(2, 2)).is(200);
    let [image, other] = [upload().await, upload().await]
        .map(|it| it.json()["imageId"].as_str().expect("an id").to_owned());
    app.delete(&format!("/pet/7/images/{image}")).is(200).await;
    let last = app.get("/pet/7").is(200).await.json();
    app.delete("/pet/7").is(200).await;

    let summary = |change: &Value| {
        let text = |field: &str| change[field].as_str().unwrap_or_default().to_owned();
        let by = if change["owner"] == json!(owner) {
            " of customer"
        } else {
            ""
        };
        let [kind, resource, action, actor] = ["kind", "resource", "action", "actor"].map(text);
        format!("{actor}: {kind} {resource}{by} {action} {}", change["data"])
    };
    let changes: Vec<String> = published(&app).await.iter().map(summary).collect();
    let status = |old: &str, new: &str| json!({"status": [old, new]});
    let placed = json!({"pet": 7, "status": [null, "placed"], "complete": [null, false]});
    let shipped = json!({"pet": 7, "shipDate": [null, "2026-01-31T12:00:00Z"]});
    let delivered = json!({"pet": 7, "status": ["placed", "delivered"]});
    let pet = json!({"pet": 7});
    let picture = json!({"pet": 7, "size": png(2, 2).len()});
    let [image_url, other_url] = [&image, &other].map(|it| app.url(&format!("/pet/7/images/{it}")));
    let urls = |old: &[&String], new: &[&String]| json!({"photoUrls": [old, new]});
    let expected = [
        format!("customer: order {first} of customer created {placed}"),
        format!("customer: pet 7 changed {}", status("available", "pending")),
        format!("tester: order {first} of customer deleted {pet}"),
        format!("tester: pet 7 changed {}", status("pending", "available")),
        format!("customer: order {second} of customer created {placed}"),
        format!("customer: pet 7 changed {}", status("available", "pending")),
        format!("tester: order {second} of customer changed {shipped}"),
        format!("tester: order {second} of customer changed {delivered}"),
        format!("tester: pet 7 changed {}", status("pending", "sold")),
        format!("tester: image {image} created {picture}"),
        format!("tester: pet 7 changed {}", urls(&[], &[&image_url])),
        format!("tester: image {other} created {picture}"),
        format!(
            "tester: pet 7 changed {}",
            urls(&[&image_url], &[&image_url, &other_url])
        ),
        format!("tester: image {image} deleted {picture}"),
        format!(
            "tester: pet 7 changed {}",
            urls(&[&image_url, &other_url], &[&other_url])
        ),
        format!("tester: pet 7 deleted {}", json!({"was": last})),
        format!("tester: image {other} deleted {picture}"),
    ];
    assert_eq!(changes[1..], expected);
}

/// Applies a change to a pet that is known from the changes before it, `null` if there is none: the old values must be its own.
fn apply(change: &Value, pet: &mut Value) {
    let data = change["data"].as_object().expect("facts");
    if change["action"] == "deleted" {
        assert_eq!(data["was"], *pet, "{change}");
        *pet = Value::Null;
        return;
    }
    if pet.is_null() {
        *pet = json!({"id": change["resource"].as_str().expect("an id").parse::<i64>().expect("an id")});
    }
    assert!(!data.is_empty(), "{change}");
    for (field, values) in data {
        let [old, new] = [&values[0], &values[1]];
        assert!(old != new && pet[field] == *old, "{change} of {pet}");
        pet[field] = new.clone();
    }
    let members = pet.as_object_mut().expect("a pet");
    members.retain(|_, value| !value.is_null());
}

/// Batches, single statements and idempotent requests of two replicas at once. The changes of a pet, applied one after the other, are
/// the pet.
#[tokio::test(flavor = "multi_thread")]
async fn versions_of_a_pet_are_recorded_once_and_in_order() {
    const PETS: i64 = 5;
    const WRITERS: i64 = 32;
    let app = TestApp::start().await;
    let other = TestApp::replica_of(&app, &[]).await;
    let writer = async |writer: i64| {
        let app = if writer % 2 == 0 { &app } else { &other };
        let mut acknowledged = Vec::new();
        for round in 0..20 {
            let id = (writer + round) % PETS + 1;
            let mut pet = json!({"id": id, "name": format!("{writer} {round}"), "tags": [{"name": round.to_string()}]});
            if round % 3 == 0 {
                pet["category"] = json!({"id": writer});
            }
            let request = match (writer + round * 7) % 5 {
                0 => app.post("/pet", &pet),
                1 => app.put("/pet", &pet),
                2 => app.patch(&format!("/pet/{id}"), &json!({"status": "sold"})),
                3 => app
                    .request(Method::POST, &format!("/pet/{id}?status=pending"))
                    .header("idempotency-key", format!("{writer} {round}")),
                _ => app.delete(&format!("/pet/{id}")),
            };
            let response = request.await;
            if (200..300).contains(&response.status) {
                let has_version = response.headers.contains_key("etag");
                let version = has_version.then(|| response.version());
                acknowledged.push((id.to_string(), version));
            } else {
                assert!(matches!(response.status, 400 | 404 | 409), "{response}");
            }
        }
        acknowledged
    };
    let acknowledged = join_all((0..WRITERS).map(writer)).await;
    let mut acknowledged: Vec<_> = acknowledged.into_iter().flatten().collect();
    let changes = published(&app).await;
    let mut last: HashMap<String, (i64, String)> = HashMap::new();
    let mut pets: HashMap<String, Value> = HashMap::new();
    let mut recorded = Vec::new();
    for change in changes {
        let resource = change["resource"].as_str().expect("an id").to_owned();
        let action = change["action"].as_str().expect("an action").to_owned();
        let version = change["version"].as_i64();
        let before = last.get(&resource);
        let existed = before.is_some_and(|(_, action)| action != "deleted");
        assert_eq!(existed, action != "created", "{change} after {before:?}");
        let newest = before.map_or(0, |(version, _)| *version);
        assert!(
            version.is_none_or(|version| version > newest),
            "{change} after {before:?}"
        );
        apply(&change, pets.entry(resource.clone()).or_default());
        last.insert(resource.clone(), (version.unwrap_or(newest), action));
        recorded.push((resource, version));
    }
    for (id, pet) in pets {
        let stored = app.get(&format!("/pet/{id}")).await;
        let stored = if stored.status == 404 {
            Value::Null
        } else {
            stored.is(200).json()
        };
        assert_eq!(pet, stored);
    }
    recorded.sort_unstable();
    acknowledged.sort_unstable();
    // A change that alters nothing is acknowledged with the version before it.
    acknowledged.dedup_by(|one, other| one == other && one.1.is_some());
    assert_eq!(recorded, acknowledged);
}

#[tokio::test(flavor = "multi_thread")]
async fn publishers_at_once_and_open_transactions_lose_nothing() {
    let database = TestDatabase::migrated().await;
    let insert = |number: i32| {
        format!(
            "insert into new_changes (kind, resource, action) values ('pet', '{number}', 'changed')"
        )
    };
    let mut open = database.connect().await;
    open.execute("begin").await.expect("a transaction");
    open.execute(AssertSqlSafe(insert(0))).await.expect("a row");
    database.run("insert into new_changes (kind, resource, action) select 'pet', n::text, 'changed' from generate_series(1, 25000) n").await;
    let publish = async || {
        let mut connection = database.connect().await;
        let mut count = 0;
        for _ in 0..20 {
            let publication = db::changes::publish(&mut connection).await;
            count += publication.expect("a database").published;
        }
        count
    };
    let counts = join_all([publish(), publish(), publish()]).await;
    assert_eq!(counts.iter().sum::<u64>(), 25_000, "{counts:?}");
    open.execute("commit").await.expect("a commit");
    assert_eq!(publish().await, 1);
    let order = "select count(*) from (
                     select resource::bigint as n, lag(resource::bigint) over (order by position) as before
                     from changes where kind = 'pet' and resource <> '0'
                 ) change where n <= before";
    assert_eq!(database.number(order).await, 0);
    let last =
        "select count(*) from changes join changes_clock using (position) where resource = '0'";
    assert_eq!(database.number(last).await, 1);

    // All but the newest expired change are deleted.
    let mut connection = database.connect().await;
    let mut deleted = 0;
    loop {
        let count = db::changes::purge_expired(&mut connection, Duration::ZERO)
            .await
            .expect("a database");
        deleted += count;
        if count == 0 {
            break;
        }
    }
    assert_eq!(
        (
            deleted,
            database.number("select count(*) from changes").await
        ),
        (25_001, 1)
    );
}

/// A statement that waited for another publication sees the changes from before it: those that are gone.
#[tokio::test(flavor = "multi_thread")]
async fn publication_of_all_changes_goes_on_behind_one_that_it_waited_for() {
    let database = TestDatabase::migrated().await;
    database.run("insert into new_changes (kind, resource, action) select 'pet', n::text, 'changed' from generate_series(1, 25000) n").await;
    let mut other = database.connect().await;
    let lock = "begin; select from changes_clock for update";
    other.execute(lock).await.expect("a lock");
    let mut connection = database.connect().await;
    let publish = db::changes::publish_all(&mut connection);
    let publish_some = async {
        eventually(async || database.waiting_for_locks().await == 1).await;
        let some = "with taken as (
                        delete from new_changes where seq in (select seq from new_changes order by seq limit 10000)
                        returning *
                    ), numbered as (
                        select (extract(epoch from now()) * 1000000)::bigint + row_number() over (order by seq) as position,
                               at, kind, resource, action
                        from taken
                    ), stored as (
                        insert into changes (position, at, kind, resource, action) select * from numbered
                    )
                    update changes_clock set position = (select max(position) from numbered);
                    commit";
        other.execute(some).await.expect("a commit");
    };
    let (published, ()) = tokio::join!(publish, publish_some);
    published.expect("published");
    let left = "select count(*) from new_changes";
    assert_eq!(database.number(left).await, 0);
    let all = "select count(*) from changes where kind = 'pet'";
    assert_eq!(database.number(all).await, 25_000);
}

/// Reads the record to its end, in pages, without changes by commands.
async fn read(app: &TestApp, key: &str, query: &str) -> Vec<Value> {
    let (mut changes, mut after) = (Vec::new(), 0);
    loop {
        let path = format!("/changes?{query}&after={after}");
        let page = app.with_key(key, Method::GET, &path).is(200).await.json();
        let of_page = page["changes"].as_array().expect("changes").iter();
        changes.extend(of_page.filter(|it| it["actor"] != "operator").cloned());
        let next = page["next"].as_i64().expect("a position");
        assert!(next >= after, "{page}");
        if next == after {
            return changes;
        }
        after = next;
    }
}

fn resources(changes: &[Value]) -> Vec<&str> {
    changes
        .iter()
        .map(|change| change["resource"].as_str().expect("an id"))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn record_is_read_in_pages_with_filters() {
    let app = TestApp::start().await;
    for id in 1..=5 {
        app.post("/pet", &json!({"id": id, "name": "Rex"}))
            .is(201)
            .await;
        // Each page has all changes that were committed before.
        let changes = read(&app, &app.key, "limit=2").await;
        assert_eq!(changes.len(), id, "{changes:?}");
    }
    let order = app
        .post("/store/order", &json!({"petId": 3}))
        .is(201)
        .await
        .id()
        .to_string();
    let changes = read(&app, &app.key, "").await;
    assert_eq!(resources(&changes), ["1", "2", "3", "4", "5", &order, "3"]);
    let last = &changes[6];
    let expected = json!({
        "position": last["position"], "at": last["at"], "kind": "pet", "resource": "3", "action": "changed",
        "version": last["version"], "actor": "tester", "requestId": changes[5]["requestId"],
        "data": {"status": ["available", "pending"]}
    });
    assert_eq!(*last, expected);
    let version = app.get("/pet/3").is(200).await.version();
    assert_eq!(last["version"], version);
    for limit in [1, 3, 1000] {
        let all = read(&app, &app.key, &format!("limit={limit}")).await;
        assert_eq!(all, changes);
        let history = read(
            &app,
            &app.key,
            &format!("kind=pet&resource=3&limit={limit}"),
        )
        .await;
        assert_eq!(history, [changes[2].clone(), changes[6].clone()]);
        let orders = read(&app, &app.key, &format!("kind=order,image&limit={limit}")).await;
        assert_eq!(orders, [changes[5].clone()]);
    }
    for query in [
        "after=-1",
        "after=%2B1",
        "limit=%2B1",
        "after=x",
        "limit=0",
        "limit=1001",
        "kind=cat",
        "kind=",
        "resource=1",
        "kind=pet,order&resource=1",
        "after=9007199254740992",
    ] {
        app.get(&format!("/changes?{query}")).await.problem(400);
    }
}

/// Reads the record from its end, in pages.
async fn read_backward(app: &TestApp, query: &str) -> Vec<Value> {
    let mut changes = Vec::new();
    let mut before = String::new();
    loop {
        let path = format!("/changes?order=desc&{query}{before}");
        let page = app.get(&path).is(200).await.json();
        let of_page = page["changes"].as_array().expect("changes").iter();
        changes.extend(of_page.filter(|it| it["actor"] != "operator").cloned());
        let next = format!("&before={}", page["next"]);
        if next == before {
            return changes;
        }
        before = next;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn record_is_read_from_its_end() {
    let app = TestApp::start().await;
    app.add_pets(7).await;
    app.patch("/pet/3", &json!({"status": "sold"}))
        .is(200)
        .await;
    app.post("/store/order", &json!({"petId": 4})).is(201).await;
    for query in [
        "",
        "kind=pet",
        "kind=order",
        "kind=pet&resource=3",
        "kind=pet&resource=99",
        "actor=tester",
        "actor=acme",
    ] {
        let mut expected = read(&app, &app.key, query).await;
        expected.reverse();
        for limit in [1, 2, 1000] {
            let query = format!("{query}&limit={limit}");
            assert_eq!(read_backward(&app, &query).await, expected, "{query}");
        }
    }
    assert_eq!(read(&app, &app.key, "actor=tester").await.len(), 10);
    assert!(read(&app, &app.key, "actor=acme").await.is_empty());
    // Any position is a beginning, also one that is none of a change.
    let changes = read(&app, &app.key, "").await;
    let position = changes[2]["position"].as_i64().expect("a position");
    for before in [position + 1, position] {
        let path = format!("/changes?order=desc&kind=pet&before={before}");
        let page = app.get(&path).is(200).await.json();
        let expected = &changes[usize::from(before > position) + 1];
        assert_eq!(page["changes"][0], *expected, "{page}");
    }
    let page = app.get("/changes?order=desc&before=1").is(200).await;
    assert_eq!(page.json(), json!({"changes": [], "next": 1}));
    for (query, field) in [
        ("before=5", "before"),
        ("order=asc&before=5", "before"),
        ("order=desc&after=0", "after"),
        ("order=down", "order"),
        ("order=desc&before=-1", "before"),
        ("actor=", "actor"),
    ] {
        let refused = app.get(&format!("/changes?{query}")).await;
        assert_eq!(refused.invalid_fields(), [field], "{query}");
    }
    for (query, field) in [("before=5", "before"), ("order=desc", "order")] {
        let stream = app.get(&format!("/changes?{query}"));
        let refused = stream.header("accept", "text/event-stream").await;
        assert_eq!(refused.invalid_fields(), [field], "{query}");
    }
}

/// Returns the actors of changes of pets, and if there is a request id.
fn actors(changes: &[Value]) -> Vec<(Option<&str>, bool)> {
    let changes = changes.iter().filter(|it| it["kind"] == "pet");
    changes
        .map(|it| (it["actor"].as_str(), it["requestId"].is_string()))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn actors_of_accounts_are_hidden_from_other_callers() {
    let app = TestApp::start().await;
    app.add_pet(1).await;
    let name = format!("user:{}", app.sign_up("ada").await);
    // An order changes the pet in the name of its account, which may read changes, too.
    let grant =
        format!("update callers set scopes = scopes || '{{read:changes}}' where name = '{name}'");
    app.database.run(&grant).await;
    let own = app.log_in("ada").await;
    let reader = scopes(&[Scope::ReadChanges, Scope::ReadPets]);
    let reader = app.make_key("reader", reader).await.secret;
    let open = async |key: &str, query: &str| {
        let request = app.anonymous(Method::GET, &format!("/changes?kind=pet{query}"));
        Events::open(request.bearer_auth(key)).await
    };
    let by_account = format!("&actor={name}");
    let mut streams = [
        open(&app.key, "").await,
        open(&reader, "").await,
        open(&own, "").await,
        open(&app.key, &by_account).await,
        open(&own, &by_account).await,
    ];
    let mut hidden = open(&reader, &by_account).await;
    let order = app.anonymous(Method::POST, "/store/order");
    let order = order.bearer_auth(&own).json(&json!({"petId": 1}));
    order.is(201).await;
    let tester = (Some("tester"), true);
    let account = (Some(&*name), true);
    let unknown = (None, false);
    for (key, order) in [(&app.key, account), (&reader, unknown), (&own, account)] {
        let get = async |query: &str| {
            let request = app.anonymous(Method::GET, &format!("/changes?{query}"));
            request.bearer_auth(key).is(200).await.changes()
        };
        assert_eq!(actors(&get("").await), [tester, order]);
        assert_eq!(actors(&get("order=desc").await), [order, tester]);
        let filtered = get(&format!("actor={name}")).await;
        let filtered = actors(&filtered);
        let expected = if order == unknown {
            vec![]
        } else {
            vec![order]
        };
        assert_eq!(filtered, expected);
        assert_eq!(actors(&get("actor=tester").await), [tester]);
    }
    // All streams share an event, which has two texts.
    let expected = [account, unknown, account, account, account];
    for (stream, expected) in streams.iter_mut().zip(expected) {
        assert_eq!(actors(&[stream.change().await]), [expected]);
    }
    assert!(hidden.is_silent().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn order_that_is_not_changed_is_not_recorded() {
    let app = TestApp::start().await;
    app.add_pet(1).await;
    let order = json!({"petId": 1, "shipDate": "2026-01-31T12:00:00Z"});
    let id = app.post("/store/order", &order).is(201).await.id();
    let before = read(&app, &app.key, "").await;
    for same in [
        json!({}),
        json!({"status": "placed", "complete": false}),
        json!({"shipDate": "2026-01-31T13:00:00+01:00"}),
    ] {
        let patched = app.patch(&format!("/store/order/{id}"), &same).is(200);
        assert_eq!(patched.await.json()["shipDate"], "2026-01-31T12:00:00Z");
    }
    assert_eq!(read(&app, &app.key, "").await, before);
}

/// A pet is deleted, while others wait to create one with its identifier.
#[tokio::test(flavor = "multi_thread")]
async fn versions_of_a_pet_that_is_created_again_ascend() {
    let app = TestApp::start().await;
    let pet = json!({"id": 1, "name": "Rex"});
    let mut last = app.post("/pet", &pet).is(201).await.version();
    for _ in 0..20 {
        // Its creation waits for a transaction that changes the pet, and then deletes it.
        let mut other = app.database.connect().await;
        let lock = "begin; update pets set status = status where id = 1";
        other.execute(lock).await.expect("a lock");
        let change = async {
            eventually(async || app.database.waiting_for_locks().await == 1).await;
            let delete = "update pets set version = nextval('pet_versions') where id = 1;
                          delete from pets where id = 1; commit";
            other.execute(delete).await.expect("a commit");
        };
        let (created, ()) = tokio::join!(app.post("/pet", &pet).is(201), change);
        let version = created.version();
        // Two versions were drawn at least: of the first life, and of this one.
        assert!(version > last + 1, "{version} after {last}");
        assert_eq!(app.get("/pet/1").is(200).await.version(), version);
        last = version;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_are_visible_to_callers_that_may_read_their_resources() {
    let app = TestApp::start().await;
    let customer = app.make_key("customer", Scopes::all()).await.secret;
    app.add_pet(1).await;
    app.add_pet(2).await;
    app.post("/store/order", &json!({"petId": 1})).is(201).await;
    let own = app.with_key(&customer, Method::POST, "/store/order");
    let own = own.json(&json!({"petId": 2})).is(201).await.id();
    let kinds = async |of: &[Scope]| {
        let key = app.make_key("customer", scopes(of)).await.secret;
        let changes = read(&app, &key, "").await;
        let orders: Vec<_> = changes
            .iter()
            .filter(|it| it["kind"] == "order")
            .map(|it| it["resource"].clone())
            .collect();
        (changes.len(), orders)
    };
    let own = vec![json!(own.to_string())];
    assert_eq!(kinds(&[Scope::ReadChanges]).await, (0, vec![]));
    assert_eq!(
        kinds(&[Scope::ReadChanges, Scope::ReadPets]).await,
        (4, vec![])
    );
    assert_eq!(
        kinds(&[Scope::ReadChanges, Scope::ReadOrders]).await,
        (1, own.clone())
    );
    assert_eq!(
        kinds(&[Scope::ReadChanges, Scope::ReadPets, Scope::ReadOrders]).await,
        (5, own)
    );
    assert_eq!(kinds(&[Scope::ReadChanges, Scope::Admin]).await.0, 6);
    let key = app.make_key("plain", Scopes::of_new_callers()).await.secret;
    let refused = app.with_key(&key, Method::GET, "/changes");
    refused.await.problem(403);
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_and_expired_positions_are_410_with_the_oldest_one() {
    let app = TestApp::start().await;
    app.add_pets(3).await;
    let changes = read(&app, &app.key, "").await;
    let position = |index: usize| changes[index]["position"].as_i64().expect("a position");
    let path = |after: i64| format!("/changes?after={after}");
    for (index, left) in [(0, 2), (2, 0)] {
        let page = app.get(&path(position(index))).is(200).await;
        assert_eq!(page.changes().len(), left);
    }
    for unknown in [1, position(2) + 1, 9_007_199_254_740_991] {
        let gone = app.get(&path(unknown)).await;
        assert!(
            gone.problem(410)["oldest"].as_i64().expect("a position") < position(0),
            "{gone}"
        );
    }
    // The newest change stays, also past its retention, so that its position is known.
    let mut connection = app.database.connect().await;
    let purged = db::changes::purge_expired(&mut connection, Duration::ZERO).await;
    // The first row, the two changes by which the test made its key, and two of the pets.
    assert_eq!(purged.expect("a database"), 5);
    assert_eq!(
        app.get(&path(position(1))).await.problem(410)["oldest"],
        position(2)
    );
    let page = app.get(&path(position(2))).is(200).await.json();
    assert_eq!(page, json!({"changes": [], "next": position(2)}));
}

#[tokio::test(flavor = "multi_thread")]
async fn deletion_of_a_pet_tells_of_its_open_order() {
    let app = TestApp::start().await;
    for id in 1..=3 {
        app.add_pet(id).await;
    }
    for pet in 1..=2 {
        app.post("/store/order", &json!({"petId": pet}))
            .is(201)
            .await;
    }
    app.patch("/pet/2", &json!({"status": "sold"}))
        .is(200)
        .await;
    app.patch("/pet/3", &json!({"status": "pending"}))
        .is(200)
        .await;
    for id in 1..=3 {
        app.delete(&format!("/pet/{id}")).is(200).await;
    }
    let changes = published(&app).await;
    let deleted = changes
        .iter()
        .filter(|it| it["kind"] == "pet" && it["action"] == "deleted");
    let deleted: Vec<_> = deleted
        .map(|it| (&it["data"]["was"]["status"], &it["data"]["order"]))
        .collect();
    let (pending, sold) = (json!("pending"), json!("sold"));
    let expected = [
        (&pending, &json!(true)),
        (&sold, &json!(true)),
        (&pending, &Value::Null),
    ];
    assert_eq!(deleted, expected);
}

/// Pets that earlier builds stored may be larger than a record.
#[tokio::test(flavor = "multi_thread")]
async fn record_names_values_that_are_too_large() {
    let app = TestApp::start().await;
    app.add_pet(1).await;
    let urls: Vec<_> = (0..100)
        .map(|n| format!("https://example.com/{n}/{}", "x".repeat(300)))
        .collect();
    let details = json!({"name": "Rex", "photoUrls": urls, "tags": [{"name": "y".repeat(9_000)}]});
    let stored = format!("update pets set details = '{details}' where id = 1");
    app.database.run(&stored).await;
    let small = json!({"name": "Max", "photoUrls": [], "tags": []});
    app.patch("/pet/1", &small).is(200).await;
    app.database.run(&stored).await;
    app.delete("/pet/1").is(200).await;
    let changes = published(&app).await;
    let data: Vec<_> = changes[1..].iter().map(|it| &it["data"]).collect();
    let expected = [
        &json!({"changed": ["name", "photoUrls", "tags"]}),
        &json!({"changed": ["id", "name", "photoUrls", "status", "tags"]}),
    ];
    assert_eq!(data, expected);
}

/// More than one statement publishes, and than a page or a batch of the feed may have.
#[tokio::test(flavor = "multi_thread")]
async fn large_changes_are_read_in_parts_that_are_bounded_by_bytes() {
    const CHANGES: usize = 700;
    let app = TestApp::start().await;
    let mut live = Events::open(app.get("/changes?kind=pet")).await;
    let change = async |first: usize, last: usize| {
        let large = format!(
            "insert into new_changes (kind, resource, action, data)
             select 'pet', n::text, 'changed', jsonb_build_object('name', jsonb_build_array(n::text, repeat('x', 30000)))
             from generate_series({first}, {last}) n"
        );
        app.database.run(&large).await;
    };
    change(1, 100).await;
    for resource in 1..=100 {
        let resource = resource.to_string();
        assert_eq!(live.change().await["resource"], *resource);
    }
    change(101, CHANGES).await;
    let expected: Vec<_> = (1..=CHANGES).map(|n| n.to_string()).collect();
    let resources = |page: &Value| -> Vec<String> {
        let changes = page["changes"].as_array().expect("changes");
        let resources = changes.iter().map(|it| it["resource"].as_str());
        resources.map(|it| it.expect("an id").to_owned()).collect()
    };
    for (order, cursor) in [("asc", "after"), ("desc", "before")] {
        let (mut read, mut from) = (Vec::new(), String::new());
        loop {
            let page = app.get(&format!("/changes?kind=pet&limit=1000&order={order}{from}"));
            let page = page.is(200).await;
            assert!(page.body.len() < 1_200_000, "{}", page.body.len());
            let page = page.json();
            read.extend(resources(&page));
            let next = format!("&{cursor}={}", page["next"]);
            if next == from {
                break;
            }
            from = next;
        }
        if order == "desc" {
            read.reverse();
        }
        assert_eq!(read, expected, "{order}");
    }
    let mut behind = Events::open(app.get("/changes?kind=pet&after=0")).await;
    for resource in &expected {
        assert_eq!(behind.change().await["resource"], **resource);
    }
}
