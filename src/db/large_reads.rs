//! Limits the concurrent reads of large rows, or of many rows, to a quarter of the pool's connections, so that other
//! statements do not wait for these.
//!
//! Requesters take turns. Each client address and each caller has a last turn, the later of the two counts, and the read with
//! the earliest is next. A client with many streams, addresses or accounts therefore delays others by one read each time.
//! Searches that cost much CPU have one of the permits, for a third of the time.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::oneshot,
    time::{sleep, timeout},
};

use super::{breaker::Breaker, deadline::QUERY_TIMEOUT, error::Error};
use crate::domain::{address::AddressKey, caller::CallerId};

/// Divisor of the number of connections.
const FRACTION: u32 = 4;
/// A read of this duration occupies PostgreSQL.
const SHORT: Duration = Duration::from_millis(5);
/// A read of a longer duration has waited for something else.
const LONG: Duration = Duration::from_millis(100);

tokio::task_local! {
    static REQUESTER: Requester;
}

/// Client address and caller of a read, as far as they are known.
#[derive(Debug, Clone, Copy, Default)]
pub struct Requester {
    /// Client address.
    pub address: Option<AddressKey>,
    /// Caller, unless it is anonymous.
    pub caller: Option<CallerId>,
}

impl Requester {
    /// Runs a read on behalf of this requester.
    pub async fn read<T>(self, read: impl Future<Output = T>) -> T {
        REQUESTER.scope(self, read).await
    }

    /// Returns the requester of the current read.
    pub(super) fn current() -> Self {
        REQUESTER.try_with(|it| *it).unwrap_or_default()
    }
}

/// Cost of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cost {
    /// Sends many bytes.
    Bytes,
    /// Occupies a core of PostgreSQL for tens of milliseconds: one such read at a time.
    Cpu,
}

/// Permits of large reads. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct LargeReads(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    permits: u32,
    is_using_cpu: bool,
    waiting: Vec<Waiting>,
    turn: u64,
    /// Last turns of client addresses and of callers, while any read waits. Those without an address take turns together.
    turns_of_addresses: HashMap<Option<AddressKey>, u64>,
    turns_of_callers: HashMap<CallerId, u64>,
}

#[derive(Debug)]
struct Waiting {
    requester: Requester,
    cost: Cost,
    admit: oneshot::Sender<LargeRead>,
}

/// Permit of a read, returned on drop.
#[derive(Debug)]
pub(super) struct LargeRead {
    reads: LargeReads,
    cost: Cost,
}

impl LargeRead {
    /// Waits, behind a read that took this long, if it occupied PostgreSQL: such reads have a third of a core, so that they do
    /// not delay the statements of others.
    pub async fn rest(self, took: Duration) {
        if self.cost == Cost::Cpu && took >= SHORT {
            sleep(took.min(LONG) * 2).await;
        }
    }
}

impl LargeReads {
    /// Creates the permits for a pool with this many connections.
    pub fn new(connections: u32) -> Self {
        Self(Arc::new(Mutex::new(State {
            permits: connections.div_ceil(FRACTION),
            is_using_cpu: false,
            waiting: Vec::new(),
            turn: 0,
            turns_of_addresses: HashMap::new(),
            turns_of_callers: HashMap::new(),
        })))
    }

    /// Waits for a permit. Fails after [`QUERY_TIMEOUT`], with [`Error::OverloadedByRequester`] if other reads of the
    /// requester had turns meanwhile, and at once while PostgreSQL is known to be unavailable. The wait is not part of the
    /// time of the request's statements.
    pub async fn acquire(
        &self,
        requester: Requester,
        cost: Cost,
        breaker: &Breaker,
    ) -> Result<LargeRead, Error> {
        let (admit, admitted) = oneshot::channel();
        let waiting = Waiting {
            requester,
            cost,
            admit,
        };
        let last_turn = {
            let mut state = self.lock();
            state.waiting.push(waiting);
            state.last_turn(&requester)
        };
        self.admit();
        tokio::select! {
            biased;
            () = breaker.opened() => {
                breaker.admit()?;
                Err(Error::Overloaded)
            }
            permit = timeout(QUERY_TIMEOUT, admitted) => match permit {
                Ok(Ok(permit)) => Ok(permit),
                _ if self.lock().last_turn(&requester) > last_turn => {
                    Err(Error::OverloadedByRequester)
                }
                _ => Err(Error::Overloaded),
            }
        }
    }

    /// Gives free permits to reads that wait.
    fn admit(&self) {
        while let Some(Waiting { cost, admit, .. }) = self.next() {
            let reads = self.clone();
            // Returned at once if the read no longer waits.
            let _ = admit.send(LargeRead { reads, cost });
        }
    }

    /// Takes a permit for the next read. A function of its own, because the lock must end before the permit may be dropped.
    fn next(&self) -> Option<Waiting> {
        self.lock().next()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn last_turn(&self, requester: &Requester) -> Option<u64> {
        let of_address = self.turns_of_addresses.get(&requester.address);
        let of_caller = (requester.caller).and_then(|caller| self.turns_of_callers.get(&caller));
        of_address.max(of_caller).copied()
    }

    /// Takes a permit for the next read.
    fn next(&mut self) -> Option<Waiting> {
        self.waiting.retain(|it| !it.admit.is_closed());
        if self.waiting.is_empty() {
            self.turns_of_addresses.clear();
            self.turns_of_callers.clear();
        }
        if self.permits == 0 {
            return None;
        }
        let next = (self.waiting.iter().enumerate())
            .filter(|(_, it)| it.cost == Cost::Bytes || !self.is_using_cpu)
            .min_by_key(|(_, it)| self.last_turn(&it.requester))?;
        let next = self.waiting.remove(next.0);
        self.turn += 1;
        self.turns_of_addresses
            .insert(next.requester.address, self.turn);
        if let Some(caller) = next.requester.caller {
            self.turns_of_callers.insert(caller, self.turn);
        }
        self.permits -= 1;
        self.is_using_cpu |= next.cost == Cost::Cpu;
        Some(next)
    }
}

impl Drop for LargeRead {
    fn drop(&mut self) {
        let mut state = self.reads.lock();
        state.permits += 1;
        state.is_using_cpu &= self.cost != Cost::Cpu;
        drop(state);
        self.reads.admit();
    }
}
