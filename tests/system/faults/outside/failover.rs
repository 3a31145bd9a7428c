//! Row 14: the primary is killed, and its address leads to a standby that is promoted later.

use test_support::*;

use crate::{checker, stage::*};

/// Copies a cluster, and starts the copy as its standby.
async fn standby_of(primary: &Cluster) -> Cluster {
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
    standby
}

#[tokio::test(flavor = "multi_thread")]
async fn check_warns_of_standbys_that_no_commit_waits_for() {
    let row = Row::begin_beside_others(14, "check beside a standby").await;
    let primary = Cluster::start().await;
    let check = async |cluster: &Cluster, replicas: &str| {
        let home = Home::on(cluster.url());
        home.run(&["check", "--replicas", replicas]).await.stdout
    };
    let alone = check(&primary, "1").await;
    assert!(!alone.contains("synchronous_standby_names"), "{alone}");
    assert!(alone.contains("ok      connections    1 × "), "{alone}");
    let standby = standby_of(&primary).await;
    let connected = "select count(*) from pg_stat_replication where state = 'streaming'";
    eventually(async || primary.number(connected).await == 1).await;
    let asynchronous = check(&primary, "100").await;
    let warning =
        "WARNING database       1 standbys are connected, but synchronous_standby_names is empty";
    assert!(asynchronous.contains(warning), "{asynchronous}");
    let too_many = "FAILED  connections    100 × ";
    assert!(asynchronous.contains(too_many), "{asynchronous}");
    let of_standby = check(&standby, "1").await;
    let refused = "FAILED  database       PostgreSQL is unavailable: ";
    assert!(of_standby.contains(refused), "{of_standby}");
    assert!(of_standby.contains("is a standby"), "{of_standby}");
    row.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn row_14_promoted_standby_has_every_acknowledged_write_and_accepts_new_ones() {
    let mut row = Row::begin(14, "failover to a synchronous standby").await;
    let primary = Cluster::start_with(&["synchronous_standby_names=*"]).await;
    let standby = standby_of(&primary).await;
    let proxy = Proxy::before(primary.address).await;
    let url = url_at(proxy.address, "postgres");
    let mut stage = Stage::on(primary, &url, &[]).await;
    let load = Load::start(&stage.target, 16).await;
    load.success_after(Instant::now()).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    stage.cluster.kill();
    // Until the promotion, the address leads to a standby, which may lack writes.
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
    let bound = Duration::from_secs(3);
    row.longest_within("writes again", &mut [again], bound);
    let unexpected = responses
        .iter()
        .filter(|response| !response.is_success() && !response.is_retryable());
    row.none("responses other than 2xx and 503", unexpected);
    let read = reads
        .iter()
        .filter(|response| response.is_success())
        .count();
    row.at_most("reads from the standby", read, 0);
    row.none(
        "lost",
        checker::breaches(&log, &found(&mut standby.connect().await).await),
    );
    let late = responses.iter().filter(|response| {
        response.sent_at > promoted + again.max(bound) && !response.is_success()
    });
    row.at_most("failed later", late.count(), 0);
    row.end();
}
