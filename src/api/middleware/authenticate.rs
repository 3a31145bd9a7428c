//! From the headers of a request to its [`Caller`], and whether that caller may do what it asks.
//!
//! Invariant: behind this layer every operation that needs a caller has one, in the request's
//! extensions, with the scopes that the operation needs. A credential in the query is never read.

use std::sync::Arc;

use axum::{
    extract::{FromRequestParts, MatchedPath, Request, State},
    http::{HeaderMap, HeaderName, header, request::Parts},
    middleware::Next,
    response::Response,
};

use super::observe::CallerLabel;
use crate::{
    api::{
        access::{Access, AccessRules},
        error::Error,
        state::{AnonymousScopes, AppState},
    },
    auth::Presented,
    domain::caller::{Caller, Scopes},
};

/// The header of the interface document, §5. Proxies may drop a name with an underscore: nginx needs
/// `underscores_in_headers on`.
pub const API_KEY: HeaderName = HeaderName::from_static("api_key");

/// Lets a request through to its operation when its caller may use it.
pub async fn authenticate(
    State(state): State<AppState>,
    mut request: Request,
    next: Next,
) -> Result<Response, Error> {
    let Some(Access::Needs(needed)) = access(&state.access, &request) else {
        // Public, or no operation at all: the router answers that with 404 or 405.
        return Ok(next.run(request).await);
    };
    let caller = match state
        .authenticator
        .authenticate(presented(request.headers())?)
        .await?
    {
        Some(caller) => caller,
        None => anonymous(state.anonymous)?,
    };
    if let Some(missing) = needed.iter().find(|scope| !caller.scopes.contains(*scope)) {
        return Err(Error::Forbidden { needed, missing });
    }
    let label = CallerLabel(caller.name.to_string());
    request.extensions_mut().insert(caller);
    let mut response = next.run(request).await;
    response.extensions_mut().insert(label);
    Ok(response)
}

fn access(rules: &Arc<AccessRules>, request: &Request) -> Option<Access> {
    let route = request.extensions().get::<MatchedPath>()?;
    rules.find(request.method(), route.as_str())
}

fn anonymous(AnonymousScopes(scopes): AnonymousScopes) -> Result<Caller, Error> {
    if scopes == Scopes::default() {
        return Err(Error::Unauthenticated);
    }
    Ok(Caller::anonymous(scopes))
}

/// What the request shows. A header given twice is one credential too many to say whose request it is.
fn presented(headers: &HeaderMap) -> Result<Presented<'_>, Error> {
    let once = |name: &HeaderName| {
        let mut values = headers.get_all(name).iter();
        match (values.next(), values.next()) {
            (value, None) => Ok(value.map(|value| value.as_bytes())),
            _ => Err(Error::InvalidCredential),
        }
    };
    let bearer = once(&header::AUTHORIZATION)?
        .map(|value| bearer_token(value).ok_or(Error::InvalidCredential))
        .transpose()?;
    Ok(Presented {
        api_key: once(&API_KEY)?,
        bearer,
    })
}

/// RFC 6750 §2.1; the scheme's name in any case (RFC 9110 §11.1).
fn bearer_token(authorization: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = authorization.split_at_checked("Bearer ".len())?;
    scheme
        .eq_ignore_ascii_case(b"Bearer ")
        .then(|| token.trim_ascii())
}

/// The caller of an operation that needs one.
impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        parts
            .extensions
            .get::<Self>()
            .cloned()
            .ok_or_else(|| Error::Internal("an operation without its caller".into()))
    }
}
