//! Limits of login attempts: guesses from one address or many do not lock the owner of an account out.

use std::sync::atomic::{AtomicUsize, Ordering};

use test_support::*;

const GUESS: &str = "correct horse battery stable";

/// Starts a service that takes client addresses from `X-Forwarded-For`, with an account and a clock that stands still.
async fn start(settings: &[(&str, &str)]) -> TestApp {
    let trusted = ("PET_INVENTORY__LIMITS__TRUSTED_PROXIES", "127.0.0.1");
    let settings = [settings, &[trusted]].concat();
    let app = TestApp::with_stopped_clock(&settings).await;
    app.sign_up("ada").await;
    app
}

fn log_in(app: &TestApp, address: &str, name: &str, password: &str) -> Call {
    let pair = [("username", name), ("password", password)];
    let request = app.anonymous(Method::POST, "/user/login");
    request.header("x-forwarded-for", address).form(&pair)
}

#[tokio::test(flavor = "multi_thread")]
async fn owner_logs_in_while_another_address_guesses() {
    let app = start(&[]).await;
    for network in ["192.0.2.", "2001:db8:"] {
        let end = if network.contains(':') { "::1" } else { "" };
        let [attacker, owner] = [1, 2].map(|host| format!("{network}{host}{end}"));
        for _ in 0..20 {
            log_in(&app, &attacker, "ADA", GUESS).is(400).await;
        }
        for _ in 0..3 {
            let refused = log_in(&app, &attacker, "ada", PASSWORD).await;
            let problem = refused.problem(429);
            assert_eq!(problem["violated-policies"], json!(["logins"]));
            refused.header("retry-after");
            log_in(&app, &owner, "ada", PASSWORD).is(200).await;
        }
        // The attacker's own account is a different one.
        log_in(&app, &attacker, "eve", GUESS).is(400).await;
    }
}

/// Addresses get their turns: a login waits for one hash of each other address, however many these want.
#[tokio::test(flavor = "multi_thread")]
async fn owner_logs_in_in_turn_beside_many_attempts_of_another_address() {
    let settings = [
        ("PET_INVENTORY__USERS__LOGINS_PER_MINUTE", "10000"),
        ("PET_INVENTORY__USERS__HASHES_AT_ONCE", "1"),
    ];
    let app = Arc::new(start(&settings).await);
    let answered = Arc::new(AtomicUsize::new(0));
    let mut attempts = JoinSet::new();
    for attacker in 0..12 {
        let (app, answered) = (Arc::clone(&app), Arc::clone(&answered));
        attempts.spawn(async move {
            for guess in 0.. {
                let name = format!("user{attacker}x{guess}");
                log_in(&app, "192.0.2.1", &name, GUESS).is(400).await;
                answered.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    eventually(async || answered.load(Ordering::Relaxed) > 24).await;
    for _ in 0..5 {
        let before = answered.load(Ordering::Relaxed);
        log_in(&app, "192.0.2.2", "ada", PASSWORD).is(200).await;
        let meanwhile = answered.load(Ordering::Relaxed) - before;
        // The one in progress, and those that are answered while the owner's is checked or on its way.
        assert!(meanwhile <= 6, "{meanwhile} before the owner's");
    }
}

/// With a limit of 2 attempts per address, an account gets 20 per minute without a delay, and then one every 3 s.
#[tokio::test(flavor = "multi_thread")]
async fn owner_logs_in_after_a_delay_while_many_addresses_guess() {
    let app = start(&[("PET_INVENTORY__USERS__LOGINS_PER_MINUTE", "2")]).await;
    for guess in 0..20 {
        let address = format!("192.0.2.{}", guess / 2);
        log_in(&app, &address, "ada", GUESS).is(400).await;
    }
    let attempt = async |address: &str, password: &str| {
        let started = Instant::now();
        let response = log_in(&app, address, "ada", password).await;
        (response.status, started.elapsed().as_secs_f64())
    };
    // The first of these is not delayed yet: the minute ends with it.
    attempt("198.51.100.1", GUESS).await;
    let (guesses, owner) = tokio::join!(
        join_all([
            attempt("198.51.100.2", GUESS),
            attempt("198.51.100.3", GUESS),
        ]),
        async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            // A second attempt of an address is refused while the first is delayed.
            let (status, _) = attempt("198.51.100.3", GUESS).await;
            assert_eq!(status, 429);
            attempt("203.0.113.1", PASSWORD).await
        }
    );
    let mut times: Vec<_> = guesses.iter().map(|(_, time)| *time).collect();
    times.sort_by(f64::total_cmp);
    assert!(
        guesses.iter().all(|(status, _)| *status == 400),
        "{guesses:?}"
    );
    for (time, delay) in times.into_iter().zip([3.0, 6.0]) {
        assert!(time >= delay, "{time} s, not {delay} s");
    }
    let (status, time) = owner;
    assert_eq!(status, 200);
    assert!(time >= 9.0, "{time} s");
    // No other account is refused.
    log_in(&app, "203.0.113.2", "eve", GUESS).is(400).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_beyond_the_longest_delay_are_429() {
    let app = start(&[("PET_INVENTORY__USERS__LOGINS_PER_MINUTE", "1")]).await;
    // 10 attempts at once; then one every 6 s waits, for up to 20 s.
    let attempts = (0..16).map(|host| log_in(&app, &format!("192.0.2.{host}"), "ada", GUESS));
    let responses = send_all(attempts).await;
    let refused: Vec<_> = responses
        .iter()
        .filter(|response| response.status == 429)
        .collect();
    assert!((1..=3).contains(&refused.len()), "{responses:?}");
    for response in refused {
        let wait: u64 = response.header("retry-after").parse().expect("seconds");
        assert!((21..=30).contains(&wait), "{response}");
    }
}

/// Otherwise a client that disconnects at once could reserve all attempts to an account.
#[tokio::test(flavor = "multi_thread")]
async fn delayed_attempt_whose_client_disconnects_is_its_only_one() {
    let app = start(&[("PET_INVENTORY__USERS__LOGINS_PER_MINUTE", "2")]).await;
    for guess in 0..21 {
        let address = format!("192.0.2.{}", guess / 2);
        log_in(&app, &address, "ada", GUESS).is(400).await;
    }
    let attempt = || log_in(&app, "198.51.100.1", "ada", GUESS);
    let impatient = attempt().timeout(Duration::from_millis(500)).send().await;
    assert!(impatient.is_err_and(|error| error.is_timeout()));
    attempt().await.problem(429);
}
