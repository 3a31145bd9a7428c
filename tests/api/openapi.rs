//! The OpenAPI document: its content, and conformance of the service.

use pet_inventory::{
    api,
    domain::{image, order, pet, user},
};
use test_support::*;

const METHODS: [Method; 5] = [
    Method::GET,
    Method::POST,
    Method::PUT,
    Method::PATCH,
    Method::DELETE,
];

fn document() -> Value {
    serde_json::to_value(api::document(&Links::new(None))).expect("a document")
}

/// Returns the documented operation for a method and path, if there is one.
fn operation<'a>(document: &'a Value, method: &Method, path: &str) -> Option<&'a Value> {
    document["paths"][path].get(method.as_str().to_lowercase())
}

/// Returns the URL path for a documented path, with example parameters.
fn target(path: &str) -> String {
    let parts = path.split('/').map(|part| match part {
        "{imageId}" => "0".repeat(32),
        "{username}" => "ada".to_owned(),
        part if part.starts_with('{') => "5".to_owned(),
        part => part.to_owned(),
    });
    format!("/api/v3{}", parts.collect::<Vec<_>>().join("/"))
}

/// Returns the name of the schema of a value, or its type. An array is its items in brackets.
fn schema_name(schema: &Value) -> String {
    if let Some(path) = schema["$ref"].as_str() {
        return path.rsplit('/').next().unwrap_or_default().to_owned();
    }
    if schema["items"].is_object() {
        return format!("[{}]", schema_name(&schema["items"]));
    }
    let types = match &schema["type"] {
        Value::Array(types) => types.clone(),
        one => vec![one.clone()],
    };
    let types: Vec<_> = types.iter().filter_map(Value::as_str).collect();
    types.join("|")
}

/// Returns the content of a request or response: each media type with its schema.
fn content(of: &Value) -> String {
    let types = of["content"].as_object().into_iter().flatten();
    let types = types.map(|(media_type, content)| {
        let name = schema_name(&content["schema"]);
        format!("{} {name}", media_type.trim_start_matches("application/"))
    });
    types.collect::<Vec<_>>().join(", ")
}

/// Returns an operation in three lines: parameters, body, and statuses. Validators and generators check the rest.
fn digest(document: &Value, operation: &Value) -> String {
    let resolved = |value: &Value| match value["$ref"].as_str() {
        Some(path) => document.pointer(&path[1..]).expect("a component").clone(),
        None => value.clone(),
    };
    let parameters = operation["parameters"].as_array().into_iter().flatten();
    let parameters = parameters.map(|parameter| {
        let parameter = resolved(parameter);
        let mark = if parameter["required"] == true {
            "!"
        } else {
            ""
        };
        let [place, name] =
            [&parameter["in"], &parameter["name"]].map(|it| it.as_str().expect("text"));
        format!("{place} {name}{mark} {}", schema_name(&parameter["schema"]))
    });
    let parameters: Vec<_> = parameters.collect();
    let body = content(&resolved(&operation["requestBody"]));
    let responses = operation["responses"].as_object().into_iter().flatten();
    let responses = responses.map(|(status, response)| {
        format!("{status} {}", content(&resolved(response)))
            .trim_end()
            .to_owned()
    });
    let responses: Vec<_> = responses.collect();
    format!(
        "{}\n  {}\n  {body}\n  {}",
        operation["operationId"].as_str().expect("an id"),
        parameters.join(", "),
        responses.join("; ")
    )
}

#[test]
fn operations_equal_their_digests() {
    let document = document();
    let mut digests = Vec::new();
    for path in document["paths"].as_object().expect("paths").keys() {
        for method in METHODS {
            if let Some(operation) = operation(&document, &method, path) {
                digests.push(format!("{method} {path} {}", digest(&document, operation)));
            }
        }
    }
    insta::assert_snapshot!("operations", digests.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn document_is_served_without_a_credential() {
    let app = TestApp::start().await;
    let served = app.bare(Method::GET, "/api/v3/openapi.json").is(200).await;
    assert_eq!(served.header("content-type"), "application/json");
    assert_eq!(served.json(), document());
    assert!(
        served.json()["openapi"]
            .as_str()
            .is_some_and(|version| version.starts_with("3.1"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn index_names_the_forms_of_the_document_which_have_weak_entity_tags() {
    let app = TestApp::start().await;
    let get = |path: &str| app.bare(Method::GET, path);
    let index = get("/api/v3").is(200).await;
    assert_eq!(get("/api/v3/").is(200).await.text(), index.text());
    let urls = index.json()["openapi"].clone();
    let urls: Vec<&str> = urls
        .as_array()
        .expect("URLs")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let paths = ["openapi.json", "openapi.yaml", "openapi-3.0.json"];
    assert_eq!(urls, paths.map(|path| format!("/api/v3/{path}")));
    for (path, media_type) in urls
        .into_iter()
        .zip(["json", "yaml", "json"])
        .chain([("/api/v3", "json")])
    {
        let served = get(path).is(200).await;
        assert_eq!(
            served.header("content-type"),
            format!("application/{media_type}")
        );
        let tag = served.header("etag");
        let opaque = tag.strip_prefix("W/").expect("a weak tag");
        for tags in [tag, opaque, "*", &format!("\"x\", {tag}")] {
            let cached = get(path).header("if-none-match", tags).is(304).await;
            assert_eq!((cached.header("etag"), cached.body.len()), (tag, 0));
        }
        let other = get(path).header("if-none-match", "W/\"x\"").await;
        assert_eq!(other.is(200).body, served.body);
        let head = app.bare(Method::HEAD, path).is(200).await;
        assert_eq!(head.header("etag"), tag);
    }
    let version_3_0 = get("/api/v3/openapi-3.0.json").await.json();
    assert_eq!(version_3_0["openapi"], "3.0.3");
    assert_eq!(
        version_3_0["components"]["schemas"]["PetInput"]["properties"]["id"]["nullable"],
        true
    );
    visit(&version_3_0, &mut |value| {
        assert!(
            !value["type"].is_array() && value["type"] != "null",
            "{value}"
        );
        let members = value.as_object().map_or(0, serde_json::Map::len);
        assert!(value["$ref"].is_null() || members == 1, "{value}");
    });
    let document = document();
    let paths = |document: &Value| {
        let paths = document["paths"].as_object().expect("paths");
        paths.keys().cloned().collect::<Vec<_>>()
    };
    assert_eq!(paths(&version_3_0), paths(&document));
}

#[tokio::test(flavor = "multi_thread")]
async fn routes_are_exactly_the_documented_operations() {
    let app = TestApp::start().await;
    let document = document();
    let paths = document["paths"].as_object().expect("paths");
    assert!(paths.len() >= 4, "{:?}", paths.keys());
    for path in paths.keys() {
        let mut documented: BTreeSet<&str> = METHODS
            .iter()
            .filter(|method| operation(&document, method, path).is_some())
            .map(Method::as_str)
            .collect();
        let all = paths[path].as_object().expect("operations").len();
        assert_eq!(documented.len(), all, "{path}");
        // GET has side effects here, so HEAD is refused.
        let acts = ["/user/login", "/user/logout"].contains(&path.as_str());
        if documented.contains("GET") && !acts {
            documented.insert("HEAD");
        }
        let target = target(path);
        for method in METHODS
            .iter()
            .chain(&[Method::HEAD, Method::OPTIONS, Method::TRACE])
        {
            let request = app.bare(method.clone(), &target);
            let response = request.header("api_key", &app.key).await;
            if documented.contains(method.as_str()) {
                assert_ne!(response.status, 405, "{method} {path}: {response}");
                continue;
            }
            assert_eq!(response.status, 405, "{method} {path}: {response}");
            let allowed: BTreeSet<&str> =
                response.header("allow").split(',').map(str::trim).collect();
            assert_eq!(allowed, documented, "{path}: {response}");
        }
    }
    for path in [
        "/pet/5/x",
        "/pet/findByName",
        "/store/inventories",
        "/users",
        "/pets",
    ] {
        let known = paths.keys().any(|known| known == path);
        let response = app.get(path).await;
        assert!(
            known || [400, 404].contains(&response.status),
            "{path}: {response}"
        );
    }
}

/// All operations refuse these in the same way; the harness compares each response with the document.
#[tokio::test(flavor = "multi_thread")]
async fn operations_refuse_other_media_types_reused_keys_and_missing_scopes() {
    let app = TestApp::start().await;
    let powerless = app.make_key("powerless", Scopes::default()).await.secret;
    let add = app.post("/pet", &json!({"id": 5, "name": "Rex"}));
    add.header("idempotency-key", "used").is(201).await;
    // hyper sends this one.
    app.get("/limits")
        .header("x-large", "x".repeat(20_000))
        .is(431)
        .await;
    let document = document();
    let paths = document["paths"].as_object().expect("paths");
    for (path, method) in paths
        .keys()
        .flat_map(|path| METHODS.map(|method| (path, method)))
    {
        let Some(operation) = operation(&document, &method, path) else {
            continue;
        };
        let has = |status: &str| !operation["responses"][status].is_null();
        let call = || app.bare(method.clone(), &target(path));
        let what = format!("{method} {path}");
        if has("415") {
            let other = call().header("content-type", "text/html").body("x");
            let other = other.header("api_key", &app.key).await;
            assert_eq!(other.status, 415, "{what}: {other}");
        }
        if has("422") {
            let json = call().header("idempotency-key", "used").json(&json!({}));
            let reused = json.header("api_key", &app.key).await;
            assert!([415, 422].contains(&reused.status), "{what}: {reused}");
        }
        let needs_scope = |way: &Value| way["bearer"].as_array().is_some_and(|it| !it.is_empty());
        if operation["security"]
            .as_array()
            .is_some_and(|ways| ways.iter().any(needs_scope))
        {
            let refused = call().header("api_key", &powerless).await;
            assert_eq!(refused.status, 403, "{what}: {refused}");
        }
    }
}

/// Resolves `value` if it is a `$ref`.
fn resolve<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    let Some(reference) = value["$ref"].as_str() else {
        return value;
    };
    let pointer = reference.strip_prefix('#').expect("a reference within");
    let referred = document.pointer(pointer);
    referred.unwrap_or_else(|| panic!("nothing at {reference}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn public_url_is_in_servers_location_and_link() {
    let public = "https://pets.example.com/shop";
    let app = TestApp::with(&[("PET_INVENTORY__SERVER__PUBLIC_URL", &format!("{public}/"))]).await;
    let document = app.bare(Method::GET, "/api/v3/openapi.json").await.json();
    assert_eq!(document["servers"][0]["url"], format!("{public}/api/v3"));
    let added = app
        .post("/pet", &json!({"id": 5, "name": "a"}))
        .is(201)
        .await;
    assert_eq!(added.header("location"), format!("{public}/api/v3/pet/5"));
    app.pet("b").await;
    let page = app
        .get("/pet/findByStatus?status=available&limit=1")
        .is(200)
        .await;
    let link = page.header("link");
    assert!(
        link.starts_with(&format!("<{public}/api/v3/pet/findByStatus?")),
        "{link}"
    );
}

/// Checks that every `$ref` in `value` resolves.
fn assert_resolves(document: &Value, value: &Value) {
    if value["$ref"].is_string() {
        resolve(document, value);
    }
    let members = value
        .as_object()
        .into_iter()
        .flat_map(|object| object.values());
    for inner in members.chain(value.as_array().into_iter().flatten()) {
        assert_resolves(document, inner);
    }
}

#[test]
fn document_references_resolve() {
    let document = document();
    assert_resolves(&document, &document);
}

/// Compares the bounds in the document with those of the domain, which utoipa's macros cannot read.
#[test]
fn document_bounds_equal_those_of_the_domain() {
    let document = document();
    let max = |pointer: &str| {
        let bound = document.pointer(pointer).and_then(Value::as_u64);
        bound.unwrap_or_else(|| panic!("nothing at {pointer}"))
    };
    for (schemas, bound) in [
        ("Pet/properties/name/maxLength", pet::MAX_NAME as u64),
        ("PetInput/properties/name/maxLength", pet::MAX_NAME as u64),
        ("PetPatch/properties/name/maxLength", pet::MAX_NAME as u64),
        ("Tag/properties/name/maxLength", pet::MAX_NAME as u64),
        ("Category/properties/name/maxLength", pet::MAX_NAME as u64),
        ("PetInput/properties/tags/maxItems", pet::MAX_ITEMS as u64),
        (
            "PetInput/properties/photoUrls/maxItems",
            pet::MAX_ITEMS as u64,
        ),
        (
            "PetInput/properties/photoUrls/items/maxLength",
            pet::MAX_PHOTO_URL as u64,
        ),
        (
            "PetInput/properties/id/maximum",
            PetId::MAX.try_into().expect("a bound"),
        ),
        (
            "OrderInput/properties/shipDate/maxLength",
            order::MAX_DATE as u64,
        ),
        (
            "ImageForm/properties/additionalMetadata/maxLength",
            image::MAX_METADATA as u64,
        ),
        ("Image/properties/width/maximum", u64::from(image::MAX_SIDE)),
    ] {
        let pointer = format!("/components/schemas/{schemas}");
        assert_eq!(max(&pointer), bound, "{pointer}");
    }
    let list = "/paths/~1user~1createWithList/post/requestBody/content/application~1json/schema";
    assert_eq!(max(&format!("{list}/maxItems")), user::MAX_LIST as u64);
}

/// Calls `check` with each value within `value`, except the values of examples.
fn visit<'a>(value: &'a Value, check: &mut impl FnMut(&'a Value)) {
    check(value);
    let members = value.as_object().into_iter().flatten();
    let members = members.filter(|(name, _)| *name != "example" && *name != "examples");
    let items = value.as_array().into_iter().flatten();
    for inner in members.map(|(_, member)| member).chain(items) {
        visit(inner, check);
    }
}

/// Headers with values that belong to one request.
const OF_ONE_REQUEST: [&str; 5] = [
    "Idempotency-Key",
    "If-Match",
    "If-None-Match",
    "If-Range",
    "Range",
];

#[test]
fn document_has_no_construct_that_a_generator_misreads() {
    let document = document();
    let max = PetId::MAX;
    visit(&document, &mut |value| {
        // JavaScript corrupts larger numbers, and aiopenapi3 cannot load the document.
        for bound in ["minimum", "maximum"].map(|name| &value[name]) {
            let within = bound
                .as_i64()
                .is_some_and(|bound| (-max..=max).contains(&bound));
            assert!(bound.is_null() || within, "{value}");
        }
        // openapi-python-client drops operations if their schemas narrow a property in this way.
        assert!(value["allOf"].is_null(), "{value}");
        // The binary types of Go and of some generators for TypeScript have no length.
        if value["format"] == "binary" {
            let bounds = ["minLength", "maxLength"].map(|name| &value[name]);
            assert!(bounds.iter().all(|it| it.is_null()), "{value}");
        }
        // Ruby, PHP and RE2 read other patterns differently, or not at all.
        if let Some(pattern) = value["pattern"].as_str() {
            let is_plain =
                pattern.is_ascii() && !pattern.contains("\\u") && !pattern.contains("(?");
            let above_ascii = ["\\x8", "\\x9", "\\xa"];
            assert!(
                is_plain && !above_ascii.iter().any(|it| pattern.contains(it)),
                "{pattern}"
            );
        }
        // Collections send an example with every request: these belong to one.
        if value["in"] == "header" && OF_ONE_REQUEST.iter().any(|name| value["name"] == **name) {
            assert!(
                value["example"].is_null() && value["schema"]["examples"].is_null(),
                "{value}"
            );
        }
        // openapi-generator refuses a document with another type in a link.
        if value["operationId"].is_string() && value["responses"].is_null() {
            assert!(
                matches!(value["requestBody"], Value::Null | Value::String(_)),
                "{value}"
            );
        }
    });
    let parameters = document["components"]["parameters"].as_object();
    let parameters: Vec<String> = parameters
        .expect("parameters")
        .keys()
        .map(|it| it.to_lowercase())
        .collect();
    for (name, schema) in document["components"]["schemas"]
        .as_object()
        .expect("schemas")
    {
        // Clients in Go have the function `NewPet` for the schema `Pet`.
        assert!(!name.starts_with("New"), "{name}");
        assert!(!parameters.contains(&name.to_lowercase()), "{name}");
        // openapi-typescript makes properties with a default required.
        visit(schema, &mut |value| {
            assert!(value["default"].is_null(), "{name}: {value}");
        });
    }
}

/// Returns true if the schema has an example, or lists its values, or all of its parts do.
fn has_example(document: &Value, schema: &Value) -> bool {
    let schema = resolve(document, schema);
    let has = |part: &Value| has_example(document, part);
    ["example", "examples", "enum"].iter().any(|name| !schema[name].is_null())
        // Bytes of an image.
        || schema["format"] == "binary"
        || (schema["items"].is_object() && has(&schema["items"]))
        || schema["properties"].as_object().is_some_and(|properties| properties.values().all(has))
}

#[test]
fn document_suits_forms_collections_and_agents() {
    let document = document();
    let body = |path: &str| &document["paths"][path]["post"]["requestBody"];
    // The query alone is enough.
    let form = body("/pet/{petId}");
    assert_ne!(form["required"], true);
    let form = &form["content"]["application/x-www-form-urlencoded"]["schema"];
    assert_eq!(form["properties"]["status"]["type"], "string");
    assert!(form["required"].is_null(), "{form}");
    // Otherwise, collections send one account twice.
    let accounts = &body("/user/createWithList")["content"]["application/json"]["schema"];
    assert_eq!(accounts["example"].as_array().map(Vec::len), Some(2));
    for name in ["If-Match", "cursor"] {
        let parameter = &document["components"]["parameters"][name];
        assert!(parameter["schema"]["pattern"].is_string(), "{parameter}");
    }
    // Tools for agents do not show the summary.
    visit(&document, &mut |value| {
        if let Some(summary) = value["summary"].as_str() {
            let description = value["description"].as_str().unwrap_or_default();
            assert!(description.starts_with(summary), "{value}");
        }
    });
}

#[test]
fn document_has_examples_everywhere() {
    let document = document();
    let mut missing = BTreeSet::new();
    visit(&document, &mut |value| {
        // A parameter, a header, or the content of a body.
        let schema = &value["schema"];
        let own = !value["example"].is_null();
        let is_exempt = OF_ONE_REQUEST.iter().any(|name| value["name"] == **name);
        if schema.is_object() && !own && !is_exempt && !has_example(&document, schema) {
            missing.insert(value.to_string());
        }
    });
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn document_links_name_existing_operations_and_parameters() {
    let document = document();
    let items = document["paths"].as_object().expect("paths").values();
    let operations: Vec<&Value> = items
        .flat_map(|item| {
            METHODS
                .iter()
                .map(|method| &item[method.as_str().to_lowercase()])
        })
        .filter(|operation| operation.is_object())
        .collect();
    let mut links = BTreeSet::new();
    for operation in &operations {
        let responses = operation["responses"].as_object().expect("responses");
        for link in responses
            .values()
            .filter_map(|response| response["links"].as_object())
            .flat_map(|links| links.values())
        {
            let target = &link["operationId"];
            let known = operations.iter().find(|it| it["operationId"] == *target);
            let known = known.unwrap_or_else(|| panic!("{target} is no operation"));
            for name in link["parameters"].as_object().into_iter().flatten() {
                let parameters = known["parameters"].as_array().expect("parameters");
                let takes = parameters
                    .iter()
                    .any(|it| resolve(&document, it)["name"] == *name.0);
                assert!(takes, "{target} has no parameter {}", name.0);
            }
            links.insert(operation["operationId"].as_str().expect("a name"));
        }
    }
    let sources = [
        "addPet",
        "createCaller",
        "createClient",
        "createKey",
        "createUser",
        "createUsersWithListInput",
        "createWebhook",
        "findPetsByStatus",
        "findPetsByTags",
        "getPetById",
        "listCallers",
        "listDeliveries",
        "listImages",
        "listOrders",
        "listPets",
        "listSessions",
        "placeOrder",
        "rotateKey",
        "updatePet",
        "uploadFile",
    ];
    assert_eq!(links, BTreeSet::from(sources));
}
