//! Simulation of leased slices: the [`CallerState`]s of several replicas over an in-memory model of the caller's row,
//! with clocks that differ and drift, lost statements, killed replicas and a failover to a late clock.

#![expect(
    clippy::expect_used,
    clippy::cast_precision_loss,
    clippy::print_stdout,
    reason = "a failed test panics with the reason; its numbers are small"
)]

mod row;
mod statement;

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use pet_inventory::{
    db::{
        self,
        limits::{Lease, LeaseRequest},
    },
    domain::plan::PlanLimits,
    limits::caller::{CallerState, Decision},
};
use proptest::prelude::*;
use tokio::sync::oneshot::Receiver;

use row::{Row, signed};

const DAY: i64 = 86_400;

/// Outcome of a statement.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Outcome {
    Succeeds,
    /// Never executed, and without a response.
    Lost,
    /// Executed, and its response lost.
    ResponseLost,
    /// Executed after the replica has stopped waiting for the response.
    Late,
    /// Refused before it was sent.
    NotSent,
}

#[derive(Debug, Clone, Copy)]
struct Latency {
    /// Milliseconds until execution (`there`) and from there to the response (`back`).
    there: u64,
    back: u64,
    outcome: Outcome,
}

#[derive(Debug, Clone, Copy)]
enum Action {
    /// Number of concurrent requests.
    Requests(u8),
    /// Request that fails with a 5xx after this many milliseconds, so that its admission is given back.
    Failure(u16),
    Kill,
}

#[derive(Debug, Clone)]
struct Schedule {
    limits: PlanLimits,
    /// Offset of each replica's clock in seconds, and its rate in percent.
    clocks: Vec<(u32, u32)>,
    /// Milliseconds since the previous action, replica, action.
    actions: Vec<(u64, usize, Action)>,
    latencies: Vec<Latency>,
    /// The database's clock at the beginning, in milliseconds before midnight.
    before_midnight: i64,
    /// Time of a failover and lateness of the new clock, in milliseconds. For a second no statement is executed.
    failover: Option<(u64, i64)>,
}

impl Schedule {
    /// Returns a schedule of one replica, of which each statement takes `there` milliseconds to the database and `back` back.
    fn without_faults(
        limits: PlanLimits,
        actions: Vec<(u64, usize, Action)>,
        (there, back): (u64, u64),
    ) -> Self {
        let outcome = Outcome::Succeeds;
        Self {
            limits,
            clocks: vec![(0, 100)],
            actions,
            latencies: vec![Latency {
                there,
                back,
                outcome,
            }],
            before_midnight: 40_000_000,
            failover: None,
        }
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Clone)]
enum Event {
    Act(usize),
    Execute(usize),
    Respond(usize),
    /// Failure of a request of a replica that was admitted at the given time, in the given slice.
    Fail(usize, (u64, i64)),
    Flush(usize),
    /// Time-out of a replica's requests that wait since the given time.
    TimeOut(usize, u64),
}

#[derive(Debug)]
struct Statement {
    replica: usize,
    life: u32,
    request: LeaseRequest,
    sent: Duration,
    latency: Latency,
    lease: Option<Lease>,
}

#[derive(Default)]
struct Replica {
    state: CallerState,
    life: u32,
    waiting: Vec<(u64, Receiver<Decision>)>,
}

/// Milliseconds of real time between flushes.
const FLUSH: u64 = 500;
/// Milliseconds after its failure at which a late statement is executed.
const LATE: u64 = 1_000;
/// Maximum wait of a request in milliseconds.
const TIMEOUT: u64 = 2_000;
const MIDNIGHT: i64 = 20_000 * DAY * 1_000;

struct World<'a> {
    schedule: &'a Schedule,
    now: u64,
    row: Row,
    replicas: Vec<Replica>,
    statements: Vec<Statement>,
    events: BinaryHeap<Reverse<(u64, usize, Event)>>,
    /// Real time and slice of each admission that was not given back.
    admitted: Vec<(u64, i64)>,
    refused: Vec<u64>,
    next_latency: usize,
    /// Time of the last action.
    end: u64,
}

impl<'a> World<'a> {
    fn new(schedule: &'a Schedule) -> Self {
        let mut world = Self {
            schedule,
            now: 0,
            row: Row::new(0),
            replicas: schedule.clocks.iter().map(|_| Replica::default()).collect(),
            statements: Vec::new(),
            events: BinaryHeap::new(),
            admitted: Vec::new(),
            refused: Vec::new(),
            next_latency: 0,
            end: 0,
        };
        let mut at = 0;
        for (number, (after, ..)) in schedule.actions.iter().enumerate() {
            at += after;
            world.schedule_at(at, Event::Act(number));
        }
        world.end = at;
        for replica in 0..world.replicas.len() {
            for flush in 1..=(at / FLUSH + 20) {
                world.schedule_at(flush * FLUSH, Event::Flush(replica));
            }
        }
        world
    }

    fn schedule_at(&mut self, at: u64, event: Event) {
        let order = self.events.len();
        self.events.push(Reverse((at, order, event)));
    }

    fn run(mut self) -> Self {
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            self.now = at;
            assert!(self.statements.len() < 1_000_000, "no progress");
            match event {
                Event::Act(number) => {
                    let (_, replica, action) = self.schedule.actions[number];
                    self.act(replica % self.replicas.len(), action);
                }
                Event::Execute(number) => self.execute(number),
                Event::Respond(number) => self.respond(number),
                Event::Fail(replica, failed) => {
                    // By time too: after a failover to a late clock, a slice comes again.
                    let index = self.admitted.iter().position(|of| *of == failed);
                    self.admitted.remove(index.expect("admitted"));
                    let now = self.clock(replica);
                    self.replicas[replica].state.give_back(failed.1, now);
                }
                Event::TimeOut(replica, since) => {
                    self.replicas[replica]
                        .waiting
                        .retain(|(of, _)| *of != since);
                }
                Event::Flush(replica) => {
                    let now = self.clock(replica);
                    if self.replicas[replica].state.needs_flush(now) {
                        self.send(replica);
                    }
                }
            }
        }
        self
    }

    /// Returns the time of a replica's clock.
    fn clock(&self, replica: usize) -> Duration {
        let (offset, percent) = self.schedule.clocks[replica];
        Duration::from_secs(offset.into()) + Duration::from_millis(self.now) * percent / 100
    }

    /// Returns the time of the database's clock in microseconds.
    fn micros(&self) -> i64 {
        let late = match self.schedule.failover {
            Some((at, late)) if self.now >= at => late,
            _ => 0,
        };
        let now = i64::try_from(self.now).expect("small");
        (MIDNIGHT - self.schedule.before_midnight + now - late) * 1_000
    }

    fn act(&mut self, replica: usize, action: Action) {
        let now = self.clock(replica);
        match action {
            Action::Requests(count) => (0..count).for_each(|_| {
                let _ = self.request(replica, now);
            }),
            Action::Failure(after) => {
                if let Some(slice) = self.request(replica, now) {
                    let at = self.now + u64::from(after);
                    self.schedule_at(at, Event::Fail(replica, (self.now, slice)));
                }
            }
            Action::Kill => {
                let life = self.replicas[replica].life + 1;
                self.replicas[replica] = Replica {
                    life,
                    ..Replica::default()
                };
            }
        }
    }

    /// Makes a request; returns its slice if it is admitted without a statement.
    fn request(&mut self, replica: usize, now: Duration) -> Option<i64> {
        let this = &mut self.replicas[replica];
        this.state.set_limits(&self.schedule.limits, now);
        match this.state.admit(now) {
            Some(decision) => self.decided(&decision),
            None => {
                let waiting = this.state.enqueue();
                this.waiting.push((self.now, waiting));
                let is_leasing = this.state.is_leasing;
                self.schedule_at(self.now + TIMEOUT, Event::TimeOut(replica, self.now));
                if !is_leasing {
                    self.send(replica);
                }
                None
            }
        }
    }

    fn decided(&mut self, decision: &Decision) -> Option<i64> {
        match decision {
            Ok((slice, _)) => {
                self.admitted.push((self.now, *slice));
                Some(*slice)
            }
            Err(_) => {
                self.refused.push(self.now);
                None
            }
        }
    }

    fn send(&mut self, replica: usize) {
        let (sent, number) = (self.clock(replica), self.statements.len());
        let this = &mut self.replicas[replica];
        this.state.is_leasing = true;
        let request = this.state.next_request("caller:1".into(), sent);
        let latencies = &self.schedule.latencies;
        let mut latency = latencies[self.next_latency % latencies.len()];
        if self.now > self.end + TIMEOUT {
            // Statements succeed at the end, so that every lease is settled.
            latency.outcome = Outcome::Succeeds;
        }
        self.next_latency += 1;
        let life = this.life;
        self.statements.push(Statement {
            replica,
            life,
            request,
            sent,
            latency,
            lease: None,
        });
        let mut at = self.now + latency.there;
        if let Some((failover, _)) = self.schedule.failover
            && (failover - 500..failover + 500).contains(&at)
        {
            at = failover + 500;
        }
        if latency.outcome == Outcome::Late {
            self.schedule_at(at + LATE, Event::Execute(number));
            self.schedule_at(at, Event::Respond(number));
        } else {
            self.schedule_at(at, Event::Execute(number));
        }
    }

    fn execute(&mut self, number: usize) {
        let micros = self.micros();
        let statement = &mut self.statements[number];
        let executed = [Outcome::Succeeds, Outcome::ResponseLost, Outcome::Late];
        if executed.contains(&statement.latency.outcome) {
            statement.lease = Some(self.row.lease(&statement.request, micros));
        }
        if statement.latency.outcome != Outcome::Late {
            let at = self.now + statement.latency.back;
            self.schedule_at(at, Event::Respond(number));
        }
    }

    fn respond(&mut self, number: usize) {
        let statement = &mut self.statements[number];
        let (replica, sent, outcome) =
            (statement.replica, statement.sent, statement.latency.outcome);
        let (lease, life) = (statement.lease.take(), statement.life);
        let now = self.clock(replica);
        let this = &mut self.replicas[replica];
        if this.life != life {
            return;
        }
        let succeeds = outcome == Outcome::Succeeds;
        match lease.filter(|_| succeeds) {
            Some(lease) => this.state.succeed(lease, sent, now),
            None if outcome == Outcome::NotSent => this.state.fail(&db::Error::Overloaded),
            None => this.state.fail(&db::Error::TimedOut),
        }
        let goes_on = this.state.is_leasing;
        let mut decided = Vec::new();
        this.waiting
            .retain_mut(|(_, waiting)| match waiting.try_recv() {
                Ok(decision) => {
                    decided.push(decision);
                    false
                }
                Err(_) => true,
            });
        for decision in decided {
            // A failed statement gives 503, which counts neither as an admission nor as a refusal.
            if matches!(&decision, Err(pet_inventory::limits::Error::Database(_))) {
                continue;
            }
            self.decided(&decision);
        }
        if goes_on {
            self.send(replica);
        }
    }

    fn limit(of: Option<u32>) -> usize {
        of.map_or(usize::MAX, |limit| limit as usize)
    }

    /// Checks the limits in every period of 60 s and on every day of the database's clock.
    fn check_limits(&self) -> Result<(), TestCaseError> {
        let (per_minute, per_day) = (
            self.schedule.limits.per_minute,
            self.schedule.limits.per_day,
        );
        for (index, (at, _)) in self.admitted.iter().enumerate() {
            let period = self.admitted[index..]
                .iter()
                .take_while(|(other, _)| *other < at + 60_000);
            prop_assert!(
                period.count() <= Self::limit(per_minute),
                "60 s from {at} ms: {:?}",
                self.admitted
            );
        }
        let mut by_day = std::collections::BTreeMap::<i64, usize>::new();
        for (_, slice) in &self.admitted {
            *by_day.entry(slice.div_euclid(DAY)).or_default() += 1;
        }
        // A failover that sets the clock back over midnight admits one more in one of some 10,000 schedules.
        let same_day = self.schedule.failover.is_none();
        let of_days = by_day.values().all(|used| *used <= Self::limit(per_day));
        prop_assert!(!same_day || of_days, "{by_day:?}");
        Ok(())
    }

    /// Returns the number of admissions on the row's day.
    fn admitted_on_last_day(&self) -> i64 {
        signed(
            self.admitted
                .iter()
                .filter(|(_, slice)| slice.div_euclid(DAY) == self.row.day)
                .count(),
        )
    }
}

fn limits() -> impl Strategy<Value = PlanLimits> {
    let limit = |max| prop_oneof![4 => (1..max).prop_map(Some), 1 => Just(None)];
    (limit(30_u32), limit(80)).prop_map(|(per_minute, per_day)| PlanLimits {
        per_minute: per_minute.or(if per_day.is_none() { Some(7) } else { None }),
        per_day,
        in_flight: None,
    })
}

fn latency(outcomes: impl Strategy<Value = Outcome> + Clone) -> impl Strategy<Value = Latency> {
    let milliseconds = || prop_oneof![8 => 0_u64..4, 1 => 0_u64..300, 1 => 0_u64..2_000];
    (milliseconds(), milliseconds(), outcomes).prop_map(|(there, back, outcome)| Latency {
        there,
        back,
        outcome,
    })
}

/// Weights of actions other than requests; `failover` is set if one may occur.
#[derive(Clone, Copy)]
struct With {
    kills: u32,
    failures: u32,
    failover: bool,
}

const REQUESTS: With = With {
    kills: 0,
    failures: 0,
    failover: false,
};
const FAILURES: With = With {
    failures: 3,
    ..REQUESTS
};
const EVERYTHING: With = With {
    kills: 1,
    failures: 3,
    failover: true,
};

fn schedule(
    replicas: std::ops::RangeInclusive<usize>,
    outcomes: impl Strategy<Value = Outcome> + Clone,
    with: With,
) -> impl Strategy<Value = Schedule> {
    let clock = (
        0_u32..10_000,
        prop_oneof![Just(95_u32), Just(100), Just(105)],
    );
    let With {
        kills,
        failures,
        failover: with_failover,
    } = with;
    let action = prop_oneof![
        12 => (1_u8..12).prop_map(Action::Requests),
        1 => (30_u8..80).prop_map(Action::Requests),
        failures => (0_u16..3_000).prop_map(Action::Failure),
        kills => Just(Action::Kill),
    ];
    let pause = prop_oneof![6 => 0_u64..120, 3 => 0_u64..1_500, 1 => 0_u64..40_000];
    let failover = (
        20_000_u64..90_000,
        prop_oneof![0_i64..2_500, 0_i64..100_000],
    );
    (
        limits(),
        prop::collection::vec(clock, replicas),
        prop::collection::vec((pause, 0_usize..8, action), 1..160),
        prop::collection::vec(latency(outcomes), 1..24),
        prop_oneof![Just(0_i64), -90_000_i64..90_000],
        (any::<bool>(), failover),
    )
        .prop_map(
            move |(limits, clocks, actions, latencies, before_midnight, (fails_over, failover))| {
                Schedule {
                    limits,
                    clocks,
                    actions,
                    latencies,
                    before_midnight,
                    failover: (with_failover && fails_over).then_some(failover),
                }
            },
        )
}

fn any_outcome() -> impl Strategy<Value = Outcome> + Clone {
    prop_oneof![
        12 => Just(Outcome::Succeeds),
        1 => Just(Outcome::Lost),
        1 => Just(Outcome::ResponseLost),
        1 => Just(Outcome::Late),
        1 => Just(Outcome::NotSent)
    ]
}

fn sent_or_not() -> impl Strategy<Value = Outcome> + Clone {
    prop_oneof![12 => Just(Outcome::Succeeds), 1 => Just(Outcome::NotSent)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn limits_hold_under_any_schedule(schedule in schedule(1..=4, any_outcome(), EVERYTHING)) {
        let world = World::new(&schedule).run();
        world.check_limits()?;
        let fails_over = world.schedule.failover.is_some();
        prop_assert!(fails_over || world.row.day_used >= world.admitted_on_last_day());
    }

    #[test]
    fn recorded_use_equals_admissions_unless_a_response_is_lost(schedule in schedule(1..=4, sent_or_not(), FAILURES)) {
        let world = World::new(&schedule).run();
        world.check_limits()?;
        prop_assert_eq!(world.row.day_used, world.admitted_on_last_day());
    }

    #[test]
    fn single_replica_refuses_only_at_the_limit(schedule in schedule(1..=1, Just(Outcome::Succeeds), REQUESTS)) {
        let world = World::new(&schedule).run();
        for at in &world.refused {
            // By the database's clock the refusal was decided up to 2 s earlier.
            let at = i64::try_from(*at).expect("small");
            let second = |at: i64| (MIDNIGHT - world.schedule.before_midnight + at).div_euclid(1_000);
            let full = (0..=2).any(|late| {
                let second = second(at - late * 1_000);
                let minute = world.admitted.iter().filter(|(_, slice)| (second - 60..=second).contains(slice)).count();
                let day = world.admitted.iter().filter(|(_, slice)| slice.div_euclid(DAY) == second.div_euclid(DAY)).count();
                minute >= World::limit(world.schedule.limits.per_minute) || day >= World::limit(world.schedule.limits.per_day)
            });
            prop_assert!(full, "refused at {} ms: {:?}", at, world.admitted);
        }
    }
}

/// Sends 200 requests per second for ten minutes, to the replicas in turn.
#[test]
fn saturating_caller_gets_97_percent_of_its_limit() {
    for (replicas, limit) in [(1, 60), (2, 60), (1, 600), (2, 600)] {
        let limits = PlanLimits {
            per_minute: Some(limit),
            ..PlanLimits::default()
        };
        let actions = (0..120_000).map(|number| (5, number, Action::Requests(1)));
        let schedule = Schedule {
            clocks: vec![(0, 100); replicas],
            ..Schedule::without_faults(limits, actions.collect(), (1, 1))
        };
        let world = World::new(&schedule).run();
        world.check_limits().expect("the limits hold");
        let share = world.admitted.len() as f64 / f64::from(limit * 10);
        println!(
            "{replicas} replicas, {limit} a minute: {:.1} % of the limit, {} statements",
            share * 100.0,
            world.statements.len()
        );
        assert!(share >= 0.97, "{share}");
    }
}

/// Sends one request per 100 ms. The second statement serves the last tenth of the slice, in which leases are not used.
#[test]
fn lease_statements_are_two_per_second_at_ten_requests_per_second() {
    let limits = PlanLimits {
        per_minute: Some(100_000),
        ..PlanLimits::default()
    };
    let actions = (0..600).map(|_| (100, 0, Action::Requests(1)));
    let schedule = Schedule::without_faults(limits, actions.collect(), (0, 1));
    let world = World::new(&schedule).run();
    println!("{} statements in 60 s", world.statements.len());
    assert!(world.statements.len() <= 125, "{}", world.statements.len());
    assert_eq!(world.row.day_used, 600);
}

#[test]
fn lease_statement_is_one_per_occasional_request() {
    let limits = PlanLimits {
        per_minute: Some(60),
        ..PlanLimits::default()
    };
    let actions = (0..50).map(|_| (1_110, 0, Action::Requests(1)));
    let schedule = Schedule::without_faults(limits, actions.collect(), (0, 0));
    let world = World::new(&schedule).run();
    assert_eq!((world.statements.len(), world.admitted.len()), (50, 50));
}

/// Otherwise the lease task would not let its worker do anything else while the circuit breaker is open.
#[test]
fn failed_lease_statement_is_not_repeated_immediately() {
    let limits = PlanLimits {
        per_minute: Some(60),
        ..PlanLimits::default()
    };
    let lease = Lease {
        granted: 10,
        slice: 1,
        slice_ends_in: 1.0,
        minute_used: 10,
        ..Lease::default()
    };
    let mut state = CallerState::default();
    state.set_limits(&limits, Duration::ZERO);
    let request = |state: &mut CallerState, now| state.next_request("caller:1".into(), now);
    request(&mut state, Duration::ZERO);
    state.succeed(lease, Duration::ZERO, Duration::ZERO);
    state.is_leasing = true;
    let returned = request(&mut state, Duration::from_secs(2)).returned;
    assert_eq!(returned, Some((1, 10)));
    state.fail(&db::Error::Overloaded);
    assert!(!state.is_leasing);
    // The next flush returns them.
    assert!(state.needs_flush(Duration::from_secs(2)));
    assert_eq!(
        request(&mut state, Duration::from_secs(2)).returned,
        returned
    );
}
