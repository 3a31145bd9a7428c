//! Checks the caller's scopes.
//!
//! Inside the rate limit: a refused request counts as a request of its caller.

use axum::extract::Request;

use crate::api::{access::Access, error::Error, request_context::RequestContext};

/// Checks that the caller has the scopes that the operation needs.
///
/// # Errors
/// [`Error::Forbidden`].
pub fn authorize(request: &Request) -> Result<(), Error> {
    let context = RequestContext::of(request);
    let Some(Access::Needs(needed)) = context.access() else {
        return Ok(());
    };
    let caller = context.caller().ok_or(Error::Unauthenticated)?;
    match needed.iter().find(|scope| !caller.scopes.contains(*scope)) {
        Some(missing) => Err(Error::Forbidden { needed, missing }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, http::HeaderMap};

    use super::*;
    use crate::{
        api::request_id::RequestId,
        domain::caller::{Caller, Scope, Scopes},
    };

    #[test]
    fn caller_needs_all_scopes_of_the_operation() {
        let ask = |access: Option<Access>, scopes: Option<Scopes>| {
            let context = RequestContext::new(RequestId::of(&HeaderMap::new()));
            if let Some(access) = access {
                context.set_access(access);
            }
            if let Some(scopes) = scopes {
                context.set_caller(Caller::anonymous(scopes).into());
            }
            let mut request = Request::new(Body::empty());
            request.extensions_mut().insert(context);
            authorize(&request)
        };
        let read: Scopes = [Scope::ReadPets].into_iter().collect();
        let needs = Some(Access::Needs(read));
        assert!(ask(None, None).is_ok());
        assert!(ask(Some(Access::Public), None).is_ok());
        assert!(ask(needs, Some(read)).is_ok());
        assert!(matches!(ask(needs, None), Err(Error::Unauthenticated)));
        let other = Some(Scopes::default());
        assert!(matches!(ask(needs, other), Err(Error::Forbidden { .. })));
    }
}
