//! Limits of a client address, which is a /56 of IPv6: it has 256 networks of size /64, but not as many times the limit.

use test_support::*;

/// Returns the address of a number in a /56, in the 256 networks of size /64 of it.
fn of_56(number: u32) -> String {
    format!("2001:db8:1:{:x}::{number:x}", number % 256)
}

/// Returns the address of a number in a /48, with a /56 each.
fn of_48(number: u32) -> String {
    format!("2001:db8:2:{:x}::1", number << 8)
}

/// Starts a service that takes client addresses from `X-Forwarded-For`, with a clock that stands still.
async fn start(setting: (&str, &str)) -> TestApp {
    let trusted = ("PET_INVENTORY__LIMITS__TRUSTED_PROXIES", "127.0.0.1");
    TestApp::with_stopped_clock(&[setting, trusted]).await
}

/// Checks that a /56 is one client: it sends `limit` requests before the first 429, and another /56 of the same /48 is another.
async fn assert_one_client(request: impl Fn() -> Call, limit: u32) {
    let from = async |address: String| request().header("x-forwarded-for", address).await.status;
    for number in 0..limit {
        assert_ne!(from(of_56(number)).await, 429, "{number}");
    }
    assert_eq!(from(of_56(limit)).await, 429);
    assert_ne!(from("2001:db8:1:100::1".into()).await, 429);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_authentication_is_limited_for_networks() {
    let setting = "PET_INVENTORY__LIMITS__FAILED_AUTHENTICATION_PER_MINUTE";
    let app = start((setting, "10")).await;
    assert_one_client(|| app.with_key("x", Method::GET, "/limits"), 10).await;
}

/// Sixteen networks of size /56 of one /48 send bodies slowly, as many as they may.
#[tokio::test(flavor = "multi_thread")]
async fn networks_that_use_much_leave_permits_for_others() {
    let app = start(("PET_INVENTORY__SERVER__MAX_REQUESTS", "64")).await;
    let mut slow = Vec::new();
    for number in (0..16).cycle().take(256) {
        let mut raw = RawConnection::connect(app.address).await;
        raw.send(format!(
            "POST /api/v3/pet HTTP/1.1\r\nHost: a\r\napi_key: {}\r\nX-Forwarded-For: {}\r\n\
             Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{{",
            app.key,
            of_48(number)
        ))
        .await;
        slow.push(raw);
    }
    let add = |address: String| {
        let add = app.post("/pet", &json!({"name": "a"}));
        add.header("x-forwarded-for", address)
    };
    eventually(async || add(of_48(3)).await.status == 503).await;
    for _ in 0..10 {
        add("192.0.2.1".into()).is(201).await;
    }
    drop(slow);
    eventually(async || add(of_48(3)).await.status == 201).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn open_operations_are_limited_for_networks() {
    let app = start(("PET_INVENTORY__PLANS__FREE__PER_MINUTE", "3")).await;
    // Invalid, so that they take no time.
    assert_one_client(|| app.anonymous(Method::POST, "/user").json(&json!({})), 3).await;
    let token = app.bare(Method::POST, "/oauth/token");
    token.header("x-forwarded-for", of_56(9)).is(429).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn anonymous_callers_are_limited_for_networks() {
    let settings = [
        ("PET_INVENTORY__PLANS__FREE__PER_MINUTE", "3"),
        ("PET_INVENTORY__LIMITS__TRUSTED_PROXIES", "127.0.0.1"),
        ("PET_INVENTORY__AUTH__ANONYMOUS_SCOPES", "read:pets"),
    ];
    let app = TestApp::with_stopped_clock(&settings).await;
    assert_one_client(|| app.anonymous(Method::GET, "/pet/1"), 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn login_attempts_are_limited_for_networks() {
    let app = start(("PET_INVENTORY__USERS__LOGINS_PER_MINUTE", "2")).await;
    app.sign_up("ada").await;
    let log_in = |password: &'static str| {
        let pair = [("username", "ada"), ("password", password)];
        app.anonymous(Method::POST, "/user/login").form(&pair)
    };
    let guess = || log_in("wrong horse battery staple");
    assert_one_client(guess, 2).await;
    // The account has 20 attempts from all addresses without a delay, and the next one has none yet.
    let from = |address: String| guess().header("x-forwarded-for", address);
    for number in 0..18 {
        from(of_48(number)).is(400).await;
    }
    // Each client has one delayed attempt at a time, so that the owner does not wait behind many.
    let guesses = (0..2).map(|_| from(of_48(30)));
    let owner = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let owner = log_in(PASSWORD).header("x-forwarded-for", "192.0.2.1");
        owner.await.status
    };
    let (guesses, status) = tokio::join!(send_all(guesses), owner);
    let refused = guesses.iter().filter(|it| it.status == 429).count();
    assert_eq!(refused, 1);
    assert_eq!(status, 200);
}
