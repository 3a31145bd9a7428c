//! Row 32: a PostgreSQL cluster of three machines under Patroni, with two replicas of the service, under faults.

mod machines;

use std::sync::atomic::Ordering;

use test_support::*;
use tokio::time::sleep;

use self::machines::{ALL, ETCD, Machines, PATRONI, POSTGRES};
use crate::{
    checker::{self, Entry},
    feed::{Reader, changes, differences, identity},
    stage::*,
};

/// Limit per minute of a caller that sends more.
const PER_MINUTE: usize = 600;
/// Requests per second of the limited caller, and of readers.
const RATE: u32 = 60;

/// A fault, with what clients may notice of it.
struct Fault {
    name: &'static str,
    inject: Inject,
    /// Longest time without a successful write; `None` if no request may fail.
    without_writes: Option<Duration>,
    /// Time until it is undone, from the first write that succeeds again on, or from the fault on.
    lasts: Duration,
}

/// Action on the machines that causes a fault.
#[derive(Clone, Copy)]
enum Inject {
    /// A signal to processes of the primary's machine, undone by SIGCONT or a new start.
    Primary(&'static [&'static str], Signal),
    /// The same for a standby's machine.
    Standby(&'static [&'static str], Signal),
    /// All members of etcd are stopped.
    Etcd,
    /// The leader of etcd is killed.
    EtcdLeader,
    /// The primary's machine is cut off.
    CutOff,
    Switchover,
    /// A standby is copied anew.
    Rebuild,
}

/// In the short form, the first two.
const FAULTS: [Fault; 12] = [
    fault(
        "PostgreSQL of the primary killed",
        Inject::Primary(&[POSTGRES], Signal::SIGKILL),
        8,
        2,
    ),
    fault("switchover", Inject::Switchover, 8, 2),
    fault(
        "machine of the primary killed",
        Inject::Primary(&ALL, Signal::SIGKILL),
        30,
        4,
    ),
    fault(
        "PostgreSQL of the primary frozen",
        Inject::Primary(&[POSTGRES], Signal::SIGSTOP),
        30,
        4,
    ),
    fault(
        "machine of the primary frozen",
        Inject::Primary(&ALL, Signal::SIGSTOP),
        30,
        6,
    ),
    fault(
        "Patroni of the primary frozen",
        Inject::Primary(&[PATRONI], Signal::SIGSTOP),
        30,
        4,
    ),
    fault("machine of the primary cut off", Inject::CutOff, 30, 4),
    fault(
        "machine of a standby killed",
        Inject::Standby(&ALL, Signal::SIGKILL),
        0,
        10,
    ),
    fault(
        "machine of a standby frozen",
        Inject::Standby(&ALL, Signal::SIGSTOP),
        0,
        10,
    ),
    fault("leader of etcd killed", Inject::EtcdLeader, 0, 8),
    fault("etcd frozen", Inject::Etcd, 0, 20),
    fault("standby copied anew", Inject::Rebuild, 0, 2),
];

/// Returns a fault, with times in seconds.
const fn fault(name: &'static str, inject: Inject, without_writes: u64, lasts: u64) -> Fault {
    Fault {
        name,
        inject,
        without_writes: match without_writes {
            0 => None,
            seconds => Some(Duration::from_secs(seconds)),
        },
        lasts: Duration::from_secs(lasts),
    }
}

/// Two replicas of the service on the machines, ended when dropped.
struct Replicas {
    _services: [Service; 2],
    targets: [Arc<Target>; 2],
    /// Key of the limited caller.
    limited: String,
    _homes: [Home; 2],
    _images: tempfile::TempDir,
}

impl Replicas {
    async fn start(machines: &Machines) -> Self {
        let images = tempfile::tempdir_in(machines.folder()).expect("a folder");
        let homes = [Home::new(), Home::new()];
        let addresses = [free_address(), free_address()];
        let settings = addresses.map(|address| {
            let settings = [
                ("SERVER__LISTEN", address.to_string()),
                ("IMAGES__URL", format!("file://{}", images.path().display())),
                ("PLANS__PRO__PER_MINUTE", PER_MINUTE.to_string()),
                ("PLANS__PRO__PER_DAY", "1000000".to_owned()),
            ];
            let named = settings.map(|(name, value)| (format!("PET_INVENTORY__{name}"), value));
            let url = ("DATABASE_URL".to_owned(), machines.url());
            named.into_iter().chain([url]).collect::<Vec<_>>()
        });
        let services = tokio::join!(
            serve(&homes[0], &settings[0]),
            serve(&homes[1], &settings[1])
        );
        let mut connection = machines.connect().await;
        let key = make_key(&mut connection, "tester", Scopes::all(), None).await;
        let limited = make_key(&mut connection, "limited", Scopes::all(), None).await;
        sqlx::query("update callers set plan = 'pro' where name = 'limited'")
            .execute(&mut connection)
            .await
            .expect("a plan");
        Self {
            _services: services.into(),
            targets: addresses.map(|address| Target::new(address, &key.secret)),
            limited: limited.secret,
            _homes: homes,
            _images: images,
        }
    }

    /// Sends requests for a pet to both replicas in turn.
    fn read(
        &self,
        key: &str,
        pet: i64,
        stop: &CancellationToken,
    ) -> tokio::task::JoinHandle<Vec<TimedResponse>> {
        let (targets, key, stop) = (self.targets.clone(), key.to_owned(), stop.clone());
        let path = format!("/pet/{pet}");
        tokio::spawn(send_at_rate(RATE, stop, move |number| -> Call {
            let target = &targets[number % 2];
            target.anonymous(Method::GET, &path).header("api_key", &key)
        }))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn row_32_cluster_loses_no_acknowledged_write_under_any_fault() {
    let mut row = Row::begin(32, "cluster of three machines: start").await;
    let started = Instant::now();
    let machines = Machines::start().await;
    let replicas = Replicas::start(&machines).await;
    row.note(format!(
        "ready after {:.1} s",
        started.elapsed().as_secs_f64()
    ));
    check_deployment(&mut row, &machines).await;
    let pet = replicas.targets[0].request(Method::POST, "/pet");
    let pet = pet.json(&json!({"name": "read"})).is(201).await.id();
    let newest = "select position from changes_clock";
    let start = number(&mut machines.connect().await, newest).await;
    let until = Arc::new(AtomicI64::new(0));
    let reader = Arc::new(Reader::new(replicas.targets.to_vec(), Arc::clone(&until)));
    let stream = {
        let reader = Arc::clone(&reader);
        tokio::spawn(async move { reader.read(start).await })
    };
    let stop = CancellationToken::new();
    let limited = replicas.read(&replicas.limited, pet, &stop);
    let mut log = Vec::new();
    for fault in &FAULTS[..short_or_full(2, FAULTS.len())] {
        row = row.then(fault.name);
        run_fault(&mut row, fault, &machines, &replicas, pet, &mut log).await;
    }
    stop.cancel();
    let faults = short_or_full(2, FAULTS.len());
    row = row.then("limits and streams through all of these faults");
    check_limits(&mut row, &limited.await.expect("no panic"), faults);
    // The last change of all has a known position.
    let last = replicas.targets[0].request(Method::POST, "/pet");
    last.json(&json!({"name": "last"})).is(201).await;
    let page = replicas.targets[0].request(Method::GET, "/changes?limit=1");
    page.is(200).await;
    let mut connection = machines.connect().await;
    until.store(number(&mut connection, newest).await, Ordering::Relaxed);
    let seen = stream.await.expect("no panic of the reader");
    let seen: Vec<_> = seen.iter().map(identity).collect();
    row.note(format!("{} changes", seen.len()));
    row.at_most("refused streams", reader.refused(), 0);
    let stored = changes(&mut connection, start).await;
    row.none("not as in the table", differences(&stored, &seen));
    row.end();
}

/// Injects a fault under load, undoes it, and checks what clients have seen and what is stored.
async fn run_fault(
    row: &mut Row,
    fault: &Fault,
    machines: &Machines,
    replicas: &Replicas,
    pet: i64,
    log: &mut Vec<Entry>,
) {
    let pause = Duration::from_millis(5);
    let [one, other] = &replicas.targets;
    let loads = [
        Load::with_pause(one, 4, pause).await,
        Load::with_pause(other, 4, pause).await,
    ];
    let stop = CancellationToken::new();
    let reads = replicas.read(&one.key, pet, &stop);
    sleep(Duration::from_secs(1)).await;
    let began = Instant::now();
    inject(fault.inject, machines, &loads, fault.lasts).await;
    // Effects of the end of the fault come within this time: Patroni's loop, and its retries.
    sleep(Duration::from_secs(8)).await;
    machines.are_complete().await;
    stop.cancel();
    let (mut writes, count) = (Vec::new(), log.len());
    for load in loads {
        let (of_load, responses) = load.stop().await;
        log.extend(of_load);
        writes.extend(responses);
    }
    let reads = reads.await.expect("no panic");
    row.note(format!("{} writes", log.len() - count));
    let gaps = [&writes, &reads].map(|responses| longest_gap(responses, began));
    let all = writes.iter().chain(&reads);
    let mut failed: Vec<_> = all.filter(|response| !response.is_success()).collect();
    if let Some(bound) = fault.without_writes {
        row.longest_within("without a write", &mut [gaps[0]], bound);
        row.longest_within("without a read", &mut [gaps[1]], bound);
        row.note(format!("{} failed", failed.len()));
        failed.retain(|response| !response.is_retryable());
        let what = "failures other than 503 with Retry-After";
        row.none(what, &failed);
    } else {
        row.note(format!("{:.2} s without a write", gaps[0].as_secs_f64()));
        row.none("failed", &failed);
    }
    let mut latencies: Vec<_> = writes.iter().chain(&reads).map(|it| it.latency).collect();
    row.longest_within(
        "slowest response",
        &mut latencies,
        Duration::from_millis(2_500),
    );
    let stored = found_of_writers(&mut machines.connect().await).await;
    row.none("lost", checker::breaches(log, &stored));
}

/// Injects a fault, waits until writes succeed, then for `lasts`, and undoes the fault.
async fn inject(inject: Inject, machines: &Machines, loads: &[Load; 2], lasts: Duration) {
    let (primary, standby) = machines.roles().await;
    let moves = async |cause: &dyn Fn()| {
        machines.after_promotion(async { cause() }).await;
        has_written(loads).await;
        sleep(lasts).await;
    };
    match inject {
        Inject::Primary(names, signal) => {
            let machine = machines.machine(primary);
            moves(&|| machine.signal(names, signal)).await;
            machine.undo(names, signal);
        }
        Inject::Standby(names, signal) => {
            let machine = machines.machine(standby);
            machine.signal(names, signal);
            sleep(lasts).await;
            machine.undo(names, signal);
        }
        Inject::Etcd => {
            for machine in machines.all() {
                machine.signal(&[ETCD], Signal::SIGSTOP);
            }
            sleep(lasts).await;
            for machine in machines.all() {
                machine.signal(&[ETCD], Signal::SIGCONT);
            }
        }
        Inject::EtcdLeader => {
            let machine = machines.machine(machines.etcd_leader().await);
            machine.signal(&[ETCD], Signal::SIGKILL);
            sleep(lasts).await;
            machine.start_etcd();
        }
        Inject::CutOff => {
            let machine = machines.machine(primary);
            moves(&|| machine.connect(false)).await;
            machine.connect(true);
        }
        Inject::Switchover => {
            machines.after_promotion(machines.switch_over()).await;
            has_written(loads).await;
            sleep(lasts).await;
        }
        Inject::Rebuild => {
            let standby = format!("node-{standby}");
            machines.patronictl("reinit", &[&standby, "--wait"]).await;
            sleep(lasts).await;
        }
    }
}

/// Waits until writes succeed that end from now on.
async fn has_written(loads: &[Load; 2]) {
    let now = Instant::now();
    for load in loads {
        load.success_after(now).await;
    }
}

/// Returns the longest time between two successes that ended after `from`.
fn longest_gap(responses: &[TimedResponse], from: Instant) -> Duration {
    let successes = responses.iter().filter(|response| response.is_success());
    let mut ends: Vec<_> = successes.map(|it| it.sent_at + it.latency).collect();
    ends.retain(|end| *end > from);
    ends.push(from);
    ends.sort_unstable();
    let gaps = ends.windows(2).map(|pair| pair[1] - pair[0]);
    gaps.max().unwrap_or(Duration::MAX)
}

/// Checks that no period of a minute has more admitted requests than the limit and those of one second, which PostgreSQL
/// forgets with its last leases.
fn check_limits(row: &mut Row, responses: &[TimedResponse], faults: usize) {
    row.note(by_status(responses));
    let mut admitted: Vec<_> = responses.iter().filter(|it| it.is_success()).collect();
    admitted.sort_by_key(|response| response.sent_at);
    let within_a_minute = |(first, response): (usize, &&TimedResponse)| {
        let end = response.sent_at + Duration::from_mins(1);
        let later = admitted[first..].iter();
        let later = later.take_while(|it| it.sent_at <= end);
        later.filter(|it| it.sent_at + it.latency <= end).count()
    };
    let most = admitted.iter().enumerate().map(within_a_minute).max();
    let (most, of_a_second) = (
        most.unwrap_or_default(),
        usize::try_from(RATE).expect("small"),
    );
    // Two failovers may come within a minute.
    let forgotten = faults.min(2) * of_a_second;
    row.at_most("admitted in a minute", most, PER_MINUTE + forgotten);
    row.at_least("admitted in a minute", most, PER_MINUTE * 9 / 10);
    let unexpected = responses.iter().filter(|response| {
        !response.is_success() && response.status != Some(429) && !response.is_retryable()
    });
    let what = "responses other than 200, 429 and 503";
    row.none(what, unexpected);
}

/// Checks what `pet-inventory check` says.
async fn check_deployment(row: &mut Row, machines: &Machines) {
    let home = Home::on(machines.url());
    let images = format!("file://{}", home.path().display());
    let images = ("PET_INVENTORY__IMAGES__URL", images.as_str());
    let check = ["check", "--replicas", "2"];
    let checked = home.run_with(&check, &[images]).await.stdout;
    let unexpected = checked.lines().filter(|line| !line.starts_with("ok "));
    row.none("findings of check", unexpected);
}

async fn number(connection: &mut PgConnection, question: &'static str) -> i64 {
    let answer = sqlx::query_scalar(question).fetch_one(connection).await;
    answer.expect("a number")
}
