//! Tests of the per-day limit and the usage of callers across restarts: the limit is never exceeded, and a kill loses at most
//! one lease, and a second of the usage.

use test_support::*;

async fn serve(home: &Home) -> Service {
    let unlimited = ("PET_INVENTORY__PLANS__FREE__PER_MINUTE", "unlimited");
    home.serve_with(&[unlimited]).await
}

/// Sends `requests` requests, or fewer if the limit is reached first; returns the number that was admitted.
async fn admitted(service: &Service, requests: u32) -> u32 {
    for number in 0..requests {
        let request = service.request(Method::GET, "/pet/1", "free-key");
        match request.await.status {
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

/// Returns the usage of the current day, as the service has written it.
async fn usage(service: &Service) -> (u64, u64) {
    let request = service.request(Method::GET, "/limits", "free-key");
    let limits = request.is(200).await.json();
    let today = &limits["days"][29];
    let number = |name: &str| today[name].as_u64().expect("a number");
    (number("admitted"), number("refused"))
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_is_complete_after_a_shutdown_and_lacks_a_second_after_a_kill() {
    let home = Home::new();
    let mut service = serve(&home).await;
    let sent = admitted(&service, 1_001).await;
    assert_eq!(sent, 1_000);
    service.stop().await;
    service = serve(&home).await;
    assert_eq!(usage(&service).await, (1_000, 1));
    // Requests counted more than a second before a kill are written.
    for _ in 0..7 {
        assert_eq!(admitted(&service, 1).await, 0);
    }
    let is_written = async || {
        // The operation has a limit of its own.
        tokio::time::sleep(Duration::from_millis(500)).await;
        usage(&service).await == (1_000, 8)
    };
    eventually(is_written).await;
    for _ in 0..3 {
        assert_eq!(admitted(&service, 1).await, 0);
    }
    service.signal(Signal::SIGKILL);
    service.wait_for_exit().await;
    let service = serve(&home).await;
    let (admitted, refused) = usage(&service).await;
    assert_eq!(admitted, 1_000);
    assert!((8..=11).contains(&refused), "{refused}");
    service.stop().await;
}
