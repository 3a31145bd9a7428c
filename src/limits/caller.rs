//! Admission of the requests of one caller, from leased slices. Time and the responses of the database are arguments.
//!
//! `.github/decisions/0001-leased-slices.md` states the algorithm. Invariants:
//! - A request is admitted from a lease of the current slice, or refused because its limits have nothing left.
//! - A lease is used for at most 0.9 of the rest of its slice, from the moment at which its statement was sent.
//! - One lease statement of this caller is in progress at a time; requests that it does not cover join the next one.
//! - A statement that fails may have been executed, or be executed later. What it returned and its lease count as used.

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
    sync::Arc,
    time::Duration,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::error::Error;
use crate::{
    db::{
        self,
        limits::{Lease, LeaseRequest, Slice},
    },
    domain::{
        clock::Moment,
        limit::{Limit, LimitStatus, Window},
        plan::PlanLimits,
    },
};

const SECOND: Duration = Duration::from_secs(1);
/// Time without a request after which a caller is forgotten.
const FORGET_AFTER: Duration = Duration::from_mins(1);
/// Time after the end of a slice at which its unused requests are flushed.
const FLUSH_AFTER: Duration = Duration::from_millis(200);

/// The slice that an admitted request is counted in, or the reason why it is refused.
pub type Decision = Result<(Slice, LimitStatus), Error>;

#[derive(Debug)]
struct HeldLease {
    slice: Slice,
    granted: u32,
    unused: u32,
    expires: Moment,
    /// Latest moment at which the slice can end.
    slice_ends: Moment,
}

#[derive(Debug)]
struct Refusal {
    limits: Vec<Limit>,
    capacity_returns: Moment,
    remembered_until: Moment,
}

/// State of one caller on this replica.
#[derive(Debug, Default)]
pub struct CallerState {
    /// Set while a lease task of this caller is running.
    pub is_leasing: bool,
    /// Permits for requests in progress, where the plan limits them.
    in_flight: Option<Arc<Semaphore>>,
    limits: PlanLimits,
    lease: Option<HeldLease>,
    /// The caller's row after the last statement, and the moment of the response.
    row: (Lease, Moment),
    refusal: Option<Refusal>,
    /// Unused requests by slice, to be returned.
    unused: BTreeMap<Slice, u32>,
    /// Admitted requests of the slice of the last response and the one before.
    used: BTreeMap<Slice, u32>,
    waiting: VecDeque<oneshot::Sender<Decision>>,
    /// The statement in progress.
    sent: Option<LeaseRequest>,
    last_request: Moment,
}

impl CallerState {
    /// Sets the limits. A change discards the cached refusal and ends the lease.
    pub fn set_limits(&mut self, limits: &PlanLimits, now: Moment) {
        self.last_request = now;
        if self.limits != *limits {
            self.limits = *limits;
            self.in_flight = None;
            self.refusal = None;
            self.end_lease();
            self.decide_waiting(now);
        }
    }

    /// Acquires a permit for a request in progress, if the plan limits them.
    pub fn acquire_in_flight(&mut self) -> Result<Option<OwnedSemaphorePermit>, Error> {
        let Some(max) = self.limits.in_flight else {
            return Ok(None);
        };
        let permits =
            (self.in_flight).get_or_insert_with(|| Arc::new(Semaphore::new(max as usize)));
        (Arc::clone(permits).try_acquire_owned().map(Some))
            .map_err(|_| Error::Exceeded(vec![Limit::InFlight], SECOND))
    }

    /// Decides from memory; `None` if the request has to wait for a lease.
    pub fn admit(&mut self, now: Moment) -> Option<Decision> {
        // Requests that came first are decided first.
        self.waiting.is_empty().then(|| self.decide(now)).flatten()
    }

    fn decide(&mut self, now: Moment) -> Option<Decision> {
        let admitted = self.admit_from_lease(now).map(Ok);
        admitted.or_else(|| self.cached_refusal(now).map(Err))
    }

    /// Queues a request for the next lease.
    pub fn enqueue(&mut self) -> oneshot::Receiver<Decision> {
        let (waiting, decided) = oneshot::channel();
        self.waiting.push_back(waiting);
        decided
    }

    fn admit_from_lease(&mut self, now: Moment) -> Option<(Slice, LimitStatus)> {
        if !self.limits.has_rates() {
            return Some(<_>::default());
        }
        let lease =
            (self.lease.as_mut()).filter(|lease| lease.unused > 0 && now < lease.expires)?;
        lease.unused -= 1;
        let slice = lease.slice;
        *self.used.entry(slice).or_default() += 1;
        Some((slice, self.status(now)))
    }

    fn cached_refusal(&self, now: Moment) -> Option<Error> {
        let refusal = (self.refusal.as_ref()).filter(|refusal| now < refusal.remembered_until)?;
        let retry_after = refusal.capacity_returns.saturating_sub(now);
        Some(Error::Exceeded(refusal.limits.clone(), retry_after))
    }

    /// State of the limits, as far as this replica knows.
    pub fn status(&self, now: Moment) -> LimitStatus {
        let leased = self.lease.as_ref().map_or(0, |lease| lease.unused);
        let unused = leased + self.unused.values().sum::<u32>();
        let (row, at) = &self.row;
        let window = |limit: Option<u32>, used: u32, frees_in: f64| {
            limit.map(|limit| Window {
                limit,
                remaining: limit.saturating_sub(used.saturating_sub(unused)),
                reset: (*at + Duration::from_secs_f64(frees_in.max(0.0))).saturating_sub(now),
            })
        };
        LimitStatus {
            minute: window(self.limits.per_minute, row.minute_used, row.minute_frees_in),
            day: window(self.limits.per_day, row.day_used, row.day_ends_in),
        }
    }

    /// Stores the row of a response that grants nothing, unless a lease has been granted since the statement was sent.
    pub fn observe(&mut self, row: Lease, sent: Moment, now: Moment) {
        if self.row.1 <= sent {
            self.row = (row, now);
        }
    }

    /// Returns a request that failed through the service's own fault, or that was gone when it was admitted.
    pub fn give_back(&mut self, slice: Slice, now: Moment) {
        if let Some(used) = self.used.get_mut(&slice) {
            *used = used.saturating_sub(1);
        }
        self.refusal = None;
        match &mut self.lease {
            Some(lease) if lease.slice == slice && now < lease.expires => lease.unused += 1,
            // Slice 0 is that of requests that were not counted.
            _ => self.add_unused(slice, u32::from(slice > 0)),
        }
    }

    fn used_in(&self, slice: Slice) -> u32 {
        self.used.get(&slice).copied().unwrap_or_default()
    }

    fn add_unused(&mut self, slice: Slice, unused: u32) {
        if unused > 0 {
            *self.unused.entry(slice).or_default() += unused;
        }
    }

    /// Ends the lease; its unused requests are to be returned at once.
    pub fn end_lease(&mut self) {
        self.retire_lease(Moment::MAX);
        self.lease = None;
    }

    /// Stops admitting from a lease that expires by `now`; its unused requests are to be returned.
    fn retire_lease(&mut self, now: Moment) {
        if let Some(lease) = &mut self.lease
            && now >= lease.expires
        {
            let (slice, unused) = (lease.slice, mem::take(&mut lease.unused));
            self.add_unused(slice, unused);
        }
    }

    /// The next statement of this caller.
    pub fn next_request(&mut self, key: String, now: Moment) -> LeaseRequest {
        self.retire_lease(now);
        let waiting = self.waiting.len();
        let request = LeaseRequest {
            key,
            limits: self.limits,
            waiting,
            wanted: self.lease_size(waiting, now),
            returned: self.unused.pop_first(),
        };
        self.sent.insert(request).clone()
    }

    /// The requests that wait; or, while the caller keeps sending, twice its last lease, and in a new slice the use
    /// of the slice before.
    fn lease_size(&self, waiting: usize, now: Moment) -> usize {
        let in_advance = match self.lease.as_ref().filter(|_| waiting > 0) {
            Some(lease) if now < lease.slice_ends => lease.granted.saturating_mul(2),
            Some(lease) if now < lease.slice_ends + SECOND => self.used_in(lease.slice),
            _ => 0,
        };
        waiting.max(in_advance as usize)
    }

    /// Decides waiting requests by the response to a statement that was sent at `sent`. Those that it does not cover
    /// keep waiting.
    pub fn succeed(&mut self, lease: Lease, sent: Moment, now: Moment) {
        self.apply_response(lease, sent, now);
        // Requests that have timed out do not wait.
        self.waiting.retain(|waiting| !waiting.is_closed());
        self.is_leasing = !self.waiting.is_empty() || !self.unused.is_empty();
    }

    fn apply_response(&mut self, lease: Lease, sent: Moment, now: Moment) {
        self.used.entry(lease.slice).or_default();
        self.used.retain(|slice, _| *slice >= lease.slice - 1);
        if lease.granted > 0 {
            self.end_lease();
            self.lease = Some(HeldLease {
                slice: lease.slice,
                granted: lease.granted,
                unused: lease.granted,
                expires: sent + Duration::from_secs_f64(lease.slice_ends_in.max(0.0) * 0.9),
                slice_ends: now + Duration::from_secs_f64(lease.slice_ends_in.max(0.0)),
            });
        }
        self.row = (lease, now);
        self.refusal = None;
        // A lease of the plan before is not for requests of this one.
        let sent_limits = self.sent.take().map(|sent| sent.limits);
        if sent_limits.is_some_and(|limits| limits != self.limits) {
            return self.end_lease();
        }
        self.decide_waiting(now);
        // A lease that arrived too late is returned first: it may be all that the limits left.
        self.retire_lease(now);
        if !self.waiting.is_empty() && self.unused.is_empty() {
            self.refusal = self.refusal_from_usage(sent, now);
            self.decide_waiting(now);
        }
    }

    fn decide_waiting(&mut self, now: Moment) {
        while !self.waiting.is_empty()
            && let Some(decision) = self.decide(now)
        {
            let waiting = self.waiting.pop_front();
            if let Some(Err(Ok((slice, _)))) = waiting.map(|waiting| waiting.send(decision)) {
                self.give_back(slice, now);
            }
        }
    }

    /// The refusal of a request for which the row has no capacity; `None` if it has.
    fn refusal_from_usage(&self, sent: Moment, now: Moment) -> Option<Refusal> {
        let (row, status) = (&self.row.0, self.status(now));
        let windows = [(Limit::Minute, status.minute), (Limit::Day, status.day)];
        let full = windows.into_iter().filter_map(|(limit, window)| {
            Some((limit, window.filter(|window| window.remaining == 0)?.reset))
        });
        let (limits, waits): (_, Vec<_>) = full.unzip();
        let wait = waits.into_iter().max()?;
        // Reduced by 5 %: this clock may be slow. At most 1 s if another replica may still return requests of this slice
        // or the one before.
        let mut remembered = wait.mul_f64(0.95);
        if row.slice_used > self.used_in(row.slice)
            || row.last_slice_used > self.used_in(row.slice - 1)
        {
            remembered = remembered.min(SECOND);
        }
        Some(Refusal {
            limits,
            capacity_returns: now + wait,
            remembered_until: sent + remembered,
        })
    }

    /// Refuses all waiting requests after a failed statement. The next request or flush sends the next one.
    pub fn fail(&mut self, error: &db::Error) {
        self.is_leasing = false;
        let returned = self.sent.take().and_then(|sent| sent.returned);
        if let Some((slice, unused)) = returned.filter(|_| error.is_not_sent()) {
            self.add_unused(slice, unused);
        }
        for waiting in self.waiting.drain(..) {
            let _ = waiting.send(Err(error.clone().into()));
        }
    }

    /// Returns true if a flush is to return requests: no lease task is running, and a caller that keeps sending would have
    /// returned them by now.
    pub fn needs_flush(&mut self, now: Moment) -> bool {
        self.retire_lease(now);
        !self.unused.is_empty()
            && !self.is_leasing
            && (self.lease.as_ref()).is_none_or(|it| now >= it.slice_ends + FLUSH_AFTER)
    }

    /// Returns true if the state can be dropped, once it needs no flush.
    pub fn is_idle(&self, now: Moment) -> bool {
        let users = self.in_flight.as_ref().map_or(1, Arc::strong_count);
        let is_busy = self.is_leasing || users > 1 || !self.unused.is_empty();
        !is_busy && now >= self.last_request + FORGET_AFTER
    }
}
