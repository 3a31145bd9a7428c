//! Comparison of the statement in `db::limits` with the model of the row.

use pet_inventory::{
    config::Config,
    db::{
        Database,
        limits::{Lease, LeaseRequest, lease},
    },
    domain::plan::PlanLimits,
};
use proptest::{
    prelude::*,
    strategy::ValueTree as _,
    test_runner::{Config as RunnerConfig, TestRunner},
};
use test_support::postgres::{TestClock, TestDatabase};

use super::row::Row;

/// Generates the milliseconds by which the clock moves, and a request.
fn step() -> impl Strategy<Value = (i64, LeaseRequest)> {
    let clock = prop_oneof![6 => 0_i64..900, 3 => 0_i64..5_000, 1 => 0_i64..90_000, 1 => -40_000_i64..0, 1 => Just(86_400_000)];
    let limit = prop_oneof![1 => Just(None), 4 => (1_u32..60).prop_map(Some)];
    let returned = prop::option::of((-2_i64..70, 0_u32..5));
    (
        clock,
        limit.clone(),
        limit,
        0_usize..20,
        0_usize..20,
        returned,
    )
        .prop_map(|(clock, per_minute, per_day, waiting, more, returned)| {
            let request = LeaseRequest {
                limits: PlanLimits {
                    per_minute: per_minute.or(if per_day.is_none() { Some(10) } else { None }),
                    per_day,
                    in_flight: None,
                },
                waiting,
                wanted: waiting + if waiting > 0 { more } else { 0 },
                // The age, which the test converts to a slice.
                returned,
                ..LeaseRequest::default()
            };
            (clock, request)
        })
}

#[tokio::test(flavor = "multi_thread")]
async fn lease_statement_agrees_with_the_model() {
    /// An hour before midnight, in milliseconds since 1970.
    const BEGIN: i64 = (20_000 * 86_400 - 3_600) * 1_000;
    let clock = TestClock::new(TestDatabase::migrated().await).await;
    let config = Config::defaults().expect("the defaults");
    let database = Database::new(clock.database.options().clone(), &config.database);
    let mut runner = TestRunner::new(RunnerConfig::default());
    let histories = prop::collection::vec(step(), 1..120);
    for history in 0..60 {
        let steps = histories
            .new_tree(&mut runner)
            .expect("a history")
            .current();
        let key = format!("caller:{history}");
        let (mut row, mut now) = (None::<Row>, BEGIN);
        for (later, mut request) in steps {
            now += later;
            clock.set(now).await;
            let second = now.div_euclid(1_000);
            let row = row.get_or_insert_with(|| Row::new(second.div_euclid(86_400)));
            request.key.clone_from(&key);
            let age = request.returned;
            request.returned = age.map(|(age, unused)| (second - age, unused));
            let expected = row.lease(&request, now * 1_000);
            let leased = lease(&database, request.clone()).await.expect("a lease");
            // The database's times are floats, exact to a microsecond or two.
            let about = |lease: &Lease| {
                let rounded = |seconds: f64| (seconds * 1e3).round();
                let lease = Lease {
                    slice_ends_in: rounded(lease.slice_ends_in),
                    minute_frees_in: rounded(lease.minute_frees_in),
                    day_ends_in: rounded(lease.day_ends_in),
                    ..lease.clone()
                };
                format!("{lease:?}")
            };
            assert_eq!(
                about(&leased),
                about(&expected),
                "{request:?} at {now}: {row:?}"
            );
        }
        let stored = format!("select day_used from limit_usage where key = '{key}'");
        let day_used = row.expect("a step").day_used;
        assert_eq!(clock.database.number(&stored).await, day_used);
    }
    database.close().await;
}

/// Two replicas lease for the same callers in opposite orders.
#[tokio::test(flavor = "multi_thread")]
async fn leases_of_many_callers_never_deadlock() {
    const CALLERS: usize = 40;
    let test = TestDatabase::migrated().await;
    let config = Config::defaults().expect("the defaults");
    let replicas = [0, 1].map(|_| Database::new(test.options().clone(), &config.database));
    let mut tasks = tokio::task::JoinSet::new();
    for (replica, database) in replicas.iter().enumerate() {
        for number in 0..CALLERS {
            let database = database.clone();
            let number = if replica == 0 {
                number
            } else {
                CALLERS - 1 - number
            };
            tasks.spawn(async move {
                let mut granted = 0;
                for _ in 0..20 {
                    let request = LeaseRequest {
                        key: format!("caller:{number}"),
                        limits: PlanLimits {
                            per_day: Some(35),
                            ..PlanLimits::default()
                        },
                        waiting: 1,
                        wanted: 1,
                        ..LeaseRequest::default()
                    };
                    granted += lease(&database, request).await.expect("a lease").granted;
                }
                granted
            });
        }
    }
    let granted: u32 = tasks.join_all().await.into_iter().sum();
    assert_eq!(granted, 40 * 35);
    for database in replicas {
        database.close().await;
    }
}
