//! Checks the caller's scopes.
//!
//! Inside the rate limit: a refused request counts as a request of its caller.

use axum::extract::Request;

use crate::api::{error::Error, request_context::RequestContext};

/// Checks that the caller has the scopes that the operation needs.
pub fn authorize(request: &Request) -> Result<(), Error> {
    let context = RequestContext::of(request);
    let Some(&needed) = context.needed_scopes.get() else {
        return Ok(());
    };
    let caller = context.caller.get().ok_or(Error::Unauthenticated)?;
    match needed.iter().find(|scope| !caller.scopes.contains(*scope)) {
        Some(missing) => Err(Error::Forbidden { needed, missing }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::layers::testing::request_of,
        domain::{
            caller::{Caller, Scope, Scopes},
            plan::Plan,
        },
    };

    #[test]
    fn caller_needs_all_scopes_of_the_operation() {
        let ask = |needed: Option<Scopes>, scopes: Option<Scopes>| {
            let request = request_of(None);
            let context = RequestContext::of(&request);
            let _ = needed.map(|needed| context.needed_scopes.set(needed));
            let _ = scopes.map(|scopes| {
                context
                    .caller
                    .set(Caller::anonymous(scopes, Plan::Free).into())
            });
            authorize(&request)
        };
        let read: Option<Scopes> = Some([Scope::ReadPets].into_iter().collect());
        assert!(ask(None, None).is_ok());
        assert!(ask(read, read).is_ok());
        assert!(matches!(ask(read, None), Err(Error::Unauthenticated)));
        let none = Some(Scopes::default());
        assert!(matches!(ask(read, none), Err(Error::Forbidden { .. })));
    }
}
