//! Row 27: large lists, compressed.

use test_support::*;
use tokio::net::{TcpSocket, TcpStream};

use crate::stage::*;

const MEBIBYTE: u64 = 1 << 20;
/// List of all pets but those of [`RANDOM_PETS`].
const ALL: &str = "/pet/findByStatus?status=available,pending";
/// Pets of nearly the maximum size that hardly become smaller: 8 URLs of 1,984 random digits each.
const RANDOM_PETS: &str = "insert into pets (id, status, details)
    select 1000000 + n, 'sold',
           json_build_object('name', 'a', 'photoUrls', array(select '/' || (select string_agg(md5(random()::text || n || url || part), '')
                                from generate_series(1, 62) part)
                 from generate_series(1, 8) url), 'tags', '[]'::json)
    from generate_series(1, 1250) n";

/// Returns the statement that inserts this many pets.
fn pets(count: usize) -> String {
    format!(
        "insert into pets (id, status, details)
         select n, (array['available', 'pending'])[1 + n % 2],
                json_build_object('category', jsonb_build_object('id', n % 10, 'name', 'Category ' || n % 10),
                                  'name', 'Pet ' || n, 'photoUrls', array['https://example.com/photos/' || md5(n::text) || '.jpg'],
                                  'tags', jsonb_build_array(jsonb_build_object('id', 1, 'name', 'common'),
                                  jsonb_build_object('id', 2, 'name', 'group-' || n % 500)))
         from generate_series(1, {count}) n"
    )
}

/// A whole list, and the time until the first pet of it arrived.
struct List {
    response: Response,
    first: Duration,
    all: Duration,
}

async fn read(stage: &Stage, encoding: &str) -> List {
    let request = stage.target.request(Method::GET, ALL);
    let started = Instant::now();
    let request = request.header("accept-encoding", encoding).send();
    let mut response = request.await.expect("a response");
    let mut list = Response {
        status: response.status().as_u16(),
        headers: response.headers().clone(),
        body: Vec::new().into(),
    };
    let (mut body, mut begun) = (Vec::new(), Vec::new());
    // A block that zstd can decode may come in several chunks.
    while begun.is_empty() {
        body.extend_from_slice(&response.chunk().await.expect("a chunk").expect("a body"));
        list.body = body.clone().into();
        begun = list.decoded_part();
    }
    let first = started.elapsed();
    assert!(begun.starts_with(b"[{\"id\":1,"), "{encoding}: {begun:?}");
    while let Some(chunk) = response.chunk().await.expect("a chunk") {
        body.extend_from_slice(&chunk);
    }
    list.body = body.into();
    List {
        response: list.is(200),
        first,
        all: started.elapsed(),
    }
}

/// Reads a list with `encoding` again and again until `stop`.
async fn read_until_stopped(stage: &Stage, encoding: &str, stop: &CancellationToken) -> usize {
    let mut lists = 0;
    while !stop.is_cancelled() {
        read(stage, encoding).await;
        lists += 1;
    }
    lists
}

/// Sends requests for a pet while two clients read lists. Returns the number of lists, and the latencies of the requests.
async fn send_beside_lists(stage: &Stage, encoding: &str) -> (usize, Vec<Duration>) {
    let stop = CancellationToken::new();
    let others = async {
        let mut times = Vec::new();
        for _ in 0..200 {
            let response = TimedResponse::of(stage.target.request(Method::GET, "/pet/1")).await;
            assert_eq!(response.status, Some(200));
            times.push(response.latency);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        stop.cancel();
        times
    };
    let (times, first, second) = tokio::join!(
        others,
        read_until_stopped(stage, encoding, &stop),
        read_until_stopped(stage, encoding, &stop)
    );
    (first + second, times)
}

/// Requests a list and reads only its status, which is returned with the connection.
async fn unread(stage: &Stage, encoding: &str) -> (TcpStream, bool) {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4 << 10).expect("a buffer");
    let stream = socket.connect(stage.target.address).await;
    let mut stream = stream.expect("a connection");
    let head = format!(
        "GET /api/v3/pet/findByStatus?status=sold HTTP/1.1\r\nHost: a\r\napi_key: {}\r\n\
         Accept-Encoding: {encoding}\r\n\r\n",
        stage.target.key
    );
    stream.write_all(head.as_bytes()).await.expect("sent");
    let mut status = [0; 12];
    stream.read_exact(&mut status).await.expect("a response");
    let is_admitted = &status == b"HTTP/1.1 200";
    (stream, is_admitted)
}

#[tokio::test(flavor = "multi_thread")]
async fn row_27_large_lists_are_compressed() {
    let mut row = Row::begin(27, "large lists, compressed").await;
    let stage = Stage::start(&[]).await;
    let count = 100_000;
    stage.cluster.run(&pets(count)).await;
    stage.cluster.run("vacuum analyze pets").await;
    let plain = read(&stage, "identity").await;
    row.note(format!(
        "{count} pets: {} MB in {:.2?}",
        plain.response.body.len() / 1_000_000,
        plain.all
    ));
    for encoding in ["gzip", "zstd"] {
        let mut compressed = None;
        let growth = stage.memory_growth(async {
            compressed = Some(read(&stage, encoding).await);
        });
        let growth = growth.await;
        let list = compressed.expect("a list");
        assert_eq!(list.response.header("content-encoding"), encoding);
        assert!(list.response.decoded() == plain.response.body, "{encoding}");
        row.note(format!("{encoding}: {:.2?}", list.all));
        let mut first = [list.first];
        row.longest_within("first pet", &mut first, Duration::from_millis(20));
        let percent = (list.response.body.len() * 100).div_ceil(plain.response.body.len());
        row.at_most("% of the size", percent, 15);
        row.at_most("MiB more memory", growth / MEBIBYTE, 16);
    }

    for encoding in ["identity", "gzip", "zstd"] {
        let (lists, mut times) = send_beside_lists(&stage, encoding).await;
        row.note(format!("GET beside {lists} lists ({encoding})"));
        row.served_within("", &mut times);
    }
    row.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn row_27_unread_lists_hold_what_is_counted() {
    let mut row = Row::begin(27, "lists that clients do not read").await;
    for (encoding, kibibytes) in [("identity", 2_048), ("gzip", 2_432), ("zstd", 4_096)] {
        // A client address may use 160 MiB: for 80 lists, 67 with gzip, 40 with zstd.
        let stage = Stage::start(&[("SERVER__MAX_RESPONSE_MEMORY", "1280MiB")]).await;
        stage.cluster.run(RANDOM_PETS).await;
        let mut held = Vec::new();
        let growth = stage.memory_growth(async {
            for _ in 0..90 {
                held.push(unread(&stage, encoding).await);
            }
            stage.idle().await;
        });
        let growth = growth.await / 1_024;
        let admitted = held.iter().filter(|(_, is_admitted)| *is_admitted).count();
        let counted = u64::try_from(admitted).unwrap_or_default() * kibibytes;
        row.at_least("lists", admitted, 38);
        row.at_most("of 90", admitted, 89);
        row.at_most(&format!("KiB of memory with {encoding}"), growth, counted);
    }
    row.end();
}
