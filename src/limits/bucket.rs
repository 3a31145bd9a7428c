//! What is known of one bucket: whoever a limit is counted for.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

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
    /// A refusal by the counters that all replicas share, and until when it is sure to last.
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
        let minute = limits
            .per_minute
            .map_or(Duration::ZERO, |limit| self.log.wait(now, limit));
        let day = match limits.per_day.map(|_| self.lease.ask(now)) {
            Some(Answer::Unknown) => return None,
            Some(Answer::Spent(wait)) => wait,
            Some(Answer::Room) | None => Duration::ZERO,
        };
        let retry_after = minute.max(day);
        if !retry_after.is_zero() {
            return Some(Verdict::Refused {
                window: if day > minute {
                    Window::Day
                } else {
                    Window::Minute
                },
                retry_after,
                standings: self.standings(limits, now),
            });
        }
        if limits.per_day.is_some() {
            self.lease.take();
        }
        self.log.push(now);
        Some(Verdict::Admitted(
            self.standings(limits, now),
            Permit::new(bucket, now),
        ))
    }

    /// Decides by the minute alone, while the day is out of reach.
    pub fn admit_by_minute(
        &mut self,
        bucket: &Arc<Bucket>,
        limits: &PlanLimits,
        now: Moment,
    ) -> Verdict {
        let wait = limits
            .per_minute
            .map_or(Duration::ZERO, |limit| self.log.wait(now, limit));
        let minute = self.minute(limits, now);
        if !wait.is_zero() {
            return Verdict::Refused {
                window: Window::Minute,
                retry_after: wait,
                standings: Standings { minute, day: None },
            };
        }
        self.log.push(now);
        let minute = self.minute(limits, now);
        Verdict::Admitted(Standings { minute, day: None }, Permit::new(bucket, now))
    }

    /// The last refusal of the shared counters, while it is sure to last.
    pub fn still_refused(&self, limits: &PlanLimits, now: Moment) -> Option<Verdict> {
        let (decision, until) = self.refusal.filter(|(_, until)| now < *until)?;
        Some(refused(&decision, limits, until.saturating_sub(now)))
    }

    /// Follows the shared counters.
    pub fn follow(
        &mut self,
        bucket: &Arc<Bucket>,
        decision: Decision,
        limits: &PlanLimits,
        now: Moment,
    ) -> Verdict {
        if decision.admitted {
            self.refusal = None;
            self.log.push(now);
            return Verdict::Admitted(shared(&decision, limits), Permit::new(bucket, now));
        }
        let wait = shared_wait(&decision, limits);
        self.refusal = Some((decision, now + wait));
        refused(&decision, limits, wait)
    }

    /// Whether nothing was admitted for a minute.
    pub fn is_quiet(&mut self, now: Moment) -> bool {
        self.log.used(now) == 0 && self.refusal.is_none_or(|(_, until)| until <= now)
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
            remaining: limit.saturating_sub(decision.minute_used),
            reset: decision.minute_free_in,
        }),
        day: limits.per_day.map(|limit| Standing {
            limit,
            remaining: limit.saturating_sub(decision.day_used),
            reset: decision.day_ends_in,
        }),
    }
}

/// How long the shared counters refuse.
fn shared_wait(decision: &Decision, limits: &PlanLimits) -> Duration {
    let full = |limit: Option<u32>, used| limit.is_some_and(|limit| used >= limit);
    let minute = full(limits.per_minute, decision.minute_used).then_some(decision.minute_free_in);
    let day = full(limits.per_day, decision.day_used).then_some(decision.day_ends_in);
    minute.max(day).unwrap_or_default()
}

fn refused(decision: &Decision, limits: &PlanLimits, retry_after: Duration) -> Verdict {
    let by_day = limits
        .per_day
        .is_some_and(|limit| decision.day_used >= limit);
    Verdict::Refused {
        window: if by_day { Window::Day } else { Window::Minute },
        retry_after,
        standings: shared(decision, limits),
    }
}

/// An admission, which can be taken back when the request fails through our own fault. Held until the
/// request is answered.
#[derive(Debug, Default)]
pub struct Permit {
    admitted: Option<(Arc<Bucket>, Moment)>,
    _in_flight: Option<InFlight>,
}

impl Permit {
    fn new(bucket: &Arc<Bucket>, at: Moment) -> Self {
        Self {
            admitted: Some((Arc::clone(bucket), at)),
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

    /// Undoes the admission in this process; gives whose it was.
    pub(super) fn take_back(self, now: Moment) -> Option<Arc<Bucket>> {
        let (bucket, at) = self.admitted?;
        let mut state = bucket.state();
        state.log.take_back(at);
        state.refusal = None;
        state.lease.give_back(now);
        drop(state);
        Some(bucket)
    }
}

/// A place among the requests at once that a plan may have.
#[derive(Debug)]
pub struct InFlight(Arc<Bucket>);

impl InFlight {
    /// Takes a place, if one is left.
    pub(super) fn enter(bucket: &Arc<Bucket>, limits: &PlanLimits) -> Option<Self> {
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
