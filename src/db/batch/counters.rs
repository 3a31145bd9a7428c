//! Counts the connections and queued requests of all batchers of a database.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU32, Ordering},
};

use tokio::sync::mpsc::Sender;

use crate::db::usage::Usage;

/// Counters of connections and queued requests. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Counters(Arc<Inner>);

#[derive(Default)]
struct Inner {
    open: AtomicU32,
    busy: AtomicU32,
    queue_lengths: Mutex<Vec<QueueLength>>,
}

/// Returns the length of a queue, or `None` once the queue is closed.
type QueueLength = Box<dyn Fn() -> Option<usize> + Send>;

impl Counters {
    /// Includes the requests in `queue`.
    pub fn add_queue<T: Send + 'static>(&self, queue: &Sender<T>) {
        let queue = queue.downgrade();
        let length = move || {
            let queue = queue.upgrade()?;
            Some(queue.max_capacity() - queue.capacity())
        };
        self.with_queue_lengths(|lengths| lengths.push(Box::new(length)));
    }

    /// Counts a connection as open until the returned guard is dropped.
    pub fn count_open(&self) -> OpenGuard {
        self.0.open.fetch_add(1, Ordering::Relaxed);
        OpenGuard(self.clone())
    }

    /// Counts a connection as busy until the returned guard is dropped.
    pub fn count_busy(&self) -> BusyGuard {
        self.0.busy.fetch_add(1, Ordering::Relaxed);
        BusyGuard(self.clone())
    }

    /// Returns the current use. Forgets queues that are closed.
    pub fn usage(&self) -> Usage {
        let mut waiting = 0;
        self.with_queue_lengths(|lengths| {
            lengths.retain(|length| length().map(|length| waiting += length).is_some());
        });
        let used = self.0.busy.load(Ordering::Relaxed);
        Usage {
            idle: self.0.open.load(Ordering::Relaxed).saturating_sub(used),
            used,
            max: None,
            waiting,
        }
    }

    fn with_queue_lengths(&self, work: impl FnOnce(&mut Vec<QueueLength>)) {
        let lengths = self.0.queue_lengths.lock();
        work(&mut lengths.unwrap_or_else(PoisonError::into_inner));
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner")
            .field("open", &self.open)
            .field("busy", &self.busy)
            .finish_non_exhaustive()
    }
}

pub struct OpenGuard(Counters);

impl Drop for OpenGuard {
    fn drop(&mut self) {
        self.0.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

pub struct BusyGuard(Counters);

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.0.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}
