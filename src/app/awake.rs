//! What a worker does before it sleeps: where that was enough the last time, it stays awake for a moment.
//!
//! A lone client's request is a wait for PostgreSQL, and its next one a wait for the client, each as short as it
//! takes to put a core to sleep and wake it up, for which two cores meet. One that stays awake answers such a
//! client half as often again, at no more processor time a request: going to sleep costs as much.
//!
//! Invariants: it is for one request at most that a worker stays awake, or for the next one after it; for a
//! [`MOMENT`] at most, and then no more until such a wait was as short again; and whoever else can use the core
//! has it first.

use std::{
    cell::RefCell,
    future::poll_fn,
    task::{Poll, Waker},
    time::{Duration, Instant},
};

use crate::turn::Turn;

/// Longer than PostgreSQL on the same machine takes to find a row, with two times that a core wakes up.
const MOMENT: Duration = Duration::from_micros(200);

thread_local! {
    /// `None` on threads that are no workers.
    static WORKER: RefCell<Option<Worker>> = const { RefCell::new(None) };
}

/// Makes this thread a worker that calls [`before_sleep`]; to be awaited by what its runtime blocks on.
pub async fn begin_here() {
    poll_fn(|context| {
        WORKER.set(Some(Worker::new(context.waker().clone())));
        Poll::Ready(())
    })
    .await;
}

/// To be called by a worker's runtime each time it is about to sleep: it looks at its sockets instead, and comes
/// back, as long as it is to stay awake.
pub fn before_sleep() {
    WORKER.with_borrow_mut(|worker| {
        if let Some(worker) = worker
            && worker.stays_awake(Instant::now())
        {
            worker.waker.wake_by_ref();
        }
    });
}

/// A request that this thread works on, until it is dropped.
#[derive(Debug)]
pub struct Work(());

impl Work {
    /// One that has just come.
    pub fn begin() -> Self {
        WORKER.with_borrow_mut(|worker| worker.as_mut().map(Worker::begin));
        Self(())
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        WORKER.with_borrow_mut(|worker| worker.as_mut().map(Worker::end));
    }
}

struct Worker {
    /// Wakes what its runtime blocks on.
    waker: Waker,
    /// Requests in work.
    in_work: usize,
    /// Since when it waits: for the next request while none is in work, or for the end of the only one.
    since: Option<Instant>,
    /// Whether the last such wait was short, with no request in work and with one.
    was_short: [bool; 2],
    turn: Turn,
}

impl Worker {
    fn new(waker: Waker) -> Self {
        Self {
            waker,
            in_work: 0,
            since: None,
            was_short: [false; 2],
            turn: Turn::default(),
        }
    }

    fn begin(&mut self) {
        match self.in_work {
            0 => self.has_waited(Instant::now()),
            _ => self.since = None,
        }
        self.in_work += 1;
    }

    fn end(&mut self) {
        if self.in_work == 1 {
            self.has_waited(Instant::now());
        }
        self.in_work = self.in_work.saturating_sub(1);
    }

    /// One wait is over, and the next begins.
    fn has_waited(&mut self, now: Instant) {
        if let Some(since) = self.since.replace(now) {
            self.was_short[self.in_work] = now - since <= MOMENT;
        }
    }

    fn stays_awake(&mut self, now: Instant) -> bool {
        self.since.is_some_and(|since| now - since <= MOMENT)
            && self.was_short[self.in_work]
            && self.turn.give_away()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    impl Worker {
        fn waits(&mut self, wait: Duration) {
            self.since = Instant::now().checked_sub(wait);
        }

        fn stays_awake_after(&mut self, wait: Duration) -> bool {
            self.waits(wait);
            self.stays_awake(Instant::now())
        }
    }

    const SHORT: Duration = Duration::ZERO;
    const LONG: Duration = Duration::from_millis(1);

    #[test]
    fn it_stays_awake_for_a_moment_where_that_was_enough_the_last_time() {
        let mut worker = Worker::new(Waker::noop().clone());
        assert!(!worker.stays_awake(Instant::now()), "nothing was asked yet");
        worker.begin();
        assert!(
            !worker.stays_awake_after(SHORT),
            "who knows how long it takes"
        );
        worker.waits(SHORT);
        worker.end();
        worker.waits(LONG);
        worker.begin();
        assert!(worker.stays_awake_after(SHORT), "an answer took a moment");
        assert!(!worker.stays_awake_after(LONG), "this one takes longer");
        worker.waits(LONG);
        worker.end();
        assert!(
            !worker.stays_awake_after(SHORT),
            "the next request did not come soon"
        );
        worker.waits(SHORT);
        worker.begin();
        assert!(
            !worker.stays_awake_after(SHORT),
            "the last answer took long"
        );
        worker.end();
        assert!(
            worker.stays_awake_after(SHORT),
            "the next request came at once"
        );
    }

    #[test]
    fn it_does_not_stay_awake_for_one_of_many() {
        let mut worker = Worker::new(Waker::noop().clone());
        worker.was_short = [true; 2];
        worker.begin();
        assert!(worker.stays_awake_after(SHORT));
        worker.begin();
        assert!(!worker.stays_awake(Instant::now()));
        worker.end();
        assert!(
            !worker.stays_awake(Instant::now()),
            "since when is not known"
        );
        worker.end();
        assert!(worker.stays_awake(Instant::now()));
    }

    #[test]
    fn its_runtime_looks_at_its_sockets_again_instead_of_sleeping() {
        thread_local! {
            static LOOKS: Cell<u32> = const { Cell::new(0) };
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .on_thread_park(|| {
                LOOKS.set(LOOKS.get() + 1);
                before_sleep();
            })
            .build()
            .expect("a runtime");
        let looks = |was_short| {
            LOOKS.set(0);
            runtime.block_on(async {
                begin_here().await;
                WORKER.with_borrow_mut(|worker| {
                    let worker = worker.as_mut().expect("a worker");
                    worker.was_short = [was_short; 2];
                    worker.waits(SHORT);
                });
                tokio::time::sleep(LONG).await;
            });
            LOOKS.get()
        };
        assert!(looks(false) < 10);
        // On a machine that has something else to do, one moment may be gone at once.
        assert!((0..100).any(|_| looks(true) >= 10));
    }
}
