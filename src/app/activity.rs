//! Whether anything happens on an HTTP/2 connection: its client can hold answers back, and the connection
//! open, without the socket ever standing still.
//!
//! Invariant: a connection on which nothing is asked, worked on or taken is noticed within its time.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use axum::body::{Body, Bytes, HttpBody};
use http_body::{Frame, SizeHint};

/// What happened last on a connection. Clones share it.
#[derive(Debug, Clone)]
pub struct Activity(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    opened: Instant,
    /// When something happened last, in milliseconds after that.
    last: AtomicU64,
    /// Requests that we work on; they have time limits of their own.
    in_work: AtomicUsize,
}

impl Activity {
    /// Of a connection that was just opened.
    pub fn new() -> Self {
        Self(Arc::new(Shared {
            opened: Instant::now(),
            last: AtomicU64::new(0),
            in_work: AtomicUsize::new(0),
        }))
    }

    /// Waits until nothing has happened for so long.
    pub async fn ceased(&self, timeout: Duration) {
        loop {
            let last = Duration::from_millis(self.0.last.load(Ordering::Relaxed));
            let quiet = self.0.opened.elapsed().saturating_sub(last);
            let left = match self.0.in_work.load(Ordering::Relaxed) {
                0 => timeout.saturating_sub(quiet),
                _ => timeout,
            };
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left).await;
        }
    }

    /// Notes that a request came; it is in work until what this gives is dropped.
    pub fn begin(&self) -> InWork {
        self.touch();
        self.0.in_work.fetch_add(1, Ordering::Relaxed);
        InWork(self.clone())
    }

    /// An answer's body; each part that is taken of it counts.
    pub fn follow(&self, body: Body) -> Body {
        Body::new(Followed {
            body,
            rest: Bytes::new(),
            activity: self.clone(),
        })
    }

    fn touch(&self) {
        let now = u64::try_from(self.0.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.last.store(now, Ordering::Relaxed);
    }
}

/// A request in work, until it is dropped.
#[derive(Debug)]
pub struct InWork(Activity);

impl Drop for InWork {
    fn drop(&mut self) {
        self.0.touch();
        self.0.0.in_work.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Followed {
    body: Body,
    /// What is left of the data that came last.
    rest: Bytes,
    activity: Activity,
}

/// Data goes on in pieces of this size at most: of what it is given whole nobody sees how far it has got.
const PIECE: usize = 16 << 10;

impl HttpBody for Followed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.activity.touch();
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
                end => return Poll::Ready(end),
            }
        }
        let length = self.rest.len().min(PIECE);
        let piece = self.rest.split_to(length);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (body, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut both = SizeHint::new();
        both.set_lower(body.lower() + rest);
        if let Some(upper) = body.upper() {
            both.set_upper(upper + rest);
        }
        both
    }
}
