//! Rows 6 and 7: deliberately slow clients, and malformed requests.

use test_support::*;
use tokio::net::{TcpSocket, TcpStream};

use crate::stage::*;

/// Pause between two bytes of a slow client.
const PAUSE: Duration = Duration::from_millis(500);

#[tokio::test(flavor = "multi_thread")]
async fn row_06_slow_clients_are_disconnected_without_effect_on_others() {
    let mut row = Row::begin(6, "slow-header, slow-body and slow-read connections").await;
    let stage = Stage::start(&[]).await;
    // A response of 8 MB exceeds all socket buffers on the way.
    let pets = "insert into pets (id, status, details)
                select 1000 + n, 'sold',
                       json_build_object('name', repeat('x', 255), 'photoUrls', array[repeat('/y', 50)], 'tags', '[]'::json)
                from generate_series(1, 20000) n";
    stage.cluster.run(pets).await;
    let [headers, bodies, readers] = short_or_full([100, 50, 50], [1_000, 500, 500]);
    let key = &stage.target.key;
    let head = format!("GET /api/v3/pet/1 HTTP/1.1\r\nHost: a\r\napi_key: {key}\r\nX: ");
    let headers_closed = send_slowly_on("127.0.0.2", stage.target.address, headers, &head);
    let body = format!(
        "POST /api/v3/pet HTTP/1.1\r\nHost: a\r\napi_key: {key}\r\n\
         Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{"
    );
    let bodies_closed = send_slowly_on("127.0.0.3", stage.target.address, bodies, &body);
    let started = Instant::now();
    let unread = send_without_reading(&stage, readers).await;
    let stop = CancellationToken::new();
    let good = tokio::spawn(read_until_stopped(stage.target.clone(), stop.clone()));
    row.within(
        &format!("{headers} slow headers closed"),
        longest(headers_closed).await,
        Duration::from_secs(11),
    );
    row.within(
        &format!("{bodies} slow bodies"),
        longest(bodies_closed).await,
        Duration::from_secs(31),
    );
    // A client that does not read cannot observe the close, so the metric is polled. One connection belongs to the good
    // client.
    while stage.metric("http_server_open_connections", "api").await > 1.0
        && started.elapsed() < Duration::from_mins(1)
    {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    row.within(
        &format!("{readers} slow reads"),
        started.elapsed(),
        Duration::from_secs(31),
    );
    stop.cancel();
    let responses = good.await.expect("a client");
    row.note(format!("a good client: {}", by_status(&responses)));
    let other = responses
        .iter()
        .filter(|response| response.status != Some(200));
    row.none("not 200", other);
    let mut times: Vec<_> = responses.iter().map(|response| response.latency).collect();
    row.p99_within("its p99", &mut times, Duration::from_millis(50));
    drop(unread);
    row.end();
}

/// Sends a find operation on each of `count` connections of one client with small buffers; returns the unread connections.
/// The client's share of the memory of lists is for some of them; the others get 503.
async fn send_without_reading(stage: &Stage, count: usize) -> Vec<TcpStream> {
    let request = format!(
        "GET /api/v3/pet/findByStatus?status=sold HTTP/1.1\r\nHost: a\r\napi_key: {}\r\n\r\n",
        stage.target.key
    );
    let mut unread = Vec::new();
    for _ in 0..count {
        let socket = TcpSocket::new_v4().expect("a socket");
        let small = socket.set_recv_buffer_size(4 << 10);
        small.expect("a small buffer");
        let client = ([127, 0, 0, 4], 0).into();
        socket.bind(client).expect("a loopback address");
        let connected = socket.connect(stage.target.address).await;
        let mut reader = connected.expect("a connection");
        reader.write_all(request.as_bytes()).await.expect("sent");
        unread.push(reader);
    }
    unread
}

/// Reads one pet every 10 ms until `stop`.
async fn read_until_stopped(target: Arc<Target>, stop: CancellationToken) -> Vec<TimedResponse> {
    let mut responses = Vec::new();
    while !stop.is_cancelled() {
        responses.push(TimedResponse::of(target.request(Method::GET, "/pet/1001")).await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    responses
}

/// Starts `count` connections from `client` that [`send_slowly`] after `head`.
fn send_slowly_on(
    client: &'static str,
    address: SocketAddr,
    count: usize,
    head: &str,
) -> JoinSet<Duration> {
    (0..count)
        .map(|_| send_slowly(client, address, head.to_owned()))
        .collect()
}

/// Sends one byte per [`PAUSE`] until the server closes the connection; returns the time that took.
async fn send_slowly(client: &'static str, address: SocketAddr, head: String) -> Duration {
    let started = Instant::now();
    let stream = connect_from(client, address).await;
    let (mut reader, mut writer) = stream.into_split();
    let mut ignored = Vec::new();
    let writing = async {
        let _ = writer.write_all(head.as_bytes()).await;
        while writer.write_all(b"x").await.is_ok() {
            tokio::time::sleep(PAUSE).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        _ = reader.read_to_end(&mut ignored) => {}
        () = writing => {}
        () = tokio::time::sleep(Duration::from_mins(1)) => {}
    }
    started.elapsed()
}

async fn longest(closed: JoinSet<Duration>) -> Duration {
    closed
        .join_all()
        .await
        .into_iter()
        .max()
        .unwrap_or_default()
}

/// Message, a name for it, and the statuses that it may get.
type Message = (&'static str, String, &'static [u16]);

/// Returns the head of a POST of JSON, with further header fields.
fn post_of_json(key: &str, more: &str) -> String {
    format!(
        "POST /api/v3/pet HTTP/1.1\r\nHost: a\r\napi_key: {key}\r\n\
         Content-Type: application/json\r\n{more}"
    )
}

/// Returns messages with an oversized or ambiguous head.
fn malformed_heads(key: &str) -> Vec<Message> {
    let head = |more: &str| post_of_json(key, more);
    let fields = "X: y\r\n".repeat(101);
    vec![
        (
            "a head of 64 KiB",
            head(&format!("X: {}\r\n\r\n", "y".repeat(64 << 10))),
            &[431],
        ),
        (
            "a target of 9,000 bytes",
            format!(
                "GET /api/v3/pet/1?{} HTTP/1.1\r\nHost: a\r\n\r\n",
                "q".repeat(9_000)
            ),
            &[414],
        ),
        (
            "a target of 1 MiB",
            format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "q".repeat(1 << 20)),
            &[414, 431],
        ),
        (
            "101 header fields",
            format!("GET /livez HTTP/1.1\r\nHost: a\r\n{fields}\r\n"),
            &[431],
        ),
        (
            "CL and TE",
            head("Content-Length: 12\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            &[400],
        ),
        (
            "no Host",
            format!("GET /api/v3/pet/1 HTTP/1.1\r\napi_key: {key}\r\n\r\n"),
            &[400],
        ),
        (
            "obs-fold",
            head("X: a\r\n b\r\nContent-Length: 2\r\n\r\n{}"),
            &[400],
        ),
        (
            "NUL in a header",
            head("X: a\0b\r\nContent-Length: 2\r\n\r\n{}"),
            &[400],
        ),
        (
            "two lengths",
            head("Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}"),
            &[400],
        ),
        (
            "a chunk size that is none",
            head("Transfer-Encoding: chunked\r\n\r\nzz\r\n"),
            &[400],
        ),
    ]
}

/// Returns messages with a malformed body.
fn malformed_bodies(key: &str) -> Vec<Message> {
    let with_body = |body: &str| {
        let length = body.len();
        let more = format!("Content-Length: {length}\r\nConnection: close\r\n\r\n{body}");
        post_of_json(key, &more)
    };
    let multipart =
        "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.png\"\r\n\r\n\u{89}PNG";
    let upload = format!(
        "POST /api/v3/pet/1/uploadImage HTTP/1.1\r\nHost: a\r\napi_key: {key}\r\nConnection: close\r\n\
         Content-Type: multipart/form-data; boundary=b\r\nContent-Length: {}\r\n\r\n{multipart}",
        multipart.len()
    );
    vec![
        (
            "NUL in a name",
            with_body(r#"{"name": "a\u0000b"}"#),
            &[400],
        ),
        ("truncated JSON", with_body(r#"{"name": "a"#), &[400]),
        (
            "JSON nested 100,000 deep",
            with_body(&format!("{{\"name\": {}", "[".repeat(100_000))),
            &[400],
        ),
        ("truncated multipart", upload, &[400, 404, 415]),
    ]
}

/// Sends each message on a connection of its own; returns the responses with another status.
async fn send_all(stage: &Stage, messages: &[Message]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, message, expected) in messages {
        let response = RawConnection::exchange(stage.target.address, message).await;
        if !expected.contains(&response.status) {
            wrong.push(format!("{name}: {response}"));
        }
    }
    wrong
}

#[tokio::test(flavor = "multi_thread")]
async fn row_07_malformed_requests_get_4xx_without_memory_growth() {
    let mut row = Row::begin(7, "oversized, ambiguous and broken messages").await;
    let stage = Stage::start(&[]).await;
    let key = &stage.target.key;
    let messages = [malformed_heads(key), malformed_bodies(key)].concat();
    // Memory that the allocator keeps after the first round does not count as growth.
    let mut wrong = send_all(&stage, &messages).await;
    endless_body(&stage, 8 << 20).await;
    let before = stage.memory();
    let (mut peak, mut sent_messages) = (before, 0);
    for _ in 0..short_or_full(3, 20) {
        wrong.extend(send_all(&stage, &messages).await);
        sent_messages += messages.len();
        peak = peak.max(stage.memory());
    }
    let (sent, status) = endless_body(&stage, short_or_full(64 << 20, 1 << 30)).await;
    peak = peak.max(stage.memory());
    if status != 413 {
        wrong.push(format!("{status} to an endless body"));
    }
    row.note(format!(
        "{sent_messages} messages, and {} MiB of a chunked body sent",
        sent >> 20
    ));
    row.none("responses other than the expected 4xx", wrong);
    row.at_most(
        "growth of memory in MB",
        peak.saturating_sub(before) / 1_000_000,
        8,
    );
    row.at_most(
        "pets stored",
        stage.cluster.number("select count(*) from pets").await,
        0,
    );
    row.end();
}

/// Sends a chunked body until the server stops reading; returns the bytes sent and the status of the response.
async fn endless_body(stage: &Stage, size: usize) -> (usize, u16) {
    let stream = TcpStream::connect(stage.target.address)
        .await
        .expect("a connection");
    let (mut reader, mut writer) = stream.into_split();
    let head = format!(
        "POST /api/v3/pet HTTP/1.1\r\nHost: a\r\napi_key: {}\r\n\
         Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
        stage.target.key
    );
    let response = tokio::spawn(async move {
        let mut response = vec![0; 12];
        let read = reader.read_exact(&mut response).await;
        let status = std::str::from_utf8(&response[9..])
            .ok()
            .and_then(|text| text.parse().ok());
        read.ok().and(status).unwrap_or_default()
    });
    let chunk = [b"10000\r\n".to_vec(), vec![b' '; 0x10000], b"\r\n".to_vec()].concat();
    let mut sent = 0;
    let _ = writer.write_all(head.as_bytes()).await;
    while sent < size && writer.write_all(&chunk).await.is_ok() {
        sent += 0x10000;
    }
    (sent, response.await.expect("a reader"))
}
