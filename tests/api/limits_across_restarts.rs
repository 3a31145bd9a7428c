//! Tests of the per-day limit across restarts: it is never exceeded, and a kill loses at most one lease.

use nix::sys::signal::Signal;
use reqwest::Method;
use test_support::{
    RequestExt,
    process::{Home, Service},
};

async fn serve(home: &Home) -> Service {
    let mut command = home.command(["serve"]);
    command.env("PET_INVENTORY__PLANS__FREE__PER_MINUTE", "unlimited");
    Service::start(home, command).await
}

/// Sends `requests` requests, or fewer if the limit is reached first; returns the number that was admitted.
async fn admitted(service: &Service, requests: u32) -> u32 {
    for number in 0..requests {
        let request = service.request(Method::GET, "/pet/1", "free-key");
        match request.response().await.status.as_u16() {
            404 => {}
            429 => return number,
            status => panic!("{status}"),
        }
    }
    requests
}

async fn used_today(service: &Service) -> u32 {
    let request = service.request(Method::GET, "/limits", "free-key");
    let remaining = request.is(200).await.json()["day"]["remaining"].as_u64();
    1_000 - u32::try_from(remaining.expect("a number")).expect("small")
}

#[tokio::test(flavor = "multi_thread")]
async fn per_day_limit_loses_at_most_one_lease_per_kill() {
    const REQUESTS: u32 = 101;
    let home = Home::new();
    let (mut total, mut lost) = (0, 0);
    for number in 0..6 {
        let mut service = serve(&home).await;
        let lost_now = used_today(&service).await - total - lost;
        // A lease is at most half of what the limit leaves.
        assert!(lost_now <= (1_000 - total - lost) / 2, "{lost_now} lost");
        lost += lost_now;
        if number < 5 {
            total += admitted(&service, REQUESTS).await;
            service.signal(Signal::SIGKILL);
            service.wait_for_exit().await;
        } else {
            total += admitted(&service, 1_000).await;
        }
    }
    // Nothing else is lost.
    assert_eq!(total + lost, 1_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_returns_unused_requests() {
    let home = Home::new();
    let mut total = 0;
    for _ in 0..40 {
        let service = serve(&home).await;
        total += admitted(&service, 29).await;
        service.stop().await;
    }
    assert_eq!(total, 1_000);
}
