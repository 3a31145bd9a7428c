//! `/readyz`: probes share one check of the database.

use test_support::*;

#[tokio::test(flavor = "multi_thread")]
async fn probes_at_the_same_time_share_a_check() {
    // A check has a connection of its own.
    const SESSIONS: &str =
        "select sessions from pg_stat_database where datname = current_database()";
    let app = TestApp::start().await;
    let url = format!("http://{}/readyz", app.address);
    // A client address has at most 1,000 connections.
    let clients = (2..12).map(|host| {
        let client = client_builder().no_proxy();
        let client = client.local_address(IpAddr::from([127, 0, 0, host]));
        client.build().expect("a client")
    });
    let clients: Vec<_> = clients.collect();
    let before = app.database.number(SESSIONS).await;
    let started = Instant::now();
    for _ in 0..3 {
        let probes = clients
            .iter()
            .flat_map(|client| (0..120).map(|_| client.get(&url).response()));
        for response in join_all(probes).await {
            response.is(200);
        }
    }
    let most = i64::try_from(started.elapsed().as_millis() / 250).expect("small") + 2;
    // That of this question, and up to ten of the service for other purposes.
    let checks = app.database.number(SESSIONS).await - before;
    assert!(
        (1..=most + 11).contains(&checks),
        "{checks} of {most} checks"
    );
}
