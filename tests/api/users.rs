//! User accounts, logins and sessions.

use pet_inventory::auth::secret::sha256;
use test_support::*;

/// Settings with limits that no test reaches.
const HIGH_LIMITS: [(&str, &str); 2] = [
    ("PET_INVENTORY__PLANS__FREE__PER_MINUTE", "unlimited"),
    ("PET_INVENTORY__USERS__LOGINS_PER_MINUTE", "1000"),
];

fn sign_up(app: &TestApp, body: &Value) -> Call {
    app.anonymous(Method::POST, "/user").json(body)
}

fn log_in(app: &TestApp, name: &str, password: &str) -> Call {
    let pair = [("username", name), ("password", password)];
    app.anonymous(Method::POST, "/user/login").form(&pair)
}

/// Logs in and returns the token.
async fn session(app: &TestApp, name: &str) -> String {
    token(&log_in(app, name, PASSWORD).is(200).await)
}

fn token(response: &Response) -> String {
    response.json().as_str().expect("a string").to_owned()
}

fn with_token(app: &TestApp, token: &str, method: Method, path: &str) -> Call {
    app.anonymous(method, path).bearer_auth(token)
}

async fn status(app: &TestApp, token: &str) -> u16 {
    let response = with_token(app, token, Method::GET, "/limits").await;
    response.status
}

/// As the list and a change do. Others cannot set it, but are not refused.
#[tokio::test(flavor = "multi_thread")]
async fn user_status_of_a_new_account_is_set_by_administrators() {
    let app = TestApp::start().await;
    let others = app.make_key("other", Scopes::of_new_callers()).await.secret;
    for (name, key, status) in [
        ("ada", Some(&app.key), 7),
        ("bob", Some(&others), 0),
        ("eve", None, 0),
    ] {
        let mut create = sign_up(&app, &json!({"username": name, "userStatus": 7}));
        if let Some(key) = key {
            create = create.header("api_key", key);
        }
        assert_eq!(create.is(201).await.json()["userStatus"], status, "{name}");
    }
    let wrong = sign_up(&app, &json!({"username": "x", "userStatus": 7})).header("api_key", "x");
    wrong.await.problem(401);
    let without = sign_up(&app, &json!({"username": "x"})).header("api_key", "x");
    without.is(201).await;
    let of_proxy = sign_up(&app, &json!({"username": "y", "userStatus": 7}));
    let of_proxy = of_proxy.header("authorization", "Basic dXNlcjpwYXNz");
    assert_eq!(of_proxy.is(201).await.json()["userStatus"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn change_that_alters_nothing_of_an_account_is_not_recorded() {
    let app = TestApp::start().await;
    sign_up(&app, &account("ada")).is(201).await;
    let put = |change: Value| {
        let put = app.request(Method::PUT, "/user/ada").json(&change);
        put.is(200)
    };
    let records = async || app.get("/changes?kind=user").is(200).await.changes().len();
    put(json!({"email": "a@example.com"})).await;
    assert_eq!(records().await, 2);
    let same = json!({"username": "ada", "email": "a@example.com", "userStatus": 0});
    for response in join_all((0..4).map(|_| put(same.clone()))).await {
        assert_eq!(response.json()["email"], "a@example.com");
    }
    assert_eq!(records().await, 2);
    put(json!({"email": "a@example.com", "password": PASSWORD})).await;
    assert_eq!(records().await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn create_user_sets_neither_id_nor_status_plan_or_scopes() {
    let app = TestApp::start().await;
    let body = json!({
        "id": 99, "username": "Ada", "firstName": "Ada", "lastName": "Lovelace", "email": "ada@example.com",
        "password": PASSWORD, "phone": "1", "userStatus": 7, "plan": "enterprise", "scopes": ["admin"]
    });
    let created = sign_up(&app, &body).is(201).await;
    assert_eq!(created.header("location"), "/api/v3/user/Ada");
    let id = created.id();
    let expected = json!({
        "id": id, "username": "Ada", "firstName": "Ada", "lastName": "Lovelace",
        "email": "ada@example.com", "phone": "1", "userStatus": 0
    });
    assert_eq!(created.json(), expected);
    assert_ne!(id, 99);
    let caller = "select count(*) from callers where name = 'user:' || (select id from users)
                  and plan = 'free' and scopes = '{read:pets,read:orders,write:orders}'";
    assert_eq!(app.database.number(caller).await, 1);
    let ada = session(&app, "Ada").await;
    let own = with_token(&app, &ada, Method::GET, "/user/aDa");
    assert_eq!(own.is(200).await.json(), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn login_accepts_form_query_and_json() {
    let app = TestApp::start().await;
    app.sign_up("Ada").await;
    let opened = log_in(&app, "ADA", PASSWORD).is(200).await;
    assert_eq!(opened.header("cache-control"), "no-store");
    assert_eq!(opened.header("x-rate-limit"), "1000");
    let expires = DateTime::parse_from_rfc3339(opened.header("x-expires-after"));
    let lasts = expires.expect("a time").to_utc() - Utc::now();
    assert!((23..=24).contains(&lasts.num_hours()), "{opened}");
    assert!(token(&opened).starts_with("pis_"), "{opened}");
    let query = format!(
        "/user/login?username=ada&password={}",
        PASSWORD.replace(' ', "+")
    );
    let pair = json!({"username": "ada", "password": PASSWORD});
    for request in [
        app.anonymous(Method::GET, &query),
        app.anonymous(Method::POST, &query),
        app.anonymous(Method::POST, "/user/login").json(&pair),
    ] {
        let token = token(&request.is(200).await);
        assert_eq!(status(&app, &token).await, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn session_token_is_accepted_in_both_credential_headers() {
    let app = TestApp::start().await;
    app.sign_up("Ada").await;
    let ada = session(&app, "Ada").await;
    let pet = app.pet("Rex").await;
    let path = format!("/pet/{pet}");
    with_token(&app, &ada, Method::GET, &path).is(200).await;
    let limits = app.with_key(&ada, Method::GET, "/limits").is(200).await;
    assert_eq!(limits.json()["plan"], "free");
    let order = with_token(&app, &ada, Method::POST, "/store/order").json(&json!({ "petId": pet }));
    let order = format!("/store/order/{}", order.is(201).await.id());
    with_token(&app, &ada, Method::GET, &order).is(200).await;
    let delete = with_token(&app, &ada, Method::DELETE, &path);
    delete.await.problem(403);
}

#[tokio::test(flavor = "multi_thread")]
async fn update_user_replaces_all_fields_but_omitted_username_and_password() {
    let app = TestApp::start().await;
    let body = json!({
        "username": "Ada", "password": PASSWORD, "firstName": "Ada", "lastName": "Lovelace",
        "email": "ada@example.com", "phone": "1"
    });
    let id = sign_up(&app, &body).is(201).await.id();
    let ada = session(&app, "Ada").await;
    let change =
        json!({"username": "Countess", "email": "c@example.com", "userStatus": 3, "id": 1});
    let changed = with_token(&app, &ada, Method::PUT, "/user/ada").json(&change);
    let expected =
        json!({"id": id, "username": "Countess", "email": "c@example.com", "userStatus": 0});
    assert_eq!(changed.is(200).await.json(), expected);
    let old = with_token(&app, &ada, Method::GET, "/user/ada");
    old.await.problem(404);
    let empty = with_token(&app, &ada, Method::PUT, "/user/COUNTESS").json(&json!({}));
    empty.is(200).await;
    log_in(&app, "countess", PASSWORD).is(200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn delete_user_ends_its_sessions_and_keeps_its_orders() {
    let app = TestApp::start().await;
    app.sign_up("Countess").await;
    let ada = session(&app, "Countess").await;
    let pet = app.pet("Rex").await;
    let order = with_token(&app, &ada, Method::POST, "/store/order").json(&json!({ "petId": pet }));
    let order = format!("/store/order/{}", order.is(201).await.id());

    let deleted = with_token(&app, &ada, Method::DELETE, "/user/countess");
    assert_eq!(
        deleted.is(200).await.json(),
        json!({"code": 200, "type": "deleted", "message": "Countess"})
    );
    assert_eq!(status(&app, &ada).await, 401, "at once");
    let left = "select (select count(*) from users) + (select count(*) from callers where name like 'user:%')
                + (select count(*) from credentials where kind = 'session')";
    assert_eq!(app.database.number(left).await, 0);
    // Orders of a deleted account stay visible to admins, but not to a new account of that name.
    app.get(&order).is(200).await;
    app.sign_up("Countess").await;
    let next = session(&app, "Countess").await;
    let hidden = with_token(&app, &next, Method::GET, &order);
    hidden.await.problem(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn user_is_404_for_other_callers_except_admins() {
    let app = TestApp::with(&HIGH_LIMITS).await;
    let id = app.sign_up("ada").await;
    app.sign_up("bob").await;
    let (ada, bob) = (session(&app, "ada").await, session(&app, "bob").await);
    let other_caller = app
        .make_key("stranger", Scopes::of_new_callers())
        .await
        .secret;
    let admin = app.make_key("boss", scopes(&[Scope::Admin])).await.secret;
    let send = async |token: &str, method: &Method, name: &str| {
        let request = with_token(&app, token, method.clone(), &format!("/user/{name}"));
        let request = if *method == Method::PUT {
            request.json(&json!({}))
        } else {
            request
        };
        request.await
    };
    for method in [Method::GET, Method::PUT, Method::DELETE] {
        for token in [&bob, &other_caller] {
            let others = send(token, &method, "ada").await.problem(404);
            let missing = send(token, &method, "nobody").await.problem(404);
            assert_eq!(others["detail"], missing["detail"]);
        }
        app.anonymous(method.clone(), "/user/ada")
            .json(&json!({}))
            .await
            .problem(401);
    }
    // A key of the account with fewer scopes has no access to the account.
    let narrow = app
        .make_key(&format!("user:{id}"), scopes(&[Scope::ReadPets]))
        .await
        .secret;
    for method in [Method::GET, Method::PUT, Method::DELETE] {
        send(&narrow, &method, "ada").await.problem(403);
    }
    send(&ada, &Method::GET, "ada").await.is(200);
    send(&admin, &Method::GET, "ada").await.is(200);
    // Only admins change `userStatus`.
    let change = json!({"userStatus": 5});
    let changed = with_token(&app, &admin, Method::PUT, "/user/ada")
        .json(&change)
        .is(200)
        .await;
    assert_eq!(changed.json()["userStatus"], 5);
    let changed = with_token(&app, &ada, Method::PUT, "/user/ada")
        .json(&json!({"userStatus": 6}))
        .is(200)
        .await;
    assert_eq!(changed.json()["userStatus"], 5);
    send(&admin, &Method::DELETE, "bob").await.is(200);
    assert_eq!(status(&app, &bob).await, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn create_user_with_name_taken_in_any_case_is_409() {
    let app = TestApp::with(&HIGH_LIMITS).await;
    for (one, other) in [
        ("Bob", "bOB"),
        ("ÉLAN", "élan"),
        ("straße", "STRASSE"),
        ("οδος", "ΟΔΟΣ"),
    ] {
        app.sign_up(one).await;
        sign_up(&app, &json!({"username": other}))
            .await
            .problem(409);
        log_in(&app, other, PASSWORD).is(200).await;
    }
    let bob = session(&app, "bob").await;
    let rename = |name: &str| {
        with_token(&app, &bob, Method::PUT, "/user/bob").json(&json!({ "username": name }))
    };
    rename("Élan").await.problem(409);
    assert_eq!(rename("BOB").await.is(200).json()["username"], "BOB");
    let username = "O'Neil/Äda?100%";
    let created = sign_up(&app, &account(username)).is(201).await;
    let location = created.header("location").to_owned();
    let fetched = app
        .bare(Method::GET, &location)
        .header("api_key", &app.key)
        .is(200)
        .await;
    assert_eq!(fetched.json()["username"], username);

    // Concurrent requests for one name, and lists with the same names in different orders.
    let requests = (0..10).map(|_| sign_up(&app, &json!({"username": "last"})));
    assert_eq!(
        statuses_of(requests).await,
        [vec![201], vec![409; 9]].concat()
    );
    let lists = (0..10).map(|round| {
        let mut names: Vec<Value> = (0..20)
            .map(|n| json!({"username": format!("n{n}")}))
            .collect();
        names.rotate_left(round * 2);
        app.post("/user/createWithList", &names.into())
    });
    assert_eq!(statuses_of(lists).await, [vec![200], vec![409; 9]].concat());
}

/// Every operation that sets a name has the same rules (RFC 8265, UTS #39).
#[tokio::test(flavor = "multi_thread")]
async fn names_that_look_like_another_one_are_refused() {
    let app = TestApp::with(&HIGH_LIMITS).await;
    app.sign_up("José").await;
    app.sign_up("admin").await;
    app.sign_up("bob").await;
    let bob = session(&app, "bob").await;
    let set = async |name: &str| {
        let list = json!([{"username": "other"}, { "username": name }]);
        let user = json!({ "username": name });
        let rename = with_token(&app, &bob, Method::PUT, "/user/bob").json(&user);
        [
            sign_up(&app, &user).await,
            app.post("/user/createWithList", &list).await,
            rename.await,
        ]
    };
    // Another form of the same name: decomposed, and of full width.
    for same in [
        "Jose\u{301}",
        "JOSE\u{301}",
        "ｊｏｓé",
        "ａｄｍｉｎ",
        "ＡＤＭＩＮ",
    ] {
        for response in set(same).await {
            response.problem(409);
        }
        let decomposed = json!([{ "username": "Zoé" }, { "username": "zoe\u{301}" }]);
        let twice = app.post("/user/createWithList", &decomposed).await;
        assert_eq!(twice.invalid_fields(), ["[1].username"]);
    }
    for bad in [
        "\u{202e}nimda",
        "admin\u{202e}",
        "ad\u{2060}min",
        "admin\u{200b}",
        "ad\u{ad}min",
        "admin\u{feff}",
        "аdmin",
        "admіn",
        "аdmіn",
        "аԁmin",
        "αdmin",
        "ad min",
        "admin\u{2007}",
        "🦊",
    ] {
        let fields: Vec<_> = set(bad)
            .await
            .iter()
            .map(Response::invalid_fields)
            .collect();
        let expected = ["username", "[1].username", "username"].map(|field| vec![field.to_owned()]);
        assert_eq!(fields, expected, "{bad:?}");
        log_in(&app, bad, PASSWORD).await.problem(400);
    }
    assert_eq!(app.database.number("select count(*) from users").await, 3);
    // A name is stored and returned in NFC. It is found in any form.
    let created = sign_up(&app, &account("Zoe\u{301}")).is(201).await;
    assert_eq!(created.json()["username"], "Zoé");
    for form in ["zoé", "ZOÉ", "zoe\u{301}", "ｚｏé"] {
        let zoe = session(&app, form).await;
        let own = with_token(&app, &zoe, Method::GET, &format!("/user/{form}"));
        assert_eq!(own.is(200).await.id(), created.id(), "{form}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_earlier_releases_keep_working() {
    let app = TestApp::with(&HIGH_LIMITS).await;
    app.sign_up("José").await;
    let hash = weak_hash();
    for (number, old) in [
        "Jose\u{301}",
        "ad\u{2060}a",
        "\u{202e}ada",
        "аda",
        "Ada King",
        "ＡＤＡ",
        "🦊",
    ]
    .into_iter()
    .enumerate()
    {
        let folded = old.to_lowercase();
        app.database
            .run(&format!(
                "with caller as (
                     insert into callers (name, plan, scopes)
                     select 'user:' || nextval('user_ids'), 'free', '{{read:pets,read:orders,write:orders}}'
                     returning id, name
                 )
                 insert into users (id, caller_id, username, folded, password_hash)
                 select substr(name, 6)::bigint, id, '{old}', '{folded}', '{hash}' from caller"
            ))
            .await;
        for name in [old, &folded] {
            let token = session(&app, name).await;
            let path = format!("/user/{name}");
            let send = |method: Method| with_token(&app, &token, method, &path);
            assert_eq!(send(Method::GET).is(200).await.json()["username"], old);
            // It stays as it is, also if a client sends it back.
            for body in [
                json!({"email": "a"}),
                json!({"username": old, "phone": "1"}),
            ] {
                let changed = send(Method::PUT).json(&body).is(200).await;
                assert_eq!(changed.json()["username"], old);
            }
        }
        let token = session(&app, old).await;
        let renamed = format!("renamed{number}");
        for (from, to, status) in [(old, "bаd", 400), (old, &renamed, 200), (&renamed, old, 0)] {
            let put = with_token(&app, &token, Method::PUT, &format!("/user/{from}"));
            let response = put.json(&json!({ "username": to })).await;
            // An old name cannot be taken again, unless its canonical form is free.
            let free = old == "ＡＤＡ";
            let expected = match status {
                0 if free => 200,
                0 if old.starts_with("Jos") => 409,
                0 => 400,
                status => status,
            };
            assert_eq!(response.status, expected, "{old} {to}: {response}");
        }
        let last = if old == "ＡＤＡ" { "ada" } else { &renamed };
        let delete = with_token(&app, &token, Method::DELETE, &format!("/user/{last}"));
        delete.is(200).await;
    }
    let jose = session(&app, "José").await;
    let own = with_token(&app, &jose, Method::GET, "/user/jos%C3%A9");
    own.is(200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn create_user_names_all_invalid_fields_and_repeats_no_password() {
    let app = TestApp::with(&HIGH_LIMITS).await;
    let body = json!({
        "username": " a", "firstName": 1, "lastName": "x".repeat(256), "email": "a\0", "phone": [],
        "password": "short", "userStatus": 1_i64 << 31
    });
    let fields = [
        "firstName",
        "lastName",
        "email",
        "phone",
        "username",
        "password",
        "userStatus",
    ];
    assert_eq!(sign_up(&app, &body).await.invalid_fields(), fields);
    for (field, value) in [
        ("username", Value::Null),
        ("username", json!("")),
        ("username", json!("Login")),
        ("username", json!("x".repeat(65))),
        ("password", json!("")),
        ("password", json!("1234567")),
        ("password", json!("1".repeat(129))),
        ("password", json!(12_345_678)),
        ("userStatus", json!("1")),
    ] {
        let mut body = json!({"username": "ada"});
        body[field] = value;
        let response = sign_up(&app, &body).await;
        assert_eq!(response.invalid_fields(), [field], "{body}");
        assert!(!response.text().contains("1234567"), "{response}");
    }
    for any in ["ä 🦊 ñß¡Ａ", &"🦊".repeat(128), "12345678"] {
        let name = format!("user{}", any.len());
        sign_up(&app, &json!({"username": name, "password": any}))
            .is(201)
            .await;
        let pair = json!({"username": name, "password": any});
        app.anonymous(Method::POST, "/user/login")
            .json(&pair)
            .is(200)
            .await;
    }
    let list = |list: Value| app.post("/user/createWithList", &list);
    let twice = json!([{"username": "a"}, {}, 5, {"username": "A", "password": "x"}]);
    let fields = ["[1].username", "[2]", "[3].password", "[3].username"];
    assert_eq!(list(twice).await.invalid_fields(), fields);
    let twice = json!([{"username": "a"}, {"username": "A"}]);
    assert_eq!(list(twice).await.invalid_fields(), ["[1].username"]);
    let many: Vec<Value> = (0..=1_000)
        .map(|n| json!({"username": n.to_string()}))
        .collect();
    assert_eq!(list(many.into()).await.invalid_fields(), ["body"]);
    assert_eq!(list(json!({})).await.invalid_fields(), ["body"]);
    assert_eq!(app.get("/user/%20").await.invalid_fields(), ["username"]);
    let nothing = app.anonymous(Method::POST, "/user/login").await;
    assert_eq!(nothing.invalid_fields(), ["username", "password"]);
    let twice = app.anonymous(Method::GET, "/user/login?username=a&username=b&password=x");
    assert!(
        twice
            .await
            .invalid_fields()
            .contains(&"username".to_owned())
    );
}

/// Compares responses for a wrong password, an unknown name and an account without a password. Row 29 compares times.
#[tokio::test(flavor = "multi_thread")]
async fn login_does_not_reveal_existing_usernames() {
    let app = TestApp::with(&HIGH_LIMITS).await;
    app.sign_up("ada").await;
    sign_up(&app, &json!({"username": "without"})).is(201).await;
    let mut responses = BTreeSet::new();
    for name in ["ada", "nobody", "without"] {
        let response = log_in(&app, name, "a wrong password").await;
        let mut problem = response.problem(400);
        problem["instance"] = Value::Null;
        responses.insert(problem.to_string());
    }
    assert_eq!(responses.len(), 1, "{responses:?}");
    for wrong in ["", "short", &"x".repeat(129), &"x".repeat(5_000)] {
        log_in(&app, "ada", wrong).await.problem(400);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn login_attempts_over_the_account_or_address_limit_are_429() {
    // Hashing may take long enough to refill the limits.
    let app = TestApp::with_stopped_clock(&[]).await;
    app.sign_up("ada").await;
    // One limit per name in any case; successful logins count, too.
    for n in 0..20 {
        let (name, password, status) =
            [("ada", PASSWORD, 200), ("ADA", "wrong password", 400)][n % 2];
        log_in(&app, name, password).await.is(status);
    }
    let refused = log_in(&app, "Ada", PASSWORD).await;
    let problem = refused.problem(429);
    assert_eq!(problem["violated-policies"], json!(["logins"]));
    let wait: u64 = refused.header("retry-after").parse().expect("seconds");
    assert!((1..=60).contains(&wait), "{refused}");
    // Other names are unaffected until the address has reached its limit for sign-up, login and token requests.
    for n in 0..60 - 22 {
        let name = format!("nobody{n}");
        log_in(&app, &name, "short").is(400).await;
    }
    for request in [
        log_in(&app, "bob", PASSWORD),
        app.anonymous(Method::GET, "/user/login?username=a&password=b"),
        sign_up(&app, &json!({"username": "bob"})),
        app.bare(Method::POST, "/oauth/token"),
    ] {
        let refused = request.await;
        assert_eq!(refused.problem(429)["violated-policies"], json!(["minute"]));
        refused.header("retry-after");
    }
    // Authenticated requests are unaffected.
    app.get("/limits").is(200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn session_ends_by_logout_expiry_and_revocation() {
    let app = TestApp::with(&HIGH_LIMITS).await;
    app.sign_up("ada").await;
    let (first, second, third) = (
        session(&app, "ada").await,
        session(&app, "ada").await,
        session(&app, "ada").await,
    );
    let log_out = |token: &str| with_token(&app, token, Method::GET, "/user/logout");
    // HEAD is safe: it must neither end a session nor, below, start one.
    let head = with_token(&app, &first, Method::HEAD, "/user/logout").await;
    assert_eq!(head.is(405).header("allow"), "GET");
    assert_eq!(status(&app, &first).await, 200, "not by HEAD");
    let response = log_out(&first).await.is(200);
    assert_eq!(response.json()["message"], "the session has ended");
    assert_eq!(status(&app, &first).await, 401, "at once");
    log_out(&first).await.problem(401);
    assert_eq!(status(&app, &second).await, 200, "and no other");
    let sessions = "select count(*) from credentials where kind = 'session'";
    let opened = app.database.number(sessions).await;
    let query = format!(
        "/user/login?username=ada&password={}",
        PASSWORD.replace(' ', "+")
    );
    let head = app.anonymous(Method::HEAD, &query).await;
    assert_eq!(head.is(405).header("allow"), "GET, POST");
    assert_eq!(app.database.number(sessions).await, opened);
    app.anonymous(Method::GET, &query).is(200).await;
    // Logout with an API key has no effect.
    let response = app.get("/user/logout").is(200).await;
    assert_eq!(
        response.json()["message"],
        "the request has no session token"
    );
    app.get("/limits").is(200).await;

    let hash = |token: &str| -> String {
        let bytes = sha256(token).map(|byte| format!("{byte:02x}"));
        bytes.concat()
    };
    let past = format!(
        "update credentials set expires_at = now() where hash = '\\x{}'",
        hash(&second)
    );
    app.database.run(&past).await;
    eventually(async || status(&app, &second).await == 401).await;
    let revoke = format!(
        "update credentials set revoked_at = now() where hash = '\\x{}'",
        hash(&third)
    );
    app.database.run(&revoke).await;
    eventually(async || status(&app, &third).await == 401).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn password_change_ends_all_sessions_even_concurrent_ones() {
    let app = TestApp::with(&HIGH_LIMITS).await;
    app.sign_up("ada").await;
    let mut password = PASSWORD.to_owned();
    for round in 0..5 {
        let one = token(&log_in(&app, "ada", &password).is(200).await);
        let next = format!("another password {round}");
        let change =
            with_token(&app, &one, Method::PUT, "/user/ada").json(&json!({ "password": next }));
        let logins = (0..6).map(|_| log_in(&app, "ada", &password));
        let (changed, logins) = tokio::join!(change, send_all(logins));
        changed.is(200);
        for response in logins {
            // Before the change, the login succeeds, and the change ends its session.
            if response.status == 200 {
                assert_eq!(status(&app, &token(&response)).await, 401, "round {round}");
            } else {
                response.problem(400);
            }
        }
        assert_eq!(status(&app, &one).await, 401);
        log_in(&app, "ada", &password).await.problem(400);
        password = next;
    }
}

/// Account changes need no privileges, so they must not evict the cached credentials of other callers.
#[tokio::test(flavor = "multi_thread")]
async fn delete_user_keeps_cached_credentials_of_others() {
    // With a stopped clock no cache entry expires. On a busy machine, the service may lose sight of notifications for a moment, and
    // then forgets all entries: it has to remember them in one of several attempts.
    let app = TestApp::with_stopped_clock(&HIGH_LIMITS).await;
    for attempt in 0..10 {
        if is_remembered_after_deletion_of_another(&app, attempt).await {
            return;
        }
    }
    panic!("no credential was remembered");
}

async fn is_remembered_after_deletion_of_another(app: &TestApp, attempt: usize) -> bool {
    let notify = |secret: &str| {
        format!("update credentials set revoked_at = now() where hash = sha256('{secret}')")
    };
    let (ada, bob) = (format!("ada{attempt}"), format!("bob{attempt}"));
    app.sign_up(&ada).await;
    app.sign_up(&bob).await;
    let path = format!("/user/{bob}");
    let (probe, ada) = (session(app, &bob).await, session(app, &ada).await);
    assert_eq!(status(app, &probe).await, 200);
    // From here on the service receives notifications of changes.
    app.database.run(&notify(&probe)).await;
    eventually(async || status(app, &probe).await == 401).await;

    let (first, last) = (session(app, &bob).await, session(app, &bob).await);
    for token in [&ada, &first, &last] {
        assert_eq!(status(app, token).await, 200);
    }
    // Revokes without a notification: only the cache still accepts the session.
    let silently = format!("set session_replication_role = replica; {}", notify(&ada));
    app.database.run(&silently).await;
    let password = json!({"password": "another password"});
    let change = with_token(app, &first, Method::PUT, &path).json(&password);
    change.is(200).await;
    assert_eq!(status(app, &last).await, 401);
    let again = log_in(app, &bob, "another password").is(200).await;
    with_token(app, &token(&again), Method::DELETE, &path)
        .is(200)
        .await;
    assert_eq!(status(app, &token(&again)).await, 401);
    // Notifications arrive in order: after this one all of the above have been processed.
    let other = app.make_key("other", Scopes::all()).await.secret;
    assert_eq!(status(app, &other).await, 200);
    app.database.run(&notify(&other)).await;
    eventually(async || status(app, &other).await == 401).await;
    status(app, &ada).await == 200
}

#[tokio::test(flavor = "multi_thread")]
async fn login_renews_an_old_password_hash() {
    let app = TestApp::with(&HIGH_LIMITS).await;
    app.sign_up("ada").await;
    // Parameters m=64, t=1, as an earlier release might have used.
    let old = weak_hash();
    app.database
        .run(&format!("update users set password_hash = '{old}'"))
        .await;
    log_in(&app, "ada", "a wrong password").await.problem(400);
    let is_old = format!("select count(*) from users where password_hash = '{old}'");
    assert_eq!(app.database.number(&is_old).await, 1);
    let before = session(&app, "ada").await;
    let renewed =
        "select count(*) from users where password_hash like '$argon2id$v=19$m=19456,t=2,p=1$%'";
    assert_eq!(app.database.number(renewed).await, 1);
    session(&app, "ada").await;
    assert_eq!(status(&app, &before).await, 200);
}

fn weak_hash() -> String {
    hash(PASSWORD, 64)
}

/// Hashes a password as it is, with a memory of `kib`.
fn hash(password: &str, kib: u32) -> String {
    use argon2::{
        Algorithm, Argon2, Params, PasswordHasher, Version, password_hash::phc::PasswordHash,
    };
    let passes = if kib == 64 { 1 } else { 2 };
    let parameters = Params::new(kib, passes, 1, None).expect("parameters");
    let hash: PasswordHash = Argon2::new(Algorithm::Argon2id, Version::V0x13, parameters)
        .hash_password_with_salt(password.as_bytes(), b"a salt of 16 byt")
        .expect("a hash");
    hash.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn password_is_the_same_in_every_form_of_its_characters() {
    let app = TestApp::with(&HIGH_LIMITS).await;
    let decomposed = json!({"username": "ada", "password": "e\u{301}te\u{301}\u{3000}1815"});
    sign_up(&app, &decomposed).is(201).await;
    let forms = ["été 1815", "e\u{301}te\u{301}\u{3000}1815", "été\u{a0}1815"];
    for form in forms {
        log_in(&app, "ada", form).is(200).await;
    }
    log_in(&app, "ada", "ete 1815").await.problem(400);
    let token = token(&log_in(&app, "ada", forms[0]).is(200).await);
    let change = |password: &str| {
        let put = with_token(&app, &token, Method::PUT, "/user/ada");
        put.json(&json!({ "password": password }))
    };
    // Seven characters once they are prepared, control and invisible characters, and the longest.
    let seven = "e\u{301}".repeat(7);
    for refused in [&seven, "12345678\n", "12345678\u{202e}", "12345678\u{378}"] {
        let body = json!({"username": "bob", "password": refused});
        assert_eq!(
            sign_up(&app, &body).await.invalid_fields(),
            ["password"],
            "{refused:?}"
        );
        let list = app.post("/user/createWithList", &json!([body]));
        assert_eq!(list.await.invalid_fields(), ["[0].password"]);
        assert_eq!(change(refused).await.invalid_fields(), ["password"]);
        let mut wrong = log_in(&app, "ada", refused).await.problem(400);
        let mut usual = log_in(&app, "ada", "a wrong password").await.problem(400);
        (wrong["instance"], usual["instance"]) = (Value::Null, Value::Null);
        assert_eq!(wrong, usual);
    }
    let longest = "e\u{301}".repeat(128);
    change(&longest).is(200).await;
    for form in [&longest, &"é".repeat(128)] {
        log_in(&app, "ada", form).is(200).await;
    }
    log_in(&app, "ada", &"é".repeat(129)).await.problem(400);
}

/// Earlier builds hashed passwords as they were sent.
#[tokio::test(flavor = "multi_thread")]
async fn password_that_was_not_prepared_logs_in_and_is_renewed() {
    let app = TestApp::with(&HIGH_LIMITS).await;
    app.sign_up("ada").await;
    let set = async |password: &str| {
        let hash = hash(password, 19_456);
        app.database
            .run(&format!("update users set password_hash = '{hash}'"))
            .await;
    };
    let old = "e\u{301}te\u{301}\u{3000}1815";
    set(old).await;
    log_in(&app, "ada", "été 1815").await.problem(400);
    log_in(&app, "ada", old).is(200).await;
    log_in(&app, "ada", "été 1815").is(200).await;
    log_in(&app, "ada", old).is(200).await;
    // A text that cannot be prepared.
    set("12345678\n").await;
    for _ in 0..2 {
        log_in(&app, "ada", "12345678\n").is(200).await;
    }
    log_in(&app, "ada", "12345678").await.problem(400);
}

#[tokio::test(flavor = "multi_thread")]
async fn create_users_stores_all_or_none() {
    let app = TestApp::with(&HIGH_LIMITS).await;
    let users = |range: std::ops::Range<u32>| -> Value {
        range
            .map(|n| json!({"username": format!("User{n}"), "password": PASSWORD, "userStatus": n}))
            .collect()
    };
    let post = |list: &Value| app.post("/user/createWithList", list);
    let created = post(&users(0..20)).is(200).await;
    assert!(
        !created.text().contains(PASSWORD) && !created.text().contains("password"),
        "{created}"
    );
    let created = created.json();
    let created = created.as_array().expect("a list");
    for (n, user) in created.iter().enumerate() {
        assert_eq!(user["username"], format!("User{n}"), "in their order");
        assert_eq!(user["userStatus"], n, "an admin says what it means");
    }
    log_in(&app, "user7", PASSWORD).is(200).await;
    let refused = post(&users(19..30)).await.problem(409);
    assert!(
        refused["detail"]
            .as_str()
            .is_some_and(|text| text.contains("User19")),
        "{refused}"
    );
    assert_eq!(app.database.number("select count(*) from users").await, 20);
    assert_eq!(post(&json!([])).is(200).await.json(), json!([]));
    let key = app.make_key("other", Scopes::of_new_callers()).await.secret;
    let other = app.with_key(&key, Method::POST, "/user/createWithList");
    other.json(&users(30..31)).await.problem(403);

    // Accounts without passwords need no hashing.
    let many: Value = (0..1_000)
        .map(|n| json!({"username": format!("many{n}")}))
        .collect();
    assert_eq!(
        post(&many).is(200).await.json().as_array().map(Vec::len),
        Some(1_000)
    );
    log_in(&app, "many1", PASSWORD).await.problem(400);
}

#[tokio::test(flavor = "multi_thread")]
async fn create_user_while_sign_up_is_closed_is_403() {
    let app = TestApp::with(&[("PET_INVENTORY__USERS__SIGN_UP", "false")]).await;
    let closed = sign_up(&app, &json!({"username": "ada"}))
        .await
        .problem(403);
    assert!(
        closed["detail"]
            .as_str()
            .is_some_and(|text| text.contains("sign-up is closed")),
        "{closed}"
    );
    app.post("/user/createWithList", &json!([{"username": "ada"}]))
        .is(200)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cli_lists_and_revokes_sessions_and_sets_the_plan_of_an_account() {
    let home = Home::new();
    let service = home.serve().await;
    let host = format!("http://{}/api/v3", service.address);
    let client = client();
    let pair = json!({"username": "ada", "password": PASSWORD});
    let created = client
        .post(format!("{host}/user"))
        .json(&pair)
        .is(201)
        .await;
    let caller = format!("user:{}", created.id());
    let opened = client
        .post(format!("{host}/user/login"))
        .json(&pair)
        .is(200)
        .await;
    let ada = token(&opened);
    let limits = || {
        client
            .get(format!("{host}/limits"))
            .bearer_auth(&ada)
            .response()
    };
    assert_eq!(limits().await.is(200).header("x-ratelimit-limit"), "60");
    home.run(&["callers", "set-plan", &caller, "pro"])
        .await
        .is(0);
    eventually(async || limits().await.is(200).header("x-ratelimit-limit") == "600").await;
    let listed = home.run(&["sessions", "list", "--json"]).await.is(0);
    let listed: Value = serde_json::from_str(&listed.stdout).expect("JSON");
    let [only] = listed.as_array().expect("a list").as_slice() else {
        panic!("{listed}")
    };
    assert_eq!(only["caller"], caller);
    assert!(
        ada.starts_with(only["hint"].as_str().expect("a hint"))
            && !listed.to_string().contains(&ada)
    );
    let table = home.run(&["sessions", "list"]).await.is(0).stdout;
    assert!(table.contains(&caller) && !table.contains(&ada), "{table}");
    let id = only["id"].to_string();
    home.run(&["keys", "revoke", &id]).await.is(1);
    home.run(&["sessions", "revoke", &id]).await.is(0);
    eventually(async || limits().await.status == 401).await;
    home.run(&["sessions", "revoke", &id]).await.is(1);
    // Caller names that begin with `user:` are reserved for accounts.
    let taken = ["keys", "create", "--caller", "user:77", "--plan", "pro"];
    home.run(&taken).await.is(1);
    service.stop().await;
}
