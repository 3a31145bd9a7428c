//! Reads the credentials of a request from its headers. Credentials in the query are never read.

use axum::http::{HeaderMap, HeaderName, header, request::Parts};

use super::{error::Error, request_context::RequestContext};
use crate::auth::{self, Authenticator, Credentials};

/// API key header, as in Petstore. Proxies may drop a name with an underscore: nginx needs `underscores_in_headers on`.
pub const API_KEY: HeaderName = HeaderName::from_static("api_key");

/// Returns the credentials of a request, or `None` if it has none. Rejects a repeated header, which is ambiguous, a header
/// that is not text, and an `Authorization` with another scheme than `Bearer`.
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
    let bearer = once(&header::AUTHORIZATION).and_then(|value| {
        let token = value.map(|value| bearer_token(value).ok_or(auth::Error::Invalid));
        token.transpose()
    });
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
    let bearer = bearer.map_err(|error| attribute(error, &API_KEY, auth::Error::InvalidBearer))?;
    Ok(match (api_key, bearer) {
        (None, None) => None,
        (Some(api_key), None) => Some(Credentials::ApiKey(api_key)),
        (None, Some(bearer)) => Some(Credentials::Bearer(bearer)),
        (Some(api_key), Some(bearer)) => Some(Credentials::Both { api_key, bearer }),
    })
}

/// Looks up the credential of a request again if it was accepted while PostgreSQL was unreachable. To be called between
/// the end of the body, which may take minutes to arrive, and a change or the replay of its response. Fails if the caller
/// is no longer the same, or if PostgreSQL is still unreachable: it may be back for the change.
pub async fn recheck_stale(parts: &Parts, authenticator: &Authenticator) -> Result<(), Error> {
    let Some(context) = parts.extensions.get::<RequestContext>() else {
        return Ok(());
    };
    if context.has_stale_credential.get().is_none() {
        return Ok(());
    }
    let credentials = credentials(&parts.headers)?.ok_or(Error::Unauthenticated)?;
    let caller = authenticator.authenticate_again(credentials).await?;
    let is_same = context.caller.get() == Some(&caller);
    is_same.then_some(()).ok_or(auth::Error::Invalid.into())
}

/// Returns the token of an `Authorization` value (RFC 6750 §2.1). The scheme is case-insensitive (RFC 9110 §11.1).
fn bearer_token(authorization: &str) -> Option<&str> {
    let (scheme, token) = authorization.split_at_checked("Bearer ".len())?;
    scheme
        .eq_ignore_ascii_case("Bearer ")
        .then(|| token.trim_ascii())
}
