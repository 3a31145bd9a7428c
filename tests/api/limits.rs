//! Tests of plans, rate limits and the credential cache, with manual clocks where a test would wait for minutes.

use test_support::postgres::TestClock;
use test_support::*;

/// Service with manual clocks, and an API key of a caller on a plan.
struct Limited {
    app: TestApp,
    clock: Clock,
    /// Database of the service, with PostgreSQL's clock.
    database: TestClock,
    key: String,
}

/// Path of a request that is counted and gets 404.
const PROBE: &str = "/pet/1";

impl Limited {
    async fn start(plan: Plan, settings: &[(&str, &str)]) -> Self {
        let clock = Clock::manual();
        let database = TestClock::new(TestDatabase::migrated().await).await;
        let app = TestApp::with_clock(database.database.shared(), settings, clock.clone()).await;
        let key = key(&app, "limited", plan).await;
        Self {
            app,
            clock,
            database,
            key,
        }
    }

    async fn advance(&self, by: Duration) {
        self.clock.advance(by);
        self.database.advance(by).await;
    }

    async fn advance_seconds(&self, seconds: u64) {
        self.advance(Duration::from_secs(seconds)).await;
    }

    /// Returns the number of requests that the database has recorded for the day.
    async fn used(&self) -> i64 {
        let used = "select coalesce(sum(day_used), 0)::bigint from limit_usage";
        self.app.database.number(used).await
    }

    async fn get(&self, path: &str) -> Response {
        get(&self.app, &self.key, path).await
    }

    /// Checks the number of requests that the current minute has left; returns the limits.
    async fn assert_remaining(&self, requests: u64) -> Value {
        let limits = self.get("/limits").await.is(200).json();
        assert_eq!(limits["minute"]["remaining"], requests, "{limits}");
        limits
    }

    /// Sends `requests` requests one after the other; returns the number that was admitted.
    async fn admitted(&self, requests: usize) -> usize {
        let mut admitted = 0;
        for _ in 0..requests {
            let response = self.get(PROBE).await;
            match response.status {
                404 => admitted += 1,
                429 => {}
                _ => panic!("{response}"),
            }
        }
        admitted
    }
}

async fn key(app: &TestApp, caller: &str, plan: Plan) -> String {
    let key = app.make_key(caller, Scopes::all()).await;
    let set = format!("update callers set plan = '{plan}' where name = '{caller}'");
    app.database.run(&set).await;
    key.secret
}

async fn get(app: &TestApp, key: &str, path: &str) -> Response {
    app.with_key(key, Method::GET, path).await
}

async fn unlock(mut connection: PgConnection) {
    connection.execute("rollback").await.expect("unlocked");
}

const FREE_PER_MINUTE: &str = "PET_INVENTORY__PLANS__FREE__PER_MINUTE";
const FREE_PER_DAY: &str = "PET_INVENTORY__PLANS__FREE__PER_DAY";

#[tokio::test(flavor = "multi_thread")]
async fn per_minute_limit_admits_sixty_in_any_minute() {
    let limited = Limited::start(Plan::Free, &[]).await;
    assert_eq!(limited.admitted(70).await, 60);

    let refused = limited.get("/pet/1").await;
    let problem = refused.problem(429);
    assert_eq!(
        problem["type"],
        "https://iana.org/assignments/http-problem-types#quota-exceeded"
    );
    assert_eq!(problem["violated-policies"], json!(["minute"]));
    // The time until the slice of these 60 requests leaves the window.
    assert_eq!(refused.header("retry-after"), "61");
    assert_eq!(
        refused.header("ratelimit-policy"),
        r#""minute";q=60;w=60, "day";q=1000;w=86400"#
    );
    let state = refused.header("ratelimit");
    assert!(
        state.starts_with(r#""minute";r=0;t=61, "day";r=940;t="#),
        "{refused}"
    );
    assert_eq!(refused.header("x-ratelimit-limit"), "60");
    assert_eq!(refused.header("x-ratelimit-remaining"), "0");
    assert_eq!(refused.header("x-ratelimit-reset"), "61");

    limited.advance_seconds(60).await;
    assert_eq!(limited.get(PROBE).await.is(429).header("retry-after"), "1");
    limited.advance_seconds(1).await;
    assert_eq!(limited.admitted(70).await, 60);
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_after_is_exact_to_the_second() {
    let limited = Limited::start(Plan::Free, &[(FREE_PER_MINUTE, "5")]).await;
    // Admissions 7.3 s apart, so that no wait is a whole number of seconds.
    for _ in 0..5 {
        limited.get(PROBE).await.is(404);
        limited.advance(Duration::from_millis(7_300)).await;
    }
    for _ in 0..8 {
        let refused = limited.get(PROBE).await.is(429);
        let wait: u64 = refused
            .header("retry-after")
            .parse()
            .expect("whole seconds");
        limited.advance_seconds(wait - 1).await;
        limited.get(PROBE).await.is(429);
        limited.advance_seconds(1).await;
        limited.get(PROBE).await.is(404);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn per_minute_and_per_day_limits_are_one_decision() {
    let limits = [(FREE_PER_MINUTE, "2"), (FREE_PER_DAY, "5")];
    let limited = Limited::start(Plan::Free, &limits).await;
    // Requests that the per-minute limit refuses do not count against the day.
    assert_eq!(limited.admitted(10).await, 2);
    assert_eq!(limited.used().await, 2);
    limited.advance_seconds(61).await;
    assert_eq!(limited.admitted(10).await, 2);
    limited.advance_seconds(61).await;
    assert_eq!(limited.admitted(10).await, 1);
    let refused = limited.get(PROBE).await;
    assert_eq!(refused.problem(429)["violated-policies"], json!(["day"]));
    // The clock started at noon and has advanced by 2 × 61 s.
    let midnight = 12 * 3_600 - 2 * 61;
    assert_eq!(refused.header("retry-after"), midnight.to_string());
    limited.advance_seconds(midnight - 1).await;
    limited.get(PROBE).await.is(429);
    limited.advance_seconds(1).await;
    assert_eq!(limited.admitted(10).await, 2);
    assert_eq!(limited.used().await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn per_day_limit_holds_in_a_new_process() {
    let settings = [(FREE_PER_MINUTE, "unlimited"), (FREE_PER_DAY, "20")];
    let limited = Limited::start(Plan::Free, &settings).await;
    assert_eq!(limited.admitted(7).await, 7);
    let second = TestApp::replica_of(&limited.app, &settings).await;
    let mut admitted = 7;
    for _ in 0..30 {
        let response = get(&second, &limited.key, PROBE).await;
        admitted += u32::from(response.status == 404);
    }
    // The first process may still hold requests that it leased in advance.
    assert!((15..=20).contains(&admitted), "{admitted}");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_a_caller_share_its_limit() {
    let limited = Limited::start(Plan::Free, &[(FREE_PER_MINUTE, "4")]).await;
    let other = limited.app.make_key("limited", Scopes::all()).await.secret;
    for _ in 0..2 {
        limited.get(PROBE).await.is(404);
        get(&limited.app, &other, PROBE).await.is(404);
    }
    limited.get(PROBE).await.is(429);
    get(&limited.app, &other, PROBE).await.is(429);
}

#[tokio::test(flavor = "multi_thread")]
async fn authenticated_requests_count_except_internal_errors() {
    let limited = Limited::start(Plan::Free, &[]).await;
    let left = |response: &Response| -> u32 {
        let left = response.header("x-ratelimit-remaining");
        left.parse().expect("a number")
    };
    assert_eq!(left(&limited.get("/pet/1").await.is(404)), 59);
    assert_eq!(left(&limited.get("/pet/x").await.is(400)), 58);
    let narrow = limited.app.make_key("limited", scopes(&[])).await.secret;
    assert_eq!(
        left(&get(&limited.app, &narrow, "/pet/1").await.is(403)),
        57
    );

    // A request that fails with an internal error is returned to the limits.
    limited
        .app
        .database
        .run("alter table pets rename to gone")
        .await;
    let failed = limited.get("/pet/1").await.is(500);
    assert_eq!(left(&failed), 56, "what stood when it was admitted");
    limited
        .app
        .database
        .run("alter table gone rename to pets")
        .await;
    assert_eq!(left(&limited.get("/pet/1").await.is(404)), 56);

    // Routes without authentication are not counted and have no rate limit headers.
    for free in [
        "/livez",
        "/readyz",
        "/docs/",
        "/api/v3/openapi.json",
        "/api/v3/nowhere",
    ] {
        let request = limited
            .app
            .bare(Method::GET, free)
            .header("api_key", &limited.key);
        let response = request.await;
        assert!(
            response.optional_header("ratelimit").is_none(),
            "{free}: {response}"
        );
    }
    assert_eq!(left(&limited.get("/pet/1").await.is(404)), 55);
}

#[tokio::test(flavor = "multi_thread")]
async fn enterprise_plan_is_unlimited_without_rate_limit_headers() {
    let limited = Limited::start(Plan::Enterprise, &[]).await;
    assert_eq!(limited.admitted(300).await, 300);
    let response = limited.get("/limits").await.is(200);
    assert!(
        response.optional_header("ratelimit").is_none(),
        "{response}"
    );
    assert_eq!(limits_of(&response), json!({"plan": "enterprise"}));
}

/// Returns the body without the scopes, which are those of the key, and the history, which the tests of usage check.
fn limits_of(response: &Response) -> Value {
    let mut body = response.json();
    let fields = body.as_object_mut().expect("an object");
    let scopes = fields.remove("scopes");
    assert_eq!(scopes, Some(json!(Scope::ALL.map(Scope::as_str))));
    let days = fields.remove("days");
    assert!(days.is_some_and(|days| days.is_array()), "{response}");
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn get_limits_is_not_counted_and_responds_at_the_limit() {
    let limited = Limited::start(Plan::Free, &[]).await;
    let limits = limited.get("/limits").await.is(200);
    assert_eq!(
        limits_of(&limits),
        json!({
            "plan": "free",
            "minute": {"limit": 60, "remaining": 60, "reset": 0},
            "day": {"limit": 1000, "remaining": 1000, "reset": 43_200}
        })
    );
    assert_eq!(limits.header("x-ratelimit-remaining"), "60");
    assert_eq!(limited.admitted(70).await, 60);
    let limits = limited.get("/limits").await.is(200);
    let full = json!({"limit": 60, "remaining": 0, "reset": 61});
    assert_eq!(limits.json()["minute"], full);
    assert_eq!(limits.json()["day"]["remaining"], 940);
    assert_eq!(limits.header("x-ratelimit-remaining"), "0");
    assert_eq!(limited.used().await, 60);
    // `GET /limits` has a limit of its own, 60 per minute.
    for _ in 0..58 {
        limited.get("/limits").await.is(200);
    }
    let refused = limited.get("/limits").await;
    assert_eq!(refused.problem(429)["violated-policies"], json!(["limits"]));
    assert_eq!(refused.header("x-ratelimit-remaining"), "0");
    limited.advance_seconds(1).await;
    limited.get("/limits").await.is(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn plan_change_takes_effect_immediately() {
    let limited = Limited::start(Plan::Pro, &[]).await;
    assert_eq!(limited.admitted(70).await, 70);
    let set = "update callers set plan = 'free' where name = 'limited'";
    limited.app.database.run(set).await;
    eventually(async || limited.get(PROBE).await.status == 429).await;
    let set = "update callers set plan = 'enterprise' where name = 'limited'";
    limited.app.database.run(set).await;
    eventually(async || limited.get(PROBE).await.status == 404).await;
    let set = "update callers set plan = 'pro' where name = 'limited'";
    limited.app.database.run(set).await;
    // Requests of the earlier plans count against the new one.
    eventually(async || {
        let response = limited.get(PROBE).await.is(404);
        response.optional_header("x-ratelimit-limit") == Some("600")
    })
    .await;
    assert!(limited.admitted(600).await < 530);
    assert_eq!(limited.get(PROBE).await.is(429).header("retry-after"), "61");
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_share_both_limits() {
    for (per_minute, per_day, expected) in [("60", "1000", 60), ("unlimited", "50", 50)] {
        let settings = [(FREE_PER_MINUTE, per_minute), (FREE_PER_DAY, per_day)];
        let one = TestApp::with(&settings).await;
        let two = TestApp::replica_of(&one, &settings).await;
        let key = key(&one, "limited", Plan::Free).await;
        let apps = Arc::new([one, two]);
        let mut clients = JoinSet::new();
        for client in 0..32 {
            let (apps, key) = (Arc::clone(&apps), key.clone());
            clients.spawn(async move {
                let mut admitted = 0;
                for _ in 0..8 {
                    let response = get(&apps[client % 2], &key, PROBE).await;
                    admitted += u32::from(response.status == 404);
                }
                admitted
            });
        }
        let admitted: u32 = clients.join_all().await.into_iter().sum();
        assert_eq!(admitted, expected);
    }
}

/// The tables are locked, so a statement would block.
#[tokio::test(flavor = "multi_thread")]
async fn rate_limit_refusal_costs_no_statement() {
    let limited = Limited::start(Plan::Free, &[]).await;
    assert_eq!(limited.admitted(61).await, 60);
    let lock = limited
        .app
        .database
        .lock("limit_usage, credentials, callers")
        .await;
    assert_eq!(limited.admitted(200).await, 0);
    unlock(lock).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn request_that_cannot_be_counted_is_503_with_headers() {
    let limited = Limited::start(Plan::Free, &[]).await;
    let unlimited = key(&limited.app, "unlimited", Plan::Enterprise).await;
    let lock = limited.app.database.lock("limit_usage").await;
    let refused = limited.get(PROBE).await;
    refused.problem(503);
    let policy = "\"minute\";q=60;w=60, \"day\";q=1000;w=86400";
    assert_eq!(refused.header("ratelimit-policy"), policy);
    assert_eq!(refused.header("x-ratelimit-remaining"), "60");
    let other = get(&limited.app, &unlimited, PROBE).await.is(404);
    assert_eq!(other.optional_header("ratelimit-policy"), None);
    unlock(lock).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_authentication_limit_applies_to_one_address() {
    let settings = [("PET_INVENTORY__LIMITS__TRUSTED_PROXIES", "127.0.0.1")];
    let limited = Limited::start(Plan::Enterprise, &settings).await;
    let from = async |address: &str, key: &str| {
        limited
            .app
            .with_key(key, Method::GET, "/limits")
            .header("x-forwarded-for", address)
            .await
    };
    for _ in 0..100 {
        from("192.0.2.1", "wrong").await.is(401);
    }
    let shut = from("192.0.2.1", "wrong").await;
    assert_eq!(
        shut.problem(429)["violated-policies"],
        json!(["failed-authentication"])
    );
    assert_eq!(shut.header("retry-after"), "1");
    // Only the right-most address, which the proxy added, counts; the client can forge those left of it.
    from("198.51.100.7, 192.0.2.1", "wrong").await.is(429);
    // Other addresses are not affected, and a missing credential is not a failed authentication.
    from("192.0.2.2", &limited.key).await.is(200);
    let none = limited.app.anonymous(Method::GET, "/limits");
    none.header("x-forwarded-for", "192.0.2.1").is(401).await;
    limited.clock.advance(Duration::from_secs(1));
    from("192.0.2.1", &limited.key).await.is(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn forwarded_for_of_an_untrusted_client_is_ignored() {
    let limited = Limited::start(Plan::Enterprise, &[]).await;
    for number in 0..100 {
        let request = limited.app.anonymous(Method::GET, "/limits");
        let request = request.header("x-forwarded-for", format!("192.0.2.{number}"));
        request.header("api_key", "wrong").is(401).await;
    }
    let request = limited.app.anonymous(Method::GET, "/limits");
    let request = request.header("x-forwarded-for", "192.0.2.200");
    request.header("api_key", "wrong").is(429).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn anonymous_callers_have_the_free_plan_per_address() {
    let settings = [
        ("PET_INVENTORY__AUTH__ANONYMOUS_SCOPES", "read:pets"),
        ("PET_INVENTORY__LIMITS__TRUSTED_PROXIES", "127.0.0.1"),
        (FREE_PER_MINUTE, "3"),
    ];
    let limited = Limited::start(Plan::Free, &settings).await;
    let from = async |address: &str| {
        let request = limited.app.anonymous(Method::GET, "/pet/1");
        request.header("x-forwarded-for", address).await
    };
    for _ in 0..3 {
        from("192.0.2.1").await.is(404);
    }
    from("192.0.2.1").await.is(429);
    from("192.0.2.2").await.is(404);
    from("2001:db8::1").await.is(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_over_the_concurrency_limit_of_a_plan_are_429() {
    let setting = ("PET_INVENTORY__PLANS__ENTERPRISE__IN_FLIGHT", "1");
    let limited = Limited::start(Plan::Enterprise, &[setting]).await;
    let refused = response_while_another_request_waits(&limited).await;
    assert_eq!(
        refused.problem(429)["violated-policies"],
        json!(["in-flight"])
    );
    limited.get("/limits").await.is(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_over_max_requests_are_503() {
    let limited = Limited::start(
        Plan::Enterprise,
        &[("PET_INVENTORY__SERVER__MAX_REQUESTS", "1")],
    )
    .await;
    let shed = response_while_another_request_waits(&limited).await;
    shed.problem(503);
    assert_eq!(shed.header("retry-after"), "1");
    limited.app.bare(Method::GET, "/livez").is(200).await;
    limited.get("/limits").await.is(200);
}

/// Returns the response to a request that is sent while another one waits for a locked table.
async fn response_while_another_request_waits(limited: &Limited) -> Response {
    let lock = limited.app.database.lock("pets").await;
    let waiting = tokio::spawn({
        limited
            .app
            .with_key(&limited.key, Method::GET, "/pet/1")
            .into_future()
    });
    eventually(async || limited.app.database.waiting_for_locks().await == 1).await;
    let response = limited.get("/store/inventory").await;
    unlock(lock).await;
    waiting.await.expect("a response").is(404);
    response
}

#[tokio::test(flavor = "multi_thread")]
async fn credential_changes_take_effect_within_two_seconds() {
    let app = TestApp::start().await;
    let key = app.make_key("changing", Scopes::all()).await;
    get(&app, &key.secret, PROBE).await.is(404);
    let revoke = format!(
        "update credentials set revoked_at = now() where id = {}",
        key.id
    );
    app.database.run(&revoke).await;
    eventually(async || get(&app, &key.secret, PROBE).await.status == 401).await;
    // That a key is unknown is cached too, until the key changes.
    let restore = format!(
        "update credentials set revoked_at = null where id = {}",
        key.id
    );
    app.database.run(&restore).await;
    eventually(async || get(&app, &key.secret, PROBE).await.status == 404).await;
    app.database
        .run("update callers set scopes = '{}' where name = 'changing'")
        .await;
    eventually(async || get(&app, &key.secret, "/pet/1").await.status == 403).await;
    app.database
        .run("delete from callers where name = 'changing'")
        .await;
    eventually(async || get(&app, &key.secret, PROBE).await.status == 401).await;
}

/// The tables of credentials are locked, so a look-up would block.
#[tokio::test(flavor = "multi_thread")]
async fn cached_credential_costs_no_look_up() {
    let app = TestApp::start().await;
    // Retries: until the service listens for changes, it caches credentials for at most a second.
    for _ in 0..20 {
        app.get("/pet/1").is(404).await;
        let lock = app.database.lock("credentials, callers").await;
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        let response = app.get("/pet/1").await;
        unlock(lock).await;
        if response.status == 404 {
            return;
        }
        response.is(503);
    }
    panic!("looked up each time");
}

#[tokio::test(flavor = "multi_thread")]
async fn plan_change_applies_to_the_per_day_limit_immediately() {
    let settings = [(FREE_PER_DAY, "3"), (FREE_PER_MINUTE, "unlimited")];
    let limited = Limited::start(Plan::Free, &settings).await;
    assert_eq!(limited.admitted(5).await, 3);
    let set = |plan| format!("update callers set plan = '{plan}' where name = 'limited'");
    limited.app.database.run(&set("pro")).await;
    eventually(async || limited.get(PROBE).await.status == 404).await;
    limited.app.database.run(&set("free")).await;
    eventually(async || limited.get(PROBE).await.status == 429).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn internal_error_returns_its_request_to_the_limits() {
    let limited = Limited::start(Plan::Free, &[]).await;
    limited.get(PROBE).await.is(404);
    let rename = "alter table pets rename to gone";
    limited.app.database.run(rename).await;
    for _ in 0..20 {
        limited.get(PROBE).await.is(500);
    }
    let limits = limited.assert_remaining(59).await;
    assert_eq!(limits["day"]["remaining"], 999, "{limits}");
    // The flush after the end of the slice returns them to the database too.
    limited.advance(Duration::from_millis(1_900)).await;
    eventually(async || limited.used().await == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn request_timeout_is_counted() {
    let settings = [("PET_INVENTORY__SERVER__REQUEST_TIMEOUT", "600ms")];
    let limited = Limited::start(Plan::Free, &settings).await;
    limited.get(PROBE).await.is(404);
    let lock = limited.app.database.lock("pets").await;
    limited.get(PROBE).await.is(503);
    unlock(lock).await;
    limited.assert_remaining(58).await;
}

/// PostgreSQL cancels the statement of the request. A frozen PostgreSQL, which does not, is the service's fault.
#[tokio::test(flavor = "multi_thread")]
async fn statement_timeout_is_counted() {
    let limited = Limited::start(Plan::Free, &[]).await;
    let slow = "create function slow() returns trigger language plpgsql as
                    'begin perform pg_sleep(10); return new; end';
                create trigger slow before insert on pets for each row execute function slow()";
    limited.app.database.run(slow).await;
    let add = limited.app.with_key(&limited.key, Method::POST, "/pet");
    let add = add.json(&json!({"name": "a"}));
    let mut problem = add.clone().await.problem(503);
    // A busy machine cancels the statement too late, which is not counted.
    for _ in 0..5 {
        if problem["detail"] == "the request took too long" {
            break;
        }
        problem = add.clone().await.problem(503);
    }
    assert_eq!(problem["detail"], "the request took too long");
    limited.assert_remaining(59).await;
}

/// No statement of the request is too slow, but together they are: that of the pet, and that of its stored response.
#[tokio::test(flavor = "multi_thread")]
async fn total_timeout_of_statements_is_counted() {
    let limited = Limited::start(Plan::Free, &[]).await;
    let slow = "create function slow() returns trigger language plpgsql as
                    'begin perform pg_sleep(1.3); return new; end';
                create trigger slow before insert on pets for each row execute function slow();
                create trigger slow before insert on idempotency_keys
                    for each row execute function slow()";
    limited.app.database.run(slow).await;
    let add = |key: Option<&str>| {
        let add = limited.app.with_key(&limited.key, Method::POST, "/pet");
        let add = key
            .into_iter()
            .fold(add, |add, key| add.header("idempotency-key", key));
        add.json(&json!({"name": "a"}))
    };
    add(None).await.is(201);
    let problem = add(Some("k")).await.problem(503);
    assert_eq!(problem["detail"], "the request took too long");
    limited.assert_remaining(58).await;
    assert_eq!(limited.app.count().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn response_for_which_its_client_has_no_memory_left_is_counted() {
    // An address may use 2 MiB, and the pets have 1.8 MB.
    let settings = [("PET_INVENTORY__SERVER__MAX_RESPONSE_MEMORY", "16MiB")];
    let limited = Limited::start(Plan::Free, &settings).await;
    let pets = "insert into pets (id, status, details)
        select n, 'sold',
               json_build_object('name', 'a', 'photoUrls', array_fill('/' || repeat('y', 2000), array[20]), 'tags', '[]'::json)
        from generate_series(1, 45) n";
    limited.app.database.run(pets).await;
    let all = "/pet/findByStatus?status=sold&limit=100";
    let head = format!(
        "GET /api/v3{all} HTTP/1.1\r\nHost: a\r\napi_key: {}\r\n\r\n",
        limited.app.key
    );
    let (connection, status) = request_unread("127.0.0.1", limited.app.address, &head).await;
    assert_eq!(status, 200);
    let refused = limited.get(all).await;
    refused.problem(503);
    assert_eq!(refused.header("x-ratelimit-limit"), "60");
    limited.assert_remaining(59).await;
    drop(connection);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_lease_statements_admit_nothing() {
    let limited = Limited::start(Plan::Free, &[]).await;
    assert_eq!(limited.admitted(2).await, 2);
    limited.advance_seconds(1).await;
    let rename = "alter table limit_usage rename to gone";
    limited.app.database.run(rename).await;
    let probe = limited.app.with_key(&limited.key, Method::GET, PROBE);
    let statuses = statuses_of(vec![probe; 30]).await;
    assert!(statuses.iter().all(|status| *status >= 500), "{statuses:?}");
    let rename = "alter table gone rename to limit_usage";
    limited.app.database.run(rename).await;
    // The second lease had a request in advance. The first statement that failed was to return it, so it counts as used.
    assert_eq!(limited.admitted(70).await, 57);
    assert_eq!(limited.used().await, 60);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_callers_get_exactly_their_limits() {
    let settings = [
        (FREE_PER_MINUTE, "5"),
        ("PET_INVENTORY__SERVER__MAX_REQUESTS", "2000"),
    ];
    let limited = Limited::start(Plan::Free, &settings).await;
    let mut probes = Vec::new();
    for number in 0..64 {
        let key = key(&limited.app, &format!("greedy-{number}"), Plan::Free).await;
        probes.extend(vec![limited.app.with_key(&key, Method::GET, PROBE); 12]);
    }
    let expected = [vec![404; 64 * 5], vec![429; 64 * 7]].concat();
    assert_eq!(statuses_of(probes).await, expected);
    assert_eq!(limited.used().await, 64 * 5);
}

/// A slice needs one lease, another for its last tenth, in which the first has expired, and sometimes a statement that
/// returns unused requests.
#[tokio::test(flavor = "multi_thread")]
async fn steady_requests_cost_few_lease_statements() {
    const SECONDS: u32 = 4;
    let home = Home::new();
    let service = home.serve().await;
    let statements = async || {
        let name = "db_client_operation_batch_size_count{db_query_summary=\"UPDATE limit_usage\"}";
        service.sample(name).await.unwrap_or(0)
    };
    let request = || service.request(Method::GET, PROBE, "pro-key");
    request().await.is(404);
    let before = statements().await;
    let started = Instant::now();
    for _ in 0..10 * SECONDS {
        request().await.is(404);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let seconds = started.elapsed().as_secs();
    let cost = statements().await - before;
    // They begin in one slice and end in another.
    assert!((seconds..=3 * (seconds + 2)).contains(&cost), "{cost}");
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_requests_use_exactly_the_limit() {
    const REQUESTS: usize = 1_000;
    // An eighth exceeds the number of requests, so that only the rate limit can refuse them.
    let settings = [
        ("PET_INVENTORY__SERVER__MAX_REQUESTS", "12000"),
        ("PET_INVENTORY__SERVER__MAX_CONNECTIONS_PER_ADDRESS", "6000"),
    ];
    for replicas in [1, 2] {
        let limited = Limited::start(Plan::Free, &settings).await;
        let second = TestApp::replica_of(&limited.app, &settings).await;
        let probes = (0..REQUESTS).map(|number| {
            let app = if number % replicas == 0 {
                &limited.app
            } else {
                &second
            };
            app.with_key(&limited.key, Method::GET, PROBE)
        });
        let expected = [vec![404; 60], vec![429; REQUESTS - 60]].concat();
        assert_eq!(statuses_of(probes).await, expected, "{replicas} replicas");
        assert_eq!(limited.used().await, 60);
    }
}

/// Those that are in progress when the limit is reached are looked up, and no others.
#[tokio::test(flavor = "multi_thread")]
async fn unknown_keys_beyond_the_limit_cost_no_look_ups() {
    let limited = Limited::start(Plan::Enterprise, &[]).await;
    let look_ups = async || {
        let requests = (0..200).map(|_| {
            let key = Secret::generate(CredentialKind::ApiKey).expect("random numbers");
            limited.app.with_key(key.expose(), Method::GET, "/limits")
        });
        let statuses = statuses_of(requests).await;
        assert!(
            statuses.iter().all(|status| [401, 429].contains(status)),
            "{statuses:?}"
        );
        statuses.iter().filter(|status| **status == 401).count()
    };
    assert!((100..=200).contains(&look_ups().await));
    assert_eq!(look_ups().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn cached_valid_key_passes_the_failed_authentication_limit() {
    let limited = Limited::start(Plan::Enterprise, &[]).await;
    for _ in 0..101 {
        get(&limited.app, "wrong", "/limits").await;
    }
    // Retries: the service clears its credential cache when it begins to listen for changes.
    eventually(async || {
        limited.clock.advance(Duration::from_secs(2));
        limited.get("/limits").await.is(200);
        for _ in 0..5 {
            get(&limited.app, "wrong", "/limits").await;
        }
        get(&limited.app, "wrong", "/limits").await.is(429);
        limited.get("/limits").await.status == 200
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn options_requests_are_not_counted() {
    let limited = Limited::start(Plan::Free, &[]).await;
    for path in ["/api/v3/pet/1", "/oauth/token"] {
        for _ in 0..70 {
            let request = limited.app.bare(Method::OPTIONS, path);
            let response = request.header("api_key", &limited.key).is(405).await;
            assert!(
                response.optional_header("ratelimit").is_none(),
                "{response}"
            );
        }
    }
    assert_eq!(limited.admitted(70).await, 60);
}
