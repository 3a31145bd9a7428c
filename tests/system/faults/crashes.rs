//! Rows 1 and 2: the service or PostgreSQL is killed.

use test_support::*;

use crate::{
    checker::{self, Outcome},
    stage::*,
};

const WRITERS: usize = 16;

#[tokio::test(flavor = "multi_thread")]
async fn row_01_killed_service_loses_no_acknowledged_write() {
    let mut row = Row::begin(1, "kill -9 of the service under 16 writers").await;
    let mut stage = Stage::start(&[]).await;
    let load = Load::start(&stage.target, WRITERS).await;
    let rounds = short_or_full(4, 50);
    let mut slowest = Duration::ZERO;
    for _ in 0..rounds {
        load.success_after(Instant::now()).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        stage.service.signal(Signal::SIGKILL);
        stage.service.wait_for_exit().await;
        let started = Instant::now();
        let (service, ()) = tokio::join!(stage.serve(), async {
            until(200, || stage.target.request(Method::GET, "/pet/1")).await;
            slowest = slowest.max(started.elapsed());
        });
        stage.service = service;
    }
    let (log, _) = load.stop().await;
    let acknowledged = log
        .iter()
        .filter(|entry| entry.outcome == Outcome::Acknowledged);
    row.note(format!(
        "{rounds} rounds, {} acknowledged writes",
        acknowledged.count()
    ));
    let breaches = checker::breaches(&log, &found(&mut stage.cluster.connect().await).await);
    row.none("missing, stored in part or out of order", breaches);
    row.none("images without their bytes", broken_images(&stage).await);
    row.within("restart to first 200", slowest, Duration::from_secs(1));
    row.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn row_02_killed_postgres_loses_no_acknowledged_write_and_yields_503() {
    let mut row = Row::begin(2, "kill -9 of PostgreSQL under 16 writers").await;
    let mut stage = Stage::start(&[]).await;
    let load = Load::start(&stage.target, WRITERS).await;
    let rounds = short_or_full(2, 10);
    let (mut latest, mut others) = (Duration::ZERO, Vec::new());
    for _ in 0..rounds {
        load.success_after(Instant::now()).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        // In progress at the time of the kill.
        let clients = [(); 3].map(|()| tokio::spawn(send_each_kind(stage.target.clone())));
        stage.cluster.kill();
        tokio::time::sleep(Duration::from_millis(500)).await;
        stage.cluster.resume().await;
        latest = latest.max(load.success_after(Instant::now()).await);
        for client in clients {
            others.extend(client.await.expect("a client"));
        }
        until_each_kind_is_served(&stage.target).await;
    }
    let (log, responses) = load.stop().await;
    row.note(format!("{rounds} rounds, {}", by_status(&responses)));
    let breaches = checker::breaches(&log, &found(&mut stage.cluster.connect().await).await);
    row.none("lost", breaches);
    row.none("images without their bytes", broken_images(&stage).await);
    let unexpected = responses
        .iter()
        .filter(|response| !response.is_success() && !response.is_retryable());
    row.none(
        "responses other than 2xx and 503 with Retry-After",
        unexpected,
    );
    let failed = others.iter().filter(|response| response.is_failure());
    row.none("failures of other requests in progress", failed);
    let mut latencies: Vec<_> = responses.iter().map(|response| response.latency).collect();
    row.longest_within(
        "slowest response",
        &mut latencies,
        Duration::from_millis(2_500),
    );
    row.within(
        "first success after it accepts",
        latest,
        Duration::from_millis(500),
    );
    row.end();
}
