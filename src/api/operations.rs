//! Operations of the API: their routes, their facts, and the document, with paths relative to the base path.
//!
//! Invariant: what is documented is enforced. The scopes of an operation, and if its resource has an entity tag, are read
//! from what its handler documents; the rest is declared beside the handler, where its route is added.
//!
//! axum's `nest` would put the routes below the base path, too, but rewrites the target of each request.

use axum::{http::Method, routing::MethodRouter};
use serde_json::{Value, json};
use tower::{ServiceBuilder, util::AndThenLayer};
use utoipa::openapi::{
    OpenApi, RefOr,
    path::{Operation, PathItem},
};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};

use super::{compression, state::AppState};
use crate::domain::caller::{Scope, Scopes};

/// Base path of the API.
pub const BASE: &str = "/api/v3";

/// Facts of an operation, which the layers act on. The default facts are those of a page, and of a request without a route.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Facts {
    /// What it is.
    pub kind: Kind,
    /// Scopes that a caller needs, possibly none. `None` if it needs no caller, and ignores a credential.
    pub needed_scopes: Option<Scopes>,
    /// Limit that its requests count against.
    pub limit: RequestLimit,
    /// True if it evaluates `If-Match` and `If-None-Match`: its resource has an entity tag.
    pub has_entity_tag: bool,
    /// Handling of an `Idempotency-Key` by a POST.
    pub keys: Keys,
    /// Time limit, as a multiple of the configured one; 0 if the handler limits the time itself.
    pub timeout_factor: u32,
    /// True if it is also at its path without the base path, which an RFC defines.
    pub is_at_root: bool,
}

/// Kind of a route.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Kind {
    /// Content that is the same for everyone.
    #[default]
    Page,
    /// Requested every few seconds: it has no trace.
    Probe,
    /// Operation: its requests need resources, which are bounded.
    Operation,
}

/// Limit that a request counts against.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RequestLimit {
    /// That of the caller's plan; none without a caller.
    #[default]
    Plan,
    /// One of its own by caller, so that a caller whose limit is reached can ask for its state.
    Status,
    /// That of the client address.
    Address,
}

/// Use of an `Idempotency-Key`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Keys {
    /// None.
    #[default]
    Ignored,
    /// The response has a secret, which is not stored: a request with a key gets 400.
    Refused,
    /// The layer compares requests by their bytes.
    Stored,
    /// The handler compares requests, since the layer would have to keep the body in memory.
    StoredByHandler,
}

impl Facts {
    /// Facts of most operations, except those that the document has.
    pub const OPERATION: Self = Self {
        kind: Kind::Operation,
        needed_scopes: None,
        limit: RequestLimit::Plan,
        has_entity_tag: false,
        keys: Keys::Stored,
        timeout_factor: 1,
        is_at_root: false,
    };
    /// Those of an operation with a secret in its response.
    pub const SECRET: Self = Self {
        keys: Keys::Refused,
        ..Self::OPERATION
    };
    /// Those of an operation for clients without a credential.
    pub const OPEN: Self = Self {
        limit: RequestLimit::Address,
        keys: Keys::Ignored,
        ..Self::OPERATION
    };

    /// Returns true for an operation.
    pub const fn is_operation(&self) -> bool {
        matches!(self.kind, Kind::Operation)
    }

    /// Adds what an operation documents.
    fn documented(self, method: &Method, operation: &Operation) -> Self {
        let keys = if method == Method::POST {
            self.keys
        } else {
            Keys::Ignored
        };
        let security = serde_json::to_value(&operation.security).unwrap_or_default();
        Self {
            needed_scopes: needed_scopes(&security),
            has_entity_tag: has_entity_tag(operation),
            keys,
            ..self
        }
    }
}

/// Facts of the operations of a route, by method. Those of other methods are the default.
#[derive(Debug, Clone, Copy, Default)]
pub struct RouteFacts {
    get: Facts,
    post: Facts,
    put: Facts,
    patch: Facts,
    delete: Facts,
}

impl RouteFacts {
    /// Facts of a route that has only a GET.
    pub fn of_get(get: Facts) -> Self {
        Self {
            get,
            ..Self::default()
        }
    }

    fn documented(declared: Facts, item: &PathItem) -> Self {
        let facts = |method, operation: &Option<Operation>| {
            let operation = operation.as_ref();
            operation.map_or_else(Facts::default, |it| declared.documented(&method, it))
        };
        Self {
            get: facts(Method::GET, &item.get),
            post: facts(Method::POST, &item.post),
            put: facts(Method::PUT, &item.put),
            patch: facts(Method::PATCH, &item.patch),
            delete: facts(Method::DELETE, &item.delete),
        }
    }

    /// Returns the facts of the operation with this method. HEAD is GET without the body (RFC 9110 §9.3.2).
    pub fn of(&self, method: &Method) -> Facts {
        match *method {
            Method::GET | Method::HEAD => self.get,
            Method::POST => self.post,
            Method::PUT => self.put,
            Method::PATCH => self.patch,
            Method::DELETE => self.delete,
            _ => Facts::default(),
        }
    }
}

/// Operations, without layers.
#[derive(Clone, Default)]
pub struct Operations {
    /// Their routes.
    pub routes: Vec<Route>,
    /// Used only for its document.
    documented: OpenApiRouter,
}

/// Route of operations.
#[derive(Clone)]
pub struct Route {
    /// Path, with the base path.
    pub path: String,
    /// Facts of its operations.
    pub facts: RouteFacts,
    /// Handlers of its operations.
    pub methods: MethodRouter<AppState>,
}

impl Route {
    /// Returns the route of a probe, which is no operation.
    pub fn probe(path: &str, methods: MethodRouter<AppState>) -> Self {
        let probe = Facts {
            kind: Kind::Probe,
            ..Facts::default()
        };
        Self {
            path: path.to_owned(),
            facts: RouteFacts::of_get(probe),
            methods,
        }
    }
}

impl Operations {
    /// Returns an empty set of operations.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns an empty set of operations, which are added to `document`.
    pub fn with_document(document: OpenApi) -> Self {
        Self {
            documented: OpenApiRouter::with_openapi(document),
            ..Self::default()
        }
    }

    /// Adds the operations on one path, as `routes!` returns them.
    pub fn routes(self, routes: UtoipaMethodRouter<AppState>) -> Self {
        self.routes_with(Facts::OPERATION, routes)
    }

    /// Adds an operation that returns a list, which is compressed if the client accepts that.
    pub fn list(self, (schemas, paths, methods): UtoipaMethodRouter<AppState>) -> Self {
        let compressing = ServiceBuilder::new()
            .layer(AndThenLayer::new(compression::at_once))
            .layer(compression::encoder());
        self.routes((schemas, paths, methods.layer(compressing)))
    }

    /// Adds the operations on one path with these facts, and those that they document.
    pub fn routes_with(
        mut self,
        declared: Facts,
        (schemas, paths, methods): UtoipaMethodRouter<AppState>,
    ) -> Self {
        for (path, item) in &paths.paths {
            let at_root = declared.is_at_root.then(|| path.clone());
            for path in at_root.into_iter().chain([format!("{BASE}{path}")]) {
                self.routes.push(Route {
                    path,
                    facts: RouteFacts::documented(declared, item),
                    methods: methods.clone(),
                });
            }
        }
        let documented = (schemas, paths, MethodRouter::new());
        self.documented = self.documented.routes(documented);
        self
    }

    /// Adds the operations of `more`.
    pub fn merge(mut self, more: Self) -> Self {
        self.routes.extend(more.routes);
        self.documented = self.documented.merge(more.documented);
        self
    }

    /// Returns the facts of the operation on a path of the document.
    pub fn facts(&self, path: &str, method: &Method) -> Facts {
        let facts = |route: &Route| route.facts.of(method);
        let mut routes = self.routes.iter();
        routes
            .find(|it| it.path.strip_prefix(BASE) == Some(path) && facts(it).is_operation())
            .map_or_else(Facts::default, facts)
    }

    /// Returns the document.
    pub fn document(&self) -> OpenApi {
        self.documented.get_openapi().clone()
    }
}

fn has_entity_tag(operation: &Operation) -> bool {
    let mut parameters = operation.parameters.iter().flatten();
    parameters.any(|it| matches!(it, RefOr::T(it) if it.name == "If-Match"))
}

/// Reads a `security` field: a list of alternative schemes with the same scopes. An empty one makes the operation public.
/// An operation without the field, with an unknown scope, or with schemes of different scopes, needs all scopes: a mistake
/// must not open it.
fn needed_scopes(security: &Value) -> Option<Scopes> {
    let all = || Some(Scope::ALL.into_iter().collect());
    let Some(ways) = security.as_array() else {
        return all();
    };
    if ways.contains(&json!({})) {
        return None;
    }
    let mut ways = ways.iter().filter_map(Value::as_object).flatten();
    let (_scheme, scopes) = ways.next()?;
    if ways.any(|(_scheme, other)| other != scopes) {
        return all();
    }
    let scopes = scopes.as_array().into_iter().flatten();
    let scopes = scopes.map(|scope| scope.as_str().unwrap_or_default().parse::<Scope>());
    scopes
        .collect::<Result<_, _>>()
        .map_or_else(|_| all(), Some)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn security_says_what_is_needed() {
        let all = Some(Scope::ALL.into_iter().collect());
        let write = Some([Scope::WritePets].into_iter().collect());
        for (security, needed) in [
            (
                json!([{"api_key": ["write:pets"]}, {"bearer": ["write:pets"]}]),
                write,
            ),
            (json!([{"bearer": []}]), Some(Scopes::default())),
            (json!([{"client": []}, {}]), None),
            (json!([{}]), None),
            (Value::Null, all),
            (json!([{"api_key": ["write:cats"]}]), all),
            (json!([{"api_key": ["write:pets"]}, {"bearer": []}]), all),
        ] {
            assert_eq!(needed_scopes(&security), needed, "{security}");
        }
    }
}
