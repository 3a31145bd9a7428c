//! Converts the document to OpenAPI 3.0, for tools that do not read 3.1.

use serde_json::{Map, Value, json};
use utoipa::openapi::OpenApi;

/// Returns the document in OpenAPI 3.0. Fails if it cannot be written as JSON.
pub fn convert(document: &OpenApi) -> serde_json::Result<Value> {
    let mut document = serde_json::to_value(document)?;
    document["openapi"] = "3.0.3".into();
    if let Some(license) = document["info"]["license"].as_object_mut() {
        license.remove("identifier");
    }
    convert_members(&mut document);
    Ok(document)
}

/// Converts everything within a value.
fn convert_members(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(convert_members),
        Value::Object(object) => {
            // Examples are data of the API.
            let members = object.iter_mut().filter(|(name, _)| *name != "example");
            members.for_each(|(_, member)| convert_members(member));
            convert_object(object);
        }
        _ => {}
    }
}

fn convert_object(object: &mut Map<String, Value>) {
    convert_null(object);
    // A schema has one example here. `examples` elsewhere are objects.
    if object.get("examples").is_some_and(Value::is_array) {
        object.remove("examples");
    }
    // A reference cannot have other members.
    if object.get("$ref").is_some_and(Value::is_string) {
        object.retain(|name, _| name == "$ref");
    }
    // Only OAuth 2.0 has scopes.
    if let Some(Value::Array(ways)) = object.get_mut("security") {
        for way in ways.iter_mut().filter_map(Value::as_object_mut) {
            let others = way.iter_mut().filter(|(scheme, _)| *scheme != "oauth2");
            others.for_each(|(_, scopes)| *scopes = json!([]));
        }
    }
}

/// Replaces the type `null` by `nullable`.
fn convert_null(schema: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|kind| kind != "null");
        if let [only] = &types[..] {
            let only = only.clone();
            schema.insert("type".to_owned(), only);
            schema.insert("nullable".to_owned(), true.into());
        }
    }
    // A reference cannot be nullable. Where it may be absent, null means the same, except in a merge patch.
    let Some(Value::Array(choices)) = schema.get("oneOf") else {
        return;
    };
    if let [Value::Object(only), null] = &choices[..]
        && null["type"] == "null"
    {
        *schema = only.clone();
    }
}
