//! Bounds the memory of responses that are being sent.

use axum::{
    body::HttpBody as _,
    http::header,
    response::{IntoResponse, Response},
};

use super::{Incoming, Middleware, Next, counted_body::counted};
use crate::{
    api::{error::Error, request_context::RequestContext},
    domain::address::AddressKey,
    limits::{resources::ConcurrencyLimits, shares::Share},
};

/// Maximum size in bytes of a response that is not counted: the kernel takes it at once.
const MAX_UNCOUNTED: usize = 16 << 10;
/// Bytes counted before a change is made, for its response: most are smaller.
const OF_A_CHANGE: usize = 32 << 10;
/// Bytes counted for a streamed list: three of the largest pets, of nearly 1 MiB, or five parts of 256 KiB.
pub(super) const STREAMED_LIST: usize = 3 << 20;

/// Extension of a response that is compressed while it is sent: the memory in bytes of its encoder and of its source.
#[derive(Debug, Clone, Copy)]
pub(super) struct CompressedWhileSent(pub usize);

/// Counts the response of an operation until the client has been sent all of it. When the memory is in use, the response is
/// 503. Requests that will need memory are refused before they cause any work; after a change, that leaves only large
/// responses.
#[derive(Debug)]
pub struct ResponseMemory {
    /// The memory.
    pub limits: ConcurrencyLimits,
}

impl Middleware for ResponseMemory {
    async fn call(&self, request: Incoming<'_>, next: &impl Next) -> Response {
        let context = RequestContext::of(&request);
        if !context.facts.is_operation() {
            return next.call(request).await;
        }
        let address = context.client_address();
        let mut reserved = None;
        if !request.method().is_safe() {
            match self.limits.responses.take(address, OF_A_CHANGE) {
                Ok(share) => reserved = Some(share),
                Err(exhausted) => return Error::from(exhausted).into_response(),
            }
        }
        let response = next.call(request).await;
        self.count(response, address, reserved)
    }
}

impl ResponseMemory {
    /// Counts a response of a client, for which a share may have been taken before.
    fn count(
        &self,
        response: Response,
        address: Option<AddressKey>,
        reserved: Option<Share>,
    ) -> Response {
        let size = response.body().size_hint().exact();
        let size = size.map(|size| usize::try_from(size).unwrap_or(usize::MAX));
        if size.is_some_and(|size| size <= MAX_UNCOUNTED) {
            return response;
        }
        let content_type = response.headers().get(header::CONTENT_TYPE);
        // A stream holds no response, and has a bound of its own.
        if content_type.is_some_and(|it| it == "text/event-stream") {
            return response;
        }
        let is_image = content_type.is_some_and(|it| it.as_bytes().starts_with(b"image/"));
        let compressed = response.extensions().get::<CompressedWhileSent>();
        let amount = compressed.map(|it| it.0).or(size);
        let amount = amount.unwrap_or(STREAMED_LIST);
        let share = match reserved {
            _ if is_image => {
                let length = content_length(&response).unwrap_or(u64::MAX);
                self.limits.take_for_image(address, length)
            }
            Some(mut share) => share.grow_to(amount).map(|()| share),
            None => self.limits.responses.take(address, amount),
        };
        match share {
            Ok(share) => response.map(|body| counted(body, share)),
            Err(exhausted) => Error::from(exhausted).into_response(),
        }
    }
}

fn content_length(response: &Response) -> Option<u64> {
    let length = response.headers().get(header::CONTENT_LENGTH)?;
    length.to_str().ok()?.parse().ok()
}
