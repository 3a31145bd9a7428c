//! A Swagger UI of another origin in a browser (CORS): it executes every operation of the OpenAPI document.
//!
//! This takes the longest of these tests, and begins early because of the name of this module: tests start in the order of
//! their names.

use pet_inventory::{
    auth::secret,
    db::{self, credentials::NewCredential},
};
use test_support::*;
use wiremock::matchers::path;

use crate::{
    browser::Browser,
    other_origins::{service_for, web_server},
};

/// Operations that come first, in this order: others need what they create.
const FIRST: &[&str] = &["addPet", "uploadFile", "placeOrder", "createUser"];
/// Operations that come last, in this order: they delete what others need, or need that.
const LAST: &[&str] = &[
    "revokeSession",
    "revokeToken",
    "deleteImage",
    "deleteOrder",
    "deletePet",
    "deleteUser",
    "addSampleStore",
];

/// Fields of an operation that the document has no working example for: selectors and values.
type Fields = Vec<(&'static str, String)>;

/// Adds a page with a Swagger UI for the document of the service. It has a function that shows one operation only: each
/// change of what Swagger UI shows costs it as much time as the document is large.
async fn add_swagger_ui(server: &MockHttp, app: &TestApp) {
    let files = "target/outside-tools/conformance/node_modules/swagger-ui-dist";
    let files = repository().join(files);
    for (name, media_type) in [
        ("swagger-ui.css", "text/css"),
        ("swagger-ui-bundle.js", "text/javascript"),
    ] {
        let content = fs::read(files.join(name));
        let content = content.expect("Swagger UI is missing: run .ci/setup --all");
        let file = ResponseTemplate::new(200).set_body_raw(content, media_type);
        let mock = Mock::given(path(format!("/{name}"))).respond_with(file);
        mock.mount(server).await;
    }
    let page = format!(
        r##"<!doctype html><meta charset="utf-8"><title>Swagger UI</title><link rel="icon" href="data:,">
        <link rel="stylesheet" href="swagger-ui.css"><div id="ui"></div>
        <script src="swagger-ui-bundle.js"></script>
        <script>window.ui = SwaggerUIBundle({{
            url: "{}", dom_id: "#ui", defaultModelsExpandDepth: -1, tryItOutEnabled: true, syntaxHighlight: false,
            validatorUrl: null,
            onComplete: () => {{
                ui.preauthorizeApiKey("api_key", "{}");
                window.whole ??= ui.specSelectors.specJson().toJS();
                window.isComplete = true;
            }},
        }});
        window.show = id => {{
            const isOther = it => it.operationId && it.operationId !== id;
            const items = Object.entries(whole.paths).map(([path, item]) =>
                [path, Object.fromEntries(Object.entries(item).filter(([, it]) => !isOther(it)))]);
            const paths = items.filter(([, item]) => Object.values(item).some(it => it.operationId));
            ui.specActions.updateJsonSpec({{ ...whole, paths: Object.fromEntries(paths) }});
        }}</script>"##,
        app.url("/openapi.json"),
        app.key
    );
    let page = ResponseTemplate::new(200).set_body_raw(page, "text/html");
    let mock = Mock::given(path("/swagger-ui")).respond_with(page);
    mock.mount(server).await;
}

/// Returns the tag and the identifier of each operation, in an order in which all can be executed.
async fn operations(app: &TestApp) -> Vec<(String, String)> {
    let document = app.bare(Method::GET, "/api/v3/openapi.json");
    let document = document.is(200).await.json();
    let items = document["paths"].as_object().expect("paths").values();
    let members = items.flat_map(|item| item.as_object().expect("operations").values());
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let operations = members.filter_map(|operation| {
        let id = text(&operation["operationId"])?;
        Some((text(&operation["tags"][0])?, id))
    });
    let mut all: Vec<_> = operations.collect();
    let position = |list: &[&str], id: &str| list.iter().position(|it| *it == id);
    all.sort_by_key(|(_, id)| match (position(FIRST, id), position(LAST, id)) {
        (Some(first), _) => (0, first),
        (_, Some(last)) => (2, last),
        _ => (1, 0),
    });
    all
}

/// Creates an OAuth client, and returns its identifier and secret.
async fn oauth_client(app: &TestApp) -> (String, String) {
    app.make_key("client", Scopes::all()).await;
    let mut connection = app.database.connect().await;
    let name = "client".parse().expect("a name");
    let caller = db::callers::find(&mut connection, &name).await;
    let secret = Secret::generate(CredentialKind::ClientSecret).expect("random numbers");
    let id = secret::generate_client_id().expect("random numbers");
    let credential = NewCredential {
        caller: caller.expect("a database").expect("the caller").id,
        hash: secret.hash(),
        hint: secret.hint(),
        client_id: Some(id.clone()),
        name: None,
        scopes: None,
        expires_at: None,
    };
    let inserted =
        db::credentials::insert(&mut connection, credential, &Initiator::operator()).await;
    inserted.expect("a database").expect("a new secret");
    (id, secret.expose().to_owned())
}

/// Creates a caller with a credential of a kind, `keys` or `clients`, and returns the identifiers of both.
async fn caller_with(app: &TestApp, operation: &str, kind: &str) -> [String; 2] {
    let caller = json!({"name": format!("caller-of-{operation}"), "plan": "pro"});
    let caller = app.post("/admin/callers", &caller).is(201).await.id();
    let path = format!("/admin/callers/{caller}/{kind}");
    let credential = app.post(&path, &json!({})).is(201).await.id();
    [caller.to_string(), credential.to_string()]
}

/// Returns the fields to fill in.
async fn fields(app: &TestApp, operation: &str, client: &(String, String), file: &Path) -> Fields {
    const BODY: &str = ".opblock-section-request-body textarea";
    const IMAGE: &str = "[data-param-name=imageId] input";
    let credentials = || {
        vec![
            ("[data-property-name=client_id] input", client.0.clone()),
            ("[data-property-name=client_secret] input", client.1.clone()),
        ]
    };
    let ada = r#"{"username": "ada", "password": "correct horse battery"}"#;
    match operation {
        "uploadFile" => vec![("input[type=file]", file.display().to_string())],
        "getImage" | "deleteImage" => {
            let images = app.get("/pet/1/images").await.json();
            vec![(
                IMAGE,
                images[0]["id"].as_str().expect("an image").to_owned(),
            )]
        }
        // The status is sent once, in the form. An order holds the pet, so it cannot be made available.
        "updatePetWithForm" => vec![
            ("[data-param-name=status] select", "--".to_owned()),
            ("[data-property-name=status] input", "sold".to_owned()),
            ("[data-property-name=name] input", "Max".to_owned()),
        ],
        "createUser" | "createSession" => vec![(BODY, ada.to_owned())],
        "createUsersWithListInput" => vec![(BODY, r#"[{"username": "grace"}]"#.to_owned())],
        "loginUser" => vec![
            ("[data-param-name=username] input", "ada".to_owned()),
            (
                "[data-param-name=password] input",
                "correct horse battery".to_owned(),
            ),
        ],
        "updateUser" => vec![(
            BODY,
            r#"{"username": "ada", "firstName": "Ada"}"#.to_owned(),
        )],
        "getCaller" | "patchCaller" | "deleteCaller" | "getUsage" | "listKeys" | "createKey"
        | "listClients" | "createClient" => {
            let [caller, _] = caller_with(app, operation, "keys").await;
            vec![("[data-param-name=callerId] input", caller)]
        }
        "rotateKey" | "revokeKey" => {
            let [_, key] = caller_with(app, operation, "keys").await;
            vec![("[data-param-name=keyId] input", key)]
        }
        "revokeClient" => {
            let [_, client] = caller_with(app, operation, "clients").await;
            vec![("[data-param-name=clientId] input", client)]
        }
        "revokeSession" => {
            let sessions = app.get("/admin/sessions").is(200).await.ids();
            let session = sessions.last().expect("a session").to_string();
            vec![("[data-param-name=sessionId] input", session)]
        }
        "getWebhook" | "patchWebhook" | "deleteWebhook" | "listDeliveries" | "testWebhook"
        | "retryDelivery" | "retryDeliveries" | "listAttempts" | "rotateWebhook" => {
            // Its own creation is a delivery, which fails.
            let webhook = json!({"url": "https://localhost/"});
            let webhook = app.post("/admin/webhooks", &webhook).is(201).await.id();
            let mut fields = vec![("[data-param-name=webhookId] input", webhook.to_string())];
            if operation == "retryDelivery" {
                let path = format!("/admin/webhooks/{webhook}/deliveries");
                let mut position = String::new();
                eventually(async || {
                    let deliveries = app.get(&path).is(200).await.json();
                    position = deliveries[0]["position"].to_string();
                    position != "null"
                })
                .await;
                fields.push(("[data-param-name=position] input", position));
            }
            fields
        }
        // It needs the other order, in which there is no `after`: WebDriver's code of the backspace key deletes it.
        "listChanges" => vec![("[data-param-name=before] input", "\u{e003}".to_owned())],
        "issueToken" => {
            let scope = ("[data-property-name=scope] input", "read:pets".to_owned());
            [credentials(), vec![scope]].concat()
        }
        "introspectToken" | "revokeToken" => {
            let token = ("[data-property-name=token] input", "unknown".to_owned());
            [credentials(), vec![token]].concat()
        }
        "addSampleStore" => {
            // It is for a store without pets.
            app.database.run("delete from pets").await;
            Fields::new()
        }
        _ => Fields::new(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn are_executed_by_a_swagger_ui_of_another_origin() {
    let (server, origin) = web_server().await;
    let app = service_for(&origin).await;
    add_swagger_ui(&server, &app).await;
    let client = oauth_client(&app).await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("rex.png");
    fs::write(&file, png(32, 20)).expect("a file");
    let browser = Browser::start().await;
    browser.set_viewport(1100, 760, "light").await;
    let operations = operations(&app).await;
    assert!(operations.len() > 30, "{operations:?}");
    browser.open(&format!("{origin}/swagger-ui")).await;
    browser.until("window.isComplete === true").await;
    for (tag, id) in operations {
        browser.run(&format!("show({})", json!(id))).await;
        let part = |part: &str| format!("#operations-{tag}-{id} {part}");
        browser.expand_operation(&tag, &id).await;
        for (field, value) in fields(&app, &id, &client, &file).await {
            browser.enter(&part(field), &value).await;
        }
        browser.click(&part("button.execute")).await;
        let status = part(".live-responses-table tbody .response-col_status");
        let status = browser.text(&status).await;
        let response = part(".live-responses-table");
        assert!(
            status.starts_with('2'),
            "{id}: {}",
            browser.text(&response).await
        );
    }
    // No error, such as of a response that the browser withholds from the page.
    browser.has_no_errors(&[]).await;
}
