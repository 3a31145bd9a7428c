//! Reads the credentials of a request from its headers. Credentials in the query are never read.

use axum::http::{HeaderMap, HeaderName, header};

use crate::auth::{self, Credentials};

/// API key header, as in Petstore. Proxies may drop a name with an underscore: nginx needs `underscores_in_headers on`.
pub const API_KEY: HeaderName = HeaderName::from_static("api_key");

/// Returns the credentials of a request, or `None` if it has none. An empty one counts as absent: generated clients send it for a way
/// to authenticate that was not configured. Rejects a repeated header, which is ambiguous, a header that is not text, and an
/// `Authorization` with another scheme than `Bearer`.
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
    let bearer = bearer.map(|token| token.filter(|token| !token.is_empty()));
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
    let bearer = bearer.map_err(|error| attribute(error, &API_KEY, auth::Error::InvalidBearer))?;
    Ok(match (api_key, bearer) {
        (None, None) => None,
        (Some(api_key), None) => Some(Credentials::ApiKey(api_key)),
        (None, Some(bearer)) => Some(Credentials::Bearer(bearer)),
        (Some(api_key), Some(bearer)) => Some(Credentials::Both { api_key, bearer }),
    })
}

/// Returns the token of an `Authorization` value (RFC 6750 §2.1), which may be empty. The scheme is case-insensitive (RFC 9110
/// §11.1).
fn bearer_token(authorization: &str) -> Option<&str> {
    let (scheme, token) = authorization.split_once(' ').unwrap_or((authorization, ""));
    let is_bearer = scheme.is_empty() || scheme.eq_ignore_ascii_case("Bearer");
    is_bearer.then(|| token.trim_ascii())
}
