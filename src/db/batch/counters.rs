//! Counts the connections and queued requests of all batchers of a database.

use std::{
    fmt::Debug,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::mpsc::{Sender, WeakSender};

use crate::db::pool::Usage;

/// Counters of connections and queued requests. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Counters(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Each open connection has a clone.
    open: Arc<()>,
    /// Each connection in use has a clone.
    busy: Arc<()>,
    queues: Mutex<Vec<Box<dyn Queue>>>,
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

    /// Counts a connection as open until the returned clone is dropped.
    pub fn count_open(&self) -> Arc<()> {
        Arc::clone(&self.0.open)
    }

    /// Counts a connection as busy until the returned clone is dropped.
    pub fn count_busy(&self) -> Arc<()> {
        Arc::clone(&self.0.busy)
    }

    /// Returns the current use. Forgets queues that are closed.
    pub fn usage(&self) -> Usage {
        let count = |counter| u32::try_from(Arc::strong_count(counter) - 1).unwrap_or(u32::MAX);
        let used = count(&self.0.busy);
        let mut waiting = 0;
        self.queues()
            .retain(|queue| queue.length().map(|length| waiting += length).is_some());
        Usage {
            idle: count(&self.0.open).saturating_sub(used),
            used,
            max: None,
            waiting,
        }
    }

    fn queues(&self) -> MutexGuard<'_, Vec<Box<dyn Queue>>> {
        self.0.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
