//! Batched statements: requests that share a statement get the same responses as without batches.

use std::sync::atomic::Ordering;

use test_support::*;

/// Number of changes of each pet.
const CHANGES: i64 = 60;

/// Changes a pet by one of three operations, which take turns. The pet's name is the number of the change.
async fn change(app: &TestApp, id: i64, number: i64) {
    let name = number.to_string();
    let tags = json!([{"name": "watched"}]);
    let pet = json!({"id": id, "name": name, "tags": tags});
    let path = format!("/pet/{id}");
    match number % 3 {
        0 => drop(app.put("/pet", &pet).is(200).await),
        1 => {
            let change = json!({"name": name, "tags": tags});
            app.patch(&path, &change).is(200).await;
        }
        _ => {
            // Deletes and re-creates the pet, with the batched insert.
            app.delete(&path).is(200).await;
            app.post("/pet", &pet).is(201).await;
        }
    }
}

/// Reads a pet by its id or its tag; returns the number of the change that wrote it, or `None` if the pet does not exist.
async fn last_change(app: &TestApp, id: i64, by_tag: bool) -> Option<i64> {
    let pet = if by_tag {
        let find = app.get("/pet/findByTags?tags=watched");
        let found = find.is(200).await.json();
        let mut pets = found.as_array().expect("pets").iter();
        pets.find(|pet| pet["id"] == id).cloned()
    } else {
        let response = app.get(&format!("/pet/{id}")).await;
        assert!([200, 404].contains(&response.status), "{response}");
        (response.status == 200).then(|| response.json())
    };
    let name = pet?["name"].as_str().expect("a name").to_owned();
    Some(name.parse().expect("a number"))
}

/// Reads by id and by tag while four writers change the same pets.
#[tokio::test(flavor = "multi_thread")]
async fn read_sees_every_write_completed_before_it() {
    let app = TestApp::start().await;
    let mut ids = Vec::new();
    for _ in 0..4 {
        let pet = json!({"name": "0", "tags": [{"name": "watched"}]});
        ids.push(app.post("/pet", &pet).is(201).await.id());
    }
    // Per pet: the last change that has started, and the last one that has completed.
    let started: Vec<AtomicI64> = ids.iter().map(|_| AtomicI64::new(0)).collect();
    let completed: Vec<AtomicI64> = ids.iter().map(|_| AtomicI64::new(0)).collect();
    let done = AtomicBool::new(false);

    let writers = (0..ids.len()).map(async |pet| {
        for number in 1..=CHANGES {
            started[pet].store(number, Ordering::SeqCst);
            change(&app, ids[pet], number).await;
            completed[pet].store(number, Ordering::SeqCst);
        }
    });
    let reads = AtomicI64::new(0);
    let readers = (0..24_usize).map(async |reader| {
        let pet = reader % ids.len();
        while !done.load(Ordering::SeqCst) {
            let before = completed[pet].load(Ordering::SeqCst);
            match last_change(&app, ids[pet], reader % 4 == 3).await {
                Some(number) => assert!(number >= before, "{number}, not {before}"),
                // Allowed if a change that deletes the pet was in progress during the read.
                None => {
                    let started = started[pet].load(Ordering::SeqCst);
                    let mut since = before + 1..=started;
                    assert!(
                        since.any(|number| number % 3 == 2),
                        "gone since {before}, by {started}"
                    );
                }
            }
            reads.fetch_add(1, Ordering::Relaxed);
        }
    });
    tokio::join!(
        async {
            join_all(writers).await;
            done.store(true, Ordering::SeqCst);
        },
        join_all(readers)
    );
    let reads = reads.load(Ordering::Relaxed);
    assert!(reads > 100, "{reads} reads beside the writes show nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_inserts_get_their_own_results() {
    let app = TestApp::start().await;
    let taken = app.pet("taken").await;
    // Chosen ids, most of them twice and in both orders, the next ones of the sequence, and a taken one; then pets
    // without an id.
    let chosen: Vec<i64> = (0..40)
        .map(|n| 1_000 + n)
        .chain((0..30).rev().map(|n| 1_000 + n))
        .chain((1..=20).map(|n| taken + n))
        .chain([taken])
        .collect();
    let posts = chosen.iter().map(|id| Some(*id)).chain([None; 60]);
    let posts = posts.enumerate().map(async |(n, id)| {
        let urls: Vec<String> = (0..n % 4).map(|url| format!("/{n}/{url}")).collect();
        let mut pet = json!({"name": format!("pet {n}"), "photoUrls": urls});
        if n % 3 == 0 {
            pet["category"] = json!({"name": "a\"b\\c"});
            pet["tags"] = json!([{"id": -1}, {}, {"name": "t,{}"}]);
        }
        if let Some(id) = id {
            pet["id"] = json!(id);
        }
        (id, pet.clone(), app.post("/pet", &pet).await)
    });
    let responses = join_all(posts).await;

    let mut stored = HashSet::from([taken]);
    for (id, pet, response) in &responses {
        match (id, response.status) {
            (_, 201) => {
                let body = response.json();
                assert!(stored.insert(response.id()), "given twice: {response}");
                assert!(id.is_none_or(|id| id == response.id()), "{response}");
                assert_eq!(body["name"], pet["name"]);
                let again = app.get(&format!("/pet/{}", response.id())).is(200).await;
                assert_eq!(
                    again.json(),
                    body,
                    "the stored pet is the one of the response"
                );
                assert_eq!(again.etag(), response.etag());
                assert_eq!(again.json()["photoUrls"], pet["photoUrls"]);
            }
            (Some(_), 409) => drop(response.problem(409)),
            _ => panic!("{id:?}: {response}"),
        }
    }
    // Each chosen id is stored, by a request that chose it or by the sequence.
    assert!(chosen.iter().all(|id| stored.contains(id)));
    let unchosen = responses.iter().filter(|(id, ..)| id.is_none());
    assert_eq!(unchosen.clone().count(), 60);
    assert!(
        unchosen
            .clone()
            .all(|(.., response)| response.status == 201)
    );
    assert_eq!(app.count().await, stored.len());
}

/// Another transaction holds an id: the insert of that id waits and times out, the others succeed.
#[tokio::test(flavor = "multi_thread")]
async fn blocked_insert_is_503_and_its_batch_succeeds() {
    let app = TestApp::start().await;
    let mut other = app.database.connect().await;
    let insert = "begin; insert into pets (id, status, details)
                  values (777, 'sold', json_build_object('name', 'other', 'photoUrls', '[]'::json, 'tags', '[]'::json))";
    other.execute(insert).await.expect("inserted");
    let posts = (0..30).map(async |n| {
        let id = if n == 15 { 777 } else { 2_000 + n };
        let pet = json!({"name": "a", "id": id});
        (id, app.post("/pet", &pet).await)
    });
    for (id, response) in join_all(posts).await {
        if id == 777 {
            response.problem(503);
        } else {
            response.is(201);
        }
    }
    other.execute("commit").await.expect("committed");
    let pet = json!({"name": "a", "id": 777});
    app.post("/pet", &pet).await.problem(409);
}

#[tokio::test(flavor = "multi_thread")]
async fn terminated_connections_cause_503_at_worst_and_are_replaced() {
    let app = TestApp::start().await;
    let id = app.pet("a").await;
    let done = AtomicBool::new(false);
    let cut = "select count(pg_terminate_backend(pid)) from pg_stat_activity
               where datname = current_database() and application_name = 'pet-inventory'";
    let send_requests = async || {
        while !done.load(Ordering::SeqCst) {
            let pet = json!({"name": "b"});
            for response in [
                app.get(&format!("/pet/{id}")).await,
                app.post("/pet", &pet).await,
            ] {
                match response.status {
                    200 | 201 => {}
                    503 => drop(response.problem(503)),
                    _ => panic!("{response}"),
                }
            }
        }
    };
    tokio::join!(
        async {
            for _ in 0..5 {
                // Repeats until it has terminated a connection.
                eventually(async || app.database.number(cut).await > 0).await;
            }
            done.store(true, Ordering::SeqCst);
        },
        join_all((0..16).map(|_| send_requests()))
    );
    eventually(async || {
        let pet = json!({"name": "c"});
        app.get(&format!("/pet/{id}")).await.status == 200
            && app.post("/pet", &pet).await.status == 201
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnected_clients_do_not_fail_other_requests() {
    let app = TestApp::start().await;
    let id = app.pet("a").await;
    let path = format!("/pet/{id}");
    for round in 0..20 {
        let requests = (0..24).map(async |n| {
            if n % 2 == 0 {
                app.get(&path).is(200).await;
            } else {
                // Up to 3 ms: before the request is read, while it waits, or after the response.
                let timeout = Duration::from_micros(50 * (round * n) % 3_000);
                let _ = tokio::time::timeout(timeout, app.get(&path).send()).await;
            }
        });
        join_all(requests).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_closes_all_database_connections() {
    let database = TestDatabase::migrated().await;
    let app = build(&database.url(), &[]).await;
    let key = make_key(&mut database.connect().await, "tester", Scopes::all(), None).await;
    let (client, address) = (client(), app.local_addr().clone());
    let shutdown = Shutdown::default();
    let running = tokio::spawn(app.run(shutdown.clone()));
    let requests = (0..16).map(async |_| {
        let add = client
            .post(format!("http://{address}/api/v3/pet"))
            .json(&json!({"name": "a"}));
        let id = add.header("api_key", &key.secret).is(201).await.id();
        let get = client.get(format!("http://{address}/api/v3/pet/{id}"));
        get.header("api_key", &key.secret).is(200).await;
    });
    join_all(requests).await;
    let connected = "select count(*) from pg_stat_activity
                     where datname = current_database() and application_name = 'pet-inventory'";
    assert!(database.number(connected).await > 0);
    shutdown.begin();
    running.await.expect("no panic").expect("a clean stop");
    eventually(async || database.number(connected).await == 0).await;
}
