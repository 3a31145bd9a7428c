//! The wire between hyper's HTTP/1 parser and the socket: refuses a message whose length two servers
//! could read in two ways, and gives hyper's own refusals a body.
//!
//! RFC 9112 §6.3 lets a server reject `Content-Length` beside `Transfer-Encoding`, the means of request
//! smuggling; hyper drops the former before anybody sees it. And what hyper cannot parse it answers with
//! an empty body, where our clients are promised a problem (RFC 9457). And a connection that is closed while
//! the client still sends is reset, which can take our answer away before it is read (RFC 9112 §9.6). All
//! three are mended here, on the bytes: nothing above can.

use std::{
    io,
    mem::MaybeUninit,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::http::StatusCode;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Sleep,
};

use super::framing::{Framing, Verdict};
use crate::api::{problem::Problem, request_id::random_id};

/// Bytes of a small answer, its head included.
const SMALL: usize = 1024;
/// How long the client may take to read our last word.
const LINGER: Duration = Duration::from_secs(2);

/// A connection that hyper serves HTTP/1 on.
pub struct Guarded<S> {
    stream: S,
    framing: Framing,
    reading: Reading,
    /// Until when we read on after our last word.
    lingering: Option<Pin<Box<Sleep>>>,
    /// What is written in place of hyper's refusal, and how much of it is.
    refusal: Vec<u8>,
    written: usize,
}

/// What becomes of the client's bytes.
#[derive(Debug, Clone, Copy)]
enum Reading {
    /// hyper gets them.
    Passing,
    /// hyper gets the end of a head that it will refuse: it does not look at one that has no end.
    Refusing,
    /// Nobody gets them.
    Refused,
}

impl<S> Guarded<S> {
    /// Guards a fresh connection.
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            framing: Framing::default(),
            reading: Reading::Passing,
            lingering: None,
            refusal: Vec::new(),
            written: 0,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.reading {
            Reading::Passing => {}
            Reading::Refusing => {
                let end = b"\r\n\r\n";
                buffer.put_slice(&end[..end.len().min(buffer.remaining())]);
                self.reading = Reading::Refused;
                return Poll::Ready(Ok(()));
            }
            Reading::Refused => return Poll::Ready(Ok(())),
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        if let Verdict::Ambiguous(at) = self.framing.feed(&buffer.filled()[before..]) {
            // No parser takes a NUL there: hyper refuses the message as it refuses any broken one.
            self.reading = Reading::Refusing;
            buffer.filled_mut()[before + at] = 0;
            buffer.set_filled(before + at + 1);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> Guarded<S> {
    /// Writes what is left of a refusal.
    fn poll_refusal(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.refusal.len() {
            let rest = &self.refusal[self.written..];
            match ready!(Pin::new(&mut self.stream).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.written += written,
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> Guarded<S> {
    /// Reads and forgets what the client still sends, until it is done or has had its time.
    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let deadline = self
            .lingering
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER)));
        if deadline.as_mut().poll(context).is_ready() {
            return Poll::Ready(Ok(()));
        }
        let mut scratch = [MaybeUninit::uninit(); 16 << 10];
        // So many reads a turn, so that one client cannot keep a worker to itself.
        for _ in 0..16 {
            let mut buffer = ReadBuf::uninit(&mut scratch);
            match ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {}
                Ok(()) | Err(_) => return Poll::Ready(Ok(())),
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_refusal(context))?;
        if let Some(status) = refusal_by_hyper(bytes) {
            self.refusal = refusal(status);
            self.written = 0;
            return Poll::Ready(Ok(bytes.len()));
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut some = slices.iter().filter(|slice| !slice.is_empty());
        if let (Some(only), None) = (some.next(), some.next()) {
            return self.poll_write(context, only);
        }
        ready!(self.poll_refusal(context))?;
        // To the kernel pieces cost more than the copy that makes one of so few bytes.
        let length = slices.iter().map(|slice| slice.len()).sum();
        let mut whole = [0; SMALL];
        let Some(whole) = whole.get_mut(..length) else {
            return Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        };
        let mut rest = &mut *whole;
        for slice in slices {
            let (piece, after) = rest.split_at_mut(slice.len());
            piece.copy_from_slice(slice);
            rest = after;
        }
        Pin::new(&mut self.stream).poll_write(context, whole)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_refusal(context))?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_refusal(context))?;
        if self.lingering.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
        }
        // Between requests nothing is on its way that could reset the connection.
        if self.framing.is_between_requests() {
            return Poll::Ready(Ok(()));
        }
        self.poll_linger(context)
    }
}

/// The status of an answer that hyper made up by itself: a 4xx head of nothing but hyper's own three
/// fields, and no body. Every answer of ours has an `X-Request-Id`.
fn refusal_by_hyper(bytes: &[u8]) -> Option<StatusCode> {
    const OWN: [&str; 3] = ["connection: close", "content-length: 0", "date: "];
    if bytes.len() > 256 || !bytes.starts_with(b"HTTP/1.1 4") {
        return None;
    }
    let head = std::str::from_utf8(bytes).ok()?.strip_suffix("\r\n\r\n")?;
    let mut lines = head.split("\r\n");
    let status = lines.next()?.get("HTTP/1.1 ".len()..)?.get(..3)?;
    let all_own = lines.all(|line| OWN.iter().any(|own| line.starts_with(own)));
    all_own.then(|| status.parse().ok()).flatten()
}

fn refusal(status: StatusCode) -> Vec<u8> {
    let id = random_id();
    let id = id.to_str().unwrap_or_default();
    let body = Problem::of_status(status).into_json(id);
    // It never was a request that `observe` could see.
    tracing::info!(
        target: "pet_inventory::access",
        method = "none",
        route = "none",
        status = status.as_u16(),
        request_id = id,
    );
    let labels = [
        ("method", "other".to_owned()),
        ("route", "none".to_owned()),
        ("status", status.as_str().to_owned()),
    ];
    metrics::counter!("http_requests_total", &labels).increment(1);
    let mut answer = format!(
        "HTTP/1.1 {status}\r\ncontent-type: {}\r\nx-request-id: {id}\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n",
        Problem::MEDIA_TYPE,
        body.len(),
    )
    .into_bytes();
    answer.extend(body);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hypers_own_refusals_are_replaced() {
        let own = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\ndate: x\r\n\r\n";
        assert_eq!(refusal_by_hyper(own), Some(StatusCode::BAD_REQUEST));
        for other in [
            &b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"[..],
            b"HTTP/1.1 404 Not Found\r\nx-request-id: 1\r\ncontent-length: 0\r\n\r\n",
            b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n{}",
            b"HTTP/1.1 4",
            b"",
        ] {
            assert_eq!(refusal_by_hyper(other), None);
        }
    }
}
