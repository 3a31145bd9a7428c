//! State of a request that its layers and its handler share.

use std::{
    net::IpAddr,
    ops::Deref,
    sync::{Arc, OnceLock},
};

use axum::{
    extract::{FromRequestParts, Request},
    http::request::Parts,
};

use super::{error::Error, idempotency::Idempotency, operations::Facts, request_id::RequestId};
use crate::domain::{
    address::AddressKey,
    caller::{Caller, CallerKey},
    change::Initiator,
    limit::LimitStatus,
};

/// The only extension of a request, apart from those of the server and the router. Clones share what layers set, so that
/// outer ones see what inner ones set.
#[derive(Debug, Clone)]
pub struct RequestContext(Arc<Fields>);

/// Fields of a [`RequestContext`]. Those that are set later are set once at most, by a layer.
#[derive(Debug)]
pub struct Fields {
    /// Request id.
    pub id: RequestId,
    /// Facts of the operation.
    pub facts: Facts,
    /// Client address, if the request came through a socket.
    pub client: Option<IpAddr>,
    /// Caller, once authenticated.
    pub caller: OnceLock<Arc<Caller>>,
    /// State of the limits of a caller on a limited plan.
    pub limit_status: OnceLock<LimitStatus>,
    /// Idempotency key, if the request has one.
    pub idempotency: OnceLock<Idempotency>,
}

impl Deref for RequestContext {
    type Target = Fields;

    fn deref(&self) -> &Fields {
        &self.0
    }
}

impl RequestContext {
    /// Creates the context of a request.
    pub fn new(id: RequestId, facts: Facts, client: Option<IpAddr>) -> Self {
        Self(Arc::new(Fields {
            id,
            facts,
            client,
            caller: OnceLock::new(),
            limit_status: OnceLock::new(),
            idempotency: OnceLock::new(),
        }))
    }

    /// Returns the context of a request.
    ///
    /// # Panics
    /// If the outermost layer did not create one: without it, inner layers would not know the caller.
    #[expect(clippy::expect_used, reason = "a bug: every router has the layer")]
    pub fn of(request: &Request) -> &Self {
        let context = request.extensions().get::<Self>();
        context.expect("CreateContext is the outermost layer")
    }

    /// Returns the key of the client address, if known.
    pub fn client_address(&self) -> Option<AddressKey> {
        self.client.map(AddressKey::from)
    }

    /// Returns the key under which the caller's use is stored. That of an unauthenticated client is its address.
    pub fn caller_key(&self) -> CallerKey {
        let address = self.client_address();
        let caller = (self.caller.get()).map(|caller| CallerKey::new(caller, address));
        caller.unwrap_or(CallerKey::Anonymous(address))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for RequestContext {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        let context = parts.extensions.get().cloned();
        context.ok_or_else(|| Error::internal("a request without a context"))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Idempotency {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        let context = parts.extensions.get::<RequestContext>();
        let idempotency = context.and_then(|context| context.idempotency.get());
        Ok(idempotency.cloned().unwrap_or_default())
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Initiator {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Error> {
        let context = RequestContext::from_request_parts(parts, state).await?;
        // An anonymous caller has no identifier.
        let caller = context.caller.get().filter(|caller| caller.id.is_some());
        Ok(Self {
            actor: caller.map(|caller| caller.name.clone()),
            request_id: Some(context.id.as_str().to_owned()),
        })
    }
}

/// The caller of an operation that needs one.
#[derive(Debug)]
pub struct CurrentCaller(pub Arc<Caller>);

impl<S: Send + Sync> FromRequestParts<S> for CurrentCaller {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        let context = parts.extensions.get::<RequestContext>();
        let caller = context.and_then(|context| context.caller.get());
        caller.cloned().map(Self).ok_or(Error::Unauthenticated)
    }
}
