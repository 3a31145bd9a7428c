//! Worker threads: one runtime of one thread per core.
//!
//! A connection stays on the worker that it was assigned to, with everything that its requests wait for. To hand work
//! from core to core costs as much as a short response. The price: a request that blocks, or computes for long, holds up
//! all connections of its worker, so such work goes to `tokio::task::spawn_blocking`; and one connection uses one core
//! at most.

use std::{
    io,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use tokio::runtime::{self, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Period of a timer that keeps the runtime from waking itself: it does so, by a write to the kernel, for each new timer
/// that ends before all others. Beside the timers of idle connections alone, that would be once per request.
const TICK: Duration = Duration::from_millis(100);

/// Maximum number of threads of a worker for work that blocks, such as reads of files. Further work waits: requests could
/// otherwise start tokio's default of 512.
const MAX_BLOCKING_THREADS: usize = 16;

/// Functions that are called on worker threads.
#[derive(Debug, Clone, Copy)]
pub struct Hooks {
    /// When a thread starts.
    pub on_start: fn(),
    /// Before a thread sleeps, ten times a second, and after a connection is closed.
    pub on_park: fn(),
}

/// Workers, to which connections are assigned in turn. They stop when dropped.
pub struct Workers<S> {
    /// Their runtimes and services.
    all: Vec<(Handle, S)>,
    next: AtomicUsize,
    pub(super) hooks: Hooks,
    _running: DropGuard,
}

impl<S> Workers<S> {
    /// Starts a worker for each of the services, of which there is one at least.
    pub fn start(services: impl IntoIterator<Item = S>, hooks: Hooks) -> io::Result<Self> {
        let stopped = CancellationToken::new();
        let started = services.into_iter().enumerate().map(|(index, service)| {
            let runtime = runtime::Builder::new_current_thread()
                .enable_all()
                .thread_name("blocking")
                .max_blocking_threads(MAX_BLOCKING_THREADS)
                .on_thread_park(hooks.on_park)
                .build()?;
            let handle = runtime.handle().clone();
            let stopped = stopped.clone();
            thread::Builder::new()
                .name(format!("worker-{index}"))
                .spawn(move || {
                    (hooks.on_start)();
                    runtime.block_on(stopped.run_until_cancelled(async {
                        loop {
                            tokio::time::sleep(TICK).await;
                            (hooks.on_park)();
                        }
                    }));
                    (hooks.on_park)();
                })?;
            Ok((handle, service))
        });
        let all: io::Result<_> = started.collect();
        Ok(Self {
            all: all?,
            next: AtomicUsize::new(0),
            hooks,
            _running: stopped.drop_guard(),
        })
    }

    /// The current runtime as the only worker.
    pub fn current(service: S) -> Self {
        Self {
            all: vec![(Handle::current(), service)],
            next: AtomicUsize::new(0),
            hooks: Hooks {
                on_start: || {},
                on_park: || {},
            },
            _running: CancellationToken::new().drop_guard(),
        }
    }

    /// Runtimes of the workers.
    pub fn runtimes(&self) -> Vec<Handle> {
        self.all
            .iter()
            .map(|(runtime, _)| runtime.clone())
            .collect()
    }

    /// Runtime and service of the worker that gets the next connection.
    pub(super) fn next(&self) -> &(Handle, S) {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        &self.all[next % self.all.len()]
    }
}
