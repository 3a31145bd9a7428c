//! State of the database work of one request or task: its remaining time, and whether it holds a connection.
//!
//! Invariant: work that is cancelled here while it holds a connection runs on until it holds none. Dropped in the middle of a
//! statement, it would close the connection; many clients that disconnect would keep PostgreSQL busy with new ones.

use std::{
    cell::Cell,
    future::{pending, poll_fn},
    pin::{Pin, pin},
    task::{Context, Poll, ready},
    time::Duration,
};

/// State of a scope.
#[derive(Debug, Clone, Copy)]
struct State {
    /// Time that is left for statements, if they share a deadline.
    remaining: Option<Duration>,
    /// Number of connections that are held.
    connections: u32,
    /// True if the work gets no further connection.
    is_cancelled: bool,
}

tokio::task_local! {
    static STATE: Cell<State>;
}

/// Future with a state of its own.
#[derive(Debug)]
pub struct Scope<F> {
    work: F,
    state: State,
}

impl<F: Future + Unpin> Scope<F> {
    /// Creates a scope with a total time for statements, or without.
    pub(super) fn new(work: F, total: Option<Duration>) -> Self {
        let state = State {
            remaining: total,
            connections: 0,
            is_cancelled: false,
        };
        Self { work, state }
    }

    /// Returns true if the work holds a connection.
    pub const fn holds_connection(&self) -> bool {
        self.state.connections > 0
    }

    /// Cancels the work, but runs it on for as long as it holds a connection. Returns its result if it ends meanwhile.
    pub async fn cancel(mut self) -> Option<F::Output> {
        self.state.is_cancelled = true;
        poll_fn(|context| {
            let polled = Pin::new(&mut self).poll(context).map(Some);
            if polled.is_pending() && !self.holds_connection() {
                return Poll::Ready(None);
            }
            polled
        })
        .await
    }
}

impl<F: Future + Unpin> Future for Scope<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Self { work, state } = &mut *self;
        STATE.sync_scope(Cell::new(*state), || {
            let polled = Pin::new(work).poll(context);
            *state = STATE.with(Cell::get);
            polled
        })
    }
}

/// Runs `work` until `cancelled` ends, and then on for as long as it holds a connection. Returns `None` if it was cancelled.
pub async fn until<T>(
    cancelled: impl Future<Output = ()>,
    work: impl Future<Output = T>,
) -> Option<T> {
    let (mut cancelled, mut work) = (pin!(cancelled), pin!(work));
    let mut is_cancelled = false;
    poll_fn(|context| {
        if let Poll::Ready(value) = work.as_mut().poll(context) {
            return Poll::Ready(Some(value));
        }
        if !is_cancelled {
            ready!(cancelled.as_mut().poll(context));
            is_cancelled = true;
            update(|state| state.is_cancelled = true);
        }
        if get(|state| state.connections > 0) {
            return Poll::Pending;
        }
        // What follows the work may use the database.
        update(|state| state.is_cancelled = false);
        Poll::Ready(None)
    })
    .await
}

/// Waits for ever if the work was cancelled and holds no connection: it must not get one any more, and ends here.
pub(super) async fn admit() {
    if get(|state| state.is_cancelled && state.connections == 0) {
        pending::<()>().await;
    }
}

/// Returns the time that is left for statements, if they share a deadline.
pub(super) fn remaining() -> Option<Duration> {
    get(|state| state.remaining)
}

/// Sets the time that is left for statements that share a deadline.
pub(super) fn set_remaining(remaining: Duration) {
    update(|state| state.remaining = state.remaining.map(|_| remaining));
}

/// Reads the state; the default value outside of a scope.
fn get<T: Default>(read: impl FnOnce(State) -> T) -> T {
    STATE.try_with(|it| read(it.get())).unwrap_or_default()
}

fn update(change: impl FnOnce(&mut State)) {
    // Fails outside of a scope, which has no state.
    let _ = STATE.try_with(|cell| {
        let mut state = cell.get();
        change(&mut state);
        cell.set(state);
    });
}

/// A connection that the current scope holds.
#[derive(Debug)]
pub(super) struct Held(());

impl Held {
    pub fn new() -> Self {
        update(|state| state.connections += 1);
        Self(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        update(|state| state.connections = state.connections.saturating_sub(1));
    }
}
