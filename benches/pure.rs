//! Benchmarks of per-request work without I/O: `cargo bench --bench pure`.

#![allow(
    clippy::expect_used,
    reason = "a benchmark that cannot go on says why and ends"
)]

use std::time::Duration;

use divan::{Bencher, black_box};
use pet_inventory::{
    api,
    auth::secret::{Kind, Secret, sha256},
    config::{Config, PlanLimits},
    db::{ConnectOptions, Database, limits::Lease},
    domain::{
        caller::{Caller, CallerId, Scopes},
        clock::Clock,
        id::PetId,
        pet::{Label, Pet, PetDetails, PetName, PhotoUrl, Status, Version},
        plan::Plan,
    },
    limits::{Limiter, caller::CallerState},
};

fn main() {
    divan::main();
}

fn caller(plan: Plan) -> Caller {
    Caller {
        id: Some(CallerId(7)),
        name: "acme".parse().expect("a name"),
        plan,
        scopes: Scopes::all(),
    }
}

#[divan::bench]
fn admitted_without_a_limit(bencher: Bencher<'_, '_>) {
    let config = Config::defaults().expect("the defaults");
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.expect("a runtime");
    let _inside = runtime.enter();
    let database = Database::new(ConnectOptions::new_without_pgpass(), &config.database);
    let limiter = Limiter::new(config.plans, database, Clock::system());
    let caller = caller(Plan::Enterprise);
    bencher.bench_local(|| limiter.admit(black_box(&caller), None));
}

/// Returns the state of a caller with a lease for a day.
fn leased(granted: u32) -> CallerState {
    let day = 86_400.0;
    let mut state = CallerState::default();
    let limits = PlanLimits {
        per_minute: Some(u32::MAX),
        per_day: Some(u32::MAX),
        in_flight: None,
    };
    state.set_limits(&limits, Duration::ZERO);
    let lease = Lease {
        granted,
        slice_ends_in: day,
        minute_used: granted,
        minute_frees_in: day,
        ..Lease::default()
    };
    state.succeed(lease, Duration::ZERO, Duration::ZERO);
    state
}

#[divan::bench]
fn admitted_from_a_lease(bencher: Bencher<'_, '_>) {
    let mut state = leased(u32::MAX);
    bencher.bench_local(|| state.admit(black_box(Duration::from_secs(1))));
}

#[divan::bench]
fn key_read(bencher: Bencher<'_, '_>) {
    let key = Secret::generate(Kind::ApiKey).expect("random numbers");
    bencher.bench_local(|| Secret::parse(black_box(key.expose()), &Kind::BEARERS).is_some());
}

#[divan::bench]
fn key_hashed(bencher: Bencher<'_, '_>) {
    let key = Secret::generate(Kind::ApiKey).expect("random numbers");
    bencher.bench_local(|| sha256(black_box(key.expose())));
}

#[divan::bench]
fn request_id() -> impl Sized {
    api::request_id::random_id()
}

#[divan::bench]
fn pet_as_json(bencher: Bencher<'_, '_>) {
    let label = |id, name: &str| Label::from_stored(Some(id), Some(name.to_owned()));
    let pet = Pet {
        id: PetId::new(4711).expect("an id"),
        version: Version(1),
        details: PetDetails::from_stored(
            PetName::from_stored("Rex".to_owned()),
            Some(label(1, "Dogs")),
            vec![PhotoUrl::from_stored(
                "https://example.com/rex.jpg".to_owned(),
            )],
            vec![label(1, "friendly"), label(2, "young")],
            Status::Available,
        ),
    };
    bencher.bench_local(|| api::pets::json(black_box(&pet)));
}
