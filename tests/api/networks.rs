//! Limits per minute by client address: an IPv6 client with a /48 has 65,536 networks of size /64, but not as many times
//! the limit.

use std::time::Duration;

use pet_inventory::{auth::secret::Secret, db::credentials::CredentialKind, domain::clock::Clock};
use reqwest::Method;
use serde_json::json;
use test_support::{Call, TestApp, TestDatabase, send_all};

/// Returns an address by its number.
type Addresses = fn(u32) -> String;

/// Addresses of one /64, of one /56 with a /64 each, and of one /48 with a /56 each.
const NETWORKS: [Addresses; 3] = [
    |number| format!("2001:db8:1::{number:x}"),
    |number| format!("2001:db8:2:{number:x}::1"),
    |number| format!("2001:db8:3:{:x}::1", number << 8),
];

/// Starts a service that takes client addresses from `X-Forwarded-For`, with a clock that stands still.
async fn start(setting: (&str, &str)) -> TestApp {
    let trusted = ("PET_INVENTORY__LIMITS__TRUSTED_PROXIES", "127.0.0.1");
    let database = TestDatabase::migrated().await;
    TestApp::with_clock(database, &[setting, trusted], Clock::manual()).await
}

/// Sends requests from addresses in turn; returns the number of those before the first 429, of 200 at most.
async fn admitted(request: impl Fn(&str) -> Call, addresses: Addresses) -> u32 {
    for number in 0..200 {
        let request = request(&addresses(number)).header("x-forwarded-for", addresses(number));
        if request.await.status == 429 {
            return number;
        }
    }
    200
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_authentication_is_limited_for_networks() {
    let setting = "PET_INVENTORY__LIMITS__FAILED_AUTHENTICATION_PER_MINUTE";
    let app = start((setting, "10")).await;
    let fail = |_: &str| app.with_key("x", Method::GET, "/limits");
    for (addresses, expected) in NETWORKS.iter().zip([10..=10, 36..=40, 144..=160]) {
        let failed = admitted(fail, *addresses).await;
        assert!(expected.contains(&failed), "{failed}, not {expected:?}");
    }
    // The block is that of the network, for credentials that are not cached.
    let other = |address: &str| fail("").header("x-forwarded-for", address.to_owned());
    other("2001:db8:3:ffff::1").await.problem(429);
    other("2001:db8:4::1").await.problem(401);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_failures_of_a_network_end_at_its_limit() {
    let setting = "PET_INVENTORY__LIMITS__FAILED_AUTHENTICATION_PER_MINUTE";
    let app = start((setting, "2")).await;
    // The limit of the /48 is 17: 16 times that of an address without its last failure, and the last one. Failures beyond it
    // are at most as many as look-ups at the same time.
    let fails = (0..255).map(|number| {
        let unknown = Secret::generate(CredentialKind::ApiKey).expect("random numbers");
        let fail = app.with_key(unknown.expose(), Method::GET, "/limits");
        fail.header("x-forwarded-for", NETWORKS[2](number))
    });
    let responses = send_all(fails).await;
    let failed = responses.iter().filter(|it| it.status == 401).count();
    assert!((17..=17 + 64).contains(&failed), "{failed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn open_operations_are_limited_for_networks() {
    let app = start(("PET_INVENTORY__PLANS__FREE__PER_MINUTE", "3")).await;
    // Invalid, so that they take no time.
    let sign_up = |_: &str| app.anonymous(Method::POST, "/user").json(&json!({}));
    for (addresses, expected) in NETWORKS.iter().zip([3, 12, 48]) {
        assert_eq!(admitted(sign_up, *addresses).await, expected);
    }
    let token = app.bare(Method::POST, "/oauth/token");
    let token = token.header("x-forwarded-for", "2001:db8:3:ffff::1");
    token.is(429).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn anonymous_callers_are_limited_for_networks() {
    let database = TestDatabase::migrated().await;
    let settings = [
        ("PET_INVENTORY__PLANS__FREE__PER_MINUTE", "3"),
        ("PET_INVENTORY__LIMITS__TRUSTED_PROXIES", "127.0.0.1"),
        ("PET_INVENTORY__AUTH__ANONYMOUS_SCOPES", "read:pets"),
    ];
    let app = TestApp::with_clock(database, &settings, Clock::manual()).await;
    let get = |_: &str| app.anonymous(Method::GET, "/pet/1");
    for (addresses, expected) in NETWORKS.iter().zip([3, 12, 48]) {
        assert_eq!(admitted(get, *addresses).await, expected);
    }
    // A refusal does not count against the networks: another /64 has its own requests.
    for number in 0..3 {
        let from = |address: &str| get("").header("x-forwarded-for", address.to_owned());
        for _ in 0..20 {
            from(&format!("2001:db8:5:{number}::1")).await;
        }
    }
    let other = get("").header("x-forwarded-for", "2001:db8:5:9::1");
    other.is(404).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn login_attempts_are_limited_for_networks() {
    const PASSWORD: &str = "correct horse battery staple";
    let app = start(("PET_INVENTORY__USERS__LOGINS_PER_MINUTE", "2")).await;
    let account = json!({"username": "ada", "password": PASSWORD});
    let sign_up = app.anonymous(Method::POST, "/user").json(&account);
    sign_up.is(201).await;
    let log_in = |password: &'static str| {
        let pair = [("username", "ada"), ("password", password)];
        app.anonymous(Method::POST, "/user/login").form(&pair)
    };
    let guess = |_: &str| log_in("wrong horse battery staple");
    for (addresses, expected) in NETWORKS.iter().zip([2, 8]) {
        assert_eq!(admitted(guess, *addresses).await, expected);
    }
    // The account has 20 attempts from all addresses without a delay, and the next one has none yet. A /48 has one delayed
    // attempt at a time, so that its owner does not wait behind many.
    let from = |address: String| guess("").header("x-forwarded-for", address);
    for number in 0..11 {
        from(NETWORKS[2](number)).is(400).await;
    }
    let guesses = (20..26).map(|number| from(NETWORKS[2](number)));
    let owner = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let owner = log_in(PASSWORD).header("x-forwarded-for", "192.0.2.1");
        owner.await.status
    };
    let (guesses, status) = tokio::join!(send_all(guesses), owner);
    let refused = guesses.iter().filter(|it| it.status == 429).count();
    assert_eq!(refused, 5);
    assert_eq!(status, 200);
}
