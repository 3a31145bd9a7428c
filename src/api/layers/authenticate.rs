//! Resolves the credentials of a request to its [`Caller`].
//!
//! Invariant: every operation that needs a caller finds it in the request's context.

use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{
    extract::{MatchedPath, Request},
    http::HeaderMap,
    response::{IntoResponse, Response},
};
use futures_util::future::Either;
use tower::{Layer, Service};

use super::{Inner, LayerFuture, refuse};
use crate::{
    api::{
        access::Access,
        credentials::credentials,
        error::Error,
        request_context::RequestContext,
        state::{AnonymousScopes, AppState},
    },
    auth::{self, Credentials},
    domain::{
        address::AddressKey,
        caller::{Caller, Scopes},
    },
};

/// Layer that resolves credentials.
#[derive(Clone)]
pub struct AuthenticateLayer(pub AppState);

impl<S> Layer<S> for AuthenticateLayer {
    type Service = Authenticate<S>;

    fn layer(&self, inner: S) -> Authenticate<S> {
        Authenticate {
            inner,
            state: self.0.clone(),
        }
    }
}

/// Service of an [`AuthenticateLayer`].
#[derive(Clone)]
pub struct Authenticate<S> {
    inner: S,
    state: AppState,
}

impl<S: Inner> Service<Request> for Authenticate<S> {
    type Response = Response;
    type Error = Infallible;
    type Future = LayerFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        // Without a rule there is no such operation: the router responds with 404 or 405.
        let Some(access) = access(&self.state, &request) else {
            return Either::Left(self.inner.call(request));
        };
        let context = RequestContext::of(&request).clone();
        context.set_access(access);
        if access == Access::Public {
            return Either::Left(self.inner.call(request));
        }
        match from_memory(&self.state, request.headers()) {
            Some(Ok(caller)) => {
                context.set_caller(caller);
                Either::Left(self.inner.call(request))
            }
            Some(Err(error)) => refuse(error),
            None => {
                let (state, mut inner) = (self.state.clone(), self.inner.clone());
                Either::Right(Box::pin(async move {
                    let credentials = credentials(request.headers()).transpose();
                    let credentials = credentials.unwrap_or(Err(auth::Error::Invalid));
                    match look_up(&state, credentials, context.client_address()).await {
                        Ok(caller) => context.set_caller(caller),
                        Err(error) => return Ok(error.into_response()),
                    }
                    inner.call(request).await
                }))
            }
        }
    }
}

/// Returns the access rule of the operation.
fn access(state: &AppState, request: &Request) -> Option<Access> {
    let route = request.extensions().get::<MatchedPath>()?;
    state.access.find(request.method(), route.as_str())
}

/// Resolves cached credentials, or none; `None` if the credentials have to be looked up.
fn from_memory(state: &AppState, headers: &HeaderMap) -> Option<Result<Arc<Caller>, Error>> {
    match credentials(headers) {
        Ok(None) => Some(anonymous(state.anonymous)),
        Ok(Some(credentials)) => state.authenticator.get_cached(credentials).map(Ok),
        Err(_) => None,
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
    let is_external = credentials
        .as_ref()
        .is_ok_and(|credentials| state.authenticator.is_external(*credentials));
    let permit = match client {
        // A slow issuer must not hold the permits of other credentials.
        Some(client) if is_external => {
            limit.check(client).map_err(Error::too_many_failures)?;
            None
        }
        Some(client) => Some(
            limit
                .permit(client)
                .await
                .map_err(Error::too_many_failures)?,
        ),
        None => None,
    };
    let found = match credentials {
        Ok(credentials) => state.authenticator.authenticate(credentials).await,
        Err(malformed) => Err(malformed),
    };
    if let (Some(client), Err(auth::Error::Invalid)) = (client, &found) {
        limit.count(client);
    }
    drop(permit);
    Ok(found?)
}

fn anonymous(AnonymousScopes(scopes): AnonymousScopes) -> Result<Arc<Caller>, Error> {
    if scopes == Scopes::default() {
        return Err(Error::Unauthenticated);
    }
    Ok(Arc::new(Caller::anonymous(scopes)))
}
