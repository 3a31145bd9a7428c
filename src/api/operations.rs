//! Operations of the API: their routes below the base path, and the document, with paths relative to it.
//!
//! axum's `nest` would do the same, but rewrites the target of each request.

use axum::{Router, routing::MethodRouter};
use utoipa::openapi::OpenApi;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};

use super::{openapi::BASE, state::AppState};

/// Operations, without layers.
#[derive(Default)]
pub struct Operations {
    /// Their routes.
    pub router: Router<AppState>,
    /// Used only for its document.
    documented: OpenApiRouter,
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
    pub fn routes(mut self, (schemas, paths, methods): UtoipaMethodRouter<AppState>) -> Self {
        for path in paths.paths.keys() {
            self.router = self.router.route(&format!("{BASE}{path}"), methods.clone());
        }
        let documented = (schemas, paths, MethodRouter::new());
        self.documented = self.documented.routes(documented);
        self
    }

    /// Adds the operations of `more`.
    pub fn merge(self, more: Self) -> Self {
        Self {
            router: self.router.merge(more.router),
            documented: self.documented.merge(more.documented),
        }
    }

    /// Returns the document.
    pub fn into_document(self) -> OpenApi {
        self.documented.into_openapi()
    }
}
