//! Rows 10 and 11: concurrent writes with one ETag, and with one Idempotency-Key.

use test_support::*;

use crate::stage::*;

/// Concurrent requests.
const MANY: usize = 50;

#[tokio::test(flavor = "multi_thread")]
async fn row_10_concurrent_writes_with_one_etag_have_one_winner() {
    let mut row = Row::begin(10, "50 writers with one ETag").await;
    let stage = Stage::start(&[]).await;
    let target = &stage.target;
    let pet = json!({"id": 1, "name": "before"});
    let created = TimedResponse::of(target.request(Method::POST, "/pet").json(&pet)).await;
    assert!(created.is_success(), "{created:?}");
    let rounds = short_or_full(4, 20);
    let mut unexpected = Vec::new();
    for round in 0..rounds {
        let pet = target
            .request(Method::GET, "/pet/1")
            .send()
            .await
            .expect("the pet");
        let etag = pet.headers()["etag"].clone();
        let writes = (0..MANY).map(|number| {
            let pet = json!({"id": 1, "name": format!("{round}-{number}")});
            // A single PUT is one statement, a single PATCH a transaction; batches of both are transactions.
            let request = if round % 2 == 0 {
                target.request(Method::PUT, "/pet").json(&pet)
            } else {
                target.request(Method::PATCH, "/pet/1").json(&pet)
            };
            TimedResponse::of(request.header("if-match", &etag))
        });
        let responses = join_all(writes).await;
        let with = |status| {
            responses
                .iter()
                .filter(|response| response.status == Some(status))
                .count()
        };
        let winner = responses
            .iter()
            .position(|response| response.status == Some(200));
        let stored = TimedResponse::of(target.request(Method::GET, "/pet/1")).await;
        let name = winner.map(|number| format!("{round}-{number}"));
        if (with(200), with(412)) != (1, MANY - 1)
            || stored.body()["name"].as_str() != name.as_deref()
        {
            unexpected.push(format!(
                "{} × 200, {} × 412, {name:?} won, {stored:?}",
                with(200),
                with(412)
            ));
        }
    }
    row.note(format!("{rounds} rounds"));
    row.none(
        "rounds but with one 200, 49 × 412 and the winner's pet",
        unexpected,
    );
    row.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn row_11_concurrent_posts_with_one_idempotency_key_execute_once() {
    let mut row = Row::begin(
        11,
        "50 POSTs with one Idempotency-Key, kill -9 in the middle",
    )
    .await;
    let mut stage = Stage::start(&[]).await;
    let rounds = short_or_full(4, 20);
    let (mut unexpected, mut replayed) = (Vec::new(), 0);
    for round in 0..rounds {
        let name = format!("round-{round}");
        let target = stage.target.clone();
        let clients = (0..MANY).map(|_| {
            let (target, name) = (target.clone(), name.clone());
            tokio::spawn(async move {
                let started = Instant::now();
                loop {
                    let request = target
                        .request(Method::POST, "/pet")
                        .header("idempotency-key", &name)
                        .json(&json!({"name": name}));
                    let response = TimedResponse::of(request).await;
                    // A key in progress, an overload, or no service.
                    let may_retry = response.status.is_none()
                        || matches!(response.status, Some(409 | 503)) && response.retry_after;
                    if !may_retry || started.elapsed() > Duration::from_secs(30) {
                        return response;
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            })
        });
        let clients: Vec<_> = clients.collect();
        let is_killed = round % 2 == 1;
        if is_killed {
            tokio::time::sleep(Duration::from_millis(3 + 2 * round)).await;
            stage.service.signal(Signal::SIGKILL);
            stage.service.wait_for_exit().await;
            stage.service = stage.serve().await;
        }
        let responses: Vec<_> = join_all(clients)
            .await
            .into_iter()
            .map(|it| it.expect("a client"))
            .collect();
        let different: BTreeSet<_> = responses
            .iter()
            .map(|response| (response.status, response.body().to_string()))
            .collect();
        let question = format!("select count(*) from pets where details ->> 'name' = '{name}'");
        let rows = stage.cluster.number(&question).await;
        let replays = responses
            .iter()
            .filter(|response| response.replayed)
            .count();
        replayed += replays;
        // The client of the first one does not get its response if the service is killed meanwhile.
        let first = MANY - replays;
        let has_one_first = first == 1 || is_killed && first == 0;
        if different.len() != 1 || rows != 1 || !has_one_first {
            unexpected.push(format!("{rows} rows; {first} not replayed; {different:?}"));
        }
    }
    row.note(format!("{rounds} rounds, {replayed} replayed"));
    row.none(
        "rounds without exactly one row, one response and one that is not replayed",
        unexpected,
    );
    row.end();
}
