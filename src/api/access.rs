//! Rules of each operation, read from the generated OpenAPI document: the scopes that it requires, and if its resource has
//! an entity tag.
//!
//! Invariant: what is documented is enforced, and every operation declares its own scopes.

use std::{collections::HashMap, str::FromStr};

use axum::http::Method;
use serde_json::{Value, json};
use utoipa::openapi::OpenApi;

use crate::domain::caller::{Scope, Scopes};

/// Rules of the operations, by path and method.
#[derive(Debug, Default)]
pub struct AccessRules(HashMap<String, Vec<(Method, Rule)>>);

#[derive(Debug, Clone, Copy)]
struct Rule {
    /// Scopes that a caller needs, possibly none. `None` for a public operation, which needs no caller and ignores a
    /// credential.
    needed_scopes: Option<Scopes>,
    /// True if the operation supports `If-Match`, or reads a resource with an entity tag.
    has_entity_tag: bool,
    /// True if the operation takes an `Idempotency-Key`.
    takes_key: bool,
}

impl AccessRules {
    /// Reads the rules from `document`, with paths relative to `base`. The error names the operation with a missing or
    /// inconsistent `security`, or with an unknown scope.
    pub fn from_document(document: &OpenApi, base: &str) -> Result<Self, String> {
        let document = serde_json::to_value(document).map_err(|error| error.to_string())?;
        let mut rules = Self::default();
        for (path, item) in document["paths"].as_object().into_iter().flatten() {
            for (method, operation) in item.as_object().into_iter().flatten() {
                let Ok(method) = Method::from_str(&method.to_uppercase()) else {
                    continue;
                };
                let needed = needed_scopes(&operation["security"]);
                let rule = Rule {
                    needed_scopes: needed
                        .map_err(|problem| format!("{method} {path}: {problem}"))?,
                    has_entity_tag: has_entity_tag(&method, operation),
                    takes_key: has_parameter(operation, "Idempotency-Key"),
                };
                // Those of OAuth are at the paths of their RFCs, too.
                if operation["tags"][0] == "oauth" {
                    rules.add(path.clone(), method.clone(), rule);
                }
                rules.add(format!("{base}{path}"), method, rule);
            }
        }
        Ok(rules)
    }

    fn add(&mut self, route: String, method: Method, rule: Rule) {
        self.0.entry(route).or_default().push((method, rule));
    }

    /// Returns the scopes that an operation needs, by the path of its route; `None` if it needs no caller or does not
    /// exist.
    pub fn needed_scopes(&self, method: &Method, path: &str) -> Option<Scopes> {
        self.rule(method, path)?.needed_scopes
    }

    /// Returns true if the operation exists, and neither supports `If-Match` nor reads a resource with an entity tag.
    pub fn lacks_entity_tag(&self, method: &Method, path: &str) -> bool {
        let rule = self.rule(method, path);
        rule.is_some_and(|rule| !rule.has_entity_tag)
    }

    /// Returns true if the operation takes an `Idempotency-Key`.
    pub fn takes_key(&self, method: &Method, path: &str) -> bool {
        self.rule(method, path).is_some_and(|rule| rule.takes_key)
    }

    fn rule(&self, method: &Method, path: &str) -> Option<&Rule> {
        // HEAD is GET without the body (RFC 9110 §9.3.2).
        let is_head = method == Method::HEAD;
        let method = if is_head { &Method::GET } else { method };
        let mut operations = self.0.get(path)?.iter();
        operations.find_map(|(known, rule)| (known == method).then_some(rule))
    }
}

fn has_entity_tag(method: &Method, operation: &Value) -> bool {
    let reads =
        method == Method::GET && !operation["responses"]["200"]["headers"]["ETag"].is_null();
    reads || has_parameter(operation, "If-Match")
}

fn has_parameter(operation: &Value, name: &str) -> bool {
    let reference = format!("#/components/parameters/{name}");
    let mut parameters = operation["parameters"].as_array().into_iter().flatten();
    parameters.any(|parameter| parameter["$ref"] == reference)
}

/// Reads a `security` field: a list of alternative schemes, each with its scopes, which must be the same for all. An empty
/// one makes the operation public.
fn needed_scopes(security: &Value) -> Result<Option<Scopes>, String> {
    let ways = security
        .as_array()
        .ok_or("missing `security(...)`: add the required scopes, or `security(())` for none")?;
    if ways.contains(&json!({})) {
        return Ok(None);
    }
    let ways = ways.iter().filter_map(Value::as_object).flatten();
    let mut needed = ways.map(|(_scheme, scopes)| scopes);
    let Some(first) = needed.next() else {
        return Ok(None);
    };
    if needed.any(|scopes| scopes != first) {
        return Err("the security schemes require different scopes".into());
    }
    let scopes = first.as_array().into_iter().flatten().map(|scope| {
        let name = scope.as_str().unwrap_or_default();
        let scope: Result<Scope, _> = name.parse();
        scope.map_err(|error| format!("scope {name:?} {error}"))
    });
    scopes.collect::<Result<_, _>>().map(Some)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn security_says_what_is_needed() {
        let write: Scopes = [Scope::WritePets].into_iter().collect();
        let needs_write = json!([{"api_key": ["write:pets"]}, {"bearer": ["write:pets"]}]);
        for (security, rule) in [
            (needs_write, Some(Some(write))),
            (json!([{}]), Some(None)),
            (Value::Null, None),
            (json!([{"api_key": ["write:cats"]}]), None),
            (json!([{"api_key": ["write:pets"]}, {"bearer": []}]), None),
        ] {
            assert_eq!(needed_scopes(&security).ok(), rule, "{security}");
        }
    }
}
