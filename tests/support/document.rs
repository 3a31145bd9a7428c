//! Checks that each response to a test is one that the OpenAPI document has.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{File, create_dir_all},
    io::Write as _,
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use jsonschema::Validator;
use pet_inventory::api::{self, state::Links};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{Response, repository};

/// Header fields of HTTP itself, which the document does not have. Those of CORS belong to browsers.
const OF_HTTP: [&str; 9] = [
    "cache-control",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "date",
    "pragma",
    "transfer-encoding",
    "vary",
];

/// The document, with objects that have no further members than those of their schemas.
static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    let document = serde_json::to_value(api::document(&Links::new(None)));
    let mut document = document.expect("a document");
    close(&mut document);
    document
});

/// Lets the schemas of objects within `value` have no other members than those listed.
fn close(value: &mut Value) {
    match value {
        Value::Object(members) => {
            if members.get("properties").is_some_and(Value::is_object) {
                members.insert("additionalProperties".to_owned(), json!(false));
            }
            members.values_mut().for_each(close);
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}

/// Returns what `value` refers to, or itself.
fn resolve(value: &'static Value) -> &'static Value {
    match value["$ref"].as_str() {
        Some(path) => DOCUMENT.pointer(&path[1..]).expect("a component"),
        None => value,
    }
}

/// Returns the documented path that a path of the API belongs to: of those that match, the one with the fewest parameters.
fn template(path: &str) -> Option<&'static str> {
    let paths = DOCUMENT["paths"].as_object().expect("paths");
    let is_match = |template: &&String| {
        let (of_path, of_template) = (path.split('/'), template.split('/'));
        of_path.clone().count() == of_template.clone().count()
            && (of_path.zip(of_template)).all(|(part, it)| it.starts_with('{') || it == part)
    };
    let templates = paths.keys().filter(is_match);
    let template = templates.min_by_key(|template| template.matches('{').count());
    template.map(String::as_str)
}

/// Checks the status, media type, header fields and body of a response to an operation, and notes that a test has met it. Other
/// paths, methods that a path does not have, and what a proxy has sent or changed, are not checked.
#[track_caller]
pub fn check(method: &Method, path: &str, response: &Response) {
    let path = path.strip_suffix('/').unwrap_or(path);
    let Some(template) = template(path.strip_prefix("/api/v3").unwrap_or(path)) else {
        return;
    };
    let is_head = method == Method::HEAD;
    let is_refused_head = is_head && response.status == 405;
    let is_of_proxy = ["server", "via"]
        .iter()
        .any(|name| response.headers.contains_key(*name));
    if is_refused_head || is_of_proxy {
        return;
    }
    let name = if is_head {
        "get"
    } else {
        &method.as_str().to_lowercase()
    };
    let Some(operation) = DOCUMENT["paths"][template].get(name) else {
        return;
    };
    let status = response.status.to_string();
    let what = format!("{method} {template} {status}");
    let documented = (operation["responses"].get(&status))
        .unwrap_or_else(|| panic!("{what} is not documented: {response}"));
    let documented = resolve(documented);
    let headers = documented["headers"].as_object();
    let is_documented = |name: &str| {
        OF_HTTP.contains(&name)
            || name.starts_with("access-control-")
            || headers.is_some_and(|it| it.keys().any(|key| key.eq_ignore_ascii_case(name)))
    };
    for (name, value) in &response.headers {
        if matches!(name.as_str(), "link" | "location") {
            assert!(is_uri(value.as_bytes()), "{what}: {name}: {value:?}");
        }
        let is_documented = is_documented(name.as_str());
        assert!(
            is_documented,
            "{what} has {name}, which is not documented: {response}"
        );
    }
    let content = documented["content"].as_object();
    if !response.body.is_empty() {
        let media_type = response.header("content-type");
        let content = content.and_then(|content| content.get(media_type));
        let content = content.unwrap_or_else(|| {
            panic!("{what} is {media_type}, which is not documented: {response}")
        });
        if media_type.ends_with("json") {
            check_body(
                &format!("{what} {media_type}"),
                &content["schema"],
                response,
            );
        }
    } else if !is_head {
        assert!(
            content.is_none_or(serde_json::Map::is_empty),
            "{what} has no body: {response}"
        );
    }
    if !is_head {
        note(&what);
    }
}

/// Returns true for the characters of a URI (RFC 3986 §2), of which a `Link` has one in angle brackets, and a quoted relation.
fn is_uri(value: &[u8]) -> bool {
    let uri = value
        .strip_prefix(b"<")
        .map_or(Some(value), |link| link.strip_suffix(b">; rel=\"next\""));
    let is_encoded = |digits: &[u8]| digits.len() == 2 && digits.iter().all(u8::is_ascii_hexdigit);
    let mut parts = uri.unwrap_or(value).split(|byte| *byte == b'%');
    let of_uri =
        |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~:/?#[]@!$&'()*+,;=".contains(byte);
    let first = parts.next().unwrap_or_default();
    let mut rest = parts.map(|part| part.split_at_checked(2).unwrap_or((part, &[])));
    first.iter().all(of_uri)
        && rest.all(|(digits, rest)| is_encoded(digits) && rest.iter().all(of_uri))
}

#[track_caller]
fn check_body(what: &str, schema: &'static Value, response: &Response) {
    static VALIDATORS: Mutex<BTreeMap<String, Arc<Validator>>> = Mutex::new(BTreeMap::new());
    let body: Value = serde_json::from_slice(&response.decoded())
        .unwrap_or_else(|error| panic!("{what}: {error}: {response}"));
    let validator = {
        let mut validators = VALIDATORS.lock().unwrap_or_else(PoisonError::into_inner);
        let validator = validators.entry(what.to_owned()).or_insert_with(|| {
            let mut schema = schema.clone();
            schema["components"] = DOCUMENT["components"].clone();
            Arc::new(jsonschema::draft202012::new(&schema).expect("a schema"))
        });
        Arc::clone(validator)
    };
    let errors: Vec<_> = (validator.iter_errors(&body).take(5))
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(
        errors.is_empty(),
        "{what} is not as documented: {errors:#?}: {response}"
    );
}

/// Notes an operation and a status in `target/tmp/responses`, which `.ci/run` compares with the document.
fn note(what: &str) {
    static NOTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut noted = NOTED.lock().unwrap_or_else(PoisonError::into_inner);
    if noted.insert(what.to_owned()) {
        let folder = repository().join("target/tmp");
        create_dir_all(&folder).expect("a folder");
        let path = folder.join("responses");
        let file = File::options().append(true).create(true).open(path);
        let mut file = file.expect("a file");
        // In one piece, since other processes append, too.
        file.write_all(format!("{what}\n").as_bytes())
            .expect("a line");
    }
}
