//! Whether a caller may do what it asks.
//!
//! Behind the limits: what is refused here was asked by a known caller, and counts as its request.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};

use super::authenticate::needed;
use crate::{
    api::{error::Error, state::AppState},
    domain::caller::Caller,
};

/// Lets a request through to its operation when its caller has the scopes for it.
pub async fn authorize(
    State(state): State<AppState>,
    request: Request,
    next: Next,
) -> Result<Response, Error> {
    if let Some(needed) = needed(&state.access, &request) {
        let scopes = request
            .extensions()
            .get::<Arc<Caller>>()
            .map(|caller| caller.scopes)
            .ok_or_else(|| Error::Internal("an operation without its caller".into()))?;
        if let Some(missing) = needed.iter().find(|scope| !scopes.contains(*scope)) {
            return Err(Error::Forbidden { needed, missing });
        }
    }
    Ok(next.run(request).await)
}
