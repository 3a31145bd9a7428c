//! Streams of changes: Server-Sent Events at `GET /changes`.

use test_support::*;

/// Returns the positions and resources of pets in the record, in their order.
async fn record(app: &TestApp) -> Vec<Value> {
    let page = app.get("/changes?kind=pet&limit=1000").is(200).await;
    page.changes()
}

fn with_key(app: &TestApp, path: &str, key: &str) -> Call {
    app.with_key(key, Method::GET, path)
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_has_the_changes_that_follow_as_pages_have_them() {
    let app = TestApp::start().await;
    app.add_pet(1).await;
    let request = app
        .get("/changes?kind=pet")
        .header("accept-encoding", "gzip");
    let mut events = Events::open(request).await;
    let header = |name: &str| events.headers()[name].to_str().expect("ASCII").to_owned();
    assert_eq!(header("content-type"), "text/event-stream");
    assert_eq!(header("cache-control"), "private, no-cache");
    assert_eq!(header("x-accel-buffering"), "no");
    assert!(!events.headers().contains_key("content-encoding"));
    // The position comes at once.
    let start: i64 = events.id().await.parse().expect("a position");
    app.add_pet(2).await;
    app.post("/store/order", &json!({"petId": 2})).is(201).await;
    let streamed = [events.change().await, events.change().await];
    let stored = record(&app).await;
    assert_eq!(streamed, stored[1..]);
    assert!(stored[0]["position"].as_i64().expect("a position") <= start);
    assert!(events.is_silent().await);

    // From the beginning, or behind a position; Last-Event-ID, which a browser adds when it repeats a request, wins.
    let first = stored[0]["position"].as_i64().expect("a position");
    for (path, last, missing) in [
        ("/changes?kind=pet&after=0", "", 0),
        (&format!("/changes?kind=pet&after={first}"), "", 1),
        ("/changes?kind=pet&after=0", &first.to_string(), 1),
        ("/changes?kind=pet", &first.to_string(), 1),
    ] {
        let mut events = Events::open(app.get(path).header("last-event-id", last)).await;
        for change in &stored[missing..] {
            assert_eq!(events.change().await, *change, "{path} {last}");
        }
    }
    let accept = "application/json;q=0.5, text/event-stream;q=0.9";
    let both = app
        .get("/changes")
        .header("accept", accept)
        .send()
        .await
        .expect("a response");
    assert_eq!(both.headers()["content-type"], "text/event-stream");
    for (accept, is_stream) in [
        ("text/event-stream;q=0", false),
        ("Text/Event-Stream ; charset=utf-8 ; Q=0.000", false),
        ("text/event-stream;q=0, application/json", false),
        ("text/event-stream;q=0.001", true),
        ("application/json;q=0, text/event-stream", true),
    ] {
        let request = app.get("/changes").header("accept", accept).send();
        let response = request.await.expect("a response");
        let expected = ["application/json", "text/event-stream"][usize::from(is_stream)];
        assert_eq!(response.headers()["content-type"], expected, "{accept}");
    }
    for (name, value, status) in [
        ("last-event-id", "first", 400),
        ("last-event-id", "-1", 400),
        ("last-event-id", "+1", 400),
        ("last-event-id", "1", 410),
    ] {
        let request = app.get("/changes").header("accept", "text/event-stream");
        request.header(name, value).await.problem(status);
    }
    // A page begins behind `after` only.
    let page = app.get("/changes?kind=pet&after=0");
    let page = page.header("last-event-id", &first.to_string()).await;
    assert_eq!(page.json()["changes"][0]["position"], first);
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_has_only_visible_changes() {
    let app = TestApp::start().await;
    let of = async |name: &str, of: &[Scope]| app.make_key(name, scopes(of)).await.secret;
    let customer = app.make_key("customer", Scopes::all()).await.secret;
    let pets = of("customer", &[Scope::ReadChanges, Scope::ReadPets]).await;
    let orders = of("customer", &[Scope::ReadChanges, Scope::ReadOrders]).await;
    let mut pets = Events::open(with_key(&app, "/changes", &pets)).await;
    let mut orders = Events::open(with_key(&app, "/changes", &orders)).await;
    let mut one = Events::open(app.get("/changes?kind=pet&resource=2")).await;
    let mut all = Events::open(app.get("/changes")).await;
    app.add_pet(1).await;
    app.add_pet(2).await;
    app.post("/store/order", &json!({"petId": 1})).is(201).await;
    let order = app.with_key(&customer, Method::POST, "/store/order");
    let order = order
        .json(&json!({"petId": 2}))
        .is(201)
        .await
        .id()
        .to_string();
    for id in ["1", "2", "1", "2"] {
        let change = pets.change().await;
        assert_eq!([&change["kind"], &change["resource"]], ["pet", id]);
    }
    let change = orders.change().await;
    assert_eq!(
        [&change["kind"], &change["resource"]],
        ["order", order.as_str()]
    );
    for _ in 0..2 {
        assert_eq!(one.change().await["resource"], "2");
    }
    for _ in 0..6 {
        all.change().await;
    }
    for mut events in [pets, orders, one, all] {
        assert!(events.is_silent().await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_cut_after_each_event_goes_on_behind_it() {
    let app = TestApp::start().await;
    let other = TestApp::replica_of(&app, &[]).await;
    let mut events = Events::open(app.get("/changes?kind=pet")).await;
    let mut last = events.id().await;
    drop(events);
    let writer = async {
        for id in 1..=60 {
            app.add_pet(id).await;
        }
    };
    let reader = async {
        let mut seen = Vec::new();
        while seen.len() < 60 {
            let app = if seen.len() % 2 == 0 { &app } else { &other };
            let request = app.get("/changes?kind=pet").header("last-event-id", &last);
            let mut events = Events::open(request).await;
            seen.push(events.change().await);
            last = events.last_id;
        }
        seen
    };
    let ((), seen) = tokio::join!(writer, reader);
    assert_eq!(seen, record(&app).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_two_replicas_have_each_change_once_in_its_order() {
    let app = TestApp::start().await;
    let other = TestApp::replica_of(&app, &[]).await;
    let mut database = app.database.connect().await;
    for id in 1..=8 {
        app.add_pet(id).await;
    }
    // Its change is published when it is committed, and delays no other one.
    let mut open = sqlx::Connection::begin(&mut database)
        .await
        .expect("a transaction");
    let insert = "insert into new_changes (kind, resource, action) values ('pet', '99', 'created')";
    sqlx::query(insert)
        .execute(&mut *open)
        .await
        .expect("an insert");
    let start = record(&app).await;
    let mut streams = Vec::new();
    for (app, path) in [
        (&app, "/changes?kind=pet"),
        (&other, "/changes?kind=pet"),
        (&other, "/changes?kind=pet&after=0"),
    ] {
        streams.push(Events::open(app.get(path)).await);
    }
    let writers = (0..16).map(async |writer: i64| {
        for number in 0..20 {
            let app = if number % 2 == 0 { &app } else { &other };
            let (id, name) = ((writer + number) % 8 + 1, format!("Rex {writer} {number}"));
            app.patch(&format!("/pet/{id}"), &json!({"name": name}))
                .is(200)
                .await;
        }
    });
    let read = |mut events: Events, count: usize| async move {
        let mut seen = Vec::new();
        while seen.len() < count {
            seen.push(events.change().await);
        }
        seen
    };
    let mut streams = streams.into_iter();
    let mut next = || streams.next().expect("a stream");
    let (_, one, two, all) = tokio::join!(
        join_all(writers),
        read(next(), 320),
        read(next(), 320),
        read(next(), 328)
    );
    let mut last = Events::open(app.get("/changes?kind=pet")).await;
    open.commit().await.expect("a commit");
    assert_eq!(last.change().await["resource"], "99");
    let stored = record(&app).await;
    assert_eq!(all, stored[..328]);
    assert_eq!(one, stored[start.len()..328]);
    assert_eq!(two, one);
    for id in 1..=8_i64 {
        let of_pet = all
            .iter()
            .filter(|change| change["resource"].as_str() == Some(&id.to_string()));
        let versions: Vec<_> = of_pet.map(|change| change["version"].as_i64()).collect();
        assert!(versions.is_sorted(), "{versions:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_ends_when_its_credential_is_no_longer_valid() {
    let app = TestApp::start().await;
    let mut streams = Vec::new();
    for end in [
        "update credentials set revoked_at = now() where id = $1",
        "update credentials set expires_at = now() where id = $1",
        "delete from credentials where id = $1",
        "update callers set disabled_at = now() where id = (select caller_id from credentials where id = $1)",
        "update callers set scopes = '{read:pets}' where id = (select caller_id from credentials where id = $1)",
    ] {
        let key = app
            .make_key(&format!("reader-{}", streams.len()), Scopes::all())
            .await;
        streams.push((
            Events::open(with_key(&app, "/changes", &key.secret)).await,
            end,
            key.id,
        ));
    }
    let mut stays = Events::open(app.get("/changes?kind=pet")).await;
    let narrows = app.make_key("narrows", Scopes::all()).await.secret;
    let mut narrows = Events::open(with_key(&app, "/changes", &narrows)).await;
    for (_, end, key) in &streams {
        let mut database = app.database.connect().await;
        let ended = sqlx::query(*end)
            .bind(key.get())
            .execute(&mut database)
            .await;
        assert_eq!(ended.expect("a database").rows_affected(), 1, "{end}");
    }
    for (events, _, _) in &mut streams {
        events.end().await;
    }
    // Fewer scopes show fewer changes.
    app.database
        .run("update callers set scopes = '{read:orders,read:changes}' where name = 'narrows'")
        .await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    app.add_pet(1).await;
    assert_eq!(stays.change().await["resource"], "1");
    assert!(narrows.is_silent().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_are_bounded_and_hold_no_permit() {
    let app = TestApp::with(&[
        ("PET_INVENTORY__CHANGES__MAX_STREAMS", "16"),
        ("PET_INVENTORY__SERVER__MAX_REQUESTS", "2"),
    ])
    .await;
    let open = || app.get("/changes").header("accept", "text/event-stream");
    let streams = [Events::open(open()).await, Events::open(open()).await];
    let refused = open().await;
    assert!(refused.headers.contains_key("retry-after"));
    refused.problem(503);
    // Pages and other requests go on.
    app.get("/changes").is(200).await;
    app.add_pet(1).await;
    drop(streams);
    eventually(async || open().send().await.expect("a response").status() == 200).await;
}

/// Streams that catch up read page after page; others need connections, too.
#[tokio::test(flavor = "multi_thread")]
async fn streams_read_the_record_with_a_quarter_of_the_connections() {
    let app = TestApp::with(&[("PET_INVENTORY__DATABASE__MAX_CONNECTIONS", "8")]).await;
    app.add_pet(1).await;
    // The first stream starts the feed.
    let mut events = Events::open(app.get("/changes")).await;
    events.id().await;
    let mut blocker = app.database.lock("changes").await;
    let streams = (0..16).map(|_| {
        let request = app.get("/changes?after=0");
        request.header("accept", "text/event-stream").send()
    });
    let observed = async {
        // One connection is the feed's.
        let mut most = 0;
        for _ in 0..10 {
            most = most.max(app.database.waiting_for_locks().await);
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        blocker.execute("commit").await.expect("free");
        most
    };
    let (_, most) = tokio::join!(join_all(streams), observed);
    assert!((1..=3).contains(&most), "{most} connections");
    let mut events = Events::open(app.get("/changes?after=0&kind=pet")).await;
    assert_eq!(events.change().await["resource"], "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_that_is_not_read_is_ended_and_quiet_one_gets_its_position() {
    let app = TestApp::start().await;
    let mut quiet = Events::open(app.get("/changes?kind=image")).await;
    let first = quiet.id().await;
    let mut slow = connect_from("127.0.0.2", app.address).await;
    let request = format!(
        "GET /api/v3/changes HTTP/1.1\r\nhost: a\r\naccept: text/event-stream\r\napi_key: {}\r\n\r\n",
        app.key
    );
    slow.write_all(request.as_bytes()).await.expect("a request");
    // More than the kernel takes: about 60 MB.
    for _ in 0..4 {
        app.database
            .run("insert into new_changes (kind, resource, action, data)
                  select 'pet', n::text, 'changed', jsonb_build_object('text', repeat('x', 1000)) from generate_series(1, 15000) n")
            .await;
        eventually(async || {
            app.database
                .number("select count(*) from new_changes")
                .await
                == 0
        })
        .await;
    }
    let mut received = Vec::new();
    slow.read_to_end(&mut received).await.expect("an end");
    assert!(received.starts_with(b"HTTP/1.1 200"), "{}", received.len());
    assert!(received.len() < 50_000_000, "{}", received.len());
    // The position of a stream moves on, also without an event for it.
    assert!(quiet.id().await > first);
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_end_at_shutdown_and_go_on_at_another_replica() {
    let database = TestDatabase::empty().await;
    let home = Home::on(database.url());
    let (mut one, other) = (home.serve().await, home.serve().await);
    let key = make_key(&mut database.connect().await, "tester", Scopes::all(), None)
        .await
        .secret;
    let open = async |service: &Service, last: &str| {
        let request = service.request(Method::GET, "/changes?kind=pet", &key);
        Events::open(request.header("last-event-id", last)).await
    };
    let mut events = open(&one, "").await;
    let add = async |name: &str| {
        let pet = json!({"name": name});
        other
            .request(Method::POST, "/pet", &key)
            .json(&pet)
            .is(201)
            .await;
    };
    add("Rex").await;
    let first = events.change().await;
    one.signal(Signal::SIGTERM);
    assert_eq!(events.end().await, 0);
    add("Max").await;
    let mut events = open(&other, &events.last_id).await;
    let second = events.change().await;
    assert!(first["position"].as_i64() < second["position"].as_i64());
    assert_eq!(one.wait_for_exit().await, Some(0));
}

/// Polyfills cannot send the header.
#[tokio::test(flavor = "multi_thread")]
async fn stream_begins_behind_the_last_event_id_of_the_query() {
    let app = TestApp::start().await;
    for id in 1..=3 {
        app.add_pet(id).await;
    }
    let changes = record(&app).await;
    let position = |index: usize| changes[index]["position"].to_string();
    let (first, second) = (position(0), position(1));
    // The header comes first, then the query, then `after`.
    for (query, header, expected) in [
        (format!("lastEventId={first}&after={second}"), None, 1),
        (format!("lastEventId=&after={second}"), None, 2),
        (format!("lastEventId={first}"), Some(&second), 2),
        (format!("lastEventId={second}"), Some(&String::new()), 2),
    ] {
        let mut request = app.get(&format!("/changes?kind=pet&{query}"));
        if let Some(header) = header {
            request = request.header("last-event-id", header.as_str());
        }
        let change = Events::open(request).await.change().await;
        assert_eq!(change, changes[expected], "{query}");
    }
    let stream = app.get("/changes?lastEventId=x");
    let refused = stream.header("accept", "text/event-stream").await;
    assert_eq!(refused.invalid_fields(), ["lastEventId"]);
    // A page begins at the first change all the same.
    let page = app.get(&format!("/changes?kind=pet&lastEventId={second}"));
    assert_eq!(page.is(200).await.json()["changes"], json!(changes));
}
