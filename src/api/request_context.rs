//! State of a request that its layers and its handler share, and its id, which identifies it in the log, in its response and in
//! error bodies.

use std::{
    cell::RefCell,
    net::IpAddr,
    ops::Deref,
    sync::{Arc, OnceLock},
};

use axum::{
    extract::{FromRequestParts, Request},
    http::{HeaderMap, HeaderName, HeaderValue, request::Parts},
};

use super::{error::Error, idempotency::Idempotency, operations::Facts};
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

/// Header of the request id.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Request id: 1–64 characters of `[A-Za-z0-9._-]`.
#[derive(Debug, Clone)]
pub struct RequestId(HeaderValue);

impl RequestId {
    /// Returns the id that the client sent, so that it finds its request in the log, or a new one if that is invalid.
    pub fn of(headers: &HeaderMap) -> Self {
        let sent = headers.get(X_REQUEST_ID).filter(|id| {
            let mut bytes = id.as_bytes().iter();
            (1..=64).contains(&id.len())
                && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(byte))
        });
        Self(sent.cloned().unwrap_or_else(random_id))
    }

    /// Returns the id as a header value.
    pub fn header(&self) -> HeaderValue {
        self.0.clone()
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }
}

/// Returns a new id of 128 random bits, unique across replicas.
pub fn random_id() -> HeaderValue {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [0; 32];
    for (digits, byte) in text.chunks_exact_mut(2).zip(random_bits()) {
        digits[0] = DIGITS[usize::from(byte >> 4)];
        digits[1] = DIGITS[usize::from(byte & 15)];
    }
    HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static("none"))
}

/// Returns bits that are drawn for 64 ids at a time: the system call costs more than the rest of an id.
fn random_bits() -> [u8; 16] {
    thread_local! {
        static DRAWN: RefCell<(usize, [u8; 1024])> = const { RefCell::new((1024, [0; 1024])) };
    }
    DRAWN.with_borrow_mut(|(at, drawn)| {
        if *at == drawn.len() {
            // If this fails, the ids are useless, but the requests need not fail.
            let _ = getrandom::fill(drawn);
            *at = 0;
        }
        let mut bits = [0; 16];
        bits.copy_from_slice(&drawn[*at..*at + 16]);
        *at += 16;
        bits
    })
}
