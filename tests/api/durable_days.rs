//! The limit of a day across restarts of the process: nothing is admitted twice, and a kill loses one lease at most.

use nix::sys::signal::Signal;
use reqwest::Method;

use crate::support::{
    Ask,
    process::{Home, Service},
};

async fn serve(home: &Home) -> Service {
    let mut command = home.command(["serve"]);
    command.env("PET_INVENTORY__PLANS__FREE__PER_MINUTE", "unlimited");
    Service::start(home, command).await
}

/// Asks so many times, or until the limit is reached; returns how many were admitted.
async fn admitted(service: &Service, requests: u32) -> u32 {
    for number in 0..requests {
        let request = service.request(Method::GET, "/pet/1", "free-key");
        match request.answer().await.status.as_u16() {
            404 => {}
            429 => return number,
            status => panic!("{status}"),
        }
    }
    requests
}

async fn used_today(service: &Service) -> u32 {
    let request = service.request(Method::GET, "/limits", "free-key");
    let remaining = request.answer().await.is(200).json()["day"]["remaining"].as_u64();
    1_000 - u32::try_from(remaining.expect("a number")).expect("small")
}

#[tokio::test(flavor = "multi_thread")]
async fn five_kills_in_a_day_admit_no_request_twice_and_lose_a_lease_each_at_most() {
    const REQUESTS: u32 = 101;
    let home = Home::new();
    let (mut total, mut recorded) = (0, 0);
    for _ in 0..5 {
        let mut service = serve(&home).await;
        let before = used_today(&service).await;
        // A lease is at most twice as large as the one before it, which was used up.
        let lost = before - recorded;
        assert!(lost <= 4 * REQUESTS, "{lost} lost");
        total += admitted(&service, REQUESTS).await;
        recorded = before + REQUESTS;
        service.signal(Signal::SIGKILL);
        service.ended().await;
    }
    let service = serve(&home).await;
    let rest = 1_000 - used_today(&service).await;
    assert_eq!(admitted(&service, 1_000).await, rest);
    total += rest;
    assert!((505..=1_000).contains(&total), "{total} of 1,000");
    println!("{total} of 1,000 admitted in a day with five kills");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_returns_what_was_not_used() {
    let home = Home::new();
    let mut total = 0;
    for _ in 0..40 {
        let service = serve(&home).await;
        total += admitted(&service, 29).await;
        service.stop().await;
    }
    assert_eq!(total, 1_000);
}
