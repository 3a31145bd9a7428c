//! Access rules: the scopes that each operation requires, read from the generated OpenAPI document.
//!
//! Invariant: the documented scopes are the enforced ones, and every operation declares its own.

use std::{collections::HashMap, str::FromStr};

use axum::http::Method;
use serde_json::Value;
use utoipa::openapi::OpenApi;

use crate::domain::caller::{Scope, Scopes};

/// Scopes that a caller needs, possibly none, by path and method. The other operations are public: they need no caller,
/// and ignore a credential.
#[derive(Debug, Default)]
pub struct AccessRules(HashMap<String, Vec<(Method, Scopes)>>);

impl AccessRules {
    /// Reads the rules from `document`, with paths relative to `base`. The error names the operation with a missing or
    /// inconsistent `security`, or with an unknown scope.
    pub fn from_document(document: &OpenApi, base: &str) -> Result<Self, String> {
        let document = serde_json::to_value(document).map_err(|error| error.to_string())?;
        let mut rules = Self::default();
        for (path, item) in document["paths"].as_object().into_iter().flatten() {
            if !item["servers"].is_null() {
                // Paths with their own `servers` are outside the API and need no caller.
                continue;
            }
            for (method, operation) in item.as_object().into_iter().flatten() {
                let Ok(method) = Method::from_str(&method.to_uppercase()) else {
                    continue;
                };
                let needed = needed_scopes(&operation["security"])
                    .map_err(|problem| format!("{method} {path}: {problem}"))?;
                let operations = rules.0.entry(format!("{base}{path}")).or_default();
                operations.extend(needed.map(|scopes| (method, scopes)));
            }
        }
        Ok(rules)
    }

    /// Returns the scopes that an operation needs, by the path of its route; `None` if it needs no caller or does not
    /// exist.
    pub fn needed_scopes(&self, method: &Method, path: &str) -> Option<Scopes> {
        // HEAD is GET without the body (RFC 9110 §9.3.2).
        let is_head = method == Method::HEAD;
        let method = if is_head { &Method::GET } else { method };
        let mut operations = self.0.get(path)?.iter();
        operations.find_map(|(known, scopes)| (known == method).then_some(*scopes))
    }
}

/// Reads a `security` field: a list of alternative schemes, each with its scopes, which must be the same for all.
fn needed_scopes(security: &Value) -> Result<Option<Scopes>, String> {
    let ways = security
        .as_array()
        .ok_or("missing `security(...)`: add the required scopes, or `security(())` for none")?;
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
