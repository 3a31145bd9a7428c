//! Access rules: the scopes that each operation requires, read from the generated OpenAPI document.
//!
//! Invariant: the documented scopes are the enforced ones, and every operation declares its own.

use std::{collections::HashMap, str::FromStr};

use axum::http::Method;
use serde_json::Value;
use utoipa::openapi::OpenApi;

use crate::domain::caller::{Scope, Scopes};

/// Access rule of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// No caller needed; a credential is ignored.
    Public,
    /// Caller with all of these scopes, possibly none.
    Needs(Scopes),
}

/// Access rules of all operations, by path and method.
#[derive(Debug, Default)]
pub struct AccessRules(HashMap<String, Vec<(Method, Access)>>);

impl AccessRules {
    /// Reads the rules from `document`, with paths relative to `base`.
    ///
    /// # Errors
    /// A message that names the operation with a missing or inconsistent `security`, or with an unknown scope.
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
                let access = access(&operation["security"])
                    .map_err(|problem| format!("{method} {path}: {problem}"))?;
                rules
                    .0
                    .entry(format!("{base}{path}"))
                    .or_default()
                    .push((method, access));
            }
        }
        Ok(rules)
    }

    /// Returns the rule of an operation by the path of its route, or `None` if there is no such operation.
    #[must_use]
    pub fn find(&self, method: &Method, path: &str) -> Option<Access> {
        // HEAD is GET without the body (RFC 9110 §9.3.2).
        let method = if method == Method::HEAD {
            &Method::GET
        } else {
            method
        };
        let operations = self.0.get(path)?;
        let (_, access) = operations.iter().find(|(known, _)| known == method)?;
        Some(*access)
    }
}

/// Reads a `security` field: a list of alternative schemes, each with its scopes, which must be the same for all.
fn access(security: &Value) -> Result<Access, String> {
    let ways: Vec<_> = security
        .as_array()
        .ok_or("missing `security(...)`: add the required scopes, or `security(())` for none")?
        .iter()
        .flat_map(|way| way.as_object().into_iter().flatten())
        .map(|(_, scopes)| scopes)
        .collect();
    let Some((first, rest)) = ways.split_first() else {
        return Ok(Access::Public);
    };
    if rest.iter().any(|scopes| scopes != first) {
        return Err("the security schemes require different scopes".into());
    }
    let scopes: Scopes = first
        .as_array()
        .into_iter()
        .flatten()
        .map(|scope| {
            let name = scope.as_str().unwrap_or_default();
            name.parse::<Scope>()
                .map_err(|error| format!("scope {name:?} {error}"))
        })
        .collect::<Result<_, _>>()?;
    Ok(Access::Needs(scopes))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn security_says_what_is_needed() {
        let write: Scopes = [Scope::WritePets].into_iter().collect();
        let needs = json!([{"api_key": ["write:pets"]}, {"bearer": ["write:pets"]}]);
        assert_eq!(access(&needs), Ok(Access::Needs(write)));
        assert_eq!(access(&json!([{}])), Ok(Access::Public));
        assert!(
            access(&Value::Null).is_err(),
            "an operation that says nothing"
        );
        assert!(access(&json!([{"api_key": ["write:cats"]}])).is_err());
        let differ = json!([{"api_key": ["write:pets"]}, {"bearer": []}]);
        assert!(access(&differ).is_err());
    }
}
