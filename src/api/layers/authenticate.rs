//! Resolves the credentials of a request to its [`Caller`](crate::domain::caller::Caller).
//!
//! Invariant: every operation that needs a caller finds it in the request's context.

use axum::response::{IntoResponse, Response};

use super::{Incoming, Middleware, Next};
use crate::api::{credentials::find_caller, request_context::RequestContext, state::AppState};

/// Resolves the credentials.
pub struct Authenticate(pub AppState);

impl Middleware for Authenticate {
    async fn call(&self, request: Incoming<'_>, next: &impl Next) -> Response {
        let context = RequestContext::of(&request);
        if context.facts.needed_scopes.is_some() {
            let caller = find_caller(&self.0, request.headers(), context.client_address());
            match caller.await {
                Ok(caller) => _ = context.caller.set(caller),
                Err(error) => return error.into_response(),
            }
        }
        next.call(request).await
    }
}
