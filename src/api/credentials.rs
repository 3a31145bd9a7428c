//! Reads the credentials of a request from its headers, and finds its caller. Credentials in the query are never read.

use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, header};

use super::{error::Error, state::AppState};
use crate::{
    auth::{self, Credentials},
    domain::{
        address::AddressKey,
        caller::{Caller, Scopes},
        plan::Plan,
    },
};

/// API key header, as in Petstore. Proxies may drop a name with an underscore: nginx needs `underscores_in_headers on`.
pub const API_KEY: HeaderName = HeaderName::from_static("api_key");

/// Returns the credentials of a request, or `None` if it has none. An empty one counts as absent: generated clients send it for a way
/// to authenticate that was not configured. Rejects a repeated header, which is ambiguous, and a header that is not text. An
/// `Authorization` with another scheme than `Bearer`, such as that of a proxy with a password, is rejected if it is alone.
pub fn credentials(headers: &HeaderMap) -> Result<Option<Credentials<'_>>, auth::Error> {
    let once = |name: &HeaderName| {
        let mut values = headers.get_all(name).iter();
        match (values.next(), values.next()) {
            (_, Some(_)) => Err(auth::Error::Invalid),
            (value, None) => {
                let text = value.map(|value| std::str::from_utf8(value.as_bytes()));
                text.transpose().map_err(|_| auth::Error::Invalid)
            }
        }
    };
    let authorization = once(&header::AUTHORIZATION);
    let attribute = |error: auth::Error, other: &HeaderName, which| {
        let has_both = headers.contains_key(other);
        if has_both {
            error.attribute_to(which)
        } else {
            error
        }
    };
    let api_key = once(&API_KEY)
        .map_err(|error| attribute(error, &header::AUTHORIZATION, auth::Error::InvalidApiKey))?;
    let api_key = api_key.filter(|key| !key.is_empty());
    let authorization =
        authorization.map_err(|error| attribute(error, &API_KEY, auth::Error::InvalidBearer))?;
    let bearer = match authorization.map(bearer_token) {
        Some(None) if api_key.is_none() => return Err(auth::Error::Invalid),
        token => token.flatten().filter(|token| !token.is_empty()),
    };
    Ok(match (api_key, bearer) {
        (None, None) => None,
        (Some(api_key), None) => Some(Credentials::ApiKey(api_key)),
        (None, Some(bearer)) => Some(Credentials::Bearer(bearer)),
        (Some(api_key), Some(bearer)) => Some(Credentials::Both { api_key, bearer }),
    })
}

/// Returns true if a credential of a request is one of the demo keys.
pub fn has_demo_key(headers: &HeaderMap, demo_keys: &[(&str, Plan)]) -> bool {
    let is_demo = |key: &str| demo_keys.iter().any(|(demo, _)| *demo == key);
    match credentials(headers) {
        Ok(Some(Credentials::ApiKey(key) | Credentials::Bearer(key))) => is_demo(key),
        Ok(Some(Credentials::Both { api_key, bearer })) => is_demo(api_key) || is_demo(bearer),
        Ok(None) | Err(_) => false,
    }
}

/// Returns the token of an `Authorization` value (RFC 6750 §2.1), which may be empty. The scheme is case-insensitive (RFC 9110
/// §11.1).
fn bearer_token(authorization: &str) -> Option<&str> {
    let (scheme, token) = authorization.split_once(' ').unwrap_or((authorization, ""));
    let is_bearer = scheme.is_empty() || scheme.eq_ignore_ascii_case("Bearer");
    is_bearer.then(|| token.trim_ascii())
}

/// Returns the caller with the credentials of a request, or the anonymous one.
pub async fn find_caller(
    state: &AppState,
    headers: &HeaderMap,
    client: Option<AddressKey>,
) -> Result<Arc<Caller>, Error> {
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
