//! Body that holds a share of a resource while any of it is in use.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use axum::body::{Body, Bytes, HttpBody};
use http_body::{Frame, SizeHint};

use crate::limits::shares::Share;

/// Returns a body that holds `share` until it and its bytes are dropped: those of a request have then been read, and those
/// of a response sent.
pub(super) fn counted(body: Body, share: Share) -> Body {
    let share = Arc::new(share);
    Body::new(CountedBody { body, share })
}

struct CountedBody {
    body: Body,
    share: Arc<Share>,
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context)?);
        let frame = frame.map(|frame| {
            frame.map_data(|bytes| {
                let share = Arc::clone(&self.share);
                Bytes::from_owner(CountedBytes {
                    bytes,
                    _share: share,
                })
            })
        });
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

struct CountedBytes {
    bytes: Bytes,
    _share: Arc<Share>,
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
