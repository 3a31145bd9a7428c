//! Row 31: webhooks while replicas are killed, with receivers that fail, and beside one that is down.

use std::sync::atomic::Ordering::Relaxed;

use test_support::*;
use tokio::{
    task::JoinSet,
    time::{interval, sleep},
};

use crate::stage::*;

const PETS: usize = 40;
const SETTINGS: [(&str, &str); 1] = [("WEBHOOKS__ALLOW_PRIVATE", "true")];
/// Status of a message that the receiver accepts late, and of one that it accepts when the sender has given up.
const LATE: u16 = 250;
const TOO_LATE: u16 = 598;
/// Longest time until everything is delivered.
const MAX_DELIVERY: Duration = Duration::from_mins(4);

/// Creates a webhook for changes of pets, and returns its path.
async fn create(stage: &Stage, url: &str) -> String {
    let webhook = json!({"url": url, "kinds": ["pet"]});
    let created = stage.target.request(Method::POST, "/admin/webhooks");
    let created = created.json(&webhook).is(201).await;
    format!("/admin/webhooks/{}", created.id())
}

async fn add_pets(stage: &Stage) {
    for id in 1..=PETS {
        let pet = json!({"id": id, "name": "Rex"});
        let add = stage.target.request(Method::POST, "/pet");
        add.json(&pet).is(201).await;
    }
}

/// Changes the pets in turn, `per_second` times, until `end`, and waits for the last responses. Failures are those of a killed
/// process.
async fn change_pets(target: Arc<Target>, per_second: u32, end: CancellationToken) {
    let mut ticks = interval(Duration::from_secs(1) / per_second);
    let mut changes = JoinSet::new();
    for number in 0.. {
        tokio::select! {
            () = end.cancelled() => break,
            _ = ticks.tick() => {}
        }
        let change = target.request(Method::PATCH, &format!("/pet/{}", 1 + number % PETS));
        let change = change
            .json(&json!({"name": format!("Rex {number}")}))
            .send();
        changes.spawn(change);
    }
    while changes.join_next().await.is_some() {}
}

/// Returns the resource and the position of each message that was accepted, in the order of their arrival.
fn accepted(messages: &[Message]) -> Vec<(String, i64)> {
    let accepted = messages.iter().filter(|it| (200..300).contains(&it.status));
    let change = accepted.map(|message| {
        let data = message.json()["data"].clone();
        let resource = data["resource"].as_str().expect("a resource").to_owned();
        (resource, data["position"].as_i64().expect("a position"))
    });
    change.collect()
}

/// Checks what a receiver has accepted, against the positions of all changes. Returns the number of duplicates.
fn check(row: &mut Row, name: &str, messages: &[Message], recorded: &[i64]) -> usize {
    let accepted = accepted(messages);
    let known: HashSet<i64> = accepted.iter().map(|(_, position)| *position).collect();
    let missing = recorded.iter().filter(|position| !known.contains(position));
    row.none(&format!("{name}: lost changes"), missing);
    let (mut seen, mut last) = (HashSet::new(), HashMap::new());
    let mut disordered = Vec::new();
    for (resource, position) in &accepted {
        if seen.insert(position) {
            let before = last.insert(resource, position);
            if before > Some(position) {
                disordered.push(format!("pet {resource}, {position}"));
            }
        }
    }
    row.none(
        &format!("{name}: first deliveries out of order"),
        disordered,
    );
    accepted.len() - seen.len()
}

/// Waits until nothing is left to deliver. Returns false if that takes too long.
async fn is_delivered(stage: &Stage, webhooks: &[String]) -> bool {
    let started = Instant::now();
    // Changes that are not published yet wait for no webhook.
    let unpublished = "select count(*) from new_changes";
    while stage.cluster.number(unpublished).await > 0 {
        if started.elapsed() > MAX_DELIVERY {
            return false;
        }
        sleep(Duration::from_millis(100)).await;
    }
    for webhook in webhooks {
        loop {
            let shown = stage
                .target
                .request(Method::GET, webhook)
                .is(200)
                .await
                .json();
            if shown["waiting"] == 0 && shown["lagSeconds"] == 0.0 {
                break;
            }
            if started.elapsed() > MAX_DELIVERY {
                return false;
            }
            sleep(Duration::from_millis(100)).await;
        }
    }
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn row_31_webhooks_lose_nothing_while_replicas_are_killed() {
    let mut row = Row::begin_beside_others(
        31,
        "kill -9 of two replicas, webhooks that fail, are late or down",
    )
    .await;
    let mut stage = Stage::start(&SETTINGS).await;
    let mut second = stage.serve_beside().await;
    let (failing, late) = (AtomicUsize::new(0), AtomicUsize::new(0));
    // In the short form only at first: a delivery that fails twice is sent again half a minute later.
    let last = short_or_full(100, usize::MAX);
    let every_third = move |_: &Message, _| match failing.fetch_add(1, Relaxed) {
        number if number % 3 == 2 && number < last => 503,
        _ => 204,
    };
    let sometimes_late = move |_: &Message, _| match late.fetch_add(1, Relaxed) {
        number if number % short_or_full(200, 50) == 49 => TOO_LATE,
        number if number % short_or_full(100, 10) == 9 => LATE,
        _ => 204,
    };
    let delayed = |status| match status {
        LATE => ResponseTemplate::new(200).set_delay(Duration::from_secs(2)),
        TOO_LATE => ResponseTemplate::new(200).set_delay(Duration::from_secs(12)),
        status => ResponseTemplate::new(status),
    };
    let receivers = [
        ("fails every third time", Receiver::with(every_third).await),
        (
            "late",
            Receiver::with_responses(sometimes_late, delayed).await,
        ),
        ("down for a while", Receiver::start().await),
    ];
    let address = |receiver: &Receiver| {
        let url = reqwest::Url::parse(&receiver.url()).expect("a URL");
        url.socket_addrs(|| None).expect("an address")[0]
    };
    let down = Proxy::before(address(&receivers[2].1)).await;
    let mut webhooks = Vec::new();
    for (number, (_, receiver)) in receivers.iter().enumerate() {
        let url = match number {
            2 => format!("http://{}/", down.address),
            _ => receiver.url(),
        };
        webhooks.push(create(&stage, &url).await);
    }
    add_pets(&stage).await;
    let end = CancellationToken::new();
    let changing = tokio::spawn(change_pets(Arc::clone(&stage.target), 20, end.clone()));
    let kills = short_or_full(4, 20);
    for round in 0..kills {
        // In the short form only before the end, for the same reason.
        if round == short_or_full(kills - 1, kills / 4) {
            // No program listens at the port of the protocol "discard".
            down.lead_to(([127, 0, 0, 1], 9).into());
        }
        sleep(Duration::from_secs(3)).await;
        if round % 2 == 0 {
            stage.service.signal(Signal::SIGKILL);
            stage.service.wait_for_exit().await;
            stage.service = stage.serve().await;
        } else {
            second.signal(Signal::SIGKILL);
            second.wait_for_exit().await;
            second = stage.serve_beside().await;
        }
    }
    end.cancel();
    changing.await.expect("no panic");
    sleep(short_or_full(Duration::ZERO, Duration::from_secs(15))).await;
    down.lead_to(address(&receivers[2].1));
    row.check(
        "everything is delivered",
        is_delivered(&stage, &webhooks).await,
    );
    let recorded = "select array_agg(position order by position) from changes where kind = 'pet'";
    let recorded: Vec<i64> = sqlx::query_scalar(recorded)
        .fetch_one(&mut stage.cluster.connect().await)
        .await
        .expect("the changes");
    row.note(format!("{kills} kills, {} changes", recorded.len()));
    for (name, receiver) in &receivers {
        let messages = receiver.messages();
        let duplicates = check(&mut row, name, &messages, &recorded);
        row.note(format!("{name}: {} requests", messages.len()));
        // A turn of each kill, and what was accepted too late.
        row.at_most(&format!("{name}: duplicates"), duplicates, 100 * kills);
    }
    row.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn row_31_webhooks_follow_within_a_second_beside_one_that_is_down() {
    let mut row = Row::begin(
        31,
        "200 changes per second to a webhook, beside one that is down",
    )
    .await;
    let stage = Stage::start(&SETTINGS).await;
    let receiver = Receiver::start().await;
    create(&stage, &receiver.url()).await;
    add_pets(&stage).await;
    let measure = async |row: &mut Row, what: &str| {
        // Replicas notice the first webhook within a second.
        sleep(Duration::from_secs(2)).await;
        let before = receiver.messages().len();
        let end = CancellationToken::new();
        let changing = tokio::spawn(change_pets(Arc::clone(&stage.target), 200, end.clone()));
        sleep(short_or_full(
            Duration::from_secs(5),
            Duration::from_mins(1),
        ))
        .await;
        end.cancel();
        changing.await.expect("no panic");
        sleep(Duration::from_secs(2)).await;
        let messages = receiver.messages().split_off(before);
        row.done_in_time(
            &format!("{what}: messages per second"),
            messages.len() as u64 / short_or_full(5, 60),
            150,
        );
        let mut lags: Vec<_> = messages.iter().map(Message::lag).collect();
        row.p99_within(&format!("{what}: lag"), &mut lags, Duration::from_secs(1));
    };
    let rows = "select pg_stat_get_tuples_updated('webhooks'::regclass)";
    measure(&mut row, "alone").await;
    let (turns, messages) = (
        stage.cluster.number(rows).await / 2,
        receiver.messages().len(),
    );
    row.note(format!("{messages} messages in {turns} turns"));
    row.check(
        "a row is written for a page, not for a change",
        usize::try_from(turns * 4).is_ok_and(|it| it < messages),
    );
    let retries = "select pg_stat_get_tuples_inserted('webhook_retries'::regclass)";
    row.at_most("rows of deliveries", stage.cluster.number(retries).await, 0);

    create(&stage, &format!("http://{}/", free_address())).await;
    measure(&mut row, "beside one that is down").await;
    let retries = "select count(*) from webhook_retries";
    row.at_most(
        "deliveries that wait",
        stage.cluster.number(retries).await,
        1_000,
    );
    row.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn row_34_webhooks_do_not_delay_each_other() {
    const OTHERS: usize = 12;
    let mut row = Row::begin(
        34,
        "20 changes per second to a webhook, beside 60 receivers that answer after 0.3, 0.9 and 9 s, hang and refuse",
    )
    .await;
    let stage = Stage::start(&SETTINGS).await;
    let mut others = Vec::new();
    for (name, delay, status) in [
        ("0.3 s", Duration::from_millis(300), 200),
        ("0.9 s", Duration::from_millis(900), 200),
        ("9 s", Duration::from_secs(9), 200),
        ("never", Duration::from_mins(1), 200),
        ("refused", Duration::ZERO, 400),
    ] {
        let response = move |status| ResponseTemplate::new(status).set_delay(delay);
        let receiver = Receiver::with_responses(move |_, _| status, response).await;
        for _ in 0..OTHERS {
            create(&stage, &receiver.url()).await;
        }
        others.push((name, receiver));
    }
    // Last, so that the others are before it when nothing is known of any of them.
    let receiver = Receiver::start().await;
    let webhook = create(&stage, &receiver.url()).await;
    // Replicas notice the first webhook within a second.
    sleep(Duration::from_secs(2)).await;
    let end = CancellationToken::new();
    add_pets(&stage).await;
    let changing = tokio::spawn(change_pets(Arc::clone(&stage.target), 20, end.clone()));
    sleep(short_or_full(
        Duration::from_secs(30),
        Duration::from_mins(2),
    ))
    .await;
    end.cancel();
    changing.await.expect("no panic");
    row.check(
        "everything is delivered",
        is_delivered(&stage, &[webhook]).await,
    );
    let messages = receiver.messages();
    let recorded = "select array_agg(position order by position) from changes where kind = 'pet'";
    let recorded: Vec<i64> = sqlx::query_scalar(recorded)
        .fetch_one(&mut stage.cluster.connect().await)
        .await
        .expect("the changes");
    row.note(format!("{} messages", messages.len()));
    for (name, receiver) in &others {
        row.note(format!("{name}: {} requests", receiver.messages().len()));
    }
    check(&mut row, "healthy", &messages, &recorded);
    let mut lags: Vec<_> = messages.iter().map(Message::lag).collect();
    row.p99_within("lag", &mut lags, Duration::from_secs(1));
    // Those that take 8 at a time in 0.3 s could get all, in the short form, too. A slow machine sends fewer of these 375 messages per
    // second; with one at a time, or with shared connections, it would be a sixth.
    let taken = others[0].1.messages().len() / OTHERS;
    row.done_in_time(
        "messages to those that answer after 0.3 s",
        taken as u64,
        messages.len() as u64 / 2,
    );
    row.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn row_34_a_webhook_follows_within_a_second_beside_many_that_are_down() {
    let mut row = Row::begin(
        34,
        "20 changes per second to a webhook, beside 90 that are down",
    )
    .await;
    let stage = Stage::start(&SETTINGS).await;
    for _ in 0..90 {
        create(&stage, &format!("http://{}/", free_address())).await;
    }
    let receiver = Receiver::start().await;
    create(&stage, &receiver.url()).await;
    // Replicas notice the first webhook within a second.
    sleep(Duration::from_secs(2)).await;
    let end = CancellationToken::new();
    add_pets(&stage).await;
    let changing = tokio::spawn(change_pets(Arc::clone(&stage.target), 20, end.clone()));
    sleep(short_or_full(
        Duration::from_secs(20),
        Duration::from_mins(2),
    ))
    .await;
    end.cancel();
    changing.await.expect("no panic");
    sleep(Duration::from_secs(2)).await;
    let messages = receiver.messages();
    let sent = short_or_full(20, 120) * 20;
    row.done_in_time("messages", messages.len() as u64, sent * 9 / 10);
    let mut lags: Vec<_> = messages.iter().map(Message::lag).collect();
    row.p99_within("lag", &mut lags, Duration::from_secs(1));
    row.end();
}
