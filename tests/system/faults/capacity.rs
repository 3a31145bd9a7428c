//! Row 15: memory with many idle connections, large messages and a long mixed load.

use test_support::*;
use tokio::net::TcpStream;

use crate::{checker, stage::*};

const MEGABYTE: u64 = 1_000_000;

/// Writes and reads pets of the maximum size until `stop`.
async fn send_large_pets(target: Arc<Target>, stop: CancellationToken) -> Vec<TimedResponse> {
    let mut pet = pet_of_size(&"y".repeat(255), 16 << 10);
    pet["id"] = json!(1);
    let mut responses = Vec::new();
    responses.push(TimedResponse::of(target.request(Method::POST, "/pet").json(&pet)).await);
    while !stop.is_cancelled() {
        let again = target
            .request(Method::POST, "/pet")
            .header("idempotency-key", "k");
        for request in [
            target.request(Method::PUT, "/pet").json(&pet),
            target.request(Method::GET, "/pet/1"),
            target.request(Method::GET, "/pet/findByStatus?status=available&limit=50"),
            target.request(Method::GET, "/pet/findByTags?tags=no,such&limit=50"),
            target.request(Method::GET, "/pet/0"),
            again.json(&json!({"name": "a"})),
            target.anonymous(Method::GET, "/pet/1"),
        ] {
            responses.push(TimedResponse::of(request).await);
            // Paced: the subject is duration, not throughput.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    responses
}

#[tokio::test(flavor = "multi_thread")]
async fn row_15_memory_is_bounded_and_flat() {
    let mut row = Row::begin(15, "idle connections, large arrays, mixed load").await;
    raise_file_limit();
    let settings = [
        ("SERVER__MAX_CONNECTIONS", "10200"),
        ("SERVER__MAX_CONNECTIONS_PER_ADDRESS", "10200"),
        ("SERVER__HEADER_TIMEOUT", "10m"),
    ];
    let stage = Stage::start(&settings).await;
    let wanted = 10_000;
    let lasting = short_or_full(Duration::from_secs(15), Duration::from_mins(3));
    let mut idle = Vec::new();
    for _ in 0..wanted {
        idle.push(used_connection(&stage).await);
    }
    row.note(format!(
        "{wanted} idle connections: {} MB",
        stage.memory() / MEGABYTE
    ));
    let open = stage.metric("http_server_open_connections", "api").await;
    row.check(
        "all open",
        open >= f64::from(u32::try_from(wanted).unwrap_or_default()),
    );

    let stop = CancellationToken::new();
    let large = (0..4).map(|_| tokio::spawn(send_large_pets(stage.target.clone(), stop.clone())));
    let large: Vec<_> = large.collect();
    let load = Load::start(&stage.target, 4).await;
    let (started, mut samples) = (Instant::now(), Vec::new());
    while started.elapsed() < lasting {
        samples.push(stage.memory());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    stop.cancel();
    let responses: Vec<_> = join_all(large)
        .await
        .into_iter()
        .flat_map(|all| all.expect("a client"))
        .collect();
    let (log, _) = load.stop().await;
    row.note(format!(
        "{} writes and {}",
        log.len(),
        by_status(&responses)
    ));
    row.none(
        "5xx or none",
        responses
            .iter()
            .filter(|response| response.status.is_none_or(|status| status >= 500)),
    );
    let written = log
        .iter()
        .filter(|entry| entry.outcome == checker::Outcome::Acknowledged);
    row.at_least("of the writes acknowledged", written.count(), log.len());
    row.none(
        "lost",
        checker::breaches(
            &log,
            &found_of_writers(&mut stage.cluster.connect().await).await,
        ),
    );
    let peak = samples.iter().max().copied().unwrap_or_default();
    row.at_most("peak of memory in MB", peak / MEGABYTE, 250);
    let third = samples.len() / 3;
    let mean = |samples: &[u64]| samples.iter().sum::<u64>() / (samples.len() as u64).max(1);
    let (second, last) = (
        mean(&samples[third..2 * third]),
        mean(&samples[2 * third..]),
    );
    row.at_most(
        "growth from the second third to the last in MB",
        last.saturating_sub(second) / MEGABYTE,
        8,
    );
    drop(idle);
    row.end();
}

/// Opens a connection, sends one request on it and keeps it open.
async fn used_connection(stage: &Stage) -> TcpStream {
    let mut stream = TcpStream::connect(stage.target.address)
        .await
        .expect("a connection");
    stream
        .write_all(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
        .await
        .expect("sent");
    let mut response = [0; 1024];
    let read = stream.read(&mut response).await.expect("a response");
    assert!(
        response[..read].starts_with(b"HTTP/1.1 200"),
        "{}",
        String::from_utf8_lossy(&response)
    );
    stream
}
