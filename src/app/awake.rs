//! What a worker does before it sleeps: it stays awake for a moment, where that was enough the last time.
//!
//! A lone client's requests are waits in turn for PostgreSQL and for the client, each hardly longer than it takes
//! to put a core to sleep and to wake it up again. A worker that stays awake meanwhile answers half as many again,
//! for as much processor time each where a core sleeps as badly as those of virtual machines do. Of one who asks
//! less the price is higher: with pauses at random, 850 requests a second cost a core 1 % more, 2,800 10 %.
//!
//! Invariants: it is for one request that a worker stays awake, or for the next one after it, never for many; for
//! a [moment](MOMENTS) each time, and then no more until such a wait was as short again; and it offers its turn on
//! the core to whoever else can use it.

use std::{
    cell::RefCell,
    future::poll_fn,
    task::{Poll, Waker},
    time::{Duration, Instant},
};

use crate::turn::Turn;

/// How long it stays awake for the next request, and for the answer to one. The former comes soon where the client
/// is on the same machine and has been waiting; the latter is what PostgreSQL takes for a page of a find.
const MOMENTS: [Duration; 2] = [Duration::from_micros(150), Duration::from_micros(400)];

thread_local! {
    /// `None` on threads that are no workers.
    static WORKER: RefCell<Option<Worker>> = const { RefCell::new(None) };
}

/// Makes this thread a worker, for [`before_sleep`]. To be awaited by what its runtime blocks on itself, not by a
/// part of that with a waker of its own.
pub async fn begin_here() {
    poll_fn(|context| {
        WORKER.set(Some(Worker::new(context.waker().clone())));
        Poll::Ready(())
    })
    .await;
}

/// To be called by a worker's runtime each time it is about to sleep: as long as it is to stay awake, it looks at
/// its sockets and timers once instead, and comes back (<https://github.com/tokio-rs/tokio/pull/8222>).
pub fn before_sleep() {
    WORKER.with_borrow_mut(|worker| {
        if let Some(worker) = worker
            && worker.may_stay_awake(Instant::now())
            && worker.turn.give_away()
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
        WORKER.with_borrow_mut(|worker| worker.as_mut().map(|worker| worker.begin(Instant::now)));
        Self(())
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        WORKER.with_borrow_mut(|worker| worker.as_mut().map(|worker| worker.end(Instant::now)));
    }
}

struct Worker {
    /// Wakes what its runtime blocks on.
    waker: Waker,
    /// Requests in work.
    in_work: usize,
    /// Since when it has waited: for the next request where none is in work, for the answer where one is. `None`
    /// where several are, and until all of those are answered.
    since: Option<Instant>,
    /// Whether the last wait of either kind was as short as its moment.
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

    /// A request has come. The time is asked for only where it counts.
    fn begin(&mut self, now: impl FnOnce() -> Instant) {
        if self.in_work == 0 {
            self.end_wait(0, now());
        } else {
            self.since = None;
        }
        self.in_work += 1;
    }

    /// A request is answered, or its client has left.
    fn end(&mut self, now: impl FnOnce() -> Instant) {
        self.in_work -= 1;
        if self.in_work == 0 {
            self.end_wait(1, now());
        }
    }

    /// A wait is over, and the next begins.
    fn end_wait(&mut self, kind: usize, now: Instant) {
        if let Some(since) = self.since.replace(now) {
            self.was_short[kind] = now - since <= MOMENTS[kind];
        }
    }

    fn may_stay_awake(&self, now: Instant) -> bool {
        let kind = self.in_work.min(1);
        self.was_short[kind] && self.since.is_some_and(|since| now - since <= MOMENTS[kind])
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, io::Write as _, os::unix::net::UnixStream};

    use super::*;

    const SHORT: Duration = Duration::from_micros(50);
    const LONG: Duration = Duration::from_millis(1);

    /// A worker that nobody wakes, and what time it is there.
    struct Timed(Worker, Instant);

    impl Timed {
        fn new() -> Self {
            Self(Worker::new(Waker::noop().clone()), Instant::now())
        }

        fn begin_after(&mut self, wait: Duration) {
            self.1 += wait;
            self.0.begin(|| self.1);
        }

        fn end_after(&mut self, wait: Duration) {
            self.1 += wait;
            self.0.end(|| self.1);
        }

        fn may_stay_awake_after(&self, wait: Duration) -> bool {
            self.0.may_stay_awake(self.1 + wait)
        }
    }

    #[test]
    fn it_stays_awake_for_a_moment_where_that_was_enough_the_last_time() {
        let mut worker = Timed::new();
        assert!(!worker.may_stay_awake_after(SHORT), "nothing was asked yet");
        worker.begin_after(SHORT);
        assert!(!worker.may_stay_awake_after(SHORT), "no answer yet");
        worker.end_after(SHORT);
        worker.begin_after(LONG);
        assert!(worker.may_stay_awake_after(SHORT), "an answer was quick");
        assert!(!worker.may_stay_awake_after(LONG), "this one is not");
        worker.end_after(LONG);
        assert!(
            !worker.may_stay_awake_after(SHORT),
            "the last request was long in coming"
        );
        worker.begin_after(SHORT);
        assert!(
            !worker.may_stay_awake_after(SHORT),
            "the last answer took long"
        );
        worker.end_after(SHORT);
        assert!(
            worker.may_stay_awake_after(SHORT),
            "the last request came at once"
        );
    }

    #[test]
    fn it_does_not_stay_awake_for_many() {
        let mut worker = Timed::new();
        for _ in 0..2 {
            worker.begin_after(SHORT);
            worker.end_after(SHORT);
        }
        worker.begin_after(SHORT);
        assert!(worker.may_stay_awake_after(SHORT));
        worker.begin_after(SHORT);
        assert!(!worker.may_stay_awake_after(SHORT));
        worker.end_after(SHORT);
        assert!(
            !worker.may_stay_awake_after(SHORT),
            "who knows for how long"
        );
        worker.end_after(SHORT);
        assert!(worker.may_stay_awake_after(SHORT));
    }

    #[test]
    fn awake_it_hears_what_comes() {
        const HEARD_AT: u32 = 3;
        thread_local! {
            static LOOKS: Cell<u32> = const { Cell::new(0) };
            static PEER: RefCell<Option<UnixStream>> = const { RefCell::new(None) };
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .on_thread_park(|| {
                LOOKS.set(LOOKS.get() + 1);
                if LOOKS.get() == HEARD_AT {
                    let peer = PEER.take();
                    let sent = peer.and_then(|mut peer| peer.write_all(b"!").ok());
                    sent.expect("a peer to write to");
                }
                before_sleep();
            })
            .build()
            .expect("a runtime");
        // Whether it hears a byte that is sent at its third look around; asleep after the first it would not.
        let hears = |was_short| {
            runtime.block_on(async {
                begin_here().await;
                let (here, there) = UnixStream::pair().expect("a pair");
                here.set_nonblocking(true).expect("a socket");
                let here = tokio::net::UnixStream::from_std(here).expect("a socket");
                PEER.set(Some(there));
                WORKER.with_borrow_mut(|worker| {
                    let worker = worker.as_mut().expect("a worker");
                    worker.was_short = [was_short; 2];
                    worker.since = Some(Instant::now());
                });
                LOOKS.set(0);
                let heard = tokio::time::timeout(10 * LONG, here.readable()).await;
                heard.is_ok() && LOOKS.get() <= HEARD_AT + 1
            })
        };
        assert!(!hears(false));
        // On a machine that has something else to do, a moment may be over before the third look.
        assert!((0..100).any(|_| hears(true)));
    }
}
