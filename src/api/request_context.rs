//! State of a request that its layers and its handler share.

use std::sync::{Arc, OnceLock};

use axum::{
    extract::{FromRequestParts, Request},
    http::request::Parts,
};

use super::{access::Access, error::Error, idempotency::Idempotency, request_id::RequestId};
use crate::domain::{
    address::AddressKey,
    caller::{Caller, CallerKey},
    limit::LimitStatus,
};

/// The only extension of a request, apart from those of the server and the router. Each field is set by the layer of its
/// name. Clones share the fields, so that outer layers see what inner ones set.
#[derive(Debug, Clone)]
pub struct RequestContext(Arc<Fields>);

/// Fields of a [`RequestContext`].
#[derive(Debug)]
struct Fields {
    id: RequestId,
    client_address: OnceLock<AddressKey>,
    caller: OnceLock<Arc<Caller>>,
    access: OnceLock<Access>,
    limit_status: OnceLock<LimitStatus>,
    idempotency: OnceLock<Idempotency>,
}

impl RequestContext {
    /// Creates the context of a request with this id.
    #[must_use]
    pub fn new(id: RequestId) -> Self {
        Self(Arc::new(Fields {
            id,
            client_address: OnceLock::new(),
            caller: OnceLock::new(),
            access: OnceLock::new(),
            limit_status: OnceLock::new(),
            idempotency: OnceLock::new(),
        }))
    }

    /// Returns the context of a request.
    ///
    /// # Panics
    /// If the outermost layer did not create one: without it, inner layers would not know the caller.
    #[must_use]
    #[expect(clippy::expect_used, reason = "a bug: every router has the layer")]
    pub fn of(request: &Request) -> &Self {
        let context = request.extensions().get::<Self>();
        context.expect("RequestSpanLayer is the outermost layer")
    }

    /// Request id.
    #[must_use]
    pub fn id(&self) -> &RequestId {
        &self.0.id
    }

    /// Client address, if known.
    #[must_use]
    pub fn client_address(&self) -> Option<AddressKey> {
        self.0.client_address.get().copied()
    }

    /// Sets the client address.
    pub fn set_client_address(&self, address: AddressKey) {
        let _ = self.0.client_address.set(address);
    }

    /// Caller, once authenticated.
    #[must_use]
    pub fn caller(&self) -> Option<&Arc<Caller>> {
        self.0.caller.get()
    }

    /// Sets the caller.
    pub fn set_caller(&self, caller: Arc<Caller>) {
        let _ = self.0.caller.set(caller);
    }

    /// Key under which the caller's use is stored. The key of an unauthenticated client is its address.
    #[must_use]
    pub fn caller_key(&self) -> CallerKey {
        let address = self.client_address();
        self.caller()
            .map_or(CallerKey::Anonymous(address), |caller| {
                CallerKey::new(caller, address)
            })
    }

    /// Access rule of the operation; `None` if there is no such operation.
    #[must_use]
    pub fn access(&self) -> Option<Access> {
        self.0.access.get().copied()
    }

    /// Sets the access rule.
    pub fn set_access(&self, access: Access) {
        let _ = self.0.access.set(access);
    }

    /// State of the limits of a caller on a limited plan.
    #[must_use]
    pub fn limit_status(&self) -> LimitStatus {
        self.0.limit_status.get().copied().unwrap_or_default()
    }

    /// Sets the state of the caller's limits.
    pub fn set_limit_status(&self, status: LimitStatus) {
        let _ = self.0.limit_status.set(status);
    }

    /// Idempotency key of the request, if it has one.
    #[must_use]
    pub fn idempotency(&self) -> Idempotency {
        self.0.idempotency.get().cloned().unwrap_or_default()
    }

    /// Sets the idempotency key.
    pub fn set_idempotency(&self, idempotency: Idempotency) {
        let _ = self.0.idempotency.set(idempotency);
    }
}

impl<S: Send + Sync> FromRequestParts<S> for RequestContext {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        let context = parts.extensions.get().cloned();
        context.ok_or_else(|| Error::Internal("a request without a context".into()))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Idempotency {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        let context = parts.extensions.get::<RequestContext>();
        Ok(context.map(RequestContext::idempotency).unwrap_or_default())
    }
}

/// The caller of an operation that needs one.
#[derive(Debug)]
pub struct CurrentCaller(pub Arc<Caller>);

impl<S: Send + Sync> FromRequestParts<S> for CurrentCaller {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Error> {
        let context = RequestContext::from_request_parts(parts, state).await?;
        let caller = context.caller().cloned();
        caller.map(Self).ok_or(Error::Unauthenticated)
    }
}
