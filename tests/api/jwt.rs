//! Tests of JWT bearer tokens of external issuers: accepted tokens, callers, scopes, plans and the fetching of keys.

mod attacks;

use test_support::issuer::{AUDIENCE, keys, now, serve, serve_with};
use test_support::*;

/// Minimum time between the starts of two key fetches.
const PAUSE: Duration = Duration::from_secs(30);

/// Sends one request per token, all concurrently, and returns their statuses.
async fn concurrent_statuses(app: &TestApp, tokens: Vec<String>) -> Vec<u16> {
    let get = |token| app.anonymous(Method::GET, "/pet/404").bearer_auth(token);
    statuses_of(tokens.into_iter().map(get)).await
}

/// Checks that all tokens are accepted. Sends them again after a 503: on a busy machine, the statements of a request may take
/// longer than they may. That may use up the limit of one caller.
async fn are_accepted(app: &TestApp, tokens: Vec<String>) {
    eventually(async || {
        let statuses = concurrent_statuses(app, tokens.clone()).await;
        let is_known = statuses.iter().all(|it| [404, 429, 503].contains(it));
        assert!(is_known, "{statuses:?}");
        !statuses.contains(&503)
    })
    .await;
}

async fn plan(app: &TestApp, token: &str) -> Value {
    limits(app, token).await.is(200).json()["plan"].take()
}

async fn limits(app: &TestApp, token: &str) -> Response {
    app.anonymous(Method::GET, "/limits")
        .bearer_auth(token)
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn token_of_each_algorithm_is_accepted() {
    let signers = [Signer::rsa(), Signer::p256(), Signer::ed25519()];
    let issuer = Issuer::start(&signers.each_ref()).await;
    let app = serve(&[issuer.table("")]).await;
    for signer in &signers {
        let token = signer.token(&issuer.claims("somebody"));
        app.bearer(&token).await.is(404);
        let callers = "select count(*) from callers where name like 'jwt:%:somebody'";
        assert_eq!(app.database.number(callers).await, 1);
    }
    assert_eq!(issuer.requested_paths().await, ["/keys"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn token_variants_allowed_by_the_rfcs_are_accepted() {
    let signer = Signer::ed25519();
    let issuer = Issuer::start(&[&signer]).await;
    let app = serve(&[issuer.table("")]).await;
    let headers = [
        json!({"alg": "EdDSA"}),
        json!({"alg": "EdDSA", "kid": signer.id}),
        json!({"alg": "EdDSA", "kid": signer.id, "typ": "at+jwt"}),
        json!({"alg": "EdDSA", "kid": signer.id, "typ": "application/AT+JWT"}),
        json!({"alg": "EdDSA", "kid": signer.id, "typ": "jwt", "cty": "json", "x5t": "AA"}),
    ];
    for header in headers {
        let token = signer.token_of(&header.to_string(), &issuer.claims("s").to_string());
        assert_eq!(app.bearer(&token).await.status, 404, "{header}");
    }
    let more = [
        json!({"aud": ["other", AUDIENCE]}),
        json!({"exp": 4_000_000_000.5}),
        // Within the leeway of 30 s.
        json!({"exp": now() - 20}),
        json!({"nbf": now() + 20, "iat": now() + 20}),
        json!({"sub": "x".repeat(255)}),
        json!({"sub": "Zoë \u{202e} ' or 1=1 --"}),
        json!({"scope": ["read:pets", 5, null, "unknown"]}),
        json!({"extra": {"deep": [[[[1]]]]}}),
    ];
    for more in more {
        let mut claims = issuer.claims("s");
        merge(&mut claims, &more);
        assert_eq!(
            app.bearer(&signer.token(&claims)).await.status,
            404,
            "{more}"
        );
    }
}

/// Sets members of an object; `null` removes a member.
fn merge(object: &mut Value, members: &Value) {
    let object = object.as_object_mut().expect("an object");
    for (name, value) in members.as_object().expect("an object") {
        match value {
            Value::Null => object.remove(name),
            value => object.insert(name.clone(), value.clone()),
        };
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_fetched_at_most_once_in_thirty_seconds() {
    let (old, new) = (Signer::ed25519(), Signer::p256());
    let issuer = Issuer::start(&[&old]).await;
    let clock = Clock::manual();
    let app = serve_with(&[issuer.table("")], &[], clock.clone()).await;
    let token = |signer: &Signer, subject: &str| signer.token(&issuer.claims(subject));
    app.bearer(&token(&old, "a")).await.is(404);
    issuer.publish(&[&old, &new]);
    app.bearer(&token(&new, "a")).await.is(401);
    clock.advance(Duration::from_millis(29_999));
    app.bearer(&token(&new, "a")).await.is(401);
    assert_eq!(issuer.fetches().await, 1);
    clock.advance(Duration::from_millis(1));
    app.bearer(&token(&new, "a")).await.is(404);
    app.bearer(&token(&old, "b")).await.is(404);
    assert_eq!(issuer.fetches().await, 2);

    // A key set is refreshed in the background after an hour, so a withdrawn key is accepted until that is done.
    issuer.publish(&[&new]);
    clock.advance(Duration::from_mins(61));
    app.bearer(&token(&old, "c")).await.is(404);
    let started = Instant::now();
    for subject in 0.. {
        let subject = format!("d{subject}");
        if app.bearer(&token(&old, &subject)).await.status == 401 {
            break;
        }
        assert!(started.elapsed() < PATIENCE, "still good");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(issuer.fetches().await, 3);
    app.bearer(&token(&new, "e")).await.is(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_tokens_share_one_key_fetch() {
    let (old, new) = (Signer::ed25519(), Signer::ed25519_other());
    let issuer = Issuer::start(&[&old]).await;
    let clock = Clock::manual();
    let app = serve_with(&[issuer.table("")], &[], clock.clone()).await;
    let tokens = |signer: &Signer| {
        let claims = (0..50).map(|n| issuer.claims(&format!("s{n}")));
        claims.map(|claims| signer.token(&claims)).collect()
    };
    are_accepted(&app, tokens(&old)).await;
    assert_eq!(issuer.fetches().await, 1);
    issuer.publish(&[&old, &new]);
    clock.advance(PAUSE);
    are_accepted(&app, tokens(&new)).await;
    assert_eq!(issuer.fetches().await, 2);
    let made_up = Signer::p256().named("made up");
    assert_eq!(concurrent_statuses(&app, tokens(&made_up)).await, [401; 50]);
    clock.advance(PAUSE);
    assert_eq!(concurrent_statuses(&app, tokens(&made_up)).await, [401; 50]);
    assert_eq!(issuer.fetches().await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_kept_while_fetches_fail() {
    // Index of the issuer, the label of its metrics; unique, because all tests of the process share the metrics.
    const INDEX: usize = 7;
    let signer = Signer::ed25519();
    let issuer = Issuer::start(&[&signer]).await;
    let others = (0..INDEX).map(|place| {
        format!("[[auth.issuers]]\nissuer = \"https://{place}.invalid\"\naudience = \"us\"\n")
    });
    let tables: Vec<String> = others.chain([issuer.table("")]).collect();
    let clock = Clock::manual();
    let app = serve_with(&tables, &[], clock.clone()).await;
    app.bearer(&signer.token(&issuer.claims("a"))).await.is(404);
    assert_eq!(app.fetches(INDEX, "ok").await, Some(1));

    let responses = [
        ResponseTemplate::new(503),
        ResponseTemplate::new(200).set_body_string("<html>"),
        ResponseTemplate::new(200).set_body_json(json!({"keys": "none"})),
        keys(&vec![signer.jwk(); 101]),
    ];
    for (failed, response) in (1..).zip(responses) {
        issuer.respond_with(response);
        clock.advance(PAUSE);
        let unknown = Signer::p256().token(&issuer.claims("b"));
        app.bearer(&unknown).await.is(401);
        let known = signer.token(&issuer.claims(&format!("c{failed}")));
        app.bearer(&known).await.is(404);
        assert_eq!(app.fetches(INDEX, "failed").await, Some(failed));
    }
    // Keys do not expire while fetches fail.
    clock.advance(Duration::from_hours(100));
    app.bearer(&signer.token(&issuer.claims("d"))).await.is(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn token_is_503_while_the_issuer_has_no_keys() {
    let signer = Signer::ed25519();
    let elsewhere = Issuer::start(&[&signer]).await;
    let large = " ".repeat(300 << 10) + &json!({"keys": [signer.jwk()]}).to_string();
    let redirect = format!("{}/keys", elsewhere.url());
    let responses = [
        ResponseTemplate::new(500),
        ResponseTemplate::new(302).insert_header("location", redirect.as_str()),
        ResponseTemplate::new(307).insert_header("location", redirect.as_str()),
        ResponseTemplate::new(200).set_body_string(large),
    ];
    for response in responses {
        let issuer = Issuer::start(&[&signer]).await;
        issuer.respond_with(response);
        let clock = Clock::manual();
        let app = serve_with(&[issuer.table("")], &[], clock.clone()).await;
        let token = signer.token(&issuer.claims("a"));
        for _ in 0..3 {
            let refused = app.bearer(&token).await;
            refused.problem(503);
            assert_eq!(refused.header("retry-after"), "1");
        }
        assert_eq!(issuer.fetches().await, 1);
        issuer.publish(&[&signer]);
        clock.advance(PAUSE);
        app.bearer(&token).await.is(404);
    }
    assert_eq!(elsewhere.fetches().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_issuer_delays_only_its_own_tokens_up_to_a_timeout() {
    let signer = Signer::ed25519();
    let (slow, quick) = (
        Issuer::start(&[&signer]).await,
        Issuer::start(&[&signer]).await,
    );
    slow.respond_with(ResponseTemplate::new(200).set_delay(Duration::from_hours(1)));
    let app = serve(&[slow.table(""), quick.table("")]).await;
    let waiting = (0..200).map(|n| signer.token(&slow.claims(&n.to_string())));
    let (statuses, ()) = tokio::join!(concurrent_statuses(&app, waiting.collect()), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        app.get("/pet/404").is(404).await;
        app.bearer(&signer.token(&quick.claims("a"))).await.is(404);
        // Refused at once: the maximum number of requests already waits for this issuer.
        app.bearer(&signer.token(&slow.claims("a"))).await.is(503);
    });
    assert_eq!(statuses, [503; 200]);
    assert_eq!(slow.fetches().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn discovery_finds_the_keys_of_its_own_issuer_only() {
    let signer = Signer::ed25519();
    let issuer = Issuer::start(&[&signer]).await;
    let app = serve(&[issuer.table_without_keys("")]).await;
    app.bearer(&signer.token(&issuer.claims("a"))).await.is(404);
    assert_eq!(
        issuer.requested_paths().await,
        ["/.well-known/openid-configuration", "/keys"]
    );

    let keys_url = format!("{}/keys", issuer.url());
    for (configuration, why) in [
        (
            json!({"issuer": "https://a.example", "jwks_uri": keys_url}),
            "another issuer",
        ),
        (
            json!({"issuer": format!("{}/", issuer.url()), "jwks_uri": keys_url}),
            "a slash more",
        ),
        (json!({"jwks_uri": keys_url}), "no issuer"),
        (json!({"issuer": issuer.url()}), "no keys"),
        (
            json!({"issuer": issuer.url(), "jwks_uri": "http://keys.example/"}),
            "not https",
        ),
        (
            json!({"issuer": issuer.url(), "jwks_uri": "file:///etc/passwd"}),
            "no HTTP at all",
        ),
    ] {
        issuer.configuration(ResponseTemplate::new(200).set_body_json(configuration));
        let app = serve(&[issuer.table_without_keys("")]).await;
        let refused = app.bearer(&signer.token(&issuer.claims("a"))).await;
        assert_eq!(refused.status, 503, "{why}");
    }
    let paths = issuer.requested_paths().await;
    assert_eq!(paths.iter().filter(|path| *path == "/keys").count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn unusable_keys_in_the_key_set_are_ignored() {
    let (good, other) = (Signer::ed25519(), Signer::ed25519_other());
    let of = |signer: &Signer, more: Value| {
        let mut jwk = signer.jwk();
        merge(&mut jwk, &more);
        jwk
    };
    let left_out = [
        of(&Signer::rsa_tiny(), json!({})),
        of(&Signer::p384(), json!({})),
        of(&other, json!({"use": "enc"})),
        of(&other, json!({"key_ops": ["encrypt"]})),
        of(&other, json!({"alg": "RS256"})),
        of(&other, json!({"alg": 5})),
        of(&other, json!({"d": "AAAA"})),
        of(&other, json!({"crv": "X25519"})),
        of(&other, json!({"x": "AAAA"})),
        of(&other, json!({"x": "!"})),
        of(&Signer::p256(), json!({"x": "AAAA"})),
        of(&Signer::p256(), json!({"y": good.jwk()["x"]})),
        json!({"kty": "oct", "k": "c2VjcmV0", "kid": "oct", "alg": "HS256"}),
        json!({"kty": "unheard of"}),
        json!("no key at all"),
    ];
    let issuer = Issuer::start(&[]).await;
    let mut set = left_out.to_vec();
    set.push(good.jwk());
    issuer.respond_with(keys(&set));
    let app = serve(&[issuer.table("")]).await;
    app.bearer(&good.token(&issuer.claims("a"))).await.is(404);
    for signer in [Signer::rsa_tiny(), Signer::p384(), Signer::p256(), other] {
        let token = signer.token(&issuer.claims("a"));
        app.bearer(&token).await.is(401);
    }
}

/// Without `kid`, or with one that several keys have, each key of the algorithm is tried, up to 16.
#[tokio::test(flavor = "multi_thread")]
async fn token_is_verified_with_each_key_that_may_be_meant() {
    let (first, second) = (Signer::ed25519(), Signer::ed25519_other());
    let named = |signer: &Signer, id: Option<&str>| {
        let mut jwk = signer.jwk();
        merge(&mut jwk, &json!({ "kid": id }));
        jwk
    };
    let issuer = Issuer::start(&[]).await;
    let p256 = Signer::p256().jwk();
    let copies = |number| vec![named(&first, None); number];
    let many = |number| [copies(number), vec![named(&second, None)]].concat();
    for (what, set, kid, is_valid) in [
        (
            "two keys",
            vec![first.jwk(), p256.clone(), second.jwk()],
            None,
            true,
        ),
        (
            "the same key twice",
            vec![second.jwk(), second.jwk()],
            None,
            true,
        ),
        (
            "the same key twice",
            vec![second.jwk(), second.jwk()],
            Some(second.id),
            true,
        ),
        (
            "one name",
            vec![named(&first, Some("a")), named(&second, Some("a"))],
            Some("a"),
            true,
        ),
        (
            "another name",
            vec![named(&second, Some("a"))],
            Some("b"),
            false,
        ),
        ("none of the algorithm", vec![p256], None, false),
        ("16 keys", many(15), None, true),
        ("17 keys", many(16), None, false),
    ] {
        issuer.respond_with(keys(&set));
        let app = serve(&[issuer.table("")]).await;
        let mut header = json!({"alg": "EdDSA"});
        merge(&mut header, &json!({ "kid": kid }));
        let token = second.token_of(&header.to_string(), &issuer.claims("a").to_string());
        let status = if is_valid { 404 } else { 401 };
        assert_eq!(app.bearer(&token).await.status, status, "{what}, {kid:?}");
    }
}

/// Clients learn only that a token is not valid; operators find the reason in the log.
#[tokio::test(flavor = "multi_thread")]
async fn log_has_the_reason_of_a_refused_token() {
    let signer = Signer::ed25519();
    let issuer = Issuer::start(&[&signer]).await;
    let database = TestDatabase::empty().await;
    let home = Home::on(database.url());
    home.write("issuers.toml", &issuer.table(""));
    let mut serve = home.command(["serve", "--config", "issuers.toml"]);
    serve.env("RUST_LOG", "info,pet_inventory::auth=debug");
    let service = Service::start(&home, serve).await;
    for (more, reason) in [
        (json!({"aud": "other"}), "its aud"),
        (json!({"exp": 1}), "its exp"),
        (json!({"iss": "https://other.invalid"}), "its iss"),
        (json!({"sub": ""}), "its sub"),
        (json!({"pad": "x".repeat(8 << 10)}), "8 KiB"),
    ] {
        let mut claims = issuer.claims("somebody");
        merge(&mut claims, &more);
        let token = signer.token(&claims);
        let lines = service.log().lines().count();
        let request = service.request(Method::GET, "/pet/1", "");
        request.bearer_auth(&token).is(401).await;
        eventually(async || {
            let log = service.log();
            let mut lines = log.lines().skip(lines);
            lines.any(|it| it.contains("refused a token") && it.contains(reason))
        })
        .await;
        assert!(!service.log().contains(&token), "{reason}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_first_tokens_of_a_subject_create_one_caller() {
    let signer = Signer::ed25519();
    let issuer = Issuer::start(&[&signer]).await;
    let other = Issuer::start(&[&signer]).await;
    let app = serve(&[issuer.table(""), other.table("")]).await;
    let tokens = |issuer: &Issuer| {
        (0..50)
            .map(|n| {
                let mut claims = issuer.claims("first");
                claims["jti"] = json!(n);
                signer.token(&claims)
            })
            .collect()
    };
    are_accepted(&app, tokens(&issuer)).await;
    let callers = "select count(*) from callers where name like 'jwt:%'";
    assert_eq!(app.database.number(callers).await, 1);
    // The same subject of another issuer is a different caller.
    are_accepted(&app, tokens(&other)).await;
    assert_eq!(app.database.number(callers).await, 2);
    let named = "select count(*) from callers where name ~ '^jwt:[A-Za-z0-9_-]{22}:first$' \
                 and plan = 'free' and not 'admin' = any(scopes)";
    assert_eq!(app.database.number(named).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn token_scopes_come_from_its_claim() {
    let signer = Signer::ed25519();
    let issuer = Issuer::start(&[&signer]).await;
    let strict = serve(&[issuer.table("")]).await;
    let lenient =
        serve(&[issuer.table("allow_admin = true\nscope_claim = \"https://x.example/scp\"")]).await;
    let token = |claim: &str, scopes: Value| {
        let mut claims = issuer.claims("s");
        merge(&mut claims, &json!({ "scope": null }));
        claims[claim] = scopes;
        signer.token(&claims)
    };
    let status = async |app: &TestApp, token: &str| {
        let get = app.bearer(token).await.status;
        let add = app.anonymous(Method::POST, "/pet").bearer_auth(token);
        let add = add.json(&json!({"name": "x"})).await.status;
        (get, add)
    };
    for (scopes, expected) in [
        (json!("read:pets write:pets"), (404, 201)),
        (json!(["write:pets", "read:pets"]), (404, 201)),
        (json!("read:pets"), (404, 403)),
        (json!("read:pets,write:pets"), (403, 403)),
        (json!("READ:PETS"), (403, 403)),
        (json!(""), (403, 403)),
        (json!({"read:pets": true}), (403, 403)),
        (json!(["read:pets write:pets"]), (403, 403)),
    ] {
        assert_eq!(
            status(&strict, &token("scope", scopes.clone())).await,
            expected,
            "{scopes}"
        );
    }
    let names_nothing = token("scp", json!("read:pets"));
    assert_eq!(status(&strict, &names_nothing).await, (403, 403));
    let theirs = token("https://x.example/scp", json!("read:pets"));
    assert_eq!(status(&lenient, &theirs).await, (404, 403));
    let changes = async |scopes: &str| {
        let request = strict.anonymous(Method::GET, "/changes");
        request
            .bearer_auth(token("scope", json!(scopes)))
            .await
            .status
    };
    assert_eq!(changes("read:pets").await, 403);
    assert_eq!(changes("read:changes").await, 200);

    // The operator can restrict the caller's scopes.
    let narrow = "update callers set scopes = '{read:pets}' where name like 'jwt:%'";
    strict.database.run(narrow).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let all = token("scope", json!("read:pets write:pets"));
    assert_eq!(status(&strict, &all).await, (404, 403));
}

#[tokio::test(flavor = "multi_thread")]
async fn token_plan_comes_from_its_claim_or_the_operator() {
    let signer = Signer::ed25519();
    let issuer = Issuer::start(&[&signer]).await;
    let clock = Clock::manual();
    let claimed = serve_with(&[issuer.table("plan_claim = \"tier\"")], &[], clock.clone()).await;
    let token = |subject: &str, tier: Value| {
        let mut claims = issuer.claims(subject);
        claims["tier"] = tier;
        signer.token(&claims)
    };
    let stored = async |plan: &str| {
        let callers =
            format!("select count(*) from callers where name like 'jwt:%:a' and plan = '{plan}'");
        claimed.database.number(&callers).await == 1
    };
    assert_eq!(plan(&claimed, &token("a", json!("pro"))).await, "pro");
    assert!(stored("pro").await);
    assert_eq!(
        plan(&claimed, &token("a", json!("enterprise"))).await,
        "enterprise"
    );
    assert!(stored("enterprise").await);
    // Each token gets the plan that it names, but the stored plan is updated at most once a minute per caller.
    assert_eq!(plan(&claimed, &token("a", json!("pro"))).await, "pro");
    assert!(stored("enterprise").await);
    clock.advance(Duration::from_mins(1));
    assert_eq!(plan(&claimed, &token("a", json!("pro"))).await, "pro");
    assert!(stored("pro").await);
    for none in [json!("gold"), json!("Pro"), json!(5), Value::Null] {
        let subject = format!("b{none}").replace('"', "");
        assert_eq!(plan(&claimed, &token(&subject, none)).await, "free");
    }

    let operated = serve(&[issuer.table("")]).await;
    let token = token("a", json!("enterprise"));
    assert_eq!(plan(&operated, &token).await, "free");
    let set = "update callers set plan = 'pro' where name like 'jwt:%:a'";
    operated.database.run(set).await;
    let started = Instant::now();
    while plan(&operated, &token).await != "pro" {
        assert!(started.elapsed() < PATIENCE, "not noticed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cached_token_costs_no_statement_until_it_expires() {
    let signer = Signer::ed25519();
    let issuer = Issuer::start(&[&signer]).await;
    let table = issuer.table("plan_claim = \"plan\"\nleeway = \"0s\"");
    let app = serve(&[table]).await;
    let token = |expires_in: i64| {
        let mut claims = issuer.claims("s");
        merge(
            &mut claims,
            &json!({"plan": "enterprise", "exp": now() + expires_in}),
        );
        signer.token(&claims)
    };
    let (long, short, uncached) = (token(600), token(6), token(601));
    // Until the service listens for changes, it caches tokens for only a second; then for a minute.
    tokio::time::sleep(Duration::from_secs(1)).await;
    for token in [&long, &short] {
        limits(&app, token).await.is(200);
    }
    app.database.run("alter table callers rename to gone").await;
    for _ in 0..3 {
        limits(&app, &long).await.is(200);
        limits(&app, &short).await.is(200);
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    limits(&app, &uncached).await.is(500);
    tokio::time::sleep(Duration::from_secs(5)).await;
    limits(&app, &short).await.is(401);
    limits(&app, &long).await.is(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn token_outside_the_authorization_header_is_401() {
    let signer = Signer::ed25519();
    let issuer = Issuer::start(&[&signer]).await;
    let app = serve(&[issuer.table("")]).await;
    let token = signer.token(&issuer.claims("a"));
    let get = || app.anonymous(Method::GET, "/pet/404");
    get().header("api_key", &token).is(401).await;
    app.bearer(&token).await.is(404);
    get().header("api_key", &token).is(401).await;
    let query = format!("/pet/404?access_token={token}");
    app.anonymous(Method::GET, &query).is(401).await;

    // Both headers must name one caller, and only the scopes that both have count.
    let both = |key: &str| get().bearer_auth(&token).header("api_key", key);
    both(&app.key).await.is(401);
    let own = app.make_key(&caller_of(&app).await, Scopes::all()).await;
    both(&own.secret).await.is(404);
    let narrow = app
        .make_key(&caller_of(&app).await, scopes(&[Scope::WritePets]))
        .await;
    both(&narrow.secret).await.is(403);
    // Without a configured issuer, a token is an invalid credential.
    let app = TestApp::start().await;
    app.bearer(&token).await.is(401);
}

/// Returns the name of the only caller that was created for a token.
async fn caller_of(app: &TestApp) -> String {
    let mut connection = app.database.connect().await;
    sqlx::query_scalar("select name from callers where name like 'jwt:%'")
        .fetch_one(&mut connection)
        .await
        .expect("a caller")
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_tokens_count_against_the_failed_authentication_limit() {
    let signer = Signer::ed25519();
    let issuer = Issuer::start(&[&signer]).await;
    let few = [(
        "PET_INVENTORY__LIMITS__FAILED_AUTHENTICATION_PER_MINUTE",
        "5",
    )];
    let app = serve_with(&[issuer.table("")], &few, Clock::manual()).await;
    let wrong = Signer::ed25519_other().named(signer.id);
    let wrong = wrong.token(&issuer.claims("a"));
    for _ in 0..5 {
        app.bearer(&wrong).await.is(401);
    }
    app.bearer(&wrong).await.is(429);
}
