//! Row 26: honest clients, at half of the capacity or less, beside all attacks at once.

mod attack;
mod attacks;
mod honest;

use test_support::*;
use tokio::time::sleep;

use self::{
    attack::{Attack, Running},
    attacks::Means,
    honest::{Honest, LOGIN, OWNER, Results},
};
use crate::{checker, stage::*};

const MEGABYTE: u64 = 1_000_000;
/// The longest that a login waits when many addresses guess the account's password, with time for the login.
const LONGEST_LOGIN: Duration = Duration::from_secs(21);

/// Records the results of honest clients in the circumstances `what`.
fn record(row: &mut Row, what: &str, results: Results) {
    let mut times = Vec::new();
    for (operation, mut latencies) in results.latencies {
        latencies.sort_unstable();
        let at = |percent: usize| latencies[(latencies.len() - 1) * percent / 100];
        let [median, p99, longest] = [50, 99, 100].map(at);
        let count = latencies.len();
        println!("{what}: {count} × {operation}: {median:.1?}, p99 {p99:.1?}, up to {longest:.1?}");
        if operation == LOGIN {
            row.longest_within("slowest login", &mut latencies, LONGEST_LOGIN);
        } else {
            times.append(&mut latencies);
        }
    }
    row.note(format!("{what}: {} requests", times.len()));
    check_failures(row, what, &results.failures);
    row.served_within("", &mut times);
}

/// Checks that no request of an honest client failed. Refusals because of overload are counted apart: other programs on the
/// machine can be the reason.
fn check_failures(row: &mut Row, what: &str, failures: &[(&str, TimedResponse)]) {
    let mut counts = BTreeMap::new();
    for (operation, response) in failures {
        let detail = response.body()["detail"].as_str();
        let detail = detail.unwrap_or(&response.error);
        let failure = format!("{operation}: {:?} {detail}", response.status);
        *counts.entry(failure).or_insert(0) += 1;
    }
    for (failure, count) in &counts {
        println!("{what}: {count} × {failure}");
    }
    let is_refusal = |(_, response): &&(_, TimedResponse)| response.is_retryable();
    let refused = failures.iter().filter(is_refusal).count();
    row.none_refused(refused);
    row.at_most("otherwise failed", failures.len() - refused, 0);
}

/// Starts a service with few resources for renderings, the attacks on it, and the target of the attackers' customer.
async fn start() -> (Stage, Arc<Honest>, Arc<Vec<Attack>>) {
    raise_file_limit();
    let settings = [
        ("IMAGES__RENDERING_MEMORY", "128MiB"),
        ("LIMITS__FAILED_AUTHENTICATION_PER_MINUTE", "100"),
    ];
    let stage = Stage::start(&settings).await;
    let honest = Honest::prepare(&stage).await;
    let key = stage.cluster.make_key("hostile").await;
    let customer = stage.target.of_client([127, 0, 2, 1], &key.secret);
    let attacks = Means::prepare(&stage, &customer).await.attacks(OWNER);
    (stage, honest, Arc::new(attacks))
}

#[tokio::test(flavor = "multi_thread")]
async fn row_26_honest_clients_are_served_beside_all_attacks() {
    let mut row = Row::begin(26, "all attacks at once, beside honest clients").await;
    let (stage, honest, attacks) = start().await;
    let lasting = short_or_full(Duration::from_secs(24), Duration::from_mins(10));
    // The short form runs on any machine, of which other programs may take a half.
    let rate = honest.capacity(lasting / 20).await / short_or_full(4, 2);
    row.note(format!("{rate} requests per second"));
    row.note(format!("{} MB before", stage.memory() / MEGABYTE));
    honest.start(&stage, rate);
    let pause = Duration::from_millis(200);
    let writers = Load::with_pause(honest.enterprise(0), 8, pause).await;
    sleep(lasting / 20).await;
    record(&mut row, "without attacks", honest.take_results());
    for addresses in [1, 4] {
        let running = Running::start(&attacks, stage.target.address, addresses);
        sleep(lasting / 2).await;
        running.stop();
        let what = format!("with each attack from {addresses} of its own addresses");
        record(&mut row, &what, honest.take_results());
    }
    honest.stop().await;
    let (log, responses) = writers.stop().await;
    for attack in attacks.iter() {
        println!("{}: {}", attack.name, attack.count);
    }
    let failed = attacks.iter().filter(|attack| !attack.took_place());
    row.none(
        "attacks that did not take place",
        failed.map(|attack| attack.name),
    );
    row.note(format!("{} writes: {}", log.len(), by_status(&responses)));
    let failed = responses.iter().filter(|response| !response.is_success());
    let failed: Vec<_> = failed.map(|response| ("write", response.clone())).collect();
    check_failures(&mut row, "writers", &failed);
    let times = responses.iter().map(|response| response.latency);
    let mut times: Vec<_> = times.collect();
    row.served_within(" of writes", &mut times);
    let peak = stage.peak_memory() / MEGABYTE;
    row.at_most("peak of memory in MB", peak, short_or_full(750, 600));
    check_data(&mut row, &stage, &honest, &log).await;
    row.end();
}

/// Checks that nothing acknowledged is lost, and that no attack has changed anything.
async fn check_data(row: &mut Row, stage: &Stage, honest: &Honest, log: &[checker::Entry]) {
    let found = found_of_writers(&mut stage.cluster.connect().await).await;
    row.none("lost", checker::breaches(log, &found));
    row.none("images without their bytes", broken_images(stage).await);
    let deleted = honest.deleted.lock().expect("never poisoned").clone();
    let number = async |question: &str| stage.cluster.number(question).await;
    let pets: Vec<i64> = sqlx::query_scalar("select id from pets where id = any($1)")
        .bind(&deleted)
        .fetch_all(&mut stage.cluster.connect().await)
        .await
        .expect("the pets");
    row.note(format!("{} deletions", deleted.len()));
    row.none("deleted pets that exist", pets);
    let sold = "select count(*) from pets where status = 'sold'";
    row.at_most("pets sold", number(sold).await, 0);
    let users = "select count(*) from users where username not in ('ada', 'mallory')";
    row.at_most("users with similar names", number(users).await, 0);
}
