//! The body of a request. Tells the connection when it has been read to its end.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

/// Body of a request.
#[derive(Debug)]
pub struct RequestBody {
    body: Incoming,
    is_unread: Arc<AtomicBool>,
}

impl RequestBody {
    /// Wraps the body. `is_unread` is true until its end has been read.
    pub(super) fn new(body: Incoming, is_unread: Arc<AtomicBool>) -> Self {
        is_unread.store(!body.is_end_stream(), Ordering::Relaxed);
        Self { body, is_unread }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if frame.is_none() || self.body.is_end_stream() {
            self.is_unread.store(false, Ordering::Relaxed);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
