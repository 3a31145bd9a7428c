//! Operations of the API: their routes, which lie below its base, and the part of the document about them,
//! whose paths begin there.
//!
//! Not axum's `nest`, which does the same: it would rewrite the target of each request on its way.

use axum::{Router, routing::MethodRouter};
use utoipa::openapi::OpenApi;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};

use super::{openapi::BASE, state::AppState};

/// Operations, with nothing around them yet.
#[derive(Default)]
pub struct Operations {
    routes: Router<AppState>,
    /// For its document alone.
    documented: OpenApiRouter,
}

impl Operations {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// None yet, and a document that they are added to.
    #[must_use]
    pub fn with_document(document: OpenApi) -> Self {
        Self {
            routes: Router::new(),
            documented: OpenApiRouter::with_openapi(document),
        }
    }

    /// Adds those on one path, as `routes!` gives them.
    #[must_use]
    pub fn routes(mut self, (schemas, paths, methods): UtoipaMethodRouter<AppState>) -> Self {
        for path in paths.paths.keys() {
            self.routes = self.routes.route(&format!("{BASE}{path}"), methods.clone());
        }
        self.documented = self
            .documented
            .routes((schemas, paths, MethodRouter::new()));
        self
    }

    /// Both these and those.
    #[must_use]
    pub fn merge(self, more: Self) -> Self {
        Self {
            routes: self.routes.merge(more.routes),
            documented: self.documented.merge(more.documented),
        }
    }

    /// Their routes.
    pub fn into_routes(self) -> Router<AppState> {
        self.routes
    }

    /// The document about them.
    #[must_use]
    pub fn into_document(self) -> OpenApi {
        self.documented.into_openapi()
    }
}
