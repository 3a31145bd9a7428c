//! Tests of `/admin`: callers and keys. `access` tests who may use it.

use std::future::IntoFuture;

use test_support::*;

use crate::{cli::Commands, finds::next_path};

const NO_ADMINISTRATOR: &str = "would leave no administrator";

async fn create(app: &TestApp, name: &str) -> i64 {
    let caller = json!({"name": name, "plan": "free", "scopes": ["read:pets"]});
    app.post("/admin/callers", &caller).is(201).await.id()
}

/// Creates a key, and returns its identifier and the key.
async fn create_key(app: &TestApp, caller: i64, body: Value) -> (i64, String) {
    let path = format!("/admin/callers/{caller}/keys");
    let created = app.post(&path, &body).is(201).await.json();
    let id = created["id"].as_i64().expect("an id");
    (id, created["key"].as_str().expect("a key").to_owned())
}

/// Returns the status of a request with a key.
async fn status(app: &TestApp, key: &str) -> u16 {
    let request = app.with_key(key, Method::GET, "/limits");
    request.await.status
}

/// Returns the changes of a kind, with what they did and their facts.
async fn changes(app: &TestApp, kind: &str) -> Vec<(String, Value)> {
    let path = format!("/changes?kind={kind}&limit=1000");
    let changes = app.get(&path).is(200).await.changes().into_iter();
    let of_requests = changes.filter(|change| change["actor"] != "operator");
    let change = |change: Value| {
        assert!(change["requestId"].is_string(), "{change}");
        let action = change["action"].as_str().expect("an action");
        (action.to_owned(), change["data"].clone())
    };
    of_requests.map(change).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_are_created_changed_and_deleted() {
    let app = TestApp::start().await;
    let replica = TestApp::replica_of(&app, &[]).await;
    let caller = json!({"name": "acme", "plan": "free"});
    let created = app.post("/admin/callers", &caller).is(201).await;
    let id = created.id();
    let path = format!("/admin/callers/{id}");
    assert!(created.header("location").ends_with(&path), "{created}");
    let mut body = created.json();
    assert!(body["createdAt"].is_string(), "{created}");
    body["createdAt"].take();
    let expected = json!({
        "id": id, "name": "acme", "plan": "free", "disabled": false, "credentials": 0, "createdAt": null,
        "scopes": ["read:pets", "write:pets", "read:orders", "write:orders"],
    });
    assert_eq!(body, expected);
    assert_eq!(app.get(&path).is(200).await.json(), created.json());
    app.post("/admin/callers", &caller).is(409).await;

    let (_, key) = create_key(&app, id, json!({})).await;
    assert_eq!(status(&replica, &key).await, 200);
    let plan = async |app: &TestApp| {
        let limits = app.with_key(&key, Method::GET, "/limits").await;
        (limits.status, limits.json()["plan"].clone())
    };
    assert_eq!(plan(&replica).await, (200, json!("free")));
    let change = json!({"plan": "pro", "scopes": ["admin", "read:pets"], "unknown": 1});
    let changed = app.patch(&path, &change).is(200).await.json();
    assert_eq!(changed["scopes"], json!(["read:pets", "admin"]));
    assert_eq!(changed["credentials"], 1);
    eventually(async || plan(&replica).await == (200, json!("pro"))).await;
    let disabled = app.patch(&path, &json!({"disabled": true})).is(200).await;
    assert_eq!(disabled.json()["disabled"], true);
    for app in [&app, &replica] {
        eventually(async || status(app, &key).await == 401).await;
    }
    app.patch(&path, &json!({"disabled": false})).is(200).await;
    eventually(async || status(&replica, &key).await == 200).await;
    app.patch(&path, &json!({})).is(200).await;
    app.delete(&path).is(200).await;
    assert_eq!(status(&app, &key).await, 401);
    eventually(async || status(&replica, &key).await == 401).await;
    for request in [
        app.get(&path),
        app.patch(&path, &json!({"plan": "pro"})),
        app.delete(&path),
        app.get(&format!("{path}/keys")),
        app.post(&format!("{path}/keys"), &json!({})),
    ] {
        request.is(404).await;
    }
    let change = |action: &str, data: Value| (action.to_owned(), data);
    let recorded = [
        change(
            "created",
            json!({
                "plan": [null, "free"],
                "scopes": ["read:pets", "write:pets", "read:orders", "write:orders"]
            }),
        ),
        change(
            "changed",
            json!({
                "plan": ["free", "pro"],
                "scopes": [["read:pets", "write:pets", "read:orders", "write:orders"], ["read:pets", "admin"]]
            }),
        ),
        change("changed", json!({"disabled": [false, true]})),
        change("changed", json!({"disabled": [true, false]})),
        change("deleted", Value::Null),
    ];
    assert_eq!(changes(&app, "caller").await, recorded);
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_are_listed_by_name() {
    let app = TestApp::start().await;
    for name in ["acme", "Zoo", "acme-2", "acorn", "bär"] {
        create(&app, name).await;
    }
    for username in ["Ännä", "Acme-3", "Userine"] {
        app.sign_up(username).await;
    }
    let names = |page: &Response| -> Vec<String> {
        let callers = page.json().as_array().expect("callers").clone();
        let name = |caller: &Value| caller["name"].as_str().expect("a name").to_owned();
        callers.iter().map(name).collect()
    };
    for (query, expected) in [
        ("?name=ac", &["acme", "acme-2", "acorn", "user:2"][..]),
        ("?name=acme", &["acme", "acme-2", "user:2"]),
        ("?name=A%CC%88N", &["user:1"]),
        ("?name=us", &["user:1", "user:2", "user:3"]),
        ("?name=b%C3%A4", &["bär"]),
        ("?name=bär&name=acme&name=zoo&name=acme", &["acme", "bär"]),
        ("?name=AC", &["user:2"]),
        ("?name=Acme-3&name=acme", &["acme"]),
        ("?name=%25", &[]),
    ] {
        let page = app.get(&format!("/admin/callers{query}")).is(200).await;
        assert_eq!(names(&page), expected, "{query}");
    }
    let all = names(&app.get("/admin/callers").is(200).await);
    assert!(all.is_sorted() && all.len() == 9, "{all:?}");
    for (filter, expected) in [("", &all[..]), ("name=u&", &all[6..])] {
        let mut paged = Vec::new();
        let mut next = Some(format!("/admin/callers?{filter}limit=2"));
        while let Some(path) = next {
            let page = app.get(&path).is(200).await;
            paged.extend(names(&page));
            next = next_path(&app, &page);
        }
        assert_eq!(paged, expected, "{filter}");
    }
}

/// Names that people give do not look like those of others. Callers that exist keep theirs.
#[tokio::test(flavor = "multi_thread")]
async fn names_of_new_callers_are_checked_as_usernames_are() {
    let app = TestApp::start().await;
    let commands = Commands::on(app.database.shared());
    let callers = "/admin/callers";
    let misleading = [
        "operator",
        "Operator",
        "ANONYMOUS",
        "webhook",
        "user:7",
        "User:7",
        "jwt:x",
        "JWT:x",
        // Full width, which RFC 8265 maps.
        "\u{ff35}ser:7",
        "\u{41e}perator",
        "ac\u{202e}me",
        "ac\u{200b}me",
        "acme corp",
        "acme\u{3000}corp",
        "",
    ];
    for name in misleading {
        let refused = app.post(callers, &json!({"name": name, "plan": "free"}));
        assert_eq!(refused.await.invalid_fields(), ["name"], "{name:?}");
        let keys = ["keys", "create", "--plan", "free", "--caller", name];
        assert_ne!(commands.run(&keys).await.code, Some(0), "{name:?}");
    }
    for name in [
        "Acme",
        "bär",
        "オペレーター",
        "acme_corp-2@example.com",
        "1",
    ] {
        let caller = json!({"name": name, "plan": "free"});
        let created = app.post(callers, &caller).is(201).await;
        assert_eq!(created.json()["name"], name);
    }
    for (number, name) in [
        "operator",
        "webhook",
        "jwt:x",
        "acme corp",
        "ac\u{202e}me",
        "\u{41e}perator",
    ]
    .iter()
    .enumerate()
    {
        let insert = format!(
            "insert into callers (name, plan, scopes) values ('{name}', 'free', '{{read:pets}}') returning id"
        );
        let id = app.database.number(&insert).await;
        let path = format!("{callers}/{id}");
        let pro = app.patch(&path, &json!({"plan": "pro"})).is(200).await;
        assert_eq!(pro.json()["name"], *name);
        let table = commands.run(&["callers", "list"]).await.is(0).stdout;
        let shown = name.replace('\u{202e}', "\\u{202e}");
        assert!(
            table.contains(&shown) && !table.contains('\u{202e}'),
            "{table}"
        );
        let show = commands.run(&["callers", "show", name]).await;
        let text = show.is(0).stdout;
        assert!(
            text.contains(&shown) && !text.contains('\u{202e}'),
            "{text}"
        );
        if number % 2 == 0 {
            app.delete(&path).is(200).await;
        } else {
            commands.run(&["callers", "disable", name]).await.is(0);
            commands.run(&["callers", "delete", name]).await.is(0);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_callers_and_keys_are_400() {
    let app = TestApp::start().await;
    let id = create(&app, "acme").await;
    let callers = "/admin/callers";
    let (caller, keys) = (format!("{callers}/{id}"), format!("{callers}/{id}/keys"));
    for (request, fields) in [
        (app.post(callers, &json!({})), &["name", "plan"][..]),
        (
            app.post(
                callers,
                &json!({"name": "operator", "plan": "gold", "scopes": "admin"}),
            ),
            &["name", "plan", "scopes"],
        ),
        (
            app.post(
                callers,
                &json!({"name": "user:7", "plan": "pro", "scopes": ["read:cats", 1]}),
            ),
            &["name", "scopes[0]", "scopes[1]"],
        ),
        (
            app.post(
                callers,
                &json!({"name": "a", "plan": "pro", "scopes": vec!["admin"; 17]}),
            ),
            &["scopes"],
        ),
        (
            app.patch(
                &caller,
                &json!({"plan": null, "scopes": null, "disabled": "yes"}),
            ),
            &["disabled", "plan", "scopes"],
        ),
        (
            app.post(&keys, &json!({"scopes": ["admin"], "expiresIn": 0})),
            &["expiresIn", "scopes"],
        ),
        (
            app.post("/admin/keys/1/rotate", &json!({"overlap": -1})),
            &["overlap"],
        ),
        (app.get(&format!("{callers}?name=")), &["name"]),
        (app.get(&format!("{callers}?cursor=IGE")), &["cursor"]),
        (app.get(&format!("{callers}/0")), &["callerId"]),
        (app.delete("/admin/keys/x"), &["keyId"]),
    ] {
        let response = request.await;
        let mut found = response.invalid_fields();
        found.sort_unstable();
        assert_eq!(found, fields, "{response}");
    }
    let listed = app.get(&keys).is(200).await;
    assert_eq!(listed.text(), "[]");
    let deleted_by = app.delete("/admin/keys/999999").is(404).await;
    assert!(deleted_by.text().contains("a valid key"), "{deleted_by}");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_created_listed_rotated_and_revoked() {
    let app = TestApp::start().await;
    let replica = TestApp::replica_of(&app, &[]).await;
    let caller = create(&app, "acme").await;
    let path = format!("/admin/callers/{caller}/keys");
    let (first, key) = create_key(&app, caller, json!({})).await;
    let narrow = json!({"scopes": [], "expiresIn": 3600});
    let (second, _) = create_key(&app, caller, narrow).await;
    let listed = app.get(&path).is(200).await;
    assert_eq!(listed.ids(), [first, second]);
    assert!(!listed.text().contains(&key), "{listed}");
    let keys = listed.json();
    assert!(key.starts_with(keys[0]["hint"].as_str().expect("a hint")));
    assert_eq!(keys[0]["scopes"], json!(["read:pets"]));
    assert_eq!(keys[0]["expiresAt"], Value::Null);
    assert_eq!(keys[1]["scopes"], json!([]));
    assert!(keys[1]["expiresAt"].is_string());
    let page = app.get(&format!("{path}?limit=1")).is(200).await;
    let next = next_path(&app, &page).expect("a second page");
    assert_eq!(app.get(&next).is(200).await.ids(), [second]);

    assert_eq!(status(&replica, &key).await, 200);
    let rotate = format!("/admin/keys/{first}/rotate");
    let rotated = app.post(&rotate, &json!({})).is(201).await.json();
    let new = rotated["key"].as_str().expect("a key");
    assert_eq!(rotated["replaced"]["id"], first);
    for key in [&key, new] {
        assert_eq!(status(&replica, key).await, 200, "both are valid");
    }
    // A key has one successor.
    app.post(&rotate, &json!({"overlap": 0})).await.problem(409);
    let again = format!("/admin/keys/{}/rotate", rotated["id"]);
    let again = app.post(&again, &json!({"overlap": 60})).is(201).await;
    app.delete(&format!("/admin/keys/{first}")).is(200).await;
    eventually(async || status(&replica, &key).await == 401).await;
    app.post(&rotate, &json!({})).is(404).await;
    assert_eq!(status(&replica, new).await, 200);
    let latest = again.json()["id"].as_i64().expect("an id");
    let revoke = format!("/admin/keys/{}", rotated["id"]);
    assert_eq!(app.delete(&revoke).is(200).await.json()["type"], "deleted");
    for app in [&app, &replica] {
        eventually(async || status(app, new).await == 401).await;
    }
    app.delete(&revoke).is(404).await;
    assert_eq!(app.get(&path).is(200).await.ids().last(), Some(&latest));
    let actions: Vec<_> = changes(&app, "key").await;
    let actions: Vec<&str> = actions.iter().map(|(action, _)| &**action).collect();
    let expected = [
        "created", "created", "changed", "created", "changed", "created", "deleted", "deleted",
    ];
    assert_eq!(actions, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn successor_of_a_key_has_its_name_its_scopes_and_its_lifetime() {
    let app = TestApp::with(&[("PET_INVENTORY__AUTH__API_KEY_LIFETIME", "90d")]).await;
    let caller = create(&app, "acme").await;
    let keys = format!("/admin/callers/{caller}/keys");
    let seconds = |time: &Value| {
        let time: DateTime<Utc> = time.as_str().expect("a time").parse().expect("a time");
        (time - Utc::now()).num_seconds()
    };
    let key = json!({"name": "till 3 🐕", "scopes": ["read:pets"], "expiresIn": 3_600});
    let (old, _) = create_key(&app, caller, key).await;
    let rotate = |id: i64| format!("/admin/keys/{id}/rotate");
    let new = app
        .post(&rotate(old), &json!({"overlap": 60}))
        .is(201)
        .await;
    assert!(
        (3_500..=3_600).contains(&seconds(&new.json()["expiresAt"])),
        "{new}"
    );
    let listed = app.get(&keys).is(200).await.json();
    for key in listed.as_array().expect("a list") {
        assert_eq!(key["name"], "till 3 🐕");
        assert_eq!(key["scopes"], json!(["read:pets"]));
    }
    // Another lifetime, which the next one has.
    let longer = json!({"overlap": 0, "expiresIn": 86_400});
    let longer = app.post(&rotate(new.id()), &longer).is(201).await;
    assert!(seconds(&longer.json()["expiresAt"]) > 86_000, "{longer}");
    let same = app.post(&rotate(longer.id()), &json!({})).is(201).await;
    assert!(seconds(&same.json()["expiresAt"]) > 86_000, "{same}");
    // One without an expiry has a successor without one.
    let (never, _) = create_key(&app, caller, json!({})).await;
    app.database
        .run(&format!(
            "update credentials set expires_at = null where id = {never}"
        ))
        .await;
    let new = app.post(&rotate(never), &json!({})).is(201).await;
    assert_eq!(new.json().get("expiresAt"), None);
    for (body, field) in [
        (json!({"name": ""}), "name"),
        (json!({"name": "x".repeat(101)}), "name"),
        (json!({"name": "a\u{7}"}), "name"),
        (json!({"expiresIn": 0}), "expiresIn"),
    ] {
        let refused = app.post(&keys, &body).await;
        assert_eq!(refused.invalid_fields(), [field], "{body}");
    }
    let refused = app.post(&rotate(new.id()), &json!({"expiresIn": 0})).await;
    assert_eq!(refused.invalid_fields(), ["expiresIn"]);
}

/// Requests that use what administrators take away or replace meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn administration_and_use_at_once_leave_nothing_behind() {
    const ROUNDS: i64 = 200;
    // Each round comes from an address of its own, because requests for tokens are limited by address.
    let app = TestApp::with(&[("PET_INVENTORY__LIMITS__TRUSTED_PROXIES", "127.0.0.1")]).await;
    let kept = create(&app, "kept").await;
    for round in 0..ROUNDS {
        let caller = create(&app, &format!("acme-{round}")).await;
        let path = format!("/admin/callers/{caller}");
        let clients = format!("{path}/clients");
        let client = app.post(&clients, &json!({})).is(201).await.json();
        let other = format!("/admin/callers/{kept}/clients");
        let other = app.post(&other, &json!({})).is(201).await.json();
        let token = |client: &Value| {
            let text = |name: &str| client[name].as_str().expect("a text").to_owned();
            let request = app.bare(Method::POST, "/oauth/token");
            let request = request.basic_auth(text("client_id"), Some(text("client_secret")));
            let request = request.header("x-forwarded-for", format!("192.0.2.{round}"));
            request.form(&[("grant_type", "client_credentials")])
        };
        let (key, _) = create_key(&app, caller, json!({})).await;
        let (replaced, _) = create_key(&app, kept, json!({})).await;
        let rotate = |key: i64| app.post(&format!("/admin/keys/{key}/rotate"), &json!({}));
        let requests = [
            app.post(&format!("{path}/keys"), &json!({})),
            app.post(&clients, &json!({})),
            token(&client),
            token(&other),
            rotate(key),
            app.delete(&path),
            app.delete(&format!("/admin/clients/{}", other["id"])),
            rotate(replaced),
            rotate(replaced),
        ];
        let responses = join_all(requests.map(IntoFuture::into_future)).await;
        let statuses: Vec<u16> = responses.iter().map(|it| it.status).collect();
        let expected: [&[u16]; 7] = [
            &[201, 404],
            &[201, 404],
            &[200, 401],
            &[200, 401],
            &[201, 404],
            &[200],
            &[200],
        ];
        for (index, (status, expected)) in statuses.iter().zip(expected).enumerate() {
            assert!(
                expected.contains(status),
                "round {round}, {index}: {}",
                responses[index]
            );
        }
        let mut rotations = statuses[7..].to_vec();
        rotations.sort_unstable();
        assert_eq!(rotations, [201, 409], "round {round}");
        let token = &responses[3];
        if token.status == 200 {
            let token = token.json()["access_token"].clone();
            let token = token.as_str().expect("a token");
            eventually(async || {
                let limits = app.anonymous(Method::GET, "/limits").bearer_auth(token);
                limits.await.status == 401
            })
            .await;
        }
    }
    let left = "select count(*) from credentials join callers on callers.id = caller_id where callers.name like 'acme-%'";
    assert_eq!(app.database.number(left).await, 0);
    let successors = format!(
        "select count(*) from credentials where caller_id = {kept} and kind = 'api_key' and rotated_at is null"
    );
    assert_eq!(app.database.number(&successors).await, ROUNDS);
}

/// A client that still uses the old key has no failed request within the overlap.
#[tokio::test(flavor = "multi_thread")]
async fn old_key_works_until_the_overlap_ends() {
    let app = TestApp::start().await;
    let caller = create(&app, "acme").await;
    let enterprise = json!({"plan": "enterprise"});
    let path = format!("/admin/callers/{caller}");
    app.patch(&path, &enterprise).is(200).await;
    let (id, key) = create_key(&app, caller, json!({})).await;
    let rotate = format!("/admin/keys/{id}/rotate");
    let use_old = async || {
        for _ in 0..50 {
            app.with_key(&key, Method::GET, "/pet?limit=1")
                .is(200)
                .await;
        }
    };
    let (rotated, _) = tokio::join!(
        app.post(&rotate, &json!({"overlap": 60})),
        join_all((0..4).map(|_| use_old())),
    );
    rotated.is(201);
    app.delete(&format!("/admin/keys/{id}")).is(200).await;
    eventually(async || status(&app, &key).await == 401).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_with_a_secret_refuse_idempotency_keys_and_are_not_cached() {
    let app = TestApp::start().await;
    let caller = create(&app, "acme").await;
    let key = app.post(&format!("/admin/callers/{caller}/keys"), &json!({}));
    let key = key.is(201).await.json()["id"].clone();
    let webhook = json!({"url": "https://example.com/", "kinds": ["session"]});
    let id = app.post("/admin/webhooks", &webhook).is(201).await.id();
    for (path, body) in [
        (format!("/admin/callers/{caller}/keys"), json!({})),
        (format!("/admin/keys/{key}/rotate"), json!({})),
        (format!("/admin/callers/{caller}/clients"), json!({})),
        ("/admin/webhooks".to_owned(), webhook),
        (format!("/admin/webhooks/{id}/rotate"), json!({})),
    ] {
        let rows = "select (select count(*) from credentials) + (select count(*) from webhooks) + (select count(*) from new_changes)
                           + (select count(*) from changes)";
        let before = app.database.number(rows).await;
        let with_key = app.post(&path, &body).header("idempotency-key", "once");
        let refused = with_key.await.problem(400);
        assert_eq!(refused["errors"][0]["field"], "Idempotency-Key", "{path}");
        assert_eq!(app.database.number(rows).await, before, "{path}");
        let created = app.post(&path, &body).is(201).await;
        assert_eq!(created.header("cache-control"), "no-store", "{path}");
    }
    // Those without a credential ignore it.
    let user = json!({"username": "rex", "password": PASSWORD});
    app.post("/user", &user).is(201).await;
    for _ in 0..2 {
        let login = app.anonymous(Method::POST, "/user/login").json(&user);
        let login = login.header("idempotency-key", "once").is(200).await;
        assert_eq!(login.header("cache-control"), "no-store");
    }
    let stored = "select count(*) from idempotency_keys where key = 'once'";
    assert_eq!(app.database.number(stored).await, 0);
    let caller = json!({"name": "zoo", "plan": "free"});
    for replayed in [None, Some("true")] {
        let create = app.post("/admin/callers", &caller);
        let created = create.header("idempotency-key", "once").is(201).await;
        assert_eq!(created.optional_header("idempotent-replayed"), replayed);
    }
}

/// Makes an account an administrator that has neither a key nor a client, and disables all others. Returns its token.
async fn keyless_administrator(app: &TestApp) -> String {
    let user = json!({"username": "root", "password": PASSWORD});
    let sign_up = app.anonymous(Method::POST, "/user").json(&user);
    sign_up.is(201).await;
    app.database
        .run(
            "update callers set plan = 'enterprise',
                 scopes = '{read:pets,write:pets,read:orders,write:orders,read:changes,admin}'
             where name like 'user:%';
             update callers set disabled_at = now() where name not like 'user:%'",
        )
        .await;
    let login = app.anonymous(Method::POST, "/user/login").json(&user);
    let token = login.is(200).await.json();
    token.as_str().expect("a token").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn last_administrator_is_kept() {
    let app = TestApp::start().await;
    let token = keyless_administrator(&app).await;
    let send = async |method: Method, path: &str, body: Option<Value>| {
        let request = app.anonymous(method, path).bearer_auth(&token);
        match body {
            Some(body) => request.json(&body).await,
            None => request.await,
        }
    };
    // Without a key, a caller is none: its deletion takes none away, although none is left.
    let new = json!({"name": "keyless", "plan": "free", "scopes": ["admin"]});
    let keyless = send(Method::POST, "/admin/callers", Some(new)).await;
    let keyless = format!("/admin/callers/{}", keyless.is(201).id());
    send(Method::PATCH, &keyless, Some(json!({"disabled": true})))
        .await
        .is(200);
    send(Method::DELETE, &keyless, None).await.is(200);
    let new = json!({"name": "last", "plan": "free", "scopes": ["admin", "read:pets"]});
    let last = send(Method::POST, "/admin/callers", Some(new))
        .await
        .is(201);
    let path = format!("/admin/callers/{}", last.id());
    let keys = format!("{path}/keys");
    let key = send(Method::POST, &keys, Some(json!({}))).await.is(201);
    let key = key.json();
    // A key without the scope does not count.
    let reader = json!({"scopes": ["read:pets"]});
    send(Method::POST, &keys, Some(reader)).await.is(201);
    let revoke = format!("/admin/keys/{}", key["id"]);
    let before = send(Method::GET, &path, None).await.text();
    for (method, path, body) in [
        (Method::PATCH, &path, Some(json!({"disabled": true}))),
        (Method::PATCH, &path, Some(json!({"scopes": ["read:pets"]}))),
        (Method::DELETE, &path, None),
        (Method::DELETE, &revoke, None),
    ] {
        let refused = send(method, path, body).await.problem(409);
        assert!(refused.to_string().contains(NO_ADMINISTRATOR), "{refused}");
    }
    assert_eq!(send(Method::GET, &path, None).await.text(), before);
    assert_eq!(status(&app, key["key"].as_str().expect("a key")).await, 200);
    // Neither of these takes an administrator away.
    let other = json!({"disabled": false, "plan": "pro", "scopes": ["admin"]});
    send(Method::PATCH, &path, Some(other)).await.is(200);
    let rotate = format!("/admin/keys/{}/rotate", key["id"]);
    // A key that does not stay valid for a day does not count.
    for short in [
        json!({"overlap": 0, "expiresIn": 86_000}),
        json!({"expiresIn": 60}),
    ] {
        let refused = send(Method::POST, &rotate, Some(short)).await.problem(409);
        assert!(refused.to_string().contains(NO_ADMINISTRATOR), "{refused}");
    }
    let rotated = send(Method::POST, &rotate, Some(json!({"overlap": 0}))).await;
    // A client does as well as a key.
    let clients = format!("{path}/clients");
    let client = send(Method::POST, &clients, Some(json!({}))).await.is(201);
    let revoke = format!("/admin/keys/{}", rotated.is(201).id());
    send(Method::DELETE, &revoke, None).await.is(200);
    let delete = format!("/admin/clients/{}", client.id());
    let refused = send(Method::DELETE, &delete, None).await.problem(409);
    assert!(refused.to_string().contains(NO_ADMINISTRATOR), "{refused}");
    // The account is an administrator with a key now, so the other one can go; then the account has to stay.
    let user = app.database.number("select caller_id from users").await;
    let keys = format!("/admin/callers/{user}/keys");
    send(Method::POST, &keys, Some(json!({}))).await.is(201);
    send(Method::DELETE, &path, None).await.is(200);
    let refused = send(Method::DELETE, "/user/root", None).await.problem(409);
    assert!(refused.to_string().contains(NO_ADMINISTRATOR), "{refused}");
    send(Method::GET, "/user/root", None).await.is(200);

    // A command is refused, too, unless it is forced.
    let commands = Commands::on(app.database.shared());
    let name = format!("user:{}", app.database.number("select id from users").await);
    let key = "select id from credentials where kind = 'api_key' and revoked_at is null order by id desc limit 1";
    let key = app.database.number(key).await.to_string();
    for command in [
        &["callers", "disable", &name][..],
        &["callers", "set-scopes", &name, "read:pets"],
        &["callers", "delete", &name],
        &["keys", "revoke", &key],
        &["keys", "rotate", &key, "--expires", "2h"],
    ] {
        let refused = commands.run(command).await.is(1);
        for next in ["keys create --caller", "--force"] {
            assert!(refused.stderr.contains(next), "{refused:?}");
        }
    }
    send(Method::GET, "/user/root", None).await.is(200);
    let disable = ["callers", "disable", &name, "--force"];
    let disabled = commands.run(&disable).await.is(0);
    assert_eq!(disabled.stderr, "");
    let enabled = commands.run(&["callers", "enable", &name]).await.is(0);
    assert_eq!(enabled.stderr, "");
}

/// Two administrators are taken away at the same time, in different ways. One stays.
#[tokio::test(flavor = "multi_thread")]
async fn one_of_the_last_two_administrators_is_kept() {
    const ROUNDS: usize = 40;
    let app = TestApp::start().await;
    let token = keyless_administrator(&app).await;
    let send = |method: Method, path: String, body: Value| {
        let request = app.anonymous(method, &path).bearer_auth(&token);
        request.json(&body)
    };
    let mut pair = Vec::new();
    for name in ["one", "two"] {
        let new = json!({"name": name, "plan": "free", "scopes": ["admin"]});
        let created = send(Method::POST, "/admin/callers".to_owned(), new).await;
        pair.push(created.is(201).id());
    }
    for round in 0..ROUNDS {
        let mut removals = Vec::new();
        for (place, id) in pair.iter().enumerate() {
            let path = format!("/admin/callers/{id}");
            let all = json!({"disabled": false, "scopes": ["admin"]});
            send(Method::PATCH, path.clone(), all).await.is(200);
            // The key of a round before is valid if it was not revoked.
            let keys = send(Method::GET, format!("{path}/keys"), json!({})).await;
            let keys = keys.is(200).json();
            let mut keys = keys.as_array().expect("keys").iter();
            let valid = keys.rfind(|key| key["revokedAt"].is_null());
            let key = match valid {
                Some(key) => key["id"].clone(),
                None => {
                    let created = send(Method::POST, format!("{path}/keys"), json!({})).await;
                    created.is(201).json()["id"].clone()
                }
            };
            removals.push(match (round + place) % 3 {
                0 => send(Method::PATCH, path, json!({"disabled": true})),
                1 => send(Method::PATCH, path, json!({"scopes": ["read:pets"]})),
                _ => send(Method::DELETE, format!("/admin/keys/{key}"), json!({})),
            });
        }
        let statuses = statuses_of(removals).await;
        assert_eq!(statuses, [200, 409], "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_created_listed_and_revoked() {
    let app = TestApp::start().await;
    let caller = create(&app, "acme").await;
    let path = format!("/admin/callers/{caller}/clients");
    let refused = json!({"scopes": ["admin"]});
    let refused = app.post(&path, &refused).await;
    assert_eq!(refused.invalid_fields(), ["scopes"]);
    let created = app.post(&path, &json!({})).is(201).await.json();
    let text = |name: &str| created[name].as_str().expect("a text").to_owned();
    let (client, secret) = (text("client_id"), text("client_secret"));
    let grant = async || {
        let request = app.bare(Method::POST, "/oauth/token");
        let request = request.basic_auth(&client, Some(&secret));
        request.form(&[("grant_type", "client_credentials")]).await
    };
    let token = grant().await.is(200).json();
    let token = token["access_token"].as_str().expect("a token");
    let status = async || {
        let request = app.anonymous(Method::GET, "/limits").bearer_auth(token);
        request.await.status
    };
    assert_eq!(status().await, 200);
    let listed = app.get(&path).is(200).await;
    assert_eq!(listed.json()[0]["client_id"], client);
    assert!(!listed.text().contains(&secret), "{listed}");
    let revoke = format!("/admin/clients/{}", created["id"]);
    // It is no key, and no session.
    for other in ["keys", "sessions"] {
        let other = format!("/admin/{other}/{}", created["id"]);
        app.delete(&other).is(404).await;
    }
    app.delete(&revoke).is(200).await;
    eventually(async || status().await == 401).await;
    grant().await.is(401);
    app.delete(&revoke).is(404).await;
    let actions: Vec<_> = changes(&app, "client").await;
    let actions: Vec<&str> = actions.iter().map(|(action, _)| &**action).collect();
    assert_eq!(actions, ["created", "deleted"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_listed_and_ended() {
    let app = TestApp::start().await;
    let replica = TestApp::replica_of(&app, &[]).await;
    assert_eq!(app.get("/admin/sessions").is(200).await.text(), "[]");
    let mut tokens = Vec::new();
    for name in ["ada", "bob"] {
        app.sign_up(name).await;
        tokens.push(app.log_in(name).await);
    }
    let sessions = app.get("/admin/sessions").is(200).await;
    assert!(tokens.iter().all(|token| !sessions.text().contains(token)));
    let callers: Vec<_> = [0, 1]
        .map(|place| sessions.json()[place]["caller"].clone())
        .into();
    assert_eq!(callers, ["user:1", "user:2"]);
    let page = app.get("/admin/sessions?limit=1").is(200).await;
    let next = next_path(&app, &page).expect("a second page");
    assert_eq!(app.get(&next).is(200).await.ids(), [sessions.ids()[1]]);
    let end = format!("/admin/sessions/{}", sessions.ids()[0]);
    for (token, expected) in [(&tokens[0], 200), (&tokens[1], 200)] {
        assert_eq!(status(&replica, token).await, expected);
    }
    app.delete(&end).is(200).await;
    eventually(async || status(&replica, &tokens[0]).await == 401).await;
    assert_eq!(status(&replica, &tokens[1]).await, 200);
    app.delete(&end).is(404).await;
    let recorded = changes(&app, "session").await;
    assert_eq!(recorded.len(), 1, "{recorded:?}");
    assert_eq!(recorded[0].0, "deleted");
}

/// Returns the use of the current day, after what was counted has been written.
async fn used_today(app: &TestApp, caller: i64) -> (i64, i64) {
    let path = format!("/admin/callers/{caller}/usage");
    let days = app.get(&path).is(200).await.json();
    let days = days.as_array().expect("days");
    assert_eq!(days.len(), 30);
    let number = |name: &str| days[29][name].as_i64().expect("a number");
    (number("admitted"), number("refused"))
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_is_the_number_of_admitted_and_refused_requests() {
    const CLIENTS: usize = 64;
    let app = TestApp::with(&[("PET_INVENTORY__PLANS__FREE__PER_MINUTE", "100")]).await;
    let replica =
        TestApp::replica_of(&app, &[("PET_INVENTORY__PLANS__FREE__PER_MINUTE", "100")]).await;
    let mut callers = Vec::new();
    for (name, plan) in [("limited", "free"), ("unlimited", "enterprise")] {
        let new = json!({"name": name, "plan": plan});
        let id = app.post("/admin/callers", &new).is(201).await.id();
        callers.push((id, create_key(&app, id, json!({})).await.1));
    }
    for (id, key) in &callers {
        let statuses = join_all((0..CLIENTS).map(async |client| {
            let app = if client % 2 == 0 { &app } else { &replica };
            let mut statuses = Vec::new();
            for _ in 0..4 {
                let response = app.with_key(key, Method::GET, "/pet?limit=1").await;
                statuses.push(response.status);
            }
            statuses
        }));
        let statuses = statuses.await.concat();
        let count = |status: u16| statuses.iter().filter(|it| **it == status).count();
        let counts = [count(200), count(429)].map(|count| i64::try_from(count).expect("a few"));
        assert_eq!(counts[0] + counts[1], 4 * 64);
        eventually(async || used_today(&app, *id).await == (counts[0], counts[1])).await;
        let limits = app
            .with_key(key, Method::GET, "/limits")
            .is(200)
            .await
            .json();
        assert_eq!(limits["days"][29]["admitted"], counts[0]);
        assert_eq!(limits["days"].as_array().map(Vec::len), Some(30));
    }
    assert_eq!(used_today(&app, callers[0].0).await.0, 100);
    app.get("/admin/callers/999999/usage").is(404).await;

    let commands = Commands::on(app.database.shared());
    let shown = commands.run(&["callers", "usage", "limited"]).await.is(0);
    let last = shown.stdout.lines().last().expect("a day");
    assert!(
        last.contains("100") && last.contains("█") && last.contains("░"),
        "{last}"
    );
    let days = commands
        .json(&["callers", "usage", "limited", "--json"])
        .await;
    assert_eq!(days[29]["refused"], 156);
    commands.run(&["callers", "usage", "nobody"]).await.is(1);
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_is_kept_for_thirty_days() {
    let app = TestApp::start().await;
    let caller = create(&app, "acme").await;
    app.database
        .run(&format!(
            "insert into caller_usage
             select {caller}, (now() at time zone 'utc')::date - ago, ago, 1 from generate_series(1, 40) as ago"
        ))
        .await;
    let days = app
        .get(&format!("/admin/callers/{caller}/usage"))
        .is(200)
        .await
        .json();
    let admitted = days
        .as_array()
        .expect("days")
        .iter()
        .map(|day| day["admitted"].clone());
    let expected: Vec<_> = (0..30).rev().map(Value::from).collect();
    assert_eq!(admitted.collect::<Vec<_>>(), expected);
    let mut connection = app.database.connect().await;
    let purged = pet_inventory::db::usage::purge_expired(&mut connection).await;
    purged.expect("a database");
    let left = format!("select count(*) from caller_usage where caller_id = {caller}");
    assert_eq!(app.database.number(&left).await, 29);
}
