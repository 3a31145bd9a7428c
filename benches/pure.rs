//! What each request pays for without asking anybody: `cargo bench --bench pure`.

#![allow(
    clippy::expect_used,
    reason = "a benchmark that cannot go on says why and ends"
)]

use divan::{Bencher, black_box};
use futures_util::FutureExt;
use pet_inventory::{
    api,
    auth::secret::{Kind, Secret, sha256},
    config::Config,
    db::{ConnectOptions, Database},
    domain::{
        caller::{Caller, CallerId, Scopes},
        clock::Clock,
        id::PetId,
        pet::{Label, Pet, PetDetails, PetName, PhotoUrl, Status, Version},
        plan::Plan,
    },
    limits::{Limiter, Scope},
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

/// A limiter whose plan Free has no day, so that it asks no database.
fn limiter() -> Limiter {
    let mut config = Config::defaults().expect("the defaults");
    config.plans.free.per_day = None;
    let database = Database::new(ConnectOptions::new_without_pgpass(), &config.database);
    Limiter::new(config.plans, Scope::Replica(database), Clock::system())
}

fn admit(bencher: Bencher<'_, '_>, plan: Plan) {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.expect("a runtime");
    let _inside = runtime.enter();
    let (limiter, caller) = (limiter(), caller(plan));
    bencher.bench_local(|| limiter.admit(black_box(&caller), None).now_or_never());
}

#[divan::bench]
fn admitted_without_a_limit(bencher: Bencher<'_, '_>) {
    admit(bencher, Plan::Enterprise);
}

#[divan::bench]
fn refused_for_the_minute(bencher: Bencher<'_, '_>) {
    admit(bencher, Plan::Free);
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
