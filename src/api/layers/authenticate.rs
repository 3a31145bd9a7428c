//! Resolves the credentials of a request to its [`Caller`].
//!
//! Invariant: every operation that needs a caller finds it in the request's context.

use std::sync::Arc;

use axum::{
    http::HeaderMap,
    response::{IntoResponse, Response},
};

use super::{Incoming, Middleware, Next};
use crate::{
    api::{
        credentials::credentials, error::Error, request_context::RequestContext, state::AppState,
    },
    auth::{self, Credentials},
    domain::{
        address::AddressKey,
        caller::{Caller, Scopes},
    },
};

/// Resolves the credentials.
pub struct Authenticate(pub AppState);

impl Middleware for Authenticate {
    async fn call(&self, request: Incoming<'_>, next: &impl Next) -> Response {
        let context = RequestContext::of(&request);
        if context.facts.needed_scopes.is_some() {
            let caller = self.caller(request.headers(), context.client_address());
            match caller.await {
                Ok(caller) => _ = context.caller.set(caller),
                Err(error) => return error.into_response(),
            }
        }
        next.call(request).await
    }
}

impl Authenticate {
    /// Returns the caller with the credentials of a request, or the anonymous one.
    async fn caller(
        &self,
        headers: &HeaderMap,
        client: Option<AddressKey>,
    ) -> Result<Arc<Caller>, Error> {
        let Self(state) = self;
        let credentials = match credentials(headers) {
            Ok(None) => return anonymous(state),
            Ok(Some(credentials)) => Ok(credentials),
            Err(malformed) => Err(malformed),
        };
        if let Ok(credentials) = credentials
            && let Some(caller) = state.authenticator.get_cached(credentials)
        {
            return Ok(caller);
        }
        Box::pin(look_up(state, credentials, client)).await
    }
}

/// Looks up a credential that is not cached. Failures count against the client address; an address over its limit gets
/// 429, except for cached valid credentials.
async fn look_up(
    state: &AppState,
    credentials: Result<Credentials<'_>, auth::Error>,
    client: Option<AddressKey>,
) -> Result<Arc<Caller>, Error> {
    let limit = &state.failed_authentication;
    limit.check(client).map_err(Error::too_many_failures)?;
    let found = match credentials {
        Ok(credentials) => state.authenticator.authenticate(credentials).await,
        Err(malformed) => Err(malformed),
    };
    if found.as_ref().is_err_and(auth::Error::is_invalid) {
        limit.count(client);
    }
    Ok(found?)
}

fn anonymous(state: &AppState) -> Result<Arc<Caller>, Error> {
    let scopes = state.anonymous_scopes;
    if scopes == Scopes::default() {
        return Err(Error::Unauthenticated);
    }
    Ok(Arc::new(Caller::anonymous(scopes, state.anonymous_plan)))
}
