//! Resolves the credentials of a request to its [`Caller`].
//!
//! Invariant: every operation that needs a caller finds it in the request's extensions.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{MatchedPath, Request},
    http::HeaderMap,
};

use crate::{
    api::{
        access::{Access, AccessRules},
        error::Error,
        presented::presented,
        state::{AnonymousScopes, AppState},
    },
    auth::{self, Presented},
    domain::{
        address::AddressKey,
        caller::{Caller, Scopes},
    },
};

/// Returns the caller, and stores it in the request's extensions.
///
/// # Errors
/// If the credentials are missing, invalid, or their lookup fails.
pub async fn authenticate(
    state: &AppState,
    client: Option<AddressKey>,
    request: &mut Request,
) -> Result<Arc<Caller>, Error> {
    let caller = match caller(state, request.headers(), client).await? {
        Some(caller) => caller,
        None => Arc::new(anonymous(state.anonymous)?),
    };
    request.extensions_mut().insert(Arc::clone(&caller));
    Ok(caller)
}

/// Returns the scopes that the operation needs; `None` if it is public, or there is no such operation: the router responds
/// with 404 or 405.
pub fn needed(rules: &Arc<AccessRules>, request: &Request) -> Option<Scopes> {
    let route = request.extensions().get::<MatchedPath>()?;
    match rules.find(request.method(), route.as_str())? {
        Access::Public => None,
        Access::Needs(scopes) => Some(scopes),
    }
}

/// Resolves the request's credentials to a caller. Failures count against the client address; an address over its
/// limit gets 429, except for cached valid credentials.
async fn caller(
    state: &AppState,
    headers: &HeaderMap,
    client: Option<AddressKey>,
) -> Result<Option<Arc<Caller>>, Error> {
    match presented(headers) {
        Ok(None) => Ok(None),
        Ok(Some(presented)) => match state.authenticator.recall(presented) {
            Some(caller) => Ok(Some(caller)),
            None => Box::pin(look_up(state, Ok(presented), client))
                .await
                .map(Some),
        },
        Err(malformed) => Box::pin(look_up(state, Err(malformed), client))
            .await
            .map(Some),
    }
}

/// Looks up a credential that is not cached.
async fn look_up(
    state: &AppState,
    presented: Result<Presented<'_>, auth::Error>,
    client: Option<AddressKey>,
) -> Result<Arc<Caller>, Error> {
    let limit = &state.failed_authentication;
    let foreign = presented
        .as_ref()
        .is_ok_and(|presented| state.authenticator.is_foreign(*presented));
    let permit = match client {
        // A slow issuer must not hold the permits of other credentials.
        Some(client) if foreign => {
            limit.check(client).map_err(too_many_wrong)?;
            None
        }
        Some(client) => Some(limit.permit(client).await.map_err(too_many_wrong)?),
        None => None,
    };
    let found = match presented {
        Ok(presented) => state.authenticator.authenticate(presented).await,
        Err(malformed) => Err(malformed),
    };
    if let (Some(client), Err(auth::Error::Invalid)) = (client, &found) {
        limit.count(client);
    }
    drop(permit);
    Ok(found?)
}

/// The error of an address over its failed-authentication limit.
fn too_many_wrong(retry_after: Duration) -> Error {
    Error::LimitExceeded {
        policies: vec!["wrong-credentials"],
        retry_after,
    }
}

fn anonymous(AnonymousScopes(scopes): AnonymousScopes) -> Result<Caller, Error> {
    if scopes == Scopes::default() {
        return Err(Error::Unauthenticated);
    }
    Ok(Caller::anonymous(scopes))
}
