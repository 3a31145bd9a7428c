//! Row 17: limits hold, and recorded use is at least admitted use, while replicas or PostgreSQL are killed or frozen.

use std::sync::atomic::Ordering;

use test_support::*;
use tokio_util::task::TaskTracker;

use crate::stage::*;

/// Limits per minute: one that the clients reach, and one that they do not.
const REACHED: i64 = 2_500;
const NOT_REACHED: i64 = 50_000;
const CLIENTS: usize = 12;

/// Starts a stage with a caller limited to `limit` requests per minute; returns it with the caller's key.
async fn limited(limit: i64) -> (Stage, String) {
    let limit = limit.to_string();
    let stage = Stage::start(&[("PLANS__PRO__PER_MINUTE", &limit)]).await;
    let key = stage.cluster.make_key("limited").await;
    let set = "update callers set plan = 'pro' where name = 'limited'";
    stage.cluster.run(set).await;
    (stage, key.secret)
}

/// Clients that send requests until they are stopped.
#[derive(Clone, Default)]
struct Clients {
    stop: CancellationToken,
    tasks: TaskTracker,
    /// Requests with a 404, and requests without a response.
    admitted: Arc<AtomicI64>,
    unanswered: Arc<AtomicI64>,
}

impl Clients {
    fn start(&self, service: &Service, key: &str) {
        for _ in 0..CLIENTS {
            let (this, key) = (self.clone(), key.to_owned());
            let request = service.request(Method::GET, "/pet/1", &key);
            self.tasks.spawn(async move {
                while !this.stop.is_cancelled() {
                    let request = request.clone();
                    match request
                        .send()
                        .await
                        .map(|response| response.status().as_u16())
                    {
                        Ok(404) => this.admitted.fetch_add(1, Ordering::Relaxed),
                        Ok(429 | 503) => 0,
                        Ok(status) => panic!("{status}"),
                        Err(_) => this.unanswered.fetch_add(1, Ordering::Relaxed),
                    };
                    tokio::time::sleep(Duration::from_millis(15)).await;
                }
            });
        }
    }

    /// Waits until `count` more requests are admitted, for up to 30 s.
    async fn admits(&self, count: i64) {
        let wanted = self.admitted.load(Ordering::Relaxed) + count;
        let admitted = async {
            while self.admitted.load(Ordering::Relaxed) < wanted {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), admitted)
            .await
            .expect("requests are admitted again");
    }

    /// Stops the clients; returns the numbers of admitted and unanswered requests.
    async fn stop(self) -> (i64, i64) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        // Unused requests are returned within a second after their slice.
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        let count = |count: &AtomicI64| count.load(Ordering::Relaxed);
        (count(&self.admitted), count(&self.unanswered))
    }
}

async fn recorded(stage: &Stage) -> i64 {
    let recorded = "select day_used from limit_usage join callers on key = 'caller:' || id where name = 'limited'";
    stage.cluster.number(recorded).await
}

/// Returns the use of the slice with the most requests. No lease is larger.
async fn largest_slice(stage: &Stage) -> i64 {
    let largest = "select max(n)::bigint from limit_usage, unnest(slices) as n";
    stage.cluster.number(largest).await
}

#[tokio::test(flavor = "multi_thread")]
async fn row_17_limits_hold_while_a_replica_is_killed() {
    let mut row =
        Row::begin_beside_others(17, "a replica killed 3 times under limited callers").await;
    let (stage, key) = limited(REACHED).await;
    let clients = Clients::default();
    clients.start(&stage.service, &key);
    let mut largest = 0;
    for _ in 0..3 {
        let mut second = stage.serve_beside().await;
        let of_second = Clients {
            stop: clients.stop.child_token(),
            ..clients.clone()
        };
        of_second.start(&second, &key);
        tokio::time::sleep(Duration::from_millis(1_300)).await;
        second.signal(Signal::SIGKILL);
        second.wait_for_exit().await;
        of_second.stop.cancel();
        largest = largest.max(largest_slice(&stage).await);
    }
    let (admitted, unanswered) = clients.stop().await;
    let recorded = recorded(&stage).await;
    row.note(format!(
        "{admitted} admitted, {unanswered} unanswered, {recorded} recorded"
    ));
    row.at_most("admitted", admitted, REACHED);
    row.at_most("recorded", recorded, REACHED);
    row.at_least("recorded", recorded, admitted);
    // Each kill loses the leases of the killed replica. Requests that it left without a response are counted apart.
    let lost = recorded - admitted - unanswered;
    row.at_most(
        "lost with the leases of the killed",
        lost,
        3 * 2 * largest.max(100),
    );
    row.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn row_17_limits_hold_through_a_frozen_postgresql() {
    let mut row =
        Row::begin_beside_others(17, "PostgreSQL frozen twice under a limited caller").await;
    let (stage, key) = limited(NOT_REACHED).await;
    let clients = Clients::default();
    clients.start(&stage.service, &key);
    let mut largest = 0;
    for frozen in [700, 3_000] {
        clients.admits(400).await;
        largest = largest.max(largest_slice(&stage).await);
        stage.cluster.signal(Signal::SIGSTOP);
        tokio::time::sleep(Duration::from_millis(frozen)).await;
        stage.cluster.signal(Signal::SIGCONT);
    }
    clients.admits(400).await;
    let (admitted, unanswered) = clients.stop().await;
    row.at_most("unanswered", unanswered, 0);
    let recorded = recorded(&stage).await;
    row.note(format!("{admitted} admitted, {recorded} recorded"));
    row.at_least("recorded", recorded, admitted);
    // A lost response costs at most a lease, and what its statement returned.
    let lost = recorded - admitted;
    row.at_most("lost with responses", lost, 2 * 2 * largest.max(100));
    row.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn row_17_limits_hold_through_a_killed_postgresql() {
    let mut row = Row::begin_beside_others(17, "PostgreSQL killed under a limited caller").await;
    let (mut stage, key) = limited(REACHED).await;
    let clients = Clients::default();
    clients.start(&stage.service, &key);
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    stage.cluster.kill();
    stage.cluster.resume().await;
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let (admitted, _) = clients.stop().await;
    let recorded = recorded(&stage).await;
    row.note(format!("{admitted} admitted, {recorded} recorded"));
    // Leases are committed asynchronously: a crash loses those of about one second, at most this many requests.
    let of_a_second = i64::try_from(CLIENTS).expect("small") * 1_000 / 15;
    row.at_most("admitted", admitted, REACHED + of_a_second);
    row.at_most("forgotten", admitted - recorded, of_a_second);
    row.end();
}
