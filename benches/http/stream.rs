//! A find of all pets in one streamed response, compared with psql's `\copy` of the same columns.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Instant,
};

use crate::{processes, servers::Server, stage::Stage, table};

/// Measures a find of all pets in one response.
pub async fn row(stage: &Stage<'_>) {
    let rows = f64::from(stage.pets);
    let (mut copies, mut finds, mut before) = (vec![], vec![], vec![]);
    for _ in 0..stage.options.rounds().max(3) {
        copies.push(rows / copy(stage).await);
        finds.push(find_all(&stage.service, &stage.keys[0]));
        let server = stage.before.iter();
        before.extend(server.map(|server| find_all(server, &stage.keys[0])));
    }
    let median = |values: &[Find], of: fn(&Find) -> f64| {
        let mut values: Vec<f64> = values.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    copies.sort_by(f64::total_cmp);
    let (by_psql, seconds) = (
        copies[copies.len() / 2],
        median(&finds, |find| find.seconds),
    );
    println!(
        "findByStatus, all {rows:.0}: {:.0} rows/s; psql \\copy {by_psql:.0} rows/s; ratio {:.2}; \
         first byte {:.1} ms; RSS +{:.1} MB",
        rows / seconds,
        rows / seconds / by_psql,
        median(&finds, |find| find.first_byte),
        median(&finds, |find| find.growth),
    );
    table::record("stream/copy".to_owned(), rows / seconds / by_psql);
    let first_byte = median(&finds, |find| find.first_byte);
    table::record("stream, first byte in ms".to_owned(), first_byte);
    let growth = median(&finds, |find| find.growth);
    table::record("stream, memory in MB".to_owned(), growth);
    if !before.is_empty() {
        let of_before = median(&before, |find| find.seconds) / seconds;
        println!("service {of_before:.2} of before");
    }
}

/// Result of one find of all pets.
struct Find {
    seconds: f64,
    /// Milliseconds until the first byte.
    first_byte: f64,
    /// Growth of the server's peak memory in MB.
    growth: f64,
}

/// Finds all pets with a minimal client that discards what it reads, as psql does by writing to `/dev/null`.
fn find_all(server: &Server, key: &str) -> Find {
    /// Number of bytes kept from the end of the response.
    const KEPT: usize = 32;
    let request = format!(
        "GET /api/v3/pet/findByStatus?status=available,pending,sold HTTP/1.1\r\nHost: a\r\n\
         Connection: close\r\napi_key: {key}\r\n\r\n"
    );
    processes::forget_peak(server.pid);
    let memory = processes::memory(server.pid).0;
    let begun = Instant::now();
    let mut stream = TcpStream::connect(&server.address).expect("a connection");
    stream.write_all(request.as_bytes()).expect("sent");
    let (mut piece, mut end) = (vec![0; 256 << 10], Vec::new());
    let mut first_byte = 0.0;
    loop {
        let length = stream.read(&mut piece).expect("a whole response");
        if length == 0 {
            break;
        }
        if end.is_empty() {
            first_byte = begun.elapsed().as_secs_f64() * 1e3;
            assert!(piece.starts_with(b"HTTP/1.1 200"), "not found");
        }
        end.extend_from_slice(&piece[length.saturating_sub(KEPT)..length]);
        end.drain(..end.len().saturating_sub(KEPT));
    }
    assert!(end.ends_with(b"]\r\n0\r\n\r\n"), "cut off in the middle");
    Find {
        seconds: begun.elapsed().as_secs_f64(),
        first_byte,
        growth: processes::memory(server.pid).1 - memory,
    }
}

/// Returns the seconds that psql takes for the same columns.
async fn copy(stage: &Stage<'_>) -> f64 {
    let columns = "id, status, details";
    let begun = Instant::now();
    let status = tokio::process::Command::new("psql")
        .args([
            "-q",
            "-U",
            "postgres",
            "-p",
            "5432",
            "-d",
            stage.database.name(),
            "-h",
        ])
        .arg(stage.postgres.socket())
        .arg("-c")
        .arg(format!(
            "\\copy (select {columns} from pets order by id) to '/dev/null'"
        ))
        .status()
        .await
        .expect("psql");
    assert!(status.success());
    begun.elapsed().as_secs_f64()
}
