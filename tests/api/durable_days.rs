//! A day's limit across deaths of the process: never more, and at most 1 % fewer.

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

#[tokio::test(flavor = "multi_thread")]
async fn five_kills_in_a_free_day_admit_no_request_twice_and_lose_ten_at_most() {
    let home = Home::new();
    let mut admitted = 0;
    for life in 0..6 {
        let mut service = serve(&home).await;
        // All of the day that is left, in the last life.
        let asked = if life == 5 { 1_000 } else { 151 };
        for _ in 0..asked {
            let answer = service
                .request(Method::GET, "/limits", "free-key")
                .answer()
                .await;
            match answer.status.as_u16() {
                200 => admitted += 1,
                429 => break,
                _ => panic!("{answer}"),
            }
        }
        service.signal(Signal::SIGKILL);
        service.ended().await;
    }
    assert!((990..=1_000).contains(&admitted), "{admitted} of 1,000");
    println!("{admitted} of 1,000 admitted in a day with five kills");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_good_end_gives_back_what_was_not_used() {
    let home = Home::new();
    let mut admitted = 0;
    for _ in 0..40 {
        let service = serve(&home).await;
        for _ in 0..29 {
            let answer = service
                .request(Method::GET, "/limits", "free-key")
                .answer()
                .await;
            admitted += u32::from(answer.status.as_u16() == 200);
        }
        service.stop().await;
    }
    assert_eq!(admitted, 1_000);
}
