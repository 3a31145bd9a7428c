//! Rows that compare callers: by kind of credential, on limited and unlimited plans, and refused ones.

use std::{collections::VecDeque, time::Duration};

use pet_inventory::db::credentials::CredentialKind;
use serde_json::json;
use test_support::{issuer::Issuer, signer::Signer};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
    time::Instant,
};

use crate::{
    load::{Credential, Load, Template},
    servers,
    stage::{Opponent, Row, Stage, Variant, Work, relate},
    table::{self, Round, median},
};

/// Free callers, and the pause between two requests of one (0.9 requests per second).
const FREE_CALLERS: usize = 1_000;
const PAUSE: Duration = Duration::from_micros(1_111_111);

/// Numbers of connections of the rows.
const CONNECTIONS: [u32; 4] = [1, 16, 64, 256];

/// Measures GET with each kind of credential. The callers of a row are on the same plan, whose limits are so high that
/// no request is refused.
pub async fn credentials(stage: &Stage<'_>, issuer: &Issuer, signer: &Signer) {
    for plan in ["free", "pro", "enterprise"] {
        let mut kinds = kinds(stage, plan).await;
        let mut claims = issuer.claims(&format!("bench-{plan}"));
        claims["exp"] = json!(claims["iat"].as_i64().unwrap_or_default() + 86_400);
        claims["plan"] = json!(plan);
        kinds.push(("JWT", Credential::Bearer, signer.token(&claims)));
        // Anonymous callers are on the Free plan.
        if plan == "free" {
            kinds.push(("anonymous", Credential::Absent, String::new()));
        }
        for connections in CONNECTIONS {
            let variants = kinds.iter().map(|(name, credential, text)| {
                let keys = std::slice::from_ref(text);
                let template = Template {
                    credential: *credential,
                    ..Template::get("/api/v3/pet/<n>", keys, stage.pets)
                };
                Variant {
                    name: (*name).to_owned(),
                    stage,
                    load: Load::new(stage.folder(), &format!("{plan} {name}"), &template),
                    connections,
                }
            });
            let variants: Vec<_> = variants.collect();
            relate(
                &format!("credentials, {plan}@{connections}"),
                "rate",
                &variants,
            )
            .await;
        }
    }
}

/// Returns a caller's API key, access token and session.
async fn kinds(stage: &Stage<'_>, plan: &str) -> Vec<(&'static str, Credential, String)> {
    let database = stage.database;
    let key = database.callers(plan, plan, 1).await.remove(0);
    let caller = format!("{plan}-1");
    database
        .credentials(&caller, CredentialKind::ClientSecret, 1)
        .await;
    let token = database
        .credentials(&caller, CredentialKind::AccessToken, 1)
        .await;
    let session = database
        .credentials(&caller, CredentialKind::Session, 1)
        .await;
    vec![
        ("API key", Credential::ApiKey, key),
        ("OAuth", Credential::Bearer, token[0].clone()),
        ("session", Credential::Bearer, session[0].clone()),
    ]
}

/// Measures GET by callers on a limited plan, with limits so high that no request is refused.
pub async fn limited(stage: &Stage<'_>) {
    let many = stage.database.callers("limited", "pro", 100).await;
    let get = |name: &str, keys| stage.get(name, "/api/v3/pet/<n>", keys);
    for connections in [1, 64, 256] {
        let variant = |name: &str, keys| Variant {
            name: name.to_owned(),
            stage,
            load: get(name, keys),
            connections,
        };
        let variants = [
            variant("Enterprise", &stage.keys[..1]),
            variant("Pro, 100", &many),
            variant("Pro, 1", &many[..1]),
        ];
        relate(&format!("limited@{connections}"), "rate", &variants).await;
    }
}

/// Returns an HTTP client. reqwest requires a TLS provider, although no request here uses TLS.
pub fn client() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().no_proxy().tls_certs_only([]);
    client.build().expect("a client")
}

/// Measures responses that need no database: 429, 401 and 304.
pub async fn refusals(stage: &Stage<'_>) {
    let fixed = stage.get("static", "/api/v3/pet/<n>", &stage.keys);
    let limited = stage.database.callers("refused", "free", 1).await;
    let mut unknown = stage.keys[0].clone();
    let other = if unknown.as_bytes()[5] == b'x' {
        "y"
    } else {
        "x"
    };
    unknown.replace_range(5..6, other);
    let unknown = [unknown];
    let loads = [
        (
            "429, over the limit",
            stage.get("429", "/api/v3/pet/1", &limited).refused(),
        ),
        (
            "401, a wrong key",
            stage.get("401", "/api/v3/pet/1", &unknown).refused(),
        ),
        ("304, If-None-Match", not_modified(stage).await),
    ];
    let opponents = [Opponent {
        name: "static",
        work: Work::Http(stage.other(servers::Kind::Static), &fixed),
    }];
    for (name, load) in &loads {
        for address in stage.addresses() {
            load.run(address, 64, 1, 1).await;
        }
        stage.compare(name, &Row::new(load, 64), &opponents).await;
    }
}

async fn not_modified(stage: &Stage<'_>) -> Load {
    let url = format!("http://{}/api/v3/pet/1", stage.service.address);
    let request = client().get(url).header("api_key", &stage.keys[0]);
    let response = request.send().await.expect("a response");
    let etag = response.headers()["etag"].to_str().expect("text");
    let template = Template {
        headers: &format!("[\"if-none-match\"] = '{etag}'"),
        ..Template::get("/api/v3/pet/1", &stage.keys, 1)
    };
    Load::new(stage.folder(), "304", &template)
}

/// Measures GET by Free callers within their default limits, one connection each, and the same load by one Enterprise
/// caller.
pub async fn occasional(stage: &Stage<'_>, operations: &str) {
    let free = stage
        .database
        .callers("occasional", "free", FREE_CALLERS)
        .await;
    let enterprise = vec![stage.keys[0].clone(); FREE_CALLERS];
    let requests = if stage.options.quick { 5 } else { 15 };
    // Creates each caller's row and caches each key before the measurement.
    for keys in [&free, &enterprise] {
        paced(stage, keys, 2).await;
    }
    let (mut of_free, mut of_enterprise) = (vec![], vec![]);
    let (mut statements, mut sent) = (0.0, 0.0);
    for _ in 0..stage.options.rounds() {
        of_enterprise.push(paced(stage, &enterprise, requests).await);
        let before = lease_statements(operations).await;
        let round = paced(stage, &free, requests).await;
        statements += lease_statements(operations).await - before;
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
async fn paced(stage: &Stage<'_>, keys: &[String], requests: u32) -> Round {
    let begun = Instant::now();
    let mut clients = JoinSet::new();
    for (number, key) in keys.iter().enumerate() {
        let address = stage.service.address.clone();
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

async fn lease_statements(operations: &str) -> f64 {
    let url = format!("http://{operations}/metrics");
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
