//! Record of changes: the facts that each operation which changes something leaves.

use test_support::*;

/// Facts that operations leave, by the kind of the resource, the action, and the names of the facts.
const FACTS: [(&str, &[&str]); 35] = [
    ("addPet", &["pet created name photoUrls status tags"]),
    ("updatePet", &["pet changed status"]),
    ("patchPet", &["pet changed name"]),
    ("updatePetWithForm", &["pet changed status"]),
    (
        "uploadFile",
        &["image created pet size", "pet changed photoUrls"],
    ),
    (
        "deleteImage",
        &["image deleted pet size", "pet changed photoUrls"],
    ),
    (
        "placeOrder",
        &["order created complete pet status", "pet changed status"],
    ),
    ("patchOrder", &["order changed pet status"]),
    ("deleteOrder", &["order deleted pet", "pet changed status"]),
    ("deletePet", &["pet deleted was"]),
    (
        "createUser",
        &["caller created plan scopes", "user created password"],
    ),
    (
        "createUsersWithListInput",
        &["caller created plan scopes", "user created"],
    ),
    ("createSession", &[]),
    ("updateUser", &["user changed password"]),
    ("revokeSession", &["session deleted caller"]),
    ("deleteUser", &["caller deleted", "user deleted"]),
    ("createCaller", &["caller created plan scopes"]),
    ("patchCaller", &["caller changed disabled plan scopes"]),
    ("createKey", &["key created caller expiresAt scopes"]),
    (
        "rotateKey",
        &[
            "key changed caller expiresAt",
            "key created caller expiresAt scopes",
        ],
    ),
    ("revokeKey", &["key deleted caller"]),
    ("createClient", &["client created caller scopes"]),
    ("issueToken", &[]),
    ("introspectToken", &[]),
    ("revokeToken", &[]),
    ("revokeClient", &["client deleted caller"]),
    ("deleteCaller", &["key deleted caller", "caller deleted"]),
    ("createWebhook", &["webhook created kinds"]),
    ("patchWebhook", &["webhook changed enabled kinds"]),
    ("rotateWebhook", &["webhook changed secret"]),
    ("testWebhook", &[]),
    ("retryDelivery", &["webhook changed retry"]),
    ("retryDeliveries", &["webhook changed retries"]),
    ("deleteWebhook", &["webhook deleted"]),
    (
        "addSampleStore",
        &["pet created category name photoUrls status tags", "…"],
    ),
];

/// Returns what was recorded since the last call.
async fn left(app: &TestApp, after: &mut i64) -> Vec<String> {
    let page = app.get(&format!("/changes?limit=1000&after={after}"));
    let page = page.is(200).await.json();
    *after = page["next"].as_i64().expect("a position");
    let changes = page["changes"].as_array().expect("changes").iter();
    let summary = |change: &Value| {
        let text = |name: &str| change[name].as_str().expect("a text").to_owned();
        let mut words = vec![text("kind"), text("action")];
        words.extend(
            change["data"]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(name, _)| name.clone()),
        );
        words.join(" ")
    };
    changes.map(summary).collect()
}

#[expect(
    clippy::too_many_lines,
    reason = "a request of each operation, in an order in which they succeed"
)]
#[tokio::test(flavor = "multi_thread")]
async fn operations_leave_facts() {
    let folder = tempfile::tempdir().expect("a folder");
    let images = format!("file://{}", folder.path().display());
    let app = TestApp::with(&[
        ("PET_INVENTORY__IMAGES__URL", &images),
        ("PET_INVENTORY__WEBHOOKS__ALLOW_PRIVATE", "true"),
    ])
    .await;
    let mut after = 0;
    let (mut facts, mut known) = (FACTS.iter(), BTreeSet::new());
    let mut check = async |operation: &'static str, call: Call| -> Value {
        // Changes in between.
        left(&app, &mut after).await;
        let response = call.await;
        assert!(response.status < 300, "{operation}: {response}");
        let (next, expected) = facts.next().expect("an operation");
        assert_eq!(operation, *next);
        known.insert(operation);
        let mut recorded = left(&app, &mut after).await;
        if expected.contains(&"…") {
            recorded.truncate(expected.len() - 1);
            recorded.push("…".to_owned());
        }
        assert_eq!(recorded, *expected, "{operation}");
        serde_json::from_slice(&response.body).unwrap_or_default()
    };
    let empty = json!({});
    let pet = |name: &str, status: &str| json!({"id": 1, "name": name, "status": status});
    check("addPet", app.post("/pet", &pet("Rex", "sold"))).await;
    check("updatePet", app.put("/pet", &pet("Rex", "pending"))).await;
    check("patchPet", app.patch("/pet/1", &json!({"name": "Max"}))).await;
    let form = app.request(Method::POST, "/pet/1?status=available");
    check("updatePetWithForm", form).await;
    let upload = app.upload(1, png(2, 2));
    let image = check("uploadFile", upload).await["imageId"].clone();
    let image = image.as_str().expect("an id");
    let image = format!("/pet/1/images/{image}");
    check("deleteImage", app.delete(&image)).await;
    let order = app.post("/store/order", &json!({"petId": 1}));
    let order = format!("/store/order/{}", check("placeOrder", order).await["id"]);
    let approve = app.patch(&order, &json!({"status": "approved"}));
    check("patchOrder", approve).await;
    check("deleteOrder", app.delete(&order)).await;
    check("deletePet", app.delete("/pet/1")).await;

    let user = json!({"username": "ada", "password": PASSWORD});
    check("createUser", app.post("/user", &user)).await;
    let list = json!([{"username": "grace"}]);
    let create = app.post("/user/createWithList", &list);
    check("createUsersWithListInput", create).await;
    let login = || app.anonymous(Method::POST, "/user/login").json(&user);
    check("createSession", login()).await;
    // A session that the account itself ends is no change by another.
    check(
        "updateUser",
        app.put(
            "/user/grace",
            &json!({"username": "grace", "password": PASSWORD}),
        ),
    )
    .await;
    let sessions = app.get("/admin/sessions").is(200).await.ids();
    let session = app.delete(&format!("/admin/sessions/{}", sessions[0]));
    check("revokeSession", session).await;
    check("deleteUser", app.delete("/user/ada")).await;

    let caller = json!({"name": "acme", "plan": "free"});
    let caller = check("createCaller", app.post("/admin/callers", &caller)).await;
    let caller = format!("/admin/callers/{}", caller["id"]);
    let change = json!({"plan": "pro", "scopes": ["read:pets"], "disabled": true});
    check("patchCaller", app.patch(&caller, &change)).await;
    app.patch(&caller, &json!({"disabled": false}))
        .is(200)
        .await;
    let key = app.post(&format!("{caller}/keys"), &json!({"expiresIn": 60}));
    let key = check("createKey", key).await["id"].clone();
    let key = |action: &str| format!("/admin/keys/{key}{action}");
    check("rotateKey", app.post(&key("/rotate"), &empty)).await;
    check("revokeKey", app.delete(&key(""))).await;
    let client = app.post(&format!("{caller}/clients"), &empty);
    let client = check("createClient", client).await;
    let text = |name: &str| client[name].as_str().expect("a text").to_owned();
    let oauth = |path: &str, form: &[(&str, &str)]| {
        let request = app.bare(Method::POST, path).form(form);
        request.basic_auth(text("client_id"), Some(text("client_secret")))
    };
    let grant = oauth("/oauth/token", &[("grant_type", "client_credentials")]);
    let token = check("issueToken", grant).await["access_token"].clone();
    let token = [("token", token.as_str().expect("a token"))];
    check("introspectToken", oauth("/oauth/introspect", &token)).await;
    check("revokeToken", oauth("/oauth/revoke", &token)).await;
    let client = app.delete(&format!("/admin/clients/{}", client["id"]));
    check("revokeClient", client).await;
    check("deleteCaller", app.delete(&caller)).await;

    let webhook = json!({"url": "http://127.0.0.1:9/", "kinds": ["session"]});
    let webhook = check("createWebhook", app.post("/admin/webhooks", &webhook)).await;
    let webhook = format!("/admin/webhooks/{}", webhook["id"]);
    let at = |path: &str| format!("{webhook}{path}");
    app.patch(&webhook, &json!({"enabled": false}))
        .is(200)
        .await;
    let change = json!({"kinds": ["user", "session"], "enabled": true});
    check("patchWebhook", app.patch(&webhook, &change)).await;
    check("rotateWebhook", app.post(&at("/rotate"), &empty)).await;
    check("testWebhook", app.request(Method::POST, &at("/test"))).await;
    let parked = "
        insert into changes (position, at, kind, resource, action)
        select n, now(), 'session', n::text, 'deleted' from generate_series(7, 8) n;
        insert into webhook_retries (webhook_id, position, kind, resource, attempts, next_at, parked_at)
        select id, n, 'session', n::text, 9, now(), now() from webhooks, generate_series(7, 8) n";
    app.database.run(parked).await;
    let retry = app.request(Method::POST, &at("/deliveries/7/retry"));
    check("retryDelivery", retry).await;
    let retry = app.request(Method::POST, &at("/deliveries/retry"));
    check("retryDeliveries", retry).await;
    check("deleteWebhook", app.delete(&webhook)).await;
    let add = app.request(Method::POST, "/admin/sample-store");
    check("addSampleStore", add).await;

    let document = app.get("/openapi.json").is(200).await.json();
    let paths = document["paths"].as_object().expect("paths").values();
    let operations = paths.flat_map(|item| item.as_object().expect("operations"));
    let changing = operations
        .filter(|(method, _)| ["post", "put", "patch", "delete"].contains(&method.as_str()));
    let changing: BTreeSet<&str> = changing
        .map(|(_, operation)| operation["operationId"].as_str().expect("an id"))
        .collect();
    assert_eq!(known, changing, "add the facts of the new operation");
}
