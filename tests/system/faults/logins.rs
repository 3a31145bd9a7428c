//! Row 29: the time of a failed login does not reveal whether its username exists.

use test_support::*;

use crate::stage::*;

const ROUNDS: usize = 15;

#[tokio::test(flavor = "multi_thread")]
async fn row_29_logins_take_as_long_for_unknown_usernames() {
    let mut row = Row::begin(29, "logins with guessed usernames").await;
    let stage = Stage::start(&[("USERS__LOGINS_PER_MINUTE", "1000")]).await;
    for user in [account("ada"), json!({"username": "without"})] {
        let sign_up = stage.target.anonymous(Method::POST, "/user");
        sign_up.json(&user).is(201).await;
    }
    // Alternately, so that a delay of the machine affects all of them.
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        for (name, times) in ["ada", "nobody", "without"].iter().zip(&mut times) {
            let log_in = stage.target.anonymous(Method::POST, "/user/login");
            let log_in = log_in.json(&json!({"username": name, "password": "a wrong password"}));
            let started = Instant::now();
            log_in.is(400).await;
            times.push(started.elapsed());
        }
    }
    let [known, unknown, without] = times.map(median);
    row.note(format!("known username {known:.1?}"));
    // Hashing takes most of the time; without it a median would be a fraction of the others.
    for (what, time) in [
        ("unknown username", unknown),
        ("account without a password", without),
    ] {
        row.within(what, time, known * 2);
        row.within("a known one again", known, time * 2);
    }
    row.end();
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
