//! A client's socket: ends writes that make no progress, and lets the client read the last response, also if the
//! request's body has not been read to its end.

use std::{
    io,
    mem::{self, MaybeUninit},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{BufMut as _, Bytes};
use futures_util::FutureExt as _;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Sleep,
};

/// Maximum time for which a closed connection is read on.
const LINGER: Duration = Duration::from_secs(2);
/// Maximum number of bytes that are copied into one slice before a write.
const MAX_COPIED_BYTES: usize = 1024;
/// Maximum number of turns in which an unread body is read: one in which hyper reads, and one for each frame.
const MAX_TURNS: usize = 4;
/// Maximum number of reads in one poll, so that one client does not occupy a worker.
const MAX_READS_PER_POLL: usize = 16;

/// A socket with a timeout for writes, and a lingering close.
///
/// The timeout ends a write of which the kernel takes nothing. A client that reads a byte now and then does not evade
/// it: the kernel takes more only when a good part of its buffer has been read.
///
/// A socket that is closed while the client still sends is reset, and the reset can destroy the response before the
/// client has read it (RFC 9112, section 9.6): a 413, for example. Bytes of such a request are therefore read and dropped.
pub struct ClientStream<S> {
    stream: S,
    write_timeout: Duration,
    write_deadline: Deadline,
    linger_deadline: Deadline,
    unread: Arc<Unread>,
}

type Deadline = Option<Pin<Box<Sleep>>>;

/// Polls a deadline, which begins with the first poll.
fn poll_deadline(deadline: &mut Deadline, time: Duration, context: &mut Context<'_>) -> Poll<()> {
    let deadline = deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(time)));
    deadline.as_mut().poll(context)
}

impl<S> ClientStream<S> {
    /// Wraps a new connection. `unread` tells if the last request has not been read to its end.
    pub const fn new(stream: S, write_timeout: Duration, unread: Arc<Unread>) -> Self {
        Self {
            stream,
            write_timeout,
            write_deadline: None,
            linger_deadline: None,
            unread,
        }
    }

    /// Passes the result of a write on, or fails it when it has been pending for too long.
    fn bound<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.write_deadline = None;
            return written;
        }
        ready!(poll_deadline(
            &mut self.write_deadline,
            self.write_timeout,
            context
        ));
        metrics::counter!("http_server_stalled_connections_total").increment(1);
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> ClientStream<S> {
    /// Reads and drops what the client still sends, until it is done or has had its time.
    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.unread.is_unread.load(Ordering::Relaxed) {
            return Poll::Ready(());
        }
        if poll_deadline(&mut self.linger_deadline, LINGER, context).is_ready() {
            return Poll::Ready(());
        }
        let mut scratch = [MaybeUninit::uninit(); 16 << 10];
        for _ in 0..MAX_READS_PER_POLL {
            let mut buffer = ReadBuf::uninit(&mut scratch);
            match ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {}
                Ok(()) | Err(_) => return Poll::Ready(()),
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ClientStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ClientStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.bound(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // For the kernel, several slices cost more than a copy of so few bytes.
        let length = slices.iter().map(|slice| slice.len()).sum();
        let mut whole = [0; MAX_COPIED_BYTES];
        let written = match whole.get_mut(..length) {
            Some(whole) => {
                let mut rest = &mut *whole;
                for slice in slices {
                    rest.put_slice(slice);
                }
                Pin::new(&mut self.stream).poll_write(context, whole)
            }
            None => Pin::new(&mut self.stream).poll_write_vectored(context, slices),
        };
        self.bound(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.bound(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger_deadline.is_none() {
            let shut = Pin::new(&mut self.stream).poll_shutdown(context);
            ready!(self.bound(shut, context))?;
        }
        self.poll_linger(context).map(Ok)
    }
}

/// Unread part of the last request of a connection.
#[derive(Debug, Default)]
pub struct Unread {
    is_unread: AtomicBool,
    dropped: Mutex<Dropped>,
}

/// Body that was dropped before its end.
#[derive(Debug, Default)]
struct Dropped {
    /// False once the request has its response: the body is then of no use, and hyper waits until it is dropped.
    is_kept: bool,
    body: Option<Incoming>,
}

impl Unread {
    /// Returns true if the request was read to its end, so that another one can follow. If `may_read`, first reads what has
    /// already arrived of a body that was dropped.
    pub(super) async fn is_read(&self, may_read: bool) -> bool {
        if !self.is_unread.load(Ordering::Relaxed) {
            return true;
        }
        let body = mem::take(&mut *self.lock()).body;
        if let Some(mut body) = body.filter(|_| may_read) {
            for _ in 0..MAX_TURNS {
                match body.frame().now_or_never() {
                    Some(Some(Ok(_))) if !body.is_end_stream() => {}
                    Some(Some(Err(_))) => break,
                    Some(_) => {
                        self.is_unread.store(false, Ordering::Relaxed);
                        break;
                    }
                    // hyper reads for a body that has been polled.
                    None => tokio::task::yield_now().await,
                }
            }
        }
        !self.is_unread.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Dropped> {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Body of a request. Tells the connection when it has been read to its end.
#[derive(Debug)]
pub struct RequestBody {
    /// `None` once it is dropped.
    body: Option<Incoming>,
    unread: Arc<Unread>,
}

impl RequestBody {
    /// Wraps the body, which is unread until its end has been read.
    pub(super) fn new(body: Incoming, unread: Arc<Unread>) -> Self {
        let is_unread = !body.is_end_stream();
        unread.is_unread.store(is_unread, Ordering::Relaxed);
        unread.lock().is_kept = is_unread;
        let body = Some(body);
        Self { body, unread }
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if self.unread.is_unread.load(Ordering::Relaxed) {
            let mut dropped = self.unread.lock();
            dropped.body = self.body.take().filter(|_| dropped.is_kept);
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let frame = ready!(Pin::new(&mut *body).poll_frame(context));
        if frame.is_none() || body.is_end_stream() {
            self.unread.is_unread.store(false, Ordering::Relaxed);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body
            .as_ref()
            .map(Incoming::size_hint)
            .unwrap_or_default()
    }
}
