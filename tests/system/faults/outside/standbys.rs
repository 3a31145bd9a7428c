//! Row 33: reads from standbys that lag, pause, or have another history, for sessions that read what they wrote.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use reqwest::Method;
use serde_json::{Value, json};
use test_support::eventually;
use tokio::{task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;

use super::failover::standby_of;
use crate::stage::{Cluster, Proxy, Row, Stage, Target, short_or_full, until, url_at};

const HEADER: &str = "pet-inventory-consistency";
const PETS: usize = 4;
const READERS: usize = 16;

/// Last acknowledged change of a pet: its number, and the header of the response.
type Published = Arc<Mutex<Option<(u64, String)>>>;

/// Counts of the readers.
#[derive(Default)]
struct Seen {
    reads: AtomicUsize,
    /// Reads that returned an older state than the change that they followed.
    stale: AtomicUsize,
    failed: AtomicUsize,
}

/// Sessions that change pets, and others that read each pet after its last change.
pub struct Sessions {
    tasks: JoinSet<()>,
    stop: CancellationToken,
    seen: Arc<Seen>,
}

impl Sessions {
    /// Starts sessions that write to one service and read from another, each with a pause between its requests.
    pub async fn start(
        [writer, reader]: [&Arc<Target>; 2],
        readers: usize,
        pause: Duration,
    ) -> Self {
        let (stop, seen) = (CancellationToken::new(), Arc::<Seen>::default());
        let (mut tasks, mut pets) = (JoinSet::new(), Vec::new());
        for _ in 0..PETS {
            let pet = writer.request(Method::POST, "/pet");
            let pet = pet.json(&json!({"name": "0"})).is(201).await.id();
            let published = Published::default();
            pets.push((pet, Arc::clone(&published)));
            let pause = pause.max(Duration::from_millis(2));
            let (writer, stop) = (Arc::clone(writer), stop.clone());
            tasks.spawn(write(writer, pet, pause, published, stop));
        }
        for first in 0..readers {
            let mut pets = pets.clone();
            pets.rotate_left(first % PETS);
            let (reader, seen) = (Arc::clone(reader), Arc::clone(&seen));
            tasks.spawn(read(reader, pets, pause, seen, stop.clone()));
        }
        Self { tasks, stop, seen }
    }

    /// Ends them, and checks that they have read at least `wanted` times, and never a state older than that of the change which
    /// they followed. Returns the number of failed reads.
    pub async fn end(self, row: &mut Row, wanted: usize) -> usize {
        self.stop.cancel();
        self.tasks.join_all().await;
        row.at_least("reads", self.seen.reads.load(Relaxed), wanted);
        row.at_most("stale", self.seen.stale.load(Relaxed), 0);
        self.seen.failed.load(Relaxed)
    }
}

/// Changes a pet again and again, and publishes each change once it is acknowledged.
async fn write(
    target: Arc<Target>,
    pet: i64,
    pause: Duration,
    published: Published,
    stop: CancellationToken,
) {
    for number in 0_u64.. {
        if stop.is_cancelled() {
            return;
        }
        let body = json!({"id": pet, "name": number.to_string()});
        let change = target.request(Method::PUT, "/pet").json(&body);
        if let Ok(response) = change.send().await
            && response.status() == 200
        {
            let header = response.headers().get(HEADER);
            let header = header.expect("a position").to_str().expect("text");
            let published = &mut *published.lock().expect("never poisoned");
            *published = Some((number, header.to_owned()));
        }
        sleep(pause).await;
    }
}

/// Reads pets in turn, each after its last published change.
async fn read(
    target: Arc<Target>,
    pets: Vec<(i64, Published)>,
    pause: Duration,
    seen: Arc<Seen>,
    stop: CancellationToken,
) {
    for (pet, published) in pets.iter().cycle() {
        if stop.is_cancelled() {
            return;
        }
        if !pause.is_zero() {
            sleep(pause).await;
        }
        let last = published.lock().expect("never poisoned").clone();
        let Some((number, header)) = last else {
            sleep(Duration::from_millis(1)).await;
            continue;
        };
        let get = target.request(Method::GET, &format!("/pet/{pet}"));
        let response = get.header(HEADER, header).send().await;
        let Ok(response) = response else {
            seen.failed.fetch_add(1, Relaxed);
            continue;
        };
        if response.status() != 200 {
            seen.failed.fetch_add(1, Relaxed);
            continue;
        }
        let pet: Value = response.json().await.expect("a pet");
        let name = pet["name"].as_str().expect("a name");
        let is_stale = name.parse::<u64>().expect("a number") < number;
        seen.stale.fetch_add(usize::from(is_stale), Relaxed);
        seen.reads.fetch_add(1, Relaxed);
    }
}

/// Runs writers and readers until there are enough reads, and checks them. `disturb` runs meanwhile.
async fn check(row: &mut Row, stage: &Stage, disturb: impl AsyncFn()) {
    let wanted = short_or_full(5_000, 50_000);
    let target = &stage.target;
    let sessions = Sessions::start([target, target], READERS, Duration::ZERO).await;
    let started = Instant::now();
    while sessions.seen.reads.load(Relaxed) < wanted && started.elapsed() < Duration::from_mins(5) {
        disturb().await;
    }
    let failed = sessions.end(row, wanted).await;
    row.at_most("failed", failed, 0);
    for result in ["served", "behind", "other_timeline", "unavailable"] {
        let count = reads(stage, result).await;
        row.note(format!("{count} {result}"));
    }
}

/// Returns the number of reads with a result.
async fn reads(stage: &Stage, result: &str) -> f64 {
    let label = format!("result=\"{result}\"");
    stage.metric("db_client_standby_reads_total", &label).await
}

/// Starts a primary with a standby, and the service on both.
async fn with_standby() -> (Stage, Cluster) {
    let primary = Cluster::start().await;
    let standby = standby_of(&primary).await;
    let (url, read_url) = (primary.url(), standby.url());
    let stage = Stage::on(primary, &url, &[("DATABASE__READ_URL", &read_url)]).await;
    (stage, standby)
}

#[tokio::test(flavor = "multi_thread")]
async fn row_33_reads_from_a_standby_are_not_stale() {
    let mut row = Row::begin_beside_others(33, "reads from a standby, after changes").await;
    let (stage, _standby) = with_standby().await;
    check(&mut row, &stage, async || {
        sleep(Duration::from_millis(50)).await;
    })
    .await;
    row.at_least("served", reads(&stage, "served").await, 100.0);
    row.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn row_33_reads_from_a_standby_that_lags_are_not_stale() {
    let mut row = Row::begin_beside_others(33, "reads from a standby that lags by 100 ms").await;
    let (stage, standby) = with_standby().await;
    standby
        .run("alter system set recovery_min_apply_delay = '100ms'")
        .await;
    standby.run("select pg_reload_conf()").await;
    check(&mut row, &stage, async || {
        sleep(Duration::from_millis(50)).await;
    })
    .await;
    row.at_least("behind", reads(&stage, "behind").await, 1_000.0);
    row.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn row_33_reads_from_a_standby_that_pauses_are_not_stale() {
    let mut row = Row::begin_beside_others(
        33,
        "reads from a standby whose replay pauses every other 0.3 s",
    )
    .await;
    let (stage, standby) = with_standby().await;
    let pause = "select case when pg_is_wal_replay_paused() then pg_wal_replay_resume() else pg_wal_replay_pause() end";
    check(&mut row, &stage, async || {
        standby.run(pause).await;
        sleep(Duration::from_millis(300)).await;
    })
    .await;
    row.at_least("served", reads(&stage, "served").await, 100.0);
    row.end();
}

/// The standby has received more than the one that is promoted, so its transaction ids are ahead of the new primary's.
#[tokio::test(flavor = "multi_thread")]
async fn row_33_standby_with_another_history_serves_no_read() {
    let mut row = Row::begin_beside_others(
        33,
        "reads from a standby that was ahead of the promoted one",
    )
    .await;
    let primary = Cluster::start().await;
    let proxy = Proxy::before(primary.address).await;
    let (next, ahead) = (standby_of(&primary).await, standby_of(&primary).await);
    let (url, read_url) = (url_at(proxy.address, "postgres"), ahead.url());
    let mut stage = Stage::on(primary, &url, &[("DATABASE__READ_URL", &read_url)]).await;
    let replayed = "select (pg_last_wal_replay_lsn() - '0/0')::bigint";
    let written = "select (pg_current_wal_flush_lsn() - '0/0')::bigint";
    for standby in [&next, &ahead] {
        let end = stage.cluster.number(written).await;
        eventually(async || standby.number(replayed).await >= end).await;
    }
    // One standby receives no more. The other one receives 100,000 transactions.
    follow(&next, "").await;
    eventually(async || {
        next.number("select count(*) from pg_stat_wal_receiver")
            .await
            == 0
    })
    .await;
    let transactions = "create table ahead (); do $$ begin
             for i in 1..100000 loop
                 begin insert into ahead default values; exception when others then null; end;
             end loop;
         end $$";
    stage.cluster.run(transactions).await;
    let end = stage.cluster.number(written).await;
    eventually(async || ahead.number(replayed).await >= end).await;
    stage.cluster.kill();
    next.run("select pg_promote()").await;
    proxy.lead_to(next.address);
    let conninfo = format!("host=127.0.0.1 port={} user=postgres", next.address.port());
    follow(&ahead, &conninfo).await;
    let xmin = "select pg_snapshot_xmin(pg_current_snapshot())::text::bigint";
    let lead = ahead.number(xmin).await - next.number(xmin).await;
    row.at_least("transactions ahead", lead, 50_000);
    until(200, || stage.target.request(Method::GET, "/pet?limit=1")).await;
    check(&mut row, &stage, async || {
        sleep(Duration::from_millis(50)).await;
    })
    .await;
    row.at_most("served", reads(&stage, "served").await, 0.0);
    row.at_least(
        "other timeline",
        reads(&stage, "other_timeline").await,
        1_000.0,
    );
    row.end();
}

/// Sets the primary that a standby follows.
async fn follow(standby: &Cluster, conninfo: &str) {
    let set = format!("alter system set primary_conninfo = '{conninfo}'");
    standby.run(&set).await;
    standby.run("select pg_reload_conf()").await;
}
