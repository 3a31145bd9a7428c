//! Row 14: the primary is killed, and its address leads to a standby that is promoted later.

use std::time::{Duration, Instant};

use reqwest::Method;

use crate::{
    checker,
    stage::{
        Cluster, Proxy, Row, Stage,
        load::{Load, TimedResponse, by_status, found},
        program, short_or_full, url_at,
    },
};

#[tokio::test(flavor = "multi_thread")]
async fn row_14_promoted_standby_has_every_acknowledged_write_and_accepts_new_ones() {
    let mut row = Row::begin(14, "failover to a synchronous standby").await;
    let primary = Cluster::start_with(&["synchronous_standby_names=*"]).await;
    let folder = tempfile::Builder::new()
        .prefix("pet-inventory-faults-")
        .tempdir()
        .expect("a folder")
        .keep();
    let mut standby = Cluster::of(folder, &[]);
    let copied = program("pg_basebackup")
        .args([
            "-h",
            "127.0.0.1",
            "-U",
            "postgres",
            "-R",
            "-X",
            "stream",
            "-c",
            "fast",
            "--no-sync",
        ])
        .args(["-p", &primary.address.port().to_string()])
        .arg("-D")
        .arg(standby.data())
        .status()
        .expect("pg_basebackup: run .ci/setup --all");
    assert!(copied.success(), "pg_basebackup failed");
    standby.resume().await;

    let proxy = Proxy::before(primary.address).await;
    let url = url_at(proxy.address, "postgres");
    let mut stage = Stage::on(primary, &url, &[]).await;
    let load = Load::start(&stage.target, 16).await;
    load.success_after(Instant::now()).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    stage.cluster.kill();
    // Until the promotion, writes reach a read-only PostgreSQL.
    proxy.lead_to(standby.address);
    let started = Instant::now();
    let mut reads = Vec::new();
    while started.elapsed() < short_or_full(Duration::from_secs(1), Duration::from_secs(3)) {
        reads.push(TimedResponse::of(stage.target.request(Method::GET, "/pet/1")).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    standby.run("select pg_promote()").await;
    let promoted = Instant::now();
    let again = load.success_after(promoted).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (log, responses) = load.stop().await;
    row.note(by_status(&responses));
    row.within("writes again", again, Duration::from_secs(3));
    let unexpected = responses
        .iter()
        .filter(|response| !response.is_success() && !response.is_retryable());
    row.none(
        "responses other than 2xx and 503",
        unexpected.map(|response| format!("{response:?}")),
    );
    let read = reads
        .iter()
        .filter(|response| response.is_success())
        .count();
    row.at_least("reads from the standby", read, 1);
    row.none("lost", checker::breaches(&log, &found(&standby).await));
    let late = responses.iter().filter(|response| {
        response.sent_at > promoted + Duration::from_secs(3) && !response.is_success()
    });
    row.at_most("failed later", late.count(), 0);
    row.end();
}
