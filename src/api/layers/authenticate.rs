//! Resolves the credentials of a request to its [`Caller`].
//!
//! Invariant: every operation that needs a caller finds it in the request's context.

use std::sync::Arc;

use axum::{extract::Request, response::IntoResponse};
use futures_util::future::Either;

use super::{Middleware, Next, Reply, respond};
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
    fn call<N: Next>(self: &Arc<Self>, request: Request, next: &N) -> impl Reply + use<N> {
        let Self(state) = &**self;
        let context = RequestContext::of(&request);
        if context.facts.needed_scopes.is_none() {
            return Either::Left(next.call(request));
        }
        let cached = match credentials(request.headers()) {
            Ok(None) => Some(anonymous(state)),
            Ok(Some(credentials)) => state.authenticator.get_cached(credentials).map(Ok),
            Err(_) => None,
        };
        match cached {
            Some(Ok(caller)) => {
                let _ = context.caller.set(caller);
                Either::Left(next.call(request))
            }
            Some(Err(error)) => respond(error),
            None => {
                let (state, context, next) = (state.clone(), context.clone(), next.clone());
                Either::Right(Box::pin(async move {
                    let credentials = credentials(request.headers()).transpose();
                    let credentials = credentials.unwrap_or(Err(auth::Error::Invalid));
                    match look_up(&state, credentials, context.client_address()).await {
                        Ok(caller) => {
                            let _ = context.caller.set(caller);
                            next.call(request).await
                        }
                        Err(error) => error.into_response(),
                    }
                }))
            }
        }
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
