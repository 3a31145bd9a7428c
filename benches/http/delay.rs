//! TCP proxy in front of PostgreSQL that adds a round-trip time.
//!
//! Each chunk is queued with the time at which it is due, so that the delay does not limit the throughput. One thread
//! waits for due chunks: a timer of tokio has a resolution of one millisecond, which is the delay of a round trip.

use std::{
    path::PathBuf,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, UnixStream},
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
};

use crate::{
    load::{Load, Template},
    operations::NEW_PET,
    servers::Kind,
    stage::{Opponent, Row, Setup, Stage, Work},
};

struct Chunk {
    due: Instant,
    bytes: Vec<u8>,
    to: UnboundedSender<Vec<u8>>,
}

/// Starts a proxy to a socket that delays each direction by half of `round_trip`. Returns its port. It runs until this
/// process ends.
async fn start(socket: PathBuf, round_trip: Duration) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (queue, chunks) = mpsc::channel::<Chunk>();
    // All chunks have the same delay, so that the first in the queue is the next one due.
    thread::spawn(move || {
        for Chunk { due, bytes, to } in chunks {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            // A closed connection needs no more bytes.
            let _ = to.send(bytes);
        }
    });
    let delay = round_trip / 2;
    tokio::spawn(async move {
        loop {
            let (client, _) = listener.accept().await.expect("a connection");
            client.set_nodelay(true).expect("set");
            let server = UnixStream::connect(&socket).await.expect("PostgreSQL");
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            forward(from_client, to_server, queue.clone(), delay);
            forward(from_server, to_client, queue.clone(), delay);
        }
    });
    port
}

fn forward(
    mut from: impl tokio::io::AsyncRead + Unpin + Send + 'static,
    mut to: impl tokio::io::AsyncWrite + Unpin + Send + 'static,
    queue: mpsc::Sender<Chunk>,
    delay: Duration,
) {
    let (sender, mut due): (_, UnboundedReceiver<Vec<u8>>) = unbounded_channel();
    tokio::spawn(async move {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(length @ 1..) = from.read(&mut bytes).await {
            let chunk = Chunk {
                due: Instant::now() + delay,
                bytes: bytes[..length].to_vec(),
                to: sender.clone(),
            };
            let _ = queue.send(chunk);
        }
    });
    // Ends when the reader has ended and all of its chunks are written; dropping `to` closes the connection.
    tokio::spawn(async move {
        while let Some(bytes) = due.recv().await {
            if to.write_all(&bytes).await.is_err() {
                break;
            }
        }
    });
}

/// Measures GET and POST, by the service and by naive, with a round trip of 1 ms to PostgreSQL.
pub async fn row(main: &Stage<'_>) {
    let round_trip = Duration::from_millis(1);
    let socket = main.postgres.socket().join(".s.PGSQL.5432");
    let setup = Setup {
        others: &[Kind::Naive],
        proxy: Some(start(socket, round_trip).await),
        ..Setup::default()
    };
    let database = (main.database, main.pets);
    let stage = Stage::start(
        main.options,
        main.postgres,
        database,
        main.keys.clone(),
        setup,
    );
    let stage = stage.await;
    let get = stage.get("get", "/api/v3/pet/<n>", &stage.keys);
    let post = Template {
        method: "POST",
        headers: r#"["content-type"] = "application/json""#,
        body: NEW_PET,
        ..Template::get("/api/v3/pet", &stage.keys, 1)
    };
    let post = Load::new(stage.folder(), "post", &post);
    for (name, load) in [("getPetById", &get), ("addPet", &post)] {
        let opponents = [Opponent {
            name: "naive",
            work: Work::Http(stage.other(Kind::Naive), load),
        }];
        let name = format!("round trip of 1 ms, {name}");
        for connections in [64, 256] {
            let row = Row::new(load, connections);
            stage.compare(&name, &row, &opponents).await;
        }
    }
    stage.database.settle(stage.pets).await;
}
