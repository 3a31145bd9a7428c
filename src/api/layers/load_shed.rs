//! Bounds the number of requests in progress.

use std::mem;

use axum::{
    body::{Body, HttpBody as _},
    http::header,
    response::{IntoResponse, Response},
};
use http_body_util::BodyExt as _;

use super::{Incoming, Middleware, Next};
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
    async fn call(&self, mut request: Incoming<'_>, next: &impl Next) -> Response {
        let context = RequestContext::of(&request);
        if !context.facts.is_operation() {
            return next.call(request).await;
        }
        let headers = request.headers();
        let has_credentials =
            headers.contains_key(API_KEY) || headers.contains_key(header::AUTHORIZATION);
        // To operations that need no credential, a header makes no difference.
        let is_anonymous = context.facts.needed_scopes.is_none() || !has_credentials;
        let has_body = !request.body().is_end_stream();
        let admitted = self.admit(context.client_address(), is_anonymous, has_body);
        let (permit, arriving) = match admitted {
            Ok(admitted) => admitted,
            Err(exhausted) => return Error::from(exhausted).into_response(),
        };
        if let Some(share) = arriving {
            let body = mem::take(request.body_mut());
            // The function holds the share until the body is dropped, because it has been read.
            let counted = body.map_err(move |error| {
                let _ = &share;
                error
            });
            *request.body_mut() = Body::new(counted);
        }
        let response = next.call(request).await;
        // Until the response head: what is being sent has bounds of its own.
        drop(permit);
        response
    }
}

impl LoadShed {
    /// Takes the permits of a request and, if it has a body, a share to hold until its bytes are read.
    fn admit(
        &self,
        address: Option<AddressKey>,
        is_anonymous: bool,
        has_body: bool,
    ) -> Result<(RequestPermits, Option<Share>), Exhausted> {
        let (limits, take) = (&self.limits, |shares: &Shares| shares.take(address, 1));
        let take_if = |is_needed: bool, shares| is_needed.then(|| take(shares)).transpose();
        let anonymous = take_if(is_anonymous, &limits.without_credentials)?;
        let permits = (anonymous, take(&limits.requests)?);
        Ok((permits, take_if(has_body, &limits.arriving)?))
    }
}

/// Permits of a request: one of those without credentials, unless it has some, and one of all.
type RequestPermits = (Option<Share>, Share);
