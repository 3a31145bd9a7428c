//! The streams of an HTTP/2 connection: ends those that make too little progress, and notices when none of them makes any.
//!
//! hyper has no timeout for either: a client can hold responses back with a window of 0 or read them byte by byte, or keep
//! a connection without requests, for ever. Responses are cut into pieces, and each has to be sent in time. A stream ends
//! for hyper when its last piece is queued; here, when that is sent.

use std::{
    future::poll_fn,
    mem,
    pin::{Pin, pin},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, Bytes};
use futures_util::task::AtomicWaker;
use http_body::{Body, Frame, SizeHint};
use hyper::rt::Executor;
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};

use crate::{
    domain::address::AddressKey,
    limits::shares::{Share, Shares},
};

/// Maximum size of a piece of a response body in bytes.
const PIECE: usize = 16 << 10;

tokio::task_local! {
    /// State of the stream of this task.
    static STREAM: Arc<Stream>;
}

/// Streams of a connection. Clones share them.
#[derive(Debug, Clone)]
pub struct Streams(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    idle_timeout: Duration,
    /// Open streams of all connections, and the client address of this one.
    open: (Shares, Option<AddressKey>),
    opened: Instant,
    /// Time of the last progress, in milliseconds after `opened`.
    progress: AtomicU64,
    /// Requests without a response head, which have timeouts of their own.
    handled: AtomicUsize,
    stalled: Notify,
}

/// State of a stream.
#[derive(Debug, Default)]
struct Stream {
    /// Held until the response is sent.
    share: OnceLock<Share>,
    has_response: AtomicBool,
    queued_pieces: AtomicUsize,
    sent_pieces: AtomicUsize,
    /// Wakes the stream's task after a piece is sent.
    task: AtomicWaker,
}

impl Stream {
    fn is_sent(&self) -> bool {
        self.sent_pieces.load(Ordering::Acquire) == self.queued_pieces.load(Ordering::Relaxed)
    }
}

impl Streams {
    /// Streams of a new connection. After its response head, each one ends when no piece is sent for `idle_timeout`.
    /// They count as `open` streams of a client address.
    pub fn new(idle_timeout: Duration, open: (Shares, Option<AddressKey>)) -> Self {
        Self(Arc::new(Shared {
            idle_timeout,
            open,
            opened: Instant::now(),
            progress: AtomicU64::new(0),
            handled: AtomicUsize::new(0),
            stalled: Notify::new(),
        }))
    }

    /// Waits until the connection has a stream that made too little progress and can no longer be reset.
    pub async fn stalled(&self) {
        self.0.stalled.notified().await;
    }

    /// Waits until no request is being handled, and no stream has made progress for `idle_timeout`.
    pub async fn idle(&self) {
        let shared = &self.0;
        loop {
            let progress = Duration::from_millis(shared.progress.load(Ordering::Relaxed));
            let quiet = shared.opened.elapsed().saturating_sub(progress);
            let rest = match shared.handled.load(Ordering::Relaxed) {
                0 => shared.idle_timeout.saturating_sub(quiet),
                _ => shared.idle_timeout,
            };
            if rest.is_zero() {
                return;
            }
            sleep(rest).await;
        }
    }

    /// Counts a request as handled until the guard is dropped, or returns `None` if too many streams are open.
    pub fn handle(&self) -> Option<Handled> {
        let (open, address) = &self.0.open;
        let Ok(share) = open.take(*address, 1) else {
            metrics::counter!("http_server_refused_streams_total").increment(1);
            return None;
        };
        self.0.handled.fetch_add(1, Ordering::Relaxed);
        self.note_progress();
        Some(Handled {
            streams: self.clone(),
            share: Some(share),
        })
    }

    /// Divides a response body into pieces, and notes their progress.
    pub fn follow<B: Body + Unpin>(&self, body: B) -> Pieces<B> {
        Pieces {
            body,
            rest: Bytes::new(),
            is_long: false,
            streams: self.clone(),
            stream: STREAM.try_with(Arc::clone).unwrap_or_default(),
        }
    }

    fn note_progress(&self) {
        let now = u64::try_from(self.0.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.progress.store(now, Ordering::Relaxed);
    }
}

/// A request that is being handled.
pub struct Handled {
    streams: Streams,
    share: Option<Share>,
}

impl Drop for Handled {
    fn drop(&mut self) {
        self.streams.note_progress();
        self.streams.0.handled.fetch_sub(1, Ordering::Relaxed);
        let share = self.share.take();
        let _ = STREAM.try_with(|stream| {
            stream.has_response.store(true, Ordering::Relaxed);
            share.map(|share| stream.share.set(share))
        });
    }
}

impl<F> Executor<F> for Streams
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let streams = self.clone();
        let state = Arc::<Stream>::default();
        tokio::spawn(STREAM.scope(Arc::clone(&state), async move {
            let idle_timeout = streams.0.idle_timeout;
            // None after its end for hyper.
            let (mut stream, mut deadline) = (pin!(Some(stream)), pin!(sleep(idle_timeout)));
            let mut sent_before = 0;
            poll_fn(|context| {
                // Before the checks that follow, so that no piece is missed.
                state.task.register(context.waker());
                let sent = state.sent_pieces.load(Ordering::Relaxed);
                if mem::replace(&mut sent_before, sent) != sent
                    || !state.has_response.load(Ordering::Relaxed)
                {
                    deadline.as_mut().reset(Instant::now() + idle_timeout);
                }
                if deadline.as_mut().poll(context).is_ready() {
                    metrics::counter!("http_server_stalled_connections_total").increment(1);
                    if stream.is_none() {
                        streams.0.stalled.notify_one();
                    }
                    return Poll::Ready(());
                }
                let running = stream.as_mut().as_pin_mut();
                if running.is_some_and(|it| it.poll(context).is_ready()) {
                    stream.set(None);
                }
                if stream.is_none() && state.is_sent() {
                    return Poll::Ready(());
                }
                Poll::Pending
            })
            .await;
        }));
    }
}

/// A response body in pieces.
pub struct Pieces<B> {
    body: B,
    rest: Bytes,
    /// True if the body has several pieces. It ends when the last one is sent, so that only its stream is reset if it is
    /// not read; that costs a frame more.
    is_long: bool,
    streams: Streams,
    stream: Arc<Stream>,
}

/// A piece of a response body.
pub struct Piece {
    bytes: Bytes,
    streams: Streams,
    stream: Arc<Stream>,
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.stream.sent_pieces.fetch_add(1, Ordering::Release);
        self.stream.task.wake();
    }
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.streams.note_progress();
        self.bytes.advance(count);
    }
}

impl<B: Body + Unpin> Body for Pieces<B> {
    type Data = Piece;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, B::Error>>> {
        self.streams.note_progress();
        if self.rest.is_empty() {
            let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(context)?) else {
                // A piece that is sent wakes this task.
                let is_sent = !self.is_long || self.stream.is_sent();
                return if is_sent {
                    Poll::Ready(None)
                } else {
                    Poll::Pending
                };
            };
            match frame.into_data() {
                Ok(mut data) => self.rest = data.copy_to_bytes(data.remaining()),
                Err(frame) => {
                    let trailers = frame.into_trailers().map(Frame::trailers);
                    return Poll::Ready(trailers.ok().map(Ok));
                }
            }
        }
        let length = self.rest.len().min(PIECE);
        let bytes = self.rest.split_to(length);
        self.is_long |= !self.rest.is_empty() || !self.body.is_end_stream();
        self.stream.queued_pieces.fetch_add(1, Ordering::Relaxed);
        let piece = Piece {
            bytes,
            streams: self.streams.clone(),
            stream: Arc::clone(&self.stream),
        };
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
            && self.body.is_end_stream()
            && (!self.is_long || self.stream.is_sent())
    }

    fn size_hint(&self) -> SizeHint {
        let (mut size, rest) = (self.body.size_hint(), self.rest.len() as u64);
        if let Some(upper) = size.upper() {
            size.set_upper(upper + rest);
        }
        size.set_lower(size.lower() + rest);
        size
    }
}
