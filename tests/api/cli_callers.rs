//! Tests of `callers set-scopes`, `disable`, `enable` and `delete`, which take effect within a second.

use test_support::issuer::serve;
use test_support::*;

use super::cli::Commands;

/// Waits for a status.
async fn soon(status: u16, request: impl AsyncFn() -> Response) {
    let started = Instant::now();
    loop {
        let response = request().await;
        if response.status == status {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "{response}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Sends a request that needs `read:pets`.
async fn find(app: &TestApp, secret: &str) -> Response {
    let find = app.anonymous(Method::GET, "/pet/findByStatus?status=sold");
    find.bearer_auth(secret).await
}

async fn add_pet(app: &TestApp, secret: &str) -> Response {
    let add = app
        .anonymous(Method::POST, "/pet")
        .json(&json!({"name": "a"}));
    add.bearer_auth(secret).await
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

/// Signs a user up and returns the name of its caller.
async fn sign_up(app: &TestApp, name: &str) -> String {
    format!("user:{}", app.sign_up(name).await)
}

async fn log_in(app: &TestApp, name: &str) -> Response {
    let log_in = app.anonymous(Method::POST, "/user/login");
    log_in.json(&account(name)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn set_scopes_limits_all_credentials_of_the_caller() {
    let app = TestApp::start().await;
    let commands = Commands::on(app.database.shared());
    let key = app.make_key("acme", Scopes::all()).await.secret;
    let narrow = scopes(&[Scope::ReadPets]);
    let reader = app.make_key("acme", narrow).await.secret;
    add_pet(&app, &key).await.is(201);
    let set = commands.run(&["callers", "set-scopes", "acme", "read:pets"]);
    assert!(set.await.is(0).stdout.contains("read:pets"));
    soon(403, || add_pet(&app, &key)).await;
    find(&app, &key).await.is(200);
    let listed = commands.json(&["callers", "show", "acme", "--json"]).await;
    assert_eq!(listed["scopes"], json!(["read:pets"]));

    let set = ["callers", "set-scopes", "acme", "write:pets", "read:pets"];
    commands.run(&set).await.is(0);
    soon(201, || add_pet(&app, &key)).await;
    // A key that was created with fewer scopes keeps them.
    add_pet(&app, &reader).await.is(403);
    for (arguments, code, words) in [
        (&["nobody", "read:pets"][..], 1, "callers list"),
        (&["acme"], 2, "SCOPE"),
        (&["acme", "read:cats"], 2, "write:pets"),
    ] {
        let arguments = [&["callers", "set-scopes"], arguments].concat();
        let refused = commands.run(&arguments).await.is(code);
        assert!(refused.stderr.contains(words), "{refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn disabled_caller_has_no_valid_key_client_or_token() {
    let app = TestApp::start().await;
    let commands = Commands::on(app.database.shared());
    let key = app.make_key("acme", Scopes::all()).await.secret;
    let create = ["clients", "create", "--caller", "acme", "--json"];
    let client = commands.json(&create).await;
    let form = |path: &str, form: &[(&str, &str)]| -> Call {
        let (id, secret) = (text(&client["client_id"]), text(&client["client_secret"]));
        let request = app.bare(Method::POST, path).basic_auth(id, Some(secret));
        request.form(form)
    };
    let grant = async || form("/oauth/token", &[("grant_type", "client_credentials")]).await;
    let token = grant().await.is(200).json();
    let token = text(&token["access_token"]);
    for secret in [key.as_str(), token] {
        find(&app, secret).await.is(200);
    }

    let disabled = commands.run(&["callers", "disable", "acme"]).await.is(0);
    assert!(disabled.stdout.contains("callers enable"), "{disabled:?}");
    for secret in [key.as_str(), token] {
        soon(401, || find(&app, secret)).await;
    }
    let refused = grant().await.is(401);
    assert_eq!(refused.json()["error"], "invalid_client");
    find(&app, &app.key).await.is(200);
    let shown = commands.json(&["callers", "show", "acme", "--json"]).await;
    assert_eq!(shown["disabled"], true, "{shown}");
    let table = commands.run(&["callers", "list"]).await.is(0).stdout;
    assert!(table.contains(" yes "), "{table}");

    commands.run(&["callers", "enable", "acme"]).await.is(0);
    for secret in [key.as_str(), token] {
        soon(200, || find(&app, secret)).await;
    }
    grant().await.is(200);
    for command in ["disable", "enable", "delete"] {
        commands
            .refuses(&["callers", command, "nobody"], "callers list")
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn disabled_user_has_no_session_and_cannot_log_in() {
    let app = TestApp::start().await;
    let commands = Commands::on(app.database.shared());
    let caller = sign_up(&app, "ada").await;
    let session = log_in(&app, "ada").await.is(200).json();
    let session = text(&session);
    find(&app, session).await.is(200);
    commands.run(&["callers", "disable", &caller]).await.is(0);
    soon(401, || find(&app, session)).await;
    // The same response as to a wrong password.
    let refused = log_in(&app, "ada").await.problem(400);
    let wrong = log_in(&app, "nobody").await.problem(400);
    assert_eq!(refused["detail"], wrong["detail"]);
    commands.run(&["callers", "enable", &caller]).await.is(0);
    soon(200, || find(&app, session)).await;
    log_in(&app, "ada").await.is(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn disabled_subject_of_an_issuer_has_no_valid_token() {
    let signer = Signer::ed25519();
    let issuer = Issuer::start(&[&signer]).await;
    let app = serve(&[issuer.table("")]).await;
    let commands = Commands::on(app.database.shared());
    let token = |subject: &str, id: u8| {
        let mut claims = issuer.claims(subject);
        claims["jti"] = json!(id);
        signer.token(&claims)
    };
    let (one, other) = (token("ada", 1), token("bob", 1));
    app.bearer(&one).await.is(404);
    app.bearer(&other).await.is(404);
    let callers = commands.json(&["callers", "list", "--json"]).await;
    let names = callers.as_array().expect("a list").iter();
    let ada = names
        .map(|caller| text(&caller["name"]))
        .find(|name| name.starts_with("jwt:") && name.ends_with(":ada"))
        .expect("a caller");

    commands.run(&["callers", "disable", ada]).await.is(0);
    soon(401, || app.bearer(&one)).await;
    app.bearer(&token("ada", 2)).await.is(401);
    app.bearer(&other).await.is(404);
    // Otherwise the next token would create the caller again, enabled.
    commands
        .refuses(&["callers", "delete", ada], "callers disable")
        .await;
    commands.run(&["callers", "enable", ada]).await.is(0);
    soon(404, || app.bearer(&one)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_caller_has_no_credentials_and_no_account() {
    let app = TestApp::start().await;
    let commands = Commands::on(app.database.shared());
    let key = app.make_key("acme", Scopes::all()).await.secret;
    find(&app, &key).await.is(200);
    commands.run(&["callers", "delete", "acme"]).await.is(0);
    soon(401, || find(&app, &key)).await;

    let caller = sign_up(&app, "ada").await;
    let session = log_in(&app, "ada").await.is(200).json();
    let pet = app.pet("Rex").await;
    let order = app.anonymous(Method::POST, "/store/order");
    let order = order
        .bearer_auth(text(&session))
        .json(&json!({"petId": pet}));
    let order = order.is(201).await.id();
    commands.run(&["callers", "delete", &caller]).await.is(0);
    soon(401, || find(&app, text(&session))).await;
    app.get("/user/ada").is(404).await;
    let order = format!("/store/order/{order}");
    app.get(&order).is(200).await;
    let callers = commands.json(&["callers", "list", "--json"]).await;
    let callers = callers.as_array().expect("a list");
    assert_eq!(callers.len(), 1, "{callers:?}");
    // The name is free again.
    sign_up(&app, "ada").await;
}
