//! Permits that are given to callers in turn: however many requests one has waiting, another waits for one of each.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

use crate::domain::caller::CallerKey;

/// Permits. Clones share them.
#[derive(Debug, Clone)]
pub struct Turns(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    free: usize,
    /// Requests that wait, of each caller in order of arrival.
    waiting: HashMap<CallerKey, VecDeque<oneshot::Sender<Permit>>>,
    /// Callers with requests that wait, each once, in the order of their turns.
    turns: VecDeque<CallerKey>,
}

/// Permit, which is passed on when it is dropped.
#[derive(Debug)]
pub struct Permit {
    turns: Option<Turns>,
}

impl Turns {
    /// Creates this many permits.
    pub fn new(permits: usize) -> Self {
        Self(Arc::new(Mutex::new(State {
            free: permits,
            waiting: HashMap::new(),
            turns: VecDeque::new(),
        })))
    }

    /// Waits for a permit in the turn of a caller.
    pub async fn acquire(&self, caller: CallerKey) -> Permit {
        let received = {
            let mut state = self.state();
            if state.free > 0 {
                state.free -= 1;
                return self.permit();
            }
            let (sender, receiver) = oneshot::channel();
            let waiting = state.waiting.entry(caller).or_default();
            // Of requests that were cancelled, none stays for long.
            waiting.retain(|it| !it.is_closed());
            let is_first = waiting.is_empty();
            waiting.push_back(sender);
            if is_first && !state.turns.contains(&caller) {
                state.turns.push_back(caller);
            }
            receiver
        };
        // The sender is dropped with its permit only.
        received.await.unwrap_or(Permit { turns: None })
    }

    /// Returns the number of free permits.
    #[cfg(test)]
    pub fn free(&self) -> usize {
        self.state().free
    }

    fn permit(&self) -> Permit {
        Permit {
            turns: Some(self.clone()),
        }
    }

    /// Passes a permit on to the next caller that waits, or keeps it.
    fn pass_on(&self) {
        let mut state = self.state();
        while let Some(caller) = state.turns.pop_front() {
            let Some(waiting) = state.waiting.get_mut(&caller) else {
                continue;
            };
            let next = waiting.pop_front();
            if waiting.is_empty() {
                state.waiting.remove(&caller);
            } else {
                state.turns.push_back(caller);
            }
            let Some(next) = next else { continue };
            match next.send(self.permit()) {
                Ok(()) => return,
                // It was cancelled. The permit must not come back to here by its drop.
                Err(mut unused) => unused.turns = None,
            }
        }
        state.free += 1;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(turns) = self.turns.take() {
            turns.pass_on();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::task::JoinSet;

    use super::*;
    use crate::domain::caller::CallerId;

    const fn key(caller: char) -> CallerKey {
        CallerKey::Caller(CallerId(caller as i64))
    }

    #[tokio::test]
    async fn callers_get_permits_in_turn_and_cancelled_requests_get_none() {
        let turns = Turns::new(1);
        let first = turns.acquire(key('a')).await;
        let order = Arc::<Mutex<Vec<char>>>::default();
        let mut requests = JoinSet::new();
        for caller in ['a', 'a', 'a', 'b', 'c', 'b'] {
            let (turns, order) = (turns.clone(), Arc::clone(&order));
            requests.spawn(async move {
                let _permit = turns.acquire(key(caller)).await;
                order.lock().expect("a lock").push(caller);
            });
            tokio::task::yield_now().await;
        }
        let cancelled =
            tokio::time::timeout(Duration::from_millis(1), turns.acquire(key('d'))).await;
        assert!(cancelled.is_err());
        drop(first);
        requests.join_all().await;
        let order: String = order.lock().expect("a lock").iter().collect();
        assert_eq!(order, "abcaba");
        let state = turns.state();
        assert_eq!(state.free, 1);
        assert!(state.waiting.is_empty() && state.turns.is_empty());
    }
}
