//! GET beside 10,000 idle connections.

use crate::{
    Options,
    data::Postgres,
    stage::{Setup, Stage},
    table::{self, Round, median},
};

/// Measures GET with and without 10,000 idle connections.
pub async fn row(options: &Options) {
    const IDLE: usize = 10_000;
    let postgres = Postgres::start().await;
    let database = postgres.database(options, "bench", options.pets).await;
    let keys = database.callers("bench", "enterprise", 8).await;
    let setup = Setup {
        settings: &[
            ("PET_INVENTORY__SERVER__MAX_CONNECTIONS", "20000"),
            (
                "PET_INVENTORY__SERVER__MAX_CONNECTIONS_PER_ADDRESS",
                "20000",
            ),
        ],
        ..Setup::default()
    };
    let stage = Stage::start(options, &postgres, (&database, options.pets), keys, setup).await;
    let (server, load) = (
        &stage.service,
        stage.get("get", "/api/v3/pet/<n>", &stage.keys),
    );
    let seconds = options.seconds();
    let rounds = async || {
        let mut rounds = vec![];
        for _ in 0..options.rounds() {
            rounds.push(stage.round(server, &load, 64, (seconds, 1)).await);
        }
        rounds
    };
    stage.round(server, &load, 64, (1, 1)).await;
    table::header();
    let alone = rounds().await;
    table::line("GET, 64 connections", "service", &alone, "");
    let connections = idle_connections(&server.address, &stage.keys[0], IDLE).await;
    let beside = rounds().await;
    let p99 = |rounds: &[Round]| median(rounds, |round| round.run.p99);
    let ratio = format!("p99 {:.2} of alone", p99(&beside) / p99(&alone));
    table::line(
        &format!("beside {IDLE} idle ones"),
        "service",
        &beside,
        &ratio,
    );
    drop(connections);
}

/// Opens connections that send one request each and then stay idle.
async fn idle_connections(address: &str, key: &str, count: usize) -> Vec<tokio::net::TcpStream> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let files = nix::sys::resource::Resource::RLIMIT_NOFILE;
    let (_, most) = nix::sys::resource::getrlimit(files).expect("a limit");
    nix::sys::resource::setrlimit(files, most, most).expect("more files");
    let request = format!("GET /api/v3/limits HTTP/1.1\r\nHost: a\r\napi_key: {key}\r\n\r\n");
    let mut connections = Vec::new();
    for _ in 0..count {
        let mut stream = tokio::net::TcpStream::connect(address)
            .await
            .expect("a connection");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut response = [0; 4096];
        let length = stream.read(&mut response).await.expect("a response");
        assert!(
            response.starts_with(b"HTTP/1.1 200"),
            "{:?}",
            String::from_utf8_lossy(&response[..length])
        );
        connections.push(stream);
    }
    connections
}
