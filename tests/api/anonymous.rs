//! Anonymous callers: their plan, and their limits by client address.

use test_support::*;

const SCOPES: (&str, &str) = (
    "PET_INVENTORY__AUTH__ANONYMOUS_SCOPES",
    "read:pets,write:pets",
);
const PROXY: (&str, &str) = ("PET_INVENTORY__LIMITS__TRUSTED_PROXIES", "127.0.0.1");

async fn get(app: &TestApp, client: &str) -> Response {
    let get = app.anonymous(Method::GET, "/pet/1");
    get.header("x-forwarded-for", client).await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_address_has_the_limits_of_the_anonymous_plan() {
    for (plan, limit) in [(None, "\"minute\";q=2"), (Some("pro"), "\"minute\";q=4")] {
        let plan = plan.map(|plan| ("PET_INVENTORY__AUTH__ANONYMOUS_PLAN", plan));
        let settings = [
            SCOPES,
            PROXY,
            ("PET_INVENTORY__PLANS__FREE__PER_MINUTE", "2"),
            ("PET_INVENTORY__PLANS__PRO__PER_MINUTE", "4"),
        ];
        let settings: Vec<_> = settings.into_iter().chain(plan).collect();
        let app = TestApp::with(&settings).await;
        let count = if plan.is_some() { 4 } else { 2 };
        for client in ["192.0.2.1", "192.0.2.2", "2001:db8::1"] {
            for _ in 0..count {
                let response = get(&app, client).await;
                assert_eq!(response.status, 404, "{client}: {response}");
                let policy = response.header("ratelimit-policy");
                assert!(policy.starts_with(limit), "{policy}");
            }
            get(&app, client).await.problem(429);
        }
        let limits = app.anonymous(Method::GET, "/limits");
        let limits = limits.header("x-forwarded-for", "192.0.2.3");
        let limits = limits.is(200).await.json();
        assert_eq!(limits["plan"], if plan.is_some() { "pro" } else { "free" });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn anonymous_callers_can_be_unlimited() {
    let app = TestApp::with(&[
        SCOPES,
        ("PET_INVENTORY__AUTH__ANONYMOUS_PLAN", "enterprise"),
        ("PET_INVENTORY__PLANS__FREE__PER_MINUTE", "2"),
    ])
    .await;
    for _ in 0..10 {
        let add = app
            .anonymous(Method::POST, "/pet")
            .json(&json!({"name": "a"}));
        let response = add.is(201).await;
        assert_eq!(response.optional_header("ratelimit-policy"), None);
    }
    // Open operations keep the limit of the Free plan.
    let login = || app.anonymous(Method::POST, "/user").json(&json!({}));
    login().await.problem(400);
    login().await.problem(400);
    login().await.problem(429);
}
