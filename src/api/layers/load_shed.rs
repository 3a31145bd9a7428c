//! Bounds the number of requests in progress.

use std::sync::Arc;

use axum::{
    body::HttpBody as _,
    extract::{MatchedPath, Request},
    http::header,
    response::Response,
};
use futures_util::future::Either;

use super::{Inner, LayerFuture, Middleware, OnResponse, Then, counted_body::counted, respond};
use crate::{
    api::{
        access::AccessRules, credentials::API_KEY, error::Error, request_context::RequestContext,
        state::ConcurrencyLimits,
    },
    db::deadline::{self, Scope},
    domain::address::AddressKey,
    limits::shares::{Exhausted, Share, Shares},
};

/// Layer that responds with 503 at once when all permits are in use: a queue would only make all requests late. The
/// database waits of a request share one deadline.
#[derive(Debug, Clone)]
pub struct LoadShedLayer {
    /// The permits.
    pub limits: Arc<ConcurrencyLimits>,
    /// Tells the operations that need no credential: a header makes no difference to them.
    pub access: Arc<AccessRules>,
}

impl_layer!(LoadShedLayer);

impl Middleware for LoadShedLayer {
    type Future<S: Inner> = LayerFuture<Then<Scope<S::Future>, RequestPermit>>;

    fn call<S: Inner>(&self, inner: &mut S, request: Request) -> Self::Future<S> {
        let context = RequestContext::of(&request);
        let headers = request.headers();
        let has_credentials =
            headers.contains_key(API_KEY) || headers.contains_key(header::AUTHORIZATION);
        let route = request.extensions().get().map(MatchedPath::as_str);
        let needed = route.and_then(|route| self.access.needed_scopes(request.method(), route));
        if let Some(needed) = needed {
            let _ = context.needed_scopes.set(needed);
        }
        let is_anonymous = needed.is_none() || !has_credentials;
        let has_body = !request.body().is_end_stream();
        let (permit, arriving) = match self.admit(context.client_address(), is_anonymous, has_body)
        {
            Ok(admitted) => admitted,
            Err(exhausted) => return respond(Error::from(exhausted)),
        };
        let request = match arriving {
            Some(share) => request.map(|body| counted(body, share)),
            None => request,
        };
        Either::Left(Then {
            inner: deadline::scope(inner.call(request)),
            then: Some(permit),
        })
    }
}

impl LoadShedLayer {
    /// Takes the permit of a request and, if it has a body, a share to hold until its bytes are read.
    fn admit(
        &self,
        address: Option<AddressKey>,
        is_anonymous: bool,
        has_body: bool,
    ) -> Result<(RequestPermit, Option<Share>), Exhausted> {
        let (limits, take) = (&self.limits, |shares: &Shares| shares.take(address, 1));
        let take_if = |is_needed: bool, shares| is_needed.then(|| take(shares)).transpose();
        let permit = RequestPermit {
            _without_credentials: take_if(is_anonymous, &limits.without_credentials)?,
            _request: take(&limits.requests)?,
        };
        Ok((permit, take_if(has_body, &limits.arriving)?))
    }
}

/// Permit of a request, held until the response head.
#[derive(Debug)]
pub struct RequestPermit {
    _without_credentials: Option<Share>,
    _request: Share,
}

impl OnResponse for RequestPermit {
    /// Returns the permit: what is being sent is bounded by the memory of responses.
    fn on_response(self, response: Response) -> Response {
        response
    }
}
