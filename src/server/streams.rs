//! The streams of an HTTP/2 connection: ends those that make no progress, and notices when none is open.
//!
//! hyper has no timeout for either: a client can hold responses back with a window of 0, or keep a connection without
//! requests, for ever.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use hyper::rt::Executor;
use tokio::time::{Instant, sleep};

/// Executor of the streams of a connection. Clones share the count.
#[derive(Debug, Clone)]
pub struct Streams {
    shared: Arc<Shared>,
    idle_timeout: Duration,
}

#[derive(Debug, Default)]
struct Shared {
    open: AtomicUsize,
    /// Streams that have ended.
    ended: AtomicUsize,
}

impl Streams {
    /// No streams yet. Each one ends when it makes no progress for `idle_timeout`.
    pub fn new(idle_timeout: Duration) -> Self {
        Self {
            shared: Arc::default(),
            idle_timeout,
        }
    }

    /// Waits until no stream has been open for `timeout`, and at least for `timeout` from now.
    pub async fn idle(&self, timeout: Duration) {
        loop {
            let ended = self.ended();
            sleep(timeout).await;
            if self.open() == 0 && self.ended() == ended {
                return;
            }
        }
    }

    fn open(&self) -> usize {
        self.shared.open.load(Ordering::Relaxed)
    }

    fn ended(&self) -> usize {
        self.shared.ended.load(Ordering::Relaxed)
    }
}

impl<F> Executor<F> for Streams
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let open = OpenStream::new(&self.shared);
        let idle_timeout = self.idle_timeout;
        tokio::spawn(async move {
            let (mut stream, mut deadline) = (pin!(stream), pin!(sleep(idle_timeout)));
            poll_fn(|context| {
                if deadline.as_mut().poll(context).is_ready() {
                    metrics::counter!("http_server_stalled_connections_total").increment(1);
                    return Poll::Ready(());
                }
                // Polled because it can go on: the client has opened its window, or the response has.
                deadline.as_mut().reset(Instant::now() + idle_timeout);
                stream.as_mut().poll(context)
            })
            .await;
            drop(open);
        });
    }
}

/// Counts a stream as open until it is dropped.
struct OpenStream(Arc<Shared>);

impl OpenStream {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.open.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(shared))
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}
