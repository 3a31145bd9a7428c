//! Tests of the maximum number of sessions of a user.

use test_support::*;

const LIVE: &str = "select count(*) from credentials
                    where kind = 'session' and revoked_at is null and expires_at > now()";

async fn with_maximum(maximum: &str) -> TestApp {
    let app = TestApp::with(&[
        ("PET_INVENTORY__USERS__MAX_SESSIONS", maximum),
        ("PET_INVENTORY__USERS__LOGINS_PER_MINUTE", "1000"),
        ("PET_INVENTORY__PLANS__FREE__PER_MINUTE", "unlimited"),
    ])
    .await;
    for name in ["ada", "bob"] {
        app.sign_up(name).await;
    }
    app
}

async fn status(app: &TestApp, token: &str) -> u16 {
    let request = app.anonymous(Method::GET, "/limits").bearer_auth(token);
    request.await.status
}

#[tokio::test(flavor = "multi_thread")]
async fn login_beyond_the_maximum_ends_the_oldest_session() {
    let app = with_maximum("2").await;
    let replica = TestApp::replica_of(&app, &[]).await;
    let other = app.log_in("bob").await;
    let (first, second) = (app.log_in("ada").await, app.log_in("ada").await);
    for token in [&first, &second] {
        assert_eq!(status(&app, token).await, 200);
        assert_eq!(status(&replica, token).await, 200);
    }
    let third = app.log_in("ada").await;
    // At once where the login was, within a second elsewhere.
    assert_eq!(status(&app, &first).await, 401);
    eventually(async || status(&replica, &first).await == 401).await;
    for token in [&second, &third, &other] {
        assert_eq!(status(&app, token).await, 200);
    }
    // A session that was logged out leaves room for another.
    let logout = app.anonymous(Method::GET, "/user/logout");
    logout.bearer_auth(&third).is(200).await;
    let fourth = app.log_in("ada").await;
    for token in [&second, &fourth] {
        assert_eq!(status(&app, token).await, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_logins_do_not_exceed_the_maximum() {
    let app = with_maximum("3").await;
    let key = app.make_key("user:1", Scopes::all()).await.secret;
    let tokens = join_all((0..12).map(|_| app.log_in("ada"))).await;
    assert_eq!(app.database.number(LIVE).await, 3);
    let statuses = join_all(tokens.iter().map(|token| status(&app, token))).await;
    let accepted = statuses.iter().filter(|status| **status == 200).count();
    assert_eq!(accepted, 3, "{statuses:?}");
    // Only sessions count.
    assert_eq!(status(&app, &key).await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn maximum_is_twenty_by_default() {
    let app = TestApp::with(&[
        ("PET_INVENTORY__USERS__LOGINS_PER_MINUTE", "1000"),
        ("PET_INVENTORY__PLANS__FREE__PER_MINUTE", "unlimited"),
    ])
    .await;
    app.sign_up("ada").await;
    let first = app.log_in("ada").await;
    for _ in 0..19 {
        app.log_in("ada").await;
    }
    assert_eq!(status(&app, &first).await, 200);
    app.log_in("ada").await;
    assert_eq!(status(&app, &first).await, 401);
    assert_eq!(app.database.number(LIVE).await, 20);
}
