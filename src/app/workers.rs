//! The runtimes that answer requests: one a core, of one thread each.
//!
//! A connection stays on the core that it was dealt to, and with it all that its requests wait for: nothing is
//! handed from core to core, which for answers as short as ours costs as much as the answer. The price: who
//! blocks or computes for long holds up all connections of its core, so such work goes to
//! `tokio::task::spawn_blocking`; and one busy connection has one core at most.

use std::{
    io,
    num::NonZeroUsize,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use axum::Router;
use tokio::runtime::{self, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::awake;
use crate::api::middleware::seen;

/// Runtimes, each with its own router; they end when dropped.
pub struct Workers {
    all: Vec<(Handle, Router)>,
    next: AtomicUsize,
    _running: DropGuard,
}

impl Workers {
    /// How many there are unless the configuration says otherwise.
    pub fn one_a_core() -> NonZeroUsize {
        thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
    }

    /// Starts a runtime for each router, of which there is one at least.
    pub fn start(routers: impl IntoIterator<Item = Router>) -> io::Result<Self> {
        let ended = CancellationToken::new();
        let start = |(index, router)| {
            let runtime = runtime::Builder::new_current_thread()
                .enable_all()
                .on_thread_park(|| {
                    seen::write_down();
                    awake::before_sleep();
                })
                .build()?;
            let (handle, ended) = (runtime.handle().clone(), ended.clone());
            thread::Builder::new()
                .name(format!("worker-{index}"))
                .spawn(move || {
                    seen::gather_here();
                    runtime.block_on(async {
                        awake::begin_here().await;
                        tick_until(ended).await;
                    });
                    seen::write_down();
                })?;
            Ok((handle, router))
        };
        let all: io::Result<_> = routers.into_iter().enumerate().map(start).collect();
        Ok(Self {
            all: all?,
            next: AtomicUsize::new(0),
            _running: ended.drop_guard(),
        })
    }

    /// The runtime of whoever asks as the only one, for what is asked seldom.
    pub fn here(router: Router) -> Self {
        Self {
            all: vec![(Handle::current(), router)],
            next: AtomicUsize::new(0),
            _running: CancellationToken::new().drop_guard(),
        }
    }

    /// Whose turn it is to get a connection.
    pub fn deal(&self) -> &(Handle, Router) {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        &self.all[turn % self.all.len()]
    }
}

/// Keeps a timer that ends sooner than those of requests. The runtime wakes itself up, by a write to the kernel,
/// for each new timer that would end before all others: beside none but those of idle connections that is one a
/// request. What was seen waits for it where the worker never sleeps.
async fn tick_until(ended: CancellationToken) {
    const EVERY: Duration = Duration::from_millis(100);
    let tick = async {
        loop {
            tokio::time::sleep(EVERY).await;
            seen::write_down();
        }
    };
    ended.run_until_cancelled(tick).await;
}
