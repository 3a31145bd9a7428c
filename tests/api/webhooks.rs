//! Webhooks: what is delivered, in which order, and what is not.

use std::{net::TcpListener, sync::atomic::Ordering::Relaxed};

use pet_inventory::{
    db::{
        self,
        deliveries::{Outcome, Undelivered},
    },
    domain::change::Position,
};
use standardwebhooks::Webhook;
use test_support::*;
use wiremock::{MockServer, matchers::any};

use super::cli::Commands;

const ALLOW_PRIVATE: (&str, &str) = ("PET_INVENTORY__WEBHOOKS__ALLOW_PRIVATE", "true");

/// Starts a service that delivers to this machine.
async fn start() -> TestApp {
    TestApp::with(&[ALLOW_PRIVATE]).await
}

/// Creates a webhook, and returns its path and its secret.
async fn create(app: &TestApp, url: &str, kinds: &[&str]) -> (String, String) {
    let body = json!({"url": url, "kinds": kinds});
    let created = app.post("/admin/webhooks", &body).is(201).await.json();
    let secret = created["secret"].as_str().expect("a secret").to_owned();
    (format!("/admin/webhooks/{}", created["id"]), secret)
}

async fn deliveries(app: &TestApp, webhook: &str) -> Vec<Value> {
    let deliveries = app.get(&format!("{webhook}/deliveries")).is(200).await;
    deliveries.json().as_array().expect("a list").clone()
}

async fn enable(app: &TestApp, webhook: &str, enabled: bool) {
    let patch = json!({ "enabled": enabled });
    app.patch(webhook, &patch).is(200).await;
}

/// Lets the deliveries that wait be tried at once.
async fn hurry(app: &TestApp) {
    app.database
        .run("update webhook_retries set next_at = now()")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_are_delivered_with_a_signature_and_in_order() {
    let app = start().await;
    let receiver = Receiver::start().await;
    app.add_pet(1).await;
    let (_, secret) = create(&app, &receiver.url(), &["pet"]).await;
    let (everything, _) = create(&app, &Receiver::start().await.url(), &[]).await;
    app.add_pet(2).await;
    app.patch("/pet/2", &json!({"name": "Max"})).is(200).await;
    // It changes the pet.
    app.post("/store/order", &json!({"petId": 1})).is(201).await;
    app.delete("/pet/2").is(200).await;
    eventually(async || receiver.messages().len() == 4).await;
    let changes = app.get("/changes?kind=pet").is(200).await.changes();
    let expected = &changes[1..];
    let verifier = Webhook::new(&secret).expect("a secret");
    let mut messages = receiver.messages();
    // Different resources have no order.
    messages.sort_by_key(|it| it.json()["data"]["position"].as_i64());
    for (message, change) in messages.iter().zip(expected) {
        verifier
            .verify(&message.body, &message.headers)
            .expect("a valid signature");
        let kind = format!("pet.{}", change["action"].as_str().expect("an action"));
        assert_eq!(
            message.json(),
            json!({"type": kind, "timestamp": change["at"], "data": change})
        );
        let id = format!("1-{}", change["position"]);
        assert_eq!(message.id(), id);
        assert_eq!(message.headers["content-type"], "application/json");
        let mut forged = message.body.clone();
        forged[10] ^= 1;
        verifier
            .verify(&forged, &message.headers)
            .expect_err("another body");
    }
    // One that wants all kinds gets changes of webhooks, also its own creation, but none before it.
    let webhook = app.get(&everything).is(200).await.json();
    assert_eq!(webhook["kinds"], json!([]));
    assert_eq!(
        app.get(&everything).is(200).await.json()["secret"],
        Value::Null
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_changes_of_a_resource_wait_for_one_that_fails() {
    let app = start().await;
    let receiver = Receiver::with(|message, before| {
        let is_first = message.what() == "pet.created 1";
        if is_first && before < 2 { 500 } else { 204 }
    })
    .await;
    let (webhook, _) = create(&app, &receiver.url(), &["pet"]).await;
    app.add_pet(1).await;
    app.patch("/pet/1", &json!({"name": "Max"})).is(200).await;
    app.add_pet(2).await;
    eventually(async || receiver.accepted().contains(&"pet.created 2".to_owned())).await;
    eventually(async || deliveries(&app, &webhook).await.len() == 2).await;
    let waiting = deliveries(&app, &webhook).await;
    assert_eq!(waiting[0]["type"], "pet.created");
    let error = "the response has status 500 Internal Server Error";
    assert_eq!(waiting[0]["lastError"], error);
    // Untried, behind the first.
    assert_eq!(waiting[1]["type"], "pet.changed");
    assert_eq!(waiting[1]["attempts"], 0);
    assert_eq!(waiting[1]["lastError"], Value::Null);
    // The delays are 1 s and 2 s.
    eventually(async || receiver.accepted().len() == 3).await;
    let expected = ["pet.created 2", "pet.created 1", "pet.changed 1"];
    assert_eq!(receiver.accepted(), expected);
    eventually(async || deliveries(&app, &webhook).await.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_that_fail_for_a_day_are_parked_and_can_be_sent_again() {
    let app = start().await;
    let is_refusing = Arc::new(AtomicBool::new(true));
    let refuses = Arc::clone(&is_refusing);
    let receiver = Receiver::with(move |message, _| {
        let is_refused = message.what() == "pet.created 1" && refuses.load(Relaxed);
        if is_refused { 400 } else { 200 }
    })
    .await;
    let (webhook, _) = create(&app, &receiver.url(), &["pet"]).await;
    app.add_pet(1).await;
    app.patch("/pet/1", &json!({"name": "Max"})).is(200).await;
    eventually(async || deliveries(&app, &webhook).await.len() == 2).await;
    app.database
        .run("update webhook_retries set created_at = created_at - interval '1 day', next_at = now()")
        .await;
    // It is given up, and the next change of the pet is sent.
    eventually(async || receiver.accepted() == ["pet.changed 1"]).await;
    eventually(async || deliveries(&app, &webhook).await.len() == 1).await;
    let parked = deliveries(&app, &webhook).await.remove(0);
    assert!(parked["parkedAt"].is_string(), "{parked}");
    assert_eq!(parked["nextAt"], Value::Null);
    assert!(parked["attempts"].as_i64() >= Some(2), "{parked}");
    let state = app.get(&webhook).is(200).await.json();
    assert_eq!([&state["waiting"], &state["parked"]], [0, 1]);
    is_refusing.store(false, Relaxed);
    let retry = format!("{webhook}/deliveries/{}/retry", parked["position"]);
    // Without its change, there is nothing to send.
    let change = format!("position = {}", parked["position"]);
    let purge = format!(
        "create table aside as select * from changes where {change}; delete from changes where {change}"
    );
    app.database.run(&purge).await;
    app.request(Method::POST, &retry).await.problem(409);
    let record = "insert into changes select * from aside";
    app.database.run(record).await;
    let due = app.request(Method::POST, &retry).is(202).await.json();
    assert_eq!(
        [&due["attempts"], &due["parkedAt"]],
        [&json!(0), &Value::Null]
    );
    eventually(async || receiver.accepted().len() == 2).await;
    eventually(async || deliveries(&app, &webhook).await.is_empty()).await;
    app.request(Method::POST, &retry).is(404).await;
}

/// Otherwise a resource that always fails would hold its webhook up for a day for each of its changes.
#[tokio::test(flavor = "multi_thread")]
async fn changes_that_have_waited_for_a_day_are_parked_one_after_the_other() {
    let app = start().await;
    let receiver = Receiver::with(|_, _| 400).await;
    let (webhook, _) = create(&app, &receiver.url(), &["pet"]).await;
    app.add_pet(1).await;
    for name in ["Max", "Bo"] {
        app.patch("/pet/1", &json!({"name": name})).is(200).await;
    }
    eventually(async || deliveries(&app, &webhook).await.len() == 3).await;
    let yesterday = "update webhook_retries set created_at = created_at - interval '1 day'";
    app.database.run(yesterday).await;
    eventually(async || {
        hurry(&app).await;
        let state = app.get(&webhook).is(200).await.json();
        [&state["waiting"], &state["parked"]] == [0, 3]
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn receiver_that_is_down_gets_everything_later() {
    let app = start().await;
    // A port on which nothing listens until later.
    let address = free_address();
    let (webhook, _) = create(&app, &format!("http://{address}/"), &["pet"]).await;
    let healthy = Receiver::start().await;
    create(&app, &healthy.url(), &["pet"]).await;
    // So that its first turn has all of them.
    enable(&app, &webhook, false).await;
    for id in 1..=150 {
        app.add_pet(id).await;
    }
    enable(&app, &webhook, true).await;
    eventually(async || healthy.messages().len() == 150).await;
    let failed = "select count(*) from webhook_retries";
    eventually(async || app.database.number(failed).await == 100).await;
    for id in 1..=50 {
        app.patch(&format!("/pet/{id}"), &json!({"name": "Max"}))
            .is(200)
            .await;
    }
    eventually(async || healthy.messages().len() == 200).await;
    // All that it has not got, of which most was never tried.
    let state = app.get(&webhook).is(200).await.json();
    assert_eq!(state["waiting"], 200, "{state}");
    let oldest = "select (extract(epoch from now()) * 1000)::bigint - min(position) / 1000 from changes where kind = 'pet'";
    let oldest = app.database.number(oldest).await;
    let lag = Duration::from_secs_f64(state["lagSeconds"].as_f64().expect("a number"));
    let oldest = Duration::from_millis(oldest.try_into().expect("an age"));
    assert!(
        lag.abs_diff(oldest) < Duration::from_millis(500),
        "{state}, {oldest:?}"
    );
    let failed = deliveries(&app, &webhook).await.remove(0);
    let error = failed["lastError"].as_str().expect("a reason");
    assert!(error.contains("refused"), "{error}");

    let listener = TcpListener::bind(address).expect("the port");
    let server = MockServer::builder().listener(listener).start().await;
    let mock = Mock::given(any());
    server
        .register(mock.respond_with(ResponseTemplate::new(200)))
        .await;
    eventually(async || {
        hurry(&app).await;
        server.received_requests().await.expect("requests").len() >= 200
    })
    .await;
    eventually(async || app.get(&webhook).is(200).await.json()["waiting"] == 0).await;
    let mut last = HashMap::new();
    for request in server.received_requests().await.expect("requests") {
        let change: Value = serde_json::from_slice(&request.body).expect("JSON");
        let (pet, position) = (
            change["data"]["resource"].to_string(),
            change["data"]["position"].as_i64(),
        );
        let before = last.insert(pet, position);
        // A change is sent again if its response was late.
        assert!(before <= Some(position), "{change}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn disabled_webhooks_go_on_where_they_were() {
    let app = start().await;
    let receiver = Receiver::start().await;
    let (webhook, _) = create(&app, &receiver.url(), &["pet"]).await;
    app.add_pet(1).await;
    eventually(async || receiver.messages().len() == 1).await;
    enable(&app, &webhook, false).await;
    app.request(Method::POST, &format!("{webhook}/test"))
        .is(409)
        .await;
    app.add_pet(2).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(receiver.messages().len(), 1);
    let state = app.get(&webhook).is(200).await.json();
    assert_eq!(state["enabled"], false);
    // Another URL, and only pets that are gone from then on.
    let other = Receiver::start().await;
    let patch = json!({"enabled": true, "url": other.url()});
    app.patch(&webhook, &patch).is(200).await;
    eventually(async || other.accepted() == ["pet.created 2"]).await;
    app.delete(&webhook).is(200).await;
    app.add_pet(3).await;
    app.get(&webhook).is(404).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(other.messages().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_have_another_day_once_their_webhook_is_enabled_again() {
    let app = start().await;
    let receiver = Receiver::with(|_, _| 503).await;
    let (webhook, _) = create(&app, &receiver.url(), &["pet"]).await;
    app.add_pet(1).await;
    let attempts = async || {
        deliveries(&app, &webhook)
            .await
            .first()
            .map(|it| it["attempts"].as_i64())
    };
    eventually(async || attempts().await.flatten() >= Some(1)).await;
    enable(&app, &webhook, false).await;
    let weeks_ago =
        "update webhook_retries set created_at = now() - interval '20 days', next_at = now()";
    app.database.run(weeks_ago).await;
    let before = receiver.messages().len();
    enable(&app, &webhook, true).await;
    eventually(async || receiver.messages().len() >= before + 2).await;
    let waiting = deliveries(&app, &webhook).await.remove(0);
    assert_eq!(waiting["parkedAt"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn tests_return_their_outcome_and_are_no_deliveries() {
    let app = start().await;
    let receiver = Receiver::with(|_, _| 503).await;
    let (webhook, secret) = create(&app, &receiver.url(), &["order"]).await;
    let test = app.request(Method::POST, &format!("{webhook}/test"));
    let attempt = test.header("idempotency-key", "ignored").is(200).await;
    let attempt = attempt.json();
    assert_eq!(attempt["status"], 503);
    let error = "the response has status 503 Service Unavailable";
    assert_eq!(attempt["error"], error);
    assert_eq!(attempt.get("position"), None);
    let message = receiver.messages().remove(0);
    let verifier = Webhook::new(&secret).expect("a secret");
    verifier
        .verify(&message.body, &message.headers)
        .expect("a valid signature");
    let json = message.json();
    assert_eq!(
        [&json["type"], &json["data"]],
        [&json!("test"), &json!({"webhook": 1})]
    );
    // It is neither repeated nor listed as a delivery, but as an attempt.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(receiver.messages().len(), 1);
    assert!(deliveries(&app, &webhook).await.is_empty());
    let attempts = app.get(&format!("{webhook}/attempts")).is(200).await;
    assert_eq!(attempts.json(), json!([attempt]));
    // It changes nothing of the webhook.
    let changes = app.get("/changes?kind=webhook").is(200).await.changes();
    assert_eq!(changes.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_test_of_a_webhook_is_in_progress_at_a_time() {
    let app = start().await;
    let slow = |status| ResponseTemplate::new(status).set_delay(Duration::from_secs(2));
    let receiver = Receiver::with_responses(|_, _| 204, slow).await;
    let (webhook, _) = create(&app, &receiver.url(), &["order"]).await;
    let path = format!("{webhook}/test");
    let tests = (0..10).map(|_| async { app.request(Method::POST, &path).await.status });
    let mut statuses: Vec<_> = join_all(tests).await;
    statuses.sort_unstable();
    let mut expected = vec![409; 10];
    expected[0] = 200;
    assert_eq!(statuses, expected);
    // It goes on if its client does not wait.
    let test = app.request(Method::POST, &path).send();
    let _ = tokio::time::timeout(Duration::from_millis(500), test).await;
    app.request(Method::POST, &path).is(409).await;
    eventually(async || {
        let attempts = app.get(&format!("{webhook}/attempts")).is(200).await.json();
        attempts.as_array().expect("a list").len() == 2
    })
    .await;
    app.request(Method::POST, &path).is(200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn last_attempts_are_kept_with_the_beginning_of_their_responses() {
    let app = start().await;
    let text = |status| {
        ResponseTemplate::new(status).set_body_bytes([&b"a\0\xff"[..], &[b'x'; 5_000]].concat())
    };
    let receiver = Receiver::with_responses(|_, _| 200, text).await;
    let (webhook, _) = create(&app, &receiver.url(), &["pet"]).await;
    for id in 1..=25 {
        app.add_pet(id).await;
    }
    let attempts = async || app.get(&format!("{webhook}/attempts")).is(200).await.json();
    eventually(async || receiver.messages().len() == 25).await;
    eventually(async || app.get(&webhook).is(200).await.json()["lagSeconds"] == 0.0).await;
    let listed = attempts().await;
    let listed = listed.as_array().expect("a list");
    assert_eq!(listed.len(), 20);
    for attempt in listed {
        assert_eq!(attempt["status"], 200);
        assert_eq!(attempt.get("error"), None);
        assert!(attempt["position"].is_i64(), "{attempt}");
        assert!(
            attempt["durationSeconds"].as_f64() < Some(10.0),
            "{attempt}"
        );
        let response = attempt["response"].as_str().expect("a text");
        assert_eq!(response, format!("a\u{fffd}{}", "x".repeat(1_021)));
    }
    let times: Vec<_> = listed.iter().map(|it| it["at"].as_str()).collect();
    assert!(times.is_sorted_by(|one, next| one >= next), "{times:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn receivers_put_deliveries_of_a_resource_off() {
    let app = start().await;
    let (seconds, date) = (Utc::now(), Utc::now() + Duration::from_mins(2));
    let date = date.format("%a, %d %b %Y %H:%M:%S GMT").to_string();
    let refuse = move |status| match status {
        429 => ResponseTemplate::new(429).insert_header("retry-after", "600"),
        503 => ResponseTemplate::new(503).insert_header("retry-after", date.as_str()),
        // More than an hour, and with another status.
        430 => ResponseTemplate::new(429).insert_header("retry-after", "9".repeat(30).as_str()),
        400 => ResponseTemplate::new(400).insert_header("retry-after", "600"),
        status => ResponseTemplate::new(status),
    };
    let by_pet = |message: &Message, _| match &*message.what() {
        "pet.created 1" => 429,
        "pet.created 2" => 503,
        "pet.created 3" => 430,
        "pet.created 4" => 400,
        _ => 204,
    };
    let receiver = Receiver::with_responses(by_pet, refuse).await;
    let (webhook, _) = create(&app, &receiver.url(), &["pet"]).await;
    for id in 1..=5 {
        app.add_pet(id).await;
    }
    eventually(async || receiver.accepted() == ["pet.created 5"]).await;
    eventually(async || deliveries(&app, &webhook).await.len() == 4).await;
    for (delivery, wait) in deliveries(&app, &webhook)
        .await
        .iter()
        .zip([600, 120, 3_600, 0])
    {
        let next = delivery["nextAt"].as_str().expect("a time");
        let next: DateTime<Utc> = next.parse().expect("a time");
        let waits = (next - seconds).num_seconds();
        assert!((wait - 2..wait + 20).contains(&waits), "{delivery}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn receivers_that_are_gone_disable_their_webhooks() {
    let app = start().await;
    let receiver = Receiver::with(|_, _| 410).await;
    let (webhook, _) = create(&app, &receiver.url(), &["pet"]).await;
    app.add_pet(1).await;
    eventually(async || app.get(&webhook).is(200).await.json()["enabled"] == false).await;
    let change = &app.get("/changes?kind=webhook").is(200).await.changes()[1];
    assert_eq!(
        [&change["actor"], &change["data"]],
        [&json!("webhook"), &json!({"enabled": [true, false]})]
    );
    let delivery = deliveries(&app, &webhook).await.remove(0);
    assert_eq!(delivery["lastError"], "the response has status 410 Gone");
    for path in [
        format!("{webhook}/deliveries/{}/retry", delivery["position"]),
        format!("{webhook}/deliveries/retry"),
    ] {
        app.request(Method::POST, &path).await.problem(409);
    }
    // No caller has this name.
    let caller = json!({"name": "webhook"});
    app.post("/admin/callers", &caller).is(400).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rotated_secrets_are_both_valid_until_the_overlap_ends() {
    let app = start().await;
    let receiver = Receiver::start().await;
    let (webhook, first) = create(&app, &receiver.url(), &["pet"]).await;
    let rotate = async |overlap: Value| {
        let rotated = app
            .post(&format!("{webhook}/rotate"), &overlap)
            .is(201)
            .await;
        assert_eq!(rotated.headers["cache-control"], "no-store");
        rotated.json()["secret"]
            .as_str()
            .expect("a secret")
            .to_owned()
    };
    let verified_by = async |id: i64, secrets: &[&String]| {
        app.add_pet(id).await;
        let what = format!("pet.created {id}");
        let message = || receiver.messages().into_iter().find(|it| it.what() == what);
        eventually(async || message().is_some()).await;
        let message = message().expect("a message");
        let signatures = message.headers["webhook-signature"]
            .to_str()
            .expect("ASCII");
        let verify = |secret: &&String| {
            let verifier = Webhook::new(secret).expect("a secret");
            verifier.verify(&message.body, &message.headers).is_ok()
        };
        assert!(secrets.iter().all(verify), "{signatures}");
        assert_eq!(signatures.split(' ').count(), secrets.len());
    };
    let second = rotate(json!({})).await;
    verified_by(1, &[&first, &second]).await;
    // The first one ends at once.
    let third = rotate(json!({"overlap": 3_600})).await;
    verified_by(2, &[&second, &third]).await;
    app.database
        .run("update webhooks set old_secret_until = now() - interval '1 s'")
        .await;
    verified_by(3, &[&third]).await;
    let fourth = rotate(json!({"overlap": 0})).await;
    verified_by(4, &[&fourth]).await;
    let left = "select count(old_secret) from webhooks";
    eventually(async || app.database.number(left).await == 0).await;
    for body in [
        json!({"overlap": -1}),
        json!({"overlap": 604_801}),
        json!({"overlap": "1"}),
    ] {
        app.post(&format!("{webhook}/rotate"), &body).is(400).await;
    }
    app.post("/admin/webhooks/7/rotate", &json!({}))
        .is(404)
        .await;
}

/// A turn that is in progress reads the secrets again.
#[tokio::test(flavor = "multi_thread")]
async fn second_rotation_ends_the_oldest_secret_within_a_second() {
    let app = start().await;
    let delayed = |status| ResponseTemplate::new(status).set_delay(Duration::from_millis(200));
    let receiver = Receiver::with_responses(|_, _| 204, delayed).await;
    let (webhook, oldest) = create(&app, &receiver.url(), &["pet"]).await;
    app.add_pet(1).await;
    for number in 0..30 {
        let pet = json!({"name": format!("Rex {number}")});
        app.patch("/pet/1", &pet).is(200).await;
    }
    eventually(async || receiver.messages().len() >= 3).await;
    for _ in 0..2 {
        let rotate = app.post(&format!("{webhook}/rotate"), &json!({}));
        rotate.is(201).await;
    }
    let now = "select (extract(epoch from clock_timestamp()) * 1000)::bigint";
    let ended = app.database.number(now).await + 1_000;
    eventually(async || receiver.messages().len() == 31).await;
    let is_signed = |message: &Message| {
        let verifier = Webhook::new(&oldest).expect("a secret");
        verifier.verify(&message.body, &message.headers).is_ok()
    };
    let messages = receiver.messages();
    assert!(is_signed(&messages[0]));
    let mut later = (messages.iter()).filter(|it| it.received_at.timestamp_millis() > ended);
    assert!(later.next().is_some_and(|first| !is_signed(first)));
    assert!(!later.any(is_signed));
    assert!(
        !receiver.messages().is_sorted_by_key(is_signed),
        "each has an old signature"
    );
}

/// Requests in progress are bounded for each webhook, and share nothing with those of others.
#[tokio::test(flavor = "multi_thread")]
async fn requests_in_progress_are_bounded_for_each_webhook() {
    const DELAY: Duration = Duration::from_millis(700);
    for max in [1, 3, 8] {
        let text = max.to_string();
        let setting = ("PET_INVENTORY__WEBHOOKS__MAX_DELIVERIES", text.as_str());
        let app = TestApp::with(&[ALLOW_PRIVATE, setting]).await;
        let delayed = |status| ResponseTemplate::new(status).set_delay(DELAY);
        let receiver = Receiver::with_responses(|_, _| 204, delayed).await;
        create(&app, &receiver.url(), &["pet"]).await;
        for id in 1..=20 {
            app.add_pet(id).await;
        }
        eventually(async || receiver.messages().len() >= 2 + 2 * max).await;
        let arrivals: Vec<_> = receiver
            .messages()
            .iter()
            .map(|it| it.received_at)
            .collect();
        let at_once = arrivals.iter().map(|one| {
            let progress =
                |other: &&DateTime<Utc>| (*one - **other).to_std().is_ok_and(|since| since < DELAY);
            arrivals.iter().filter(progress).count()
        });
        assert_eq!(at_once.max(), Some(max), "{arrivals:?}");
    }
}

/// Turns end after some bytes, so that all webhooks can have them at once.
#[tokio::test(flavor = "multi_thread")]
async fn large_changes_are_delivered_in_several_turns() {
    let app = start().await;
    let is_refusing = Arc::new(AtomicBool::new(true));
    let refuses = Arc::clone(&is_refusing);
    let receiver = Receiver::with(move |_, _| if refuses.load(Relaxed) { 500 } else { 204 }).await;
    let (webhook, _) = create(&app, &receiver.url(), &["pet"]).await;
    let large = "insert into new_changes (kind, resource, action, data)
                 select 'pet', (i % 5)::text, 'changed', to_jsonb(repeat('x', 40000)) from generate_series(1, 40) i";
    app.database.run(large).await;
    let waiting = "select count(*) from webhook_retries";
    eventually(async || app.database.number(waiting).await == 40).await;
    is_refusing.store(false, Relaxed);
    let turns = "select pg_stat_get_tuples_updated('webhooks'::regclass) / 2";
    eventually(async || {
        hurry(&app).await;
        receiver.accepted().len() >= 40
    })
    .await;
    app.database.run(large).await;
    eventually(async || receiver.accepted().len() >= 80).await;
    eventually(async || app.get(&webhook).is(200).await.json()["waiting"] == 0).await;
    // Of 160 KiB each, and what exceeds them.
    let expected = 2 * 40 * 40_000 / (200 << 10);
    eventually(async || app.database.number(turns).await > expected).await;
    let mut last = HashMap::new();
    for message in receiver.messages().iter().filter(|it| it.status == 204) {
        let data = message.json()["data"].clone();
        let before = last.insert(data["resource"].to_string(), data["position"].as_i64());
        assert!(
            before < Some(data["position"].as_i64()),
            "{}",
            message.what()
        );
    }
}

/// The last word on a delivery, whichever of the end of a turn and the requests of an operator come first.
#[tokio::test(flavor = "multi_thread")]
async fn deliveries_that_are_requested_again_stay_so_when_a_turn_ends() {
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Step {
        End,
        Again,
        All,
    }
    use Step::{Again, All, End};
    let orders: [&[Step]; 11] = [
        &[End],
        &[End, Again],
        &[Again, End],
        &[End, All],
        &[All, End],
        &[End, Again, All],
        &[End, All, Again],
        &[Again, End, All],
        &[Again, All, End],
        &[All, End, Again],
        &[All, Again, End],
    ];
    let app = start().await;
    let (webhook, _) = create(&app, "https://example.com/", &["pet"]).await;
    enable(&app, &webhook, false).await;
    let recorded = "select count(*) from changes where kind = 'webhook'";
    eventually(async || app.database.number(recorded).await > 0).await;
    let id = "1".parse().expect("an identifier");
    let mut connection = app.database.connect().await;
    let initiator = Initiator::operator();
    for (result, order) in ["delivered", "failed", "parked"]
        .into_iter()
        .flat_map(|result| orders.map(|order| (result, order)))
    {
        // As a turn has read it: it has failed once, and is due.
        let begin = "delete from webhook_retries;
            insert into webhook_retries (webhook_id, position, kind, resource, attempts, next_at)
            select 1, min(position), 'webhook', '1', 1, now() from changes where kind = 'webhook';
            update webhooks set lease = 7, leased_until = now() + interval '1 hour'";
        app.database.run(begin).await;
        let position = "select position from webhook_retries";
        let position = Position(app.database.number(position).await);
        for step in order {
            match step {
                End => {
                    let mut outcome = Outcome::default();
                    if result == "delivered" {
                        outcome.done.push(position.0);
                    } else {
                        outcome.undelivered.push(Undelivered {
                            position: position.0,
                            kind: "webhook".to_owned(),
                            resource: "1".to_owned(),
                            attempts: 2,
                            wait: 60.0,
                            error: Some("refused".to_owned()),
                            is_parked: result == "parked",
                        });
                    }
                    let settled = db::deliveries::settle(&mut connection, id, 7, &outcome);
                    assert!(settled.await.expect("a database"), "{result}, {order:?}");
                }
                Again => {
                    let sent = db::webhooks::send_again(&mut connection, id, position, &initiator);
                    sent.await.expect("a database");
                }
                All => {
                    let sent = db::webhooks::send_parked_again(&mut connection, id, &initiator);
                    sent.await.expect("a database");
                }
            }
        }
        let left: Option<(i32, bool, bool)> = sqlx::query_as(
            "select attempts, parked_at is not null, next_at <= now() from webhook_retries",
        )
        .fetch_optional(&mut connection)
        .await
        .expect("a database");
        let is_requested = order.contains(&Again) || result == "parked" && order == [End, All];
        let expected = match result {
            "delivered" => None,
            _ if is_requested => Some((0, false, true)),
            result => Some((2, result == "parked", false)),
        };
        assert_eq!(left, expected, "{result}, {order:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_parked_deliveries_are_sent_again() {
    let app = start().await;
    let receiver = Receiver::start().await;
    let (webhook, _) = create(&app, &receiver.url(), &["pet"]).await;
    let retry = format!("{webhook}/deliveries/retry");
    let none = app.request(Method::POST, &retry).is(202).await;
    assert_eq!(none.json(), json!({"deliveries": 0}));
    enable(&app, &webhook, false).await;
    // More than a part, of many resources; the change of one is no longer recorded.
    app.database
        .run(
            "with numbers as (select generate_series(1, 2500) as n), recorded as (
                 insert into changes (position, at, kind, resource, action)
                 select n, now(), 'pet', n::text, 'changed' from numbers where n > 1
             )
             insert into webhook_retries (webhook_id, position, kind, resource, attempts, next_at, parked_at)
             select 1, n, 'pet', n::text, 9, now(), now() from numbers",
        )
        .await;
    enable(&app, &webhook, true).await;
    let sent = app
        .request(Method::POST, &retry)
        .header("idempotency-key", "all");
    assert_eq!(sent.is(202).await.json(), json!({"deliveries": 2_499}));
    let again = app
        .request(Method::POST, &retry)
        .header("idempotency-key", "all");
    assert_eq!(again.is(202).await.json(), json!({"deliveries": 2_499}));
    eventually(async || receiver.messages().len() >= 2_499).await;
    eventually(async || app.get(&webhook).is(200).await.json()["waiting"] == 0).await;
    assert_eq!(app.get(&webhook).is(200).await.json()["parked"], 1);
    let changes = app.get("/changes?kind=webhook").is(200).await.changes();
    let recorded: Vec<_> = changes.iter().map(|it| it["data"].clone()).collect();
    assert_eq!(recorded[3..], [json!({"retries": 2_499})]);
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_that_are_late_or_redirect_are_failures() {
    let app = start().await;
    let target = Receiver::start().await;
    let location = target.url();
    let redirecting =
        move |status| ResponseTemplate::new(status).insert_header("location", location.as_str());
    let redirecting = Receiver::with_responses(|_, _| 307, redirecting).await;
    let late = |status| ResponseTemplate::new(status).set_delay(Duration::from_secs(12));
    let late = Receiver::with_responses(|_, _| 200, late).await;
    let large = |status| ResponseTemplate::new(status).set_body_bytes(vec![0; 4 << 20]);
    let large = Receiver::with_responses(|_, _| 200, large).await;
    let mut webhooks = Vec::new();
    for receiver in [&redirecting, &late, &large] {
        webhooks.push(create(&app, &receiver.url(), &["pet"]).await.0);
    }
    app.add_pet(1).await;
    for (webhook, reason) in [
        (
            &webhooks[0],
            "the response has status 307 Temporary Redirect",
        ),
        (&webhooks[1], "no response within 10 s"),
    ] {
        eventually(async || !deliveries(&app, webhook).await.is_empty()).await;
        assert_eq!(deliveries(&app, webhook).await[0]["lastError"], reason);
    }
    assert!(target.messages().is_empty());
    // The body is not read.
    assert!(deliveries(&app, &webhooks[2]).await.is_empty());
    assert_eq!(large.messages().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn private_addresses_are_refused_unless_allowed() {
    let app = TestApp::start().await;
    let receiver = Receiver::start().await;
    let port = receiver
        .url()
        .replace("http://127.0.0.1:", "")
        .replace("/pets", "");
    for url in [
        &receiver.url(),
        &format!("https://127.0.0.1:{port}/"),
        &format!("https://2130706433:{port}/"),
        &format!("https://0x7f.1:{port}/"),
        &format!("https://0177.0.0.1:{port}/"),
        &format!("https://[::ffff:127.0.0.1]:{port}/"),
        "https://169.254.169.254/latest/meta-data",
        "https://[fd00:ec2::254]/",
        "https://10.0.0.1/",
        "ftp://example.com/",
        "",
    ] {
        let refused = app
            .post("/admin/webhooks", &json!({"url": url}))
            .is(400)
            .await;
        assert_eq!(
            refused.json()["errors"][0]["field"],
            "url",
            "{url}: {refused}"
        );
    }
    // A name is resolved for each connection. `localhost` has addresses of this machine only; the URLs of the other webhooks were
    // stored while the setting was on.
    let (by_name, _) = create(&app, &format!("https://localhost:{port}/"), &["pet"]).await;
    let (by_address, _) = create(&app, "https://example.com/", &["pet"]).await;
    let url = format!("update webhooks set url = 'https://127.0.0.1:{port}/' where id = 2");
    app.database.run(&url).await;
    app.add_pet(1).await;
    for (webhook, reason) in [
        (by_name, "has an address that is not public"),
        (by_address, "must not have a private address"),
    ] {
        eventually(async || !deliveries(&app, &webhook).await.is_empty()).await;
        let failed = deliveries(&app, &webhook).await.remove(0);
        let error = failed["lastError"].as_str().expect("a reason");
        assert!(error.contains(reason), "{error}");
    }
    assert!(receiver.messages().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_webhooks_are_refused() {
    let app = start().await;
    let (webhook, _) = create(&app, "http://127.0.0.1:9/", &[]).await;
    for (body, fields) in [
        (json!({}), &["url"][..]),
        (json!({"url": 7, "kinds": "pet"}), &["url", "kinds"]),
        (
            json!({"url": "https://example.com/", "kinds": ["pet", "cat"]}),
            &["kinds[1]"],
        ),
        (json!({"url": "https://user:pass@example.com/"}), &["url"]),
        (
            json!({"url": format!("https://example.com/{}", "x".repeat(2_048))}),
            &["url"],
        ),
        (
            json!({"url": "https://example.com/", "kinds": vec!["pet"; 17]}),
            &["kinds"],
        ),
    ] {
        let refused = app.post("/admin/webhooks", &body).is(400).await.json();
        let errors = refused["errors"].as_array().expect("errors").iter();
        let found: Vec<_> = errors
            .map(|it| it["field"].as_str().expect("a name"))
            .collect();
        assert_eq!(found, fields, "{body}");
    }
    for body in [
        json!({"url": null}),
        json!({"kinds": null}),
        json!({"enabled": "yes"}),
    ] {
        app.patch(&webhook, &body).is(400).await;
    }
    for path in ["/admin/webhooks/7", "/admin/webhooks/7/deliveries"] {
        app.get(path).is(404).await;
    }
    app.patch("/admin/webhooks/7", &json!({"enabled": true}))
        .is(404)
        .await;
    app.delete("/admin/webhooks/7").is(404).await;
    app.request(Method::POST, "/admin/webhooks/7/test")
        .is(404)
        .await;
    app.request(Method::POST, "/admin/webhooks/x/deliveries/-1/retry")
        .is(400)
        .await;
    let many = "insert into webhooks (url, secret, kinds, position, enabled)
                select 'https://example.com/', sha256('x'), '{}', 1, false from generate_series(1, 99)";
    app.database.run(many).await;
    let body = json!({"url": "https://example.com/"});
    app.post("/admin/webhooks", &body).is(409).await;
    let page = app.get("/admin/webhooks?limit=60").is(200).await;
    assert_eq!(page.json().as_array().expect("a list").len(), 60);
    assert!(page.headers.contains_key("link"));
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_manage_webhooks() {
    let commands = Commands::on(TestDatabase::migrated().await);
    let run = async |arguments: &[&str]| commands.json(&[arguments, &["--json"]].concat()).await;
    let url = "https://example.com/pets";
    let created = run(&[
        "webhooks", "create", url, "--kind", "pet", "--kind", "order",
    ])
    .await;
    assert_eq!(created["kinds"], json!(["pet", "order"]));
    let secret = created["secret"].as_str().expect("a secret");
    assert!(secret.starts_with("whsec_"), "{secret}");
    let text = commands
        .run(&["webhooks", "create", url])
        .await
        .is(0)
        .stdout;
    assert!(text.contains("Secret     whsec_"), "{text}");
    assert!(text.contains("pet-inventory webhooks test 2"), "{text}");
    assert_eq!(
        run(&["webhooks", "disable", "1"]).await,
        json!({"id": 1, "enabled": false})
    );
    let refused = commands.run(&["webhooks", "test", "1"]).await.is(1);
    assert!(refused.stderr.contains("disabled"), "{refused:?}");
    run(&["webhooks", "enable", "1"]).await;
    let parked = "
        insert into changes (position, at, kind, resource, action) values (7, now(), 'pet', '1', 'changed'), (8, now(), 'pet', '2', 'changed');
        insert into webhook_retries (webhook_id, position, kind, resource, attempts, next_at, parked_at)
        values (1, 7, 'pet', '1', 9, now(), now()), (1, 8, 'pet', '2', 9, now(), now())";
    commands.database.run(parked).await;
    let deliveries = run(&["webhooks", "deliveries", "1"]).await;
    assert_eq!(deliveries[0]["type"], "pet.changed");
    let sent = run(&["webhooks", "retry", "1", "7"]).await;
    assert_eq!(sent, json!({"id": 1, "positions": [7]}));
    let sent = run(&["webhooks", "retry", "1", "--all"]).await;
    assert_eq!(sent, json!({"id": 1, "deliveries": 1}));
    let rotated = run(&["webhooks", "rotate", "1", "--overlap", "1h"]).await;
    let new = rotated["secret"].as_str().expect("a secret");
    assert!(new.starts_with("whsec_") && new != secret, "{new}");
    let long = ["webhooks", "rotate", "1", "--overlap", "8d"];
    commands.run(&long).await.is(2);
    commands
        .refuses(&["webhooks", "retry", "1", "5"], "webhooks deliveries 1")
        .await;
    let table = commands
        .run(&["webhooks", "deliveries", "1"])
        .await
        .is(0)
        .stdout;
    assert!(table.starts_with("POSITION"), "{table}");
    let table = commands.run(&["webhooks", "list"]).await.is(0).stdout;
    assert!(table.contains(url) && !table.contains("whsec_"), "{table}");
    run(&["webhooks", "delete", "2"]).await;
    let left = run(&["webhooks", "list"]).await;
    assert_eq!(left.as_array().expect("a list").len(), 1);
    assert_eq!(left[0]["waiting"], 2);
    for arguments in [
        ["enable", "2"],
        ["delete", "2"],
        ["deliveries", "2"],
        ["attempts", "2"],
        ["rotate", "2"],
        ["test", "2"],
    ] {
        commands
            .refuses(
                &[&["webhooks"], &arguments[..]].concat(),
                "pet-inventory webhooks list",
            )
            .await;
    }
    // A private address is refused, unless the setting allows it.
    let private = ["webhooks", "create", "http://127.0.0.1/"];
    commands.refuses(&private, "webhooks.allow_private").await;
    let allowed = commands.run_with(&private, &[ALLOW_PRIVATE]).await;
    allowed.is(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn command_sends_tests() {
    let commands = Commands::on(TestDatabase::migrated().await);
    let tests = AtomicUsize::new(0);
    let status = move |_: &Message, _| match tests.fetch_add(1, Relaxed) {
        0 => 204,
        _ => 500,
    };
    let receiver = Receiver::with(status).await;
    let run = async |arguments: &[&str], status| {
        let arguments = [&["--json", "webhooks"], arguments].concat();
        let output = commands.run_with(&arguments, &[ALLOW_PRIVATE]).await;
        output.is(status)
    };
    run(&["create", &receiver.url()], 0).await;
    let accepted = run(&["test", "1"], 0).await;
    let accepted: Value = serde_json::from_str(&accepted.stdout).expect("JSON");
    assert_eq!(accepted["status"], 204);
    let refused = run(&["test", "1"], 1).await;
    refused.stderr_has("webhooks attempts 1");
    let attempts = commands
        .json(&["webhooks", "attempts", "1", "--json"])
        .await;
    assert_eq!(attempts[1], accepted);
    let table = commands.run(&["webhooks", "attempts", "1"]).await.is(0);
    assert!(table.stdout.contains("test      204"), "{table:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn webhooks_are_recorded_without_their_urls() {
    let app = TestApp::start().await;
    let url = "https://example.com/?token=secret";
    let (webhook, _) = create(&app, url, &["session"]).await;
    let parked = "
        insert into changes (position, at, kind, resource, action) values (7, now(), 'session', '1', 'deleted');
        insert into webhook_retries (webhook_id, position, kind, resource, attempts, next_at, parked_at)
        values (1, 7, 'session', '1', 9, now(), now())";
    app.database.run(parked).await;
    let retry = format!("{webhook}/deliveries/7/retry");
    app.request(Method::POST, &retry).is(202).await;
    app.post(&format!("{webhook}/rotate"), &json!({}))
        .is(201)
        .await;
    for patch in [
        json!({"kinds": ["user", "session"], "enabled": false}),
        json!({"url": "https://example.com/?token=other"}),
        // These change nothing.
        json!({"enabled": false}),
        json!({}),
    ] {
        app.patch(&webhook, &patch).is(200).await;
    }
    app.delete(&webhook).is(200).await;
    let changes = app.get("/changes?kind=webhook").is(200).await;
    assert!(!changes.text().contains("example.com"), "{changes}");
    let recorded: Vec<_> = changes
        .changes()
        .iter()
        .map(|it| (it["action"].clone(), it["data"].clone()))
        .collect();
    let kinds = json!({"kinds": [["session"], ["user", "session"]], "enabled": [true, false]});
    let expected = [
        ("created", json!({"kinds": [null, ["session"]]})),
        ("changed", json!({"retry": 7})),
        ("changed", json!({"secret": true})),
        ("changed", kinds),
        ("changed", Value::Null),
        ("deleted", Value::Null),
    ];
    assert_eq!(
        recorded,
        expected.map(|(action, data)| (json!(action), data))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_behind_one_that_fails_make_no_turns() {
    let app = start().await;
    let receiver = Receiver::with(|_, _| 500).await;
    let (webhook, _) = create(&app, &receiver.url(), &["pet"]).await;
    app.add_pet(1).await;
    app.patch("/pet/1", &json!({"name": "Max"})).is(200).await;
    eventually(async || deliveries(&app, &webhook).await.len() == 2).await;
    // The next attempt is far away.
    let later = "update webhook_retries set next_at = now() + interval '1 hour' where attempts > 0";
    app.database.run(later).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let leases = "select coalesce(lease, 0) + extract(epoch from next_at)::bigint from webhooks";
    let before = app.database.number(leases).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(app.database.number(leases).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn webhook_of_a_rare_kind_gets_on_behind_many_other_changes() {
    let app = start().await;
    let receiver = Receiver::start().await;
    let (webhook, _) = create(&app, &receiver.url(), &["order"]).await;
    enable(&app, &webhook, false).await;
    let many = "insert into new_changes (kind, resource, action)
                select 'pet', i::text, 'changed' from generate_series(1, 25000) i";
    app.database.run(many).await;
    app.add_pet(1).await;
    let order = app
        .post("/store/order", &json!({"petId": 1}))
        .is(201)
        .await
        .id();
    enable(&app, &webhook, true).await;
    eventually(async || !receiver.messages().is_empty()).await;
    assert_eq!(receiver.accepted(), [format!("order.created {order}")]);
    let lag = async || app.get(&webhook).is(200).await.json()["lagSeconds"] == 0.0;
    eventually(lag).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_ends_the_turns_in_progress() {
    let commands = Commands::on(TestDatabase::migrated().await);
    let service = commands.serve_with(&[ALLOW_PRIVATE]).await;
    let slow = |status| ResponseTemplate::new(status).set_delay(Duration::from_secs(9));
    let receiver = Receiver::with_responses(|_, _| 204, slow).await;
    let webhook = format!(
        "insert into webhooks (url, secret, kinds, position)
                           select '{}', sha256('x'), '{{pet}}', position from changes_clock",
        receiver.url()
    );
    commands.database.run(&webhook).await;
    let change = "insert into new_changes (kind, resource, action) values ('pet', '1', 'changed'), ('pet', '1', 'deleted')";
    commands.database.run(change).await;
    eventually(async || !receiver.messages().is_empty()).await;
    service.stop().await;
    let left = "select count(*) from webhook_retries where attempts = 0";
    assert_eq!(commands.database.number(left).await, 2);
    let leased = "select count(*) from webhooks where lease is not null";
    assert_eq!(commands.database.number(leased).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn parked_deliveries_are_kept_as_long_as_changes() {
    let app = TestApp::start().await;
    create(&app, "https://example.com/", &["session"]).await;
    app.database
        .run(
            "insert into webhook_retries (webhook_id, position, kind, resource, attempts, next_at, parked_at)
             select 1, i, 'pet', i::text, 3, now(), now() - i * interval '11 days' from generate_series(1, 5) i",
        )
        .await;
    let mut connection = app.database.connect().await;
    let month = Duration::from_hours(30 * 24);
    let purged = db::deliveries::purge_expired(&mut connection, month).await;
    purged.expect("a database");
    let left = "select sum(position)::bigint from webhook_retries";
    assert_eq!(app.database.number(left).await, 3);
}
