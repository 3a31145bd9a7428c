//! `/readyz`: probes share one check of the database.

use std::{net::IpAddr, time::Instant};

use futures_util::future::join_all;
use test_support::{RequestExt, client_builder, process::Home};

/// Number of the checks so far.
async fn checks(operations: std::net::SocketAddr) -> u128 {
    const NUMBER: &str = "db_client_operation_batch_size_count{db_query_summary=\"SELECT\"} ";
    let metrics = test_support::client().get(format!("http://{operations}/metrics"));
    let text = metrics.is(200).await.text();
    let number = text.lines().find_map(|line| line.strip_prefix(NUMBER));
    number.map_or(0, |number| number.parse().expect("a number"))
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_at_the_same_time_share_a_check() {
    let home = Home::new();
    let service = home.serve().await;
    let url = format!("http://{}/readyz", service.address);
    // A client address has at most 1,000 connections.
    let clients = (2..12).map(|host| {
        let client = client_builder().no_proxy();
        let client = client.local_address(IpAddr::from([127, 0, 0, host]));
        client.build().expect("a client")
    });
    let clients: Vec<_> = clients.collect();
    let before = checks(service.operations).await;
    let started = Instant::now();
    for _ in 0..3 {
        let probes = clients
            .iter()
            .flat_map(|client| (0..120).map(|_| client.get(&url).response()));
        for response in join_all(probes).await {
            response.is(200);
        }
    }
    let checks = checks(service.operations).await - before;
    let most = started.elapsed().as_millis() / 250 + 2;
    assert!((1..=most).contains(&checks), "{checks} of {most} checks");
    service.stop().await;
}
