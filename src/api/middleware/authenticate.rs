//! From the headers of a request to its [`Caller`].
//!
//! Invariant: behind this layer every operation that needs a caller has one, in the request's
//! extensions. A credential in the query is never read.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{MatchedPath, Request, State},
    http::HeaderMap,
    middleware::Next,
    response::Response,
};

use super::observe::AnsweredTo;
use crate::{
    api::{
        access::{Access, AccessRules},
        error::Error,
        presented::presented,
        state::{AnonymousScopes, AppState},
    },
    auth,
    domain::caller::{Caller, Scopes},
    limits::address::AddressKey,
};

/// Finds the caller of a request whose operation needs one.
pub async fn authenticate(
    State(state): State<AppState>,
    mut request: Request,
    next: Next,
) -> Result<Response, Error> {
    if needed(&state.access, &request).is_none() {
        // Public, or no operation at all: the router answers that with 404 or 405.
        return Ok(next.run(request).await);
    }
    let client = request.extensions().get::<AddressKey>().copied();
    let caller = match caller(&state, request.headers(), client).await? {
        Some(caller) => caller,
        None => Arc::new(anonymous(state.anonymous)?),
    };
    request.extensions_mut().insert(Arc::clone(&caller));
    let mut response = next.run(request).await;
    response.extensions_mut().insert(AnsweredTo(caller));
    Ok(response)
}

/// The scopes that the operation of a request needs; `None` when it needs no caller.
pub fn needed(rules: &Arc<AccessRules>, request: &Request) -> Option<Scopes> {
    let route = request.extensions().get::<MatchedPath>()?;
    match rules.find(request.method(), route.as_str())? {
        Access::Public => None,
        Access::Needs(scopes) => Some(scopes),
    }
}

/// Whom the credentials of a request stand for. Wrong ones spend the budget of the address they come
/// from; once that is spent, none from there is looked at for a while but those we know to be good.
async fn caller(
    state: &AppState,
    headers: &HeaderMap,
    client: Option<AddressKey>,
) -> Result<Option<Arc<Caller>>, Error> {
    let presented = match presented(headers) {
        Ok(None) => return Ok(None),
        Ok(Some(presented)) => {
            if let Some(caller) = state.authenticator.recall(presented) {
                return Ok(Some(caller));
            }
            Ok(presented)
        }
        Err(malformed) => Err(malformed),
    };
    let budget = &state.wrong_credentials;
    let foreign = presented
        .as_ref()
        .is_ok_and(|presented| state.authenticator.is_foreign(*presented));
    let turn = match client {
        // A slow issuer must not take the turns of everybody else.
        Some(client) if foreign => {
            budget.listen_to(client).map_err(too_many_wrong)?;
            None
        }
        Some(client) => Some(budget.turn(client).await.map_err(too_many_wrong)?),
        None => None,
    };
    let found = match presented {
        Ok(presented) => state.authenticator.authenticate(presented).await,
        Err(malformed) => Err(malformed),
    };
    if let (Some(client), Err(auth::Error::Invalid)) = (client, &found) {
        budget.wrong(client);
    }
    drop(turn);
    Ok(Some(found?))
}

/// The answer to an address that has spent its budget of wrong credentials.
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
