//! Bounds the number of requests in progress.

use std::sync::Arc;

use axum::{body::HttpBody as _, extract::Request, http::header};
use futures_util::{FutureExt as _, future::Either};

use super::{Middleware, Next, Reply, counted_body::counted, respond};
use crate::{
    api::{credentials::API_KEY, error::Error, request_context::RequestContext},
    domain::address::AddressKey,
    limits::{
        resources::ConcurrencyLimits,
        shares::{Exhausted, Share, Shares},
    },
};

/// Responds with 503 at once when all permits are in use: a queue would only make all requests late.
#[derive(Debug)]
pub struct LoadShed {
    /// The permits.
    pub limits: ConcurrencyLimits,
}

impl Middleware for LoadShed {
    fn call<N: Next>(self: &Arc<Self>, request: Request, next: &N) -> impl Reply + use<N> {
        let context = RequestContext::of(&request);
        if !context.facts.is_operation() {
            return Either::Left(Either::Left(next.call(request)));
        }
        let headers = request.headers();
        let has_credentials =
            headers.contains_key(API_KEY) || headers.contains_key(header::AUTHORIZATION);
        // To operations that need no credential, a header makes no difference.
        let is_anonymous = context.facts.needed_scopes.is_none() || !has_credentials;
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
        // Until the response head: what is being sent is bounded by the memory of responses.
        let response = next.call(request).map(move |response| {
            drop(permit);
            response
        });
        Either::Left(Either::Right(response))
    }
}

impl LoadShed {
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

/// Permit of a request.
#[derive(Debug)]
struct RequestPermit {
    _without_credentials: Option<Share>,
    _request: Share,
}
