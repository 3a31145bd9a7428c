//! Counts the connections and waiting requests of all batchers of a database.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU32, Ordering},
};

use tokio::sync::mpsc::Sender;

/// Counters of connections and requests. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Usage(Arc<Counted>);

#[derive(Default)]
struct Counted {
    open: AtomicU32,
    busy: AtomicU32,
    queues: Mutex<Vec<Queue>>,
}

/// Length of a queue; `None` once it is closed.
type Queue = Box<dyn Fn() -> Option<usize> + Send>;

impl Usage {
    /// Includes the requests that wait in `queue`.
    pub fn watch<T: Send + 'static>(&self, queue: &Sender<T>) {
        let queue = queue.downgrade();
        let waiting = move || {
            let queue = queue.upgrade()?;
            Some(queue.max_capacity() - queue.capacity())
        };
        self.queues(|queues| queues.push(Box::new(waiting)));
    }

    /// Counts a connection as busy until the returned guard is dropped.
    pub fn work(&self) -> Busy {
        self.0.busy.fetch_add(1, Ordering::Relaxed);
        Busy(self.clone())
    }

    /// Returns the numbers of open connections, of busy connections, and of waiting requests.
    pub fn now(&self) -> (u32, u32, usize) {
        let mut waiting = 0;
        self.queues(|queues| queues.retain(|queue| queue().map(|it| waiting += it).is_some()));
        let open = self.0.open.load(Ordering::Relaxed);
        (open, self.0.busy.load(Ordering::Relaxed), waiting)
    }

    fn queues(&self, with: impl FnOnce(&mut Vec<Queue>)) {
        with(&mut self.0.queues.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl std::fmt::Debug for Counted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Counted")
            .field("open", &self.open)
            .field("busy", &self.busy)
            .finish_non_exhaustive()
    }
}

pub struct Opened(Usage);

impl Opened {
    pub fn count(usage: &Usage) -> Self {
        usage.0.open.fetch_add(1, Ordering::Relaxed);
        Self(usage.clone())
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.0.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

pub struct Busy(Usage);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}
