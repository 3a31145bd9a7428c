//! Benchmark rows that compare callers on limited and unlimited plans.

use std::{collections::VecDeque, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
    time::Instant,
};

use crate::{
    rows::{Bench, client},
    table::{self, Round, ServiceRounds, median},
};

/// Free callers, and the pause between two requests of one (0.9 requests per second).
const FREE_CALLERS: usize = 1_000;
const PAUSE: Duration = Duration::from_micros(1_111_111);

/// Measures GET by callers on a limited plan, with limits so high that no request is refused.
pub async fn limited(bench: &Bench<'_>) {
    let many = bench.database.callers("pro", "pro", 100).await;
    let variants = [
        (
            "Pro, 100",
            bench.get("pro-100", "/api/v3/pet/{n}", &many, ""),
        ),
        (
            "Pro, 1",
            bench.get("pro-1", "/api/v3/pet/{n}", &many[..1], ""),
        ),
    ];
    let enterprise = bench.get("enterprise", "/api/v3/pet/{n}", &bench.keys[..1], "");
    for (_, load) in &variants {
        bench.round(&bench.service, load, 64, 2).await;
    }
    let seconds = bench.options.seconds();
    for connections in [1, 64, 256] {
        let (mut unlimited, mut limited) = (ServiceRounds::default(), [vec![], vec![]]);
        for _ in 0..bench.options.rounds() {
            let load = &enterprise;
            bench.service_round(load, connections, &mut unlimited).await;
            for ((_, load), rounds) in variants.iter().zip(&mut limited) {
                rounds.push(
                    bench
                        .round(&bench.service, load, connections, seconds)
                        .await,
                );
            }
        }
        let row = format!("GET /pet/{{id}}, {connections} connections");
        unlimited.lines(&row, "Enterprise");
        let of_enterprise = unlimited.rate();
        for ((name, _), rounds) in variants.iter().zip(&limited) {
            let refused: f64 = rounds.iter().map(|round| round.run.refused).sum();
            assert!(refused < 1.0, "{refused} requests were refused");
            let ratio = median(rounds, |round| round.run.rate) / of_enterprise;
            table::line("", name, rounds, &format!("{ratio:.2} Enterprise"));
        }
    }
}

/// Measures GET by Free callers within their default limits, one connection each, and the same load by one Enterprise
/// caller.
pub async fn occasional(bench: &Bench<'_>) {
    let free = bench.database.callers("free", "free", FREE_CALLERS).await;
    let enterprise = vec![bench.keys[0].clone(); FREE_CALLERS];
    let requests = if bench.options.quick { 5 } else { 15 };
    // Creates each caller's row and caches each key before the measurement.
    for keys in [&free, &enterprise] {
        paced(bench, keys, 2).await;
    }
    let (mut of_free, mut of_enterprise) = (vec![], vec![]);
    let (mut statements, mut sent) = (0.0, 0.0);
    for _ in 0..bench.options.rounds() {
        of_enterprise.push(paced(bench, &enterprise, requests).await);
        let before = lease_statements(bench).await;
        let round = paced(bench, &free, requests).await;
        statements += lease_statements(bench).await - before;
        sent += round.run.requests;
        of_free.push(round);
    }
    let p99 = |rounds: &[Round]| median(rounds, |round| round.run.p99);
    let row = format!("GET, {FREE_CALLERS} callers at 0.9/s");
    table::line(&row, "Ent.", &of_enterprise, "");
    let ratio = format!(
        "p99 {:.2} Enterprise; {:.2} lease statements per request",
        p99(&of_free) / p99(&of_enterprise),
        statements / sent
    );
    table::line("", "Free", &of_free, &ratio);
}

/// Sends `requests` requests per key, one per [`PAUSE`]; the keys start evenly spread over one pause.
async fn paced(bench: &Bench<'_>, keys: &[String], requests: u32) -> Round {
    let begun = Instant::now();
    let mut clients = JoinSet::new();
    for (number, key) in keys.iter().enumerate() {
        let address = bench.service.address.clone();
        let request = format!(
            "GET /api/v3/pet/{} HTTP/1.1\r\nHost: a\r\napi_key: {key}\r\n\r\n",
            number + 1
        );
        let delay = PAUSE.mul_f64(number as f64 / keys.len() as f64);
        clients.spawn(async move {
            let mut stream = TcpStream::connect(&address).await.expect("a connection");
            stream.set_nodelay(true).expect("set");
            let mut latencies = Vec::new();
            for number in 0..requests {
                tokio::time::sleep_until(begun + delay + PAUSE * number).await;
                let sent = Instant::now();
                stream.write_all(request.as_bytes()).await.expect("sent");
                let status = response(&mut stream).await;
                latencies.push(sent.elapsed());
                assert_eq!(status, 200);
            }
            latencies
        });
    }
    let mut latencies: Vec<Duration> = clients.join_all().await.into_iter().flatten().collect();
    let took = begun.elapsed();
    latencies.sort_unstable();
    let percentile =
        |part: f64| latencies[(latencies.len() as f64 * part) as usize].as_secs_f64() * 1e3;
    let mut round = Round::default();
    round.run.requests = latencies.len() as f64;
    round.run.rate = round.run.requests / took.as_secs_f64();
    (round.run.p50, round.run.p99) = (percentile(0.5), percentile(0.99));
    round
}

/// Reads one response; returns its status.
async fn response(stream: &mut TcpStream) -> u16 {
    let mut read = Vec::with_capacity(2_048);
    loop {
        assert!(
            stream.read_buf(&mut read).await.expect("a response") > 0,
            "closed"
        );
        let text = String::from_utf8_lossy(&read);
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let lower = head.to_lowercase();
        let length = lower
            .lines()
            .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        if body.len() >= length.unwrap_or(0) {
            let words: VecDeque<_> = head.split(' ').collect();
            return words[1].parse().expect("a status");
        }
    }
}

async fn lease_statements(bench: &Bench<'_>) -> f64 {
    let url = format!("http://{}/metrics", bench.operations);
    let text = client()
        .get(url)
        .send()
        .await
        .expect("metrics")
        .text()
        .await
        .expect("text");
    let line = text.lines().find_map(|line| {
        line.strip_prefix(
            "db_client_operation_batch_size_count{db_query_summary=\"UPDATE limit_usage\"} ",
        )
    });
    line.map_or(0.0, |count| count.parse().expect("a number"))
}
