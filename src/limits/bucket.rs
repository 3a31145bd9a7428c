//! What is known of one bucket: whoever a limit is counted for.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use chrono::NaiveDate;

use super::{
    Standing, Standings, Verdict, Window,
    day::{Answer, Lease},
    minute::SlidingLog,
};
use crate::{config::PlanLimits, db::usage::Decision, domain::clock::Moment};

/// Whoever a limit is counted for.
#[derive(Debug, Default)]
pub struct Bucket {
    /// Its name in the database.
    pub name: String,
    /// One lease at a time.
    pub leasing: tokio::sync::Mutex<()>,
    state: Mutex<State>,
    in_flight: AtomicU32,
}

/// What it has used, as far as this process knows.
#[derive(Debug, Default)]
pub struct State {
    /// What this process may still admit today without asking.
    pub lease: Lease,
    log: SlidingLog,
    /// The last refusal by the counters that all replicas share, and when that was.
    refusal: Option<(Decision, Moment)>,
}

impl Bucket {
    /// A bucket that has used nothing.
    pub fn new(name: String) -> Self {
        Self {
            name,
            ..Self::default()
        }
    }

    /// Its state; held for no longer than a decision.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Decides by what this process knows; `None`: the day is not known.
    pub fn decide(
        &mut self,
        bucket: &Arc<Bucket>,
        limits: &PlanLimits,
        now: Moment,
    ) -> Option<Verdict> {
        let minute = self.minute_wait(limits, now);
        let day = match limits.per_day.map(|limit| self.lease.ask(now, limit)) {
            Some(Answer::Unknown) => return None,
            Some(Answer::Spent(wait)) => wait,
            Some(Answer::Room) | None => Duration::ZERO,
        };
        if !minute.max(day).is_zero() {
            return Some(refused(minute, day, self.standings(limits, now)));
        }
        let charge = match limits.per_day.and_then(|_| self.lease.take()) {
            Some(day) => Charge::Lease(day),
            None => Charge::Nothing,
        };
        self.note(limits, now);
        Some(Verdict::Admitted(
            self.standings(limits, now),
            Permit::new(bucket, now, charge),
        ))
    }

    /// Decides by the minute alone, while the counters are out of reach.
    pub fn admit_by_minute(
        &mut self,
        bucket: &Arc<Bucket>,
        limits: &PlanLimits,
        now: Moment,
    ) -> Verdict {
        let wait = self.minute_wait(limits, now);
        if wait.is_zero() {
            self.note(limits, now);
        }
        let standings = Standings {
            minute: self.minute(limits, now),
            day: None,
        };
        if wait.is_zero() {
            Verdict::Admitted(standings, Permit::new(bucket, now, Charge::Nothing))
        } else {
            refused(wait, Duration::ZERO, standings)
        }
    }

    /// A refusal that needs no asking of the shared counters: their last one, while it is sure to last, or
    /// that of our own log, which is never stricter than theirs.
    pub fn sure_refusal(&mut self, limits: &PlanLimits, now: Moment) -> Option<Verdict> {
        if let Some((decision, at)) = self.refusal {
            let passed = now.saturating_sub(at);
            let (minute, day) = shared_waits(&decision, limits);
            let (minute, day) = (minute.saturating_sub(passed), day.saturating_sub(passed));
            if !minute.max(day).is_zero() {
                return Some(refused(minute, day, shared(&decision, limits)));
            }
        }
        let wait = self.minute_wait(limits, now);
        (!wait.is_zero()).then(|| {
            let minute = self.minute(limits, now);
            refused(wait, Duration::ZERO, Standings { minute, day: None })
        })
    }

    /// Follows the shared counters, which were asked at that moment.
    pub fn follow(
        &mut self,
        bucket: &Arc<Bucket>,
        decision: Decision,
        limits: &PlanLimits,
        asked: Moment,
    ) -> Verdict {
        let standings = shared(&decision, limits);
        if decision.admitted {
            self.refusal = None;
            self.note(limits, asked);
            let permit = Permit::new(bucket, asked, Charge::Shared(decision));
            return Verdict::Admitted(standings, permit);
        }
        self.refusal = Some((decision, asked));
        let (minute, day) = shared_waits(&decision, limits);
        refused(minute, day, standings)
    }

    /// Whether nothing was admitted for a minute.
    pub fn is_quiet(&mut self, now: Moment) -> bool {
        self.log.used(now) == 0
    }

    fn minute_wait(&mut self, limits: &PlanLimits, now: Moment) -> Duration {
        limits
            .per_minute
            .map_or(Duration::ZERO, |limit| self.log.wait(now, limit))
    }

    /// Writes an admission down, where somebody will ask for it.
    fn note(&mut self, limits: &PlanLimits, now: Moment) {
        if limits.per_minute.is_some() {
            self.log.push(now);
        }
    }

    /// How the limits stand, as far as this process knows.
    pub fn known(&mut self, limits: &PlanLimits, now: Moment) -> Standings {
        match self.refusal {
            Some((decision, _)) => shared(&decision, limits),
            None => self.standings(limits, now),
        }
    }

    fn standings(&mut self, limits: &PlanLimits, now: Moment) -> Standings {
        Standings {
            minute: self.minute(limits, now),
            day: limits.per_day.map(|limit| Standing {
                limit,
                remaining: limit.saturating_sub(self.lease.used()),
                reset: self.lease.day_ends_in(now),
            }),
        }
    }

    fn minute(&mut self, limits: &PlanLimits, now: Moment) -> Option<Standing> {
        limits.per_minute.map(|limit| Standing {
            limit,
            remaining: limit.saturating_sub(self.log.used(now)),
            reset: self.log.next_leaves(now),
        })
    }
}

/// How the limits stand by the shared counters.
fn shared(decision: &Decision, limits: &PlanLimits) -> Standings {
    Standings {
        minute: limits.per_minute.map(|limit| Standing {
            limit,
            remaining: limit.saturating_sub(decision.minute_used()),
            reset: decision.minute_free_in(),
        }),
        day: limits.per_day.map(|limit| Standing {
            limit,
            remaining: limit.saturating_sub(decision.day_used()),
            reset: decision.day_ends_in(),
        }),
    }
}

/// How long the shared counters refuse for the minute, and for the day, from when they were asked.
fn shared_waits(decision: &Decision, limits: &PlanLimits) -> (Duration, Duration) {
    let wait = |limit: Option<u32>, used, free_in| match limit {
        Some(limit) if used >= limit => free_in,
        _ => Duration::ZERO,
    };
    (
        wait(
            limits.per_minute,
            decision.minute_used(),
            decision.minute_free_in(),
        ),
        wait(limits.per_day, decision.day_used(), decision.day_ends_in()),
    )
}

fn refused(minute: Duration, day: Duration, standings: Standings) -> Verdict {
    let reached = [(Window::Minute, minute), (Window::Day, day)];
    Verdict::Refused {
        windows: reached
            .into_iter()
            .filter(|(_, wait)| !wait.is_zero())
            .map(|(window, _)| window)
            .collect(),
        retry_after: minute.max(day),
        standings,
    }
}

/// What an admission was charged to.
#[derive(Debug, Clone, Copy)]
enum Charge {
    /// Nothing: no limit, or the counters were out of reach.
    Nothing,
    /// This process's lease on a day.
    Lease(NaiveDate),
    /// The counters that all replicas share.
    Shared(Decision),
}

/// An admission, which can be taken back when the request fails through our own fault. Held until the
/// request is answered.
#[derive(Debug, Default)]
pub struct Permit {
    admitted: Option<(Arc<Bucket>, Moment, Charge)>,
    _in_flight: Option<InFlight>,
}

impl Permit {
    fn new(bucket: &Arc<Bucket>, at: Moment, charge: Charge) -> Self {
        Self {
            admitted: Some((Arc::clone(bucket), at, charge)),
            _in_flight: None,
        }
    }

    /// The same, with its place among the requests at once.
    pub(super) fn with(self, in_flight: InFlight) -> Self {
        Self {
            _in_flight: Some(in_flight),
            ..self
        }
    }

    /// Undoes the admission in this process; gives what is left to undo at the shared counters.
    pub(super) fn take_back(self, now: Moment) -> Option<(Arc<Bucket>, Decision)> {
        let (bucket, at, charge) = self.admitted?;
        let mut state = bucket.state();
        state.log.take_back(at);
        state.refusal = None;
        let left = match charge {
            Charge::Nothing => None,
            Charge::Lease(day) => {
                state.lease.give_back(day, now);
                None
            }
            Charge::Shared(decision) => Some(decision),
        };
        drop(state);
        left.map(|decision| (bucket, decision))
    }
}

/// A place among the requests at once that a plan may have.
#[derive(Debug)]
pub struct InFlight(Arc<Bucket>);

impl InFlight {
    /// Takes a place, if one is left.
    pub fn enter(bucket: &Arc<Bucket>, limits: &PlanLimits) -> Option<Self> {
        let before = bucket.in_flight.fetch_add(1, Ordering::Relaxed);
        let place = Self(Arc::clone(bucket));
        limits
            .in_flight
            .is_none_or(|limit| before < limit)
            .then_some(place)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}
