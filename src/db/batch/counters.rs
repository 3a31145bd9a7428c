//! Counts the connections and queued requests of all batchers of a database.

use std::{
    fmt::Debug,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use tokio::sync::mpsc::{Sender, WeakSender};

use crate::db::pool::Usage;

/// Counters of connections and queued requests. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Counters(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    open: Arc<AtomicU32>,
    busy: Arc<AtomicU32>,
    queues: Mutex<Vec<Box<dyn Queue>>>,
}

/// Increments a counter until it is dropped.
#[derive(Debug)]
pub struct CountGuard(Arc<AtomicU32>);

impl CountGuard {
    fn new(counter: &Arc<AtomicU32>) -> Self {
        counter.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(counter))
    }
}

impl Drop for CountGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

trait Queue: Debug + Send {
    /// Returns the number of queued requests, or `None` once the queue is closed.
    fn length(&self) -> Option<usize>;
}

impl<T: Send> Queue for WeakSender<T> {
    fn length(&self) -> Option<usize> {
        let queue = self.upgrade()?;
        Some(queue.max_capacity() - queue.capacity())
    }
}

impl Counters {
    /// Includes the requests in `queue`.
    pub fn add_queue<T: Send + 'static>(&self, queue: &Sender<T>) {
        self.queues().push(Box::new(queue.downgrade()));
    }

    /// Counts a connection as open until the guard is dropped.
    pub fn count_open(&self) -> CountGuard {
        CountGuard::new(&self.0.open)
    }

    /// Counts a connection as busy until the guard is dropped.
    pub fn count_busy(&self) -> CountGuard {
        CountGuard::new(&self.0.busy)
    }

    /// Returns the current use. Forgets queues that are closed.
    pub fn usage(&self) -> Usage {
        let used = self.0.busy.load(Ordering::Relaxed);
        let mut waiting = 0;
        self.queues()
            .retain(|queue| queue.length().map(|length| waiting += length).is_some());
        Usage {
            idle: self.0.open.load(Ordering::Relaxed).saturating_sub(used),
            used,
            max: None,
            waiting,
        }
    }

    fn queues(&self) -> MutexGuard<'_, Vec<Box<dyn Queue>>> {
        self.0.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
