//! Rows 22 and 23: bodies in chunks of one byte cost little more than bodies in one piece, and bodies of many small
//! values little more memory than others.

use test_support::*;

use crate::stage::*;

const MEGABYTE: u64 = 1_000_000;
const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";

/// Operations with a body: method, path, media type, and another header field.
const OPERATIONS: [(&str, &str, &str, &str); 11] = [
    ("POST", "/api/v3/user", JSON, "X: y"),
    ("POST", "/api/v3/user/login", JSON, "X: y"),
    ("POST", "/api/v3/user/login", FORM, "X: y"),
    ("POST", "/oauth/token", FORM, "X: y"),
    ("POST", "/oauth/introspect", FORM, "X: y"),
    ("POST", "/api/v3/pet", JSON, "X: y"),
    ("POST", "/api/v3/pet", JSON, "Idempotency-Key: a"),
    ("PUT", "/api/v3/pet", JSON, "X: y"),
    ("PATCH", "/api/v3/pet/1", JSON, "X: y"),
    ("POST", "/api/v3/pet/1", FORM, "X: y"),
    ("POST", "/api/v3/store/order", JSON, "X: y"),
];

/// Encodes data with `Transfer-Encoding: chunked`, in chunks of `length` bytes and without an end.
pub fn chunked(data: &[u8], length: usize) -> Vec<u8> {
    let chunks = data.chunks(length).map(|chunk| {
        let head = format!("{:x}\r\n", chunk.len());
        [head.as_bytes(), chunk, b"\r\n"].concat()
    });
    chunks.collect::<Vec<_>>().concat()
}

/// Sends requests, each on a connection of its own, with all but the end of a body in the smallest chunks
/// that are not refused: of 8 bytes.
async fn send(stage: &Stage, bodies: usize, size: usize) -> Vec<RawConnection> {
    let body = chunked(&vec![b'x'; size], 8);
    let sent = (0..bodies).map(async |number| {
        let (method, path, media_type, field) = OPERATIONS[number % OPERATIONS.len()];
        let mut raw = RawConnection::connect(stage.target.address).await;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: a\r\napi_key: {}\r\nContent-Type: {media_type}\r\n{field}\r\n\
             Transfer-Encoding: chunked\r\n\r\n",
            stage.target.key
        );
        raw.send(head).await;
        raw.send(&body).await;
        raw
    });
    join_all(sent).await
}

#[tokio::test(flavor = "multi_thread")]
async fn row_22_bodies_in_small_chunks_take_at_most_twice_their_size() {
    let mut row = Row::begin(22, "bodies in small chunks").await;
    let settings = [
        ("SERVER__BODY_TIMEOUT", "10m"),
        ("SERVER__REQUEST_TIMEOUT", "10m"),
        ("PLANS__FREE__PER_MINUTE", "unlimited"),
    ];
    let stage = Stage::start(&settings).await;
    for (bodies, size) in short_or_full(&[(16, 250_000)][..], &[(100, 100_000), (24, 1_000_000)]) {
        let (bodies, size) = (*bodies, *size);
        let bound = 2 * (bodies * size) as u64 / MEGABYTE;
        // Memory that the first connections allocate for good does not count as growth.
        drop(send(&stage, bodies, 1_000).await);
        stage.idle().await;
        let before = stage.memory();
        let held = send(&stage, bodies, size).await;
        stage.idle().await;
        let growth = stage.memory().saturating_sub(before) / MEGABYTE;
        let what = format!("MB for {bodies} bodies of {size} bytes");
        row.at_most(&what, growth, bound);
        let ended = held.into_iter().map(async |mut raw| {
            raw.send("0\r\n\r\n").await;
            raw.response().await.status
        });
        let statuses = join_all(ended).await;
        row.none(
            "statuses other than 4xx",
            statuses.iter().filter(|status| **status / 100 != 4),
        );
    }
    row.end();
}

/// Method, path, media type, and the body.
type Body = (&'static str, &'static str, &'static str, String);

/// Returns bodies of about `size` bytes that would take many times that as values.
fn many_values(size: usize) -> Vec<Body> {
    let list = |element: &str| {
        format!(
            "[{}{element}]",
            format!("{element},").repeat(size / (element.len() + 1))
        )
    };
    let object = |member: &str| list(member).replacen('[', "{", 1).replacen(']', "}", 1);
    let deep = "[".repeat(size / 2) + &"]".repeat(size / 2);
    let numbers: Vec<_> = (0..size / 12)
        .map(|number| format!("\"{number}\":{{}}"))
        .collect();
    let distinct = format!("{{{}}}", numbers.join(","));
    let with = |name: &str, value: &str| format!(r#"{{"id":1,"name":"a","{name}":{value}}}"#);
    let form = |pair: &str| pair.repeat(size / pair.len());
    let head = "\r\n--b\r\nContent-Disposition: form-data; name=a\r\n\r\n";
    vec![
        ("POST", "/api/v3/pet", JSON, list("{}")),
        ("POST", "/api/v3/pet", JSON, with("tags", &list("{}"))),
        ("POST", "/api/v3/pet", JSON, with("tags", &list("0"))),
        (
            "POST",
            "/api/v3/pet",
            JSON,
            with("photoUrls", &list("\"\"")),
        ),
        ("POST", "/api/v3/pet", JSON, with("category", &deep)),
        ("POST", "/api/v3/pet", JSON, with("category", &distinct)),
        ("POST", "/api/v3/pet", JSON, with("name", &list("0"))),
        ("PUT", "/api/v3/pet", JSON, with("photoUrls", &list("0"))),
        (
            "PUT",
            "/api/v3/pet",
            JSON,
            with("status", &object("\"a\":{}")),
        ),
        (
            "PATCH",
            "/api/v3/pet/1",
            JSON,
            with("tags", &list("{\"id\":1}")),
        ),
        (
            "PATCH",
            "/api/v3/pet/1",
            JSON,
            with("category", &with("name", &list("[]"))),
        ),
        ("POST", "/api/v3/user", JSON, with("username", &list("0"))),
        ("POST", "/api/v3/user", JSON, with("password", &distinct)),
        ("POST", "/api/v3/user/createWithList", JSON, list("{}")),
        ("POST", "/api/v3/user/createWithList", JSON, list("0")),
        (
            "POST",
            "/api/v3/user/createWithList",
            JSON,
            format!("[{}]", with("unknown", &distinct)),
        ),
        (
            "POST",
            "/api/v3/user/login",
            JSON,
            with("username", &list("0")),
        ),
        (
            "POST",
            "/api/v3/store/order",
            JSON,
            with("petId", &list("0")),
        ),
        ("POST", "/api/v3/pet/1", FORM, form("a=&")),
        ("POST", "/api/v3/user/login", FORM, form("a=&")),
        ("POST", "/oauth/token", FORM, form("a=&")),
        ("POST", "/oauth/introspect", FORM, form("a&")),
        (
            "POST",
            "/api/v3/pet/1/uploadImage",
            "multipart/form-data; boundary=b",
            form(head),
        ),
        (
            "POST",
            "/api/v3/pet/1/uploadImage",
            "multipart/form-data; boundary=b",
            head.replacen('a', &form("X: y\r\n"), 1),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn row_22_bodies_of_many_values_take_at_most_twice_their_size() {
    /// Memory of the connections and buffers of any such requests.
    const FIXED: u64 = 16;
    let mut row = Row::begin(22, "bodies of many small values").await;
    let stage = Stage::start(&[]).await;
    let pet = stage.target.request(Method::POST, "/pet");
    pet.json(&json!({"id": 1, "name": "Rex"})).is(201).await;
    let send = async |key: String, (method, path, media_type, body): Body| {
        let request = stage.target.bare(method.parse().expect("a method"), path);
        let request = request.header("api_key", &stage.target.key);
        let request = request.header("content-type", media_type);
        let response = request.header("idempotency-key", key).body(body).await;
        (response.status, format!("{method} {path}: {response}"))
    };
    // Memory that the first bodies allocate for good does not count as growth.
    for size in [10_000, short_or_full(250_000, 1_000_000), 1_000_000] {
        let bodies = many_values(size);
        let bound = 2 * (bodies.len() * size) as u64 / MEGABYTE + FIXED;
        let what = format!("MB for {} bodies of {size} bytes", bodies.len());
        let send = (bodies.into_iter().enumerate())
            .map(|(number, body)| send(format!("{number} {size}"), body));
        let mut responses = Vec::new();
        let work = async { responses = join_all(send).await };
        row.at_most(&what, stage.memory_growth(work).await / MEGABYTE, bound);
        let others = responses.iter().filter(|(status, _)| status / 100 != 4);
        row.none("statuses other than 4xx", others.map(|(_, text)| text));
    }
    // Of bodies that arrive together, as many are parsed at the same time as there are CPUs.
    let mut most = (0, String::new());
    for (number, body) in many_values(1_000_000).into_iter().enumerate() {
        let what = format!(
            "kB for {} {} with body {number}, the most alone",
            body.0, body.1
        );
        let work = async { drop(send(format!("{number} alone"), body).await) };
        most = most.max((stage.memory_growth(work).await / 1_000, what));
    }
    let (most, what) = most;
    row.at_most(&what, most, 4_000);
    row.end();
}

/// Uploads an image in chunks of `length` bytes, several times. Returns the CPU time that the service needs for one, and
/// the statuses of the responses.
async fn upload(
    stage: &Stage,
    pet: i64,
    media_type: &str,
    image: &[u8],
    length: usize,
) -> (Duration, Vec<u16>) {
    const TIMES: u32 = 16;
    let body = [&chunked(image, length)[..], b"0\r\n\r\n"].concat();
    let head = format!(
        "POST /api/v3/pet/{pet}/uploadImage HTTP/1.1\r\nHost: a\r\napi_key: {}\r\nContent-Type: {media_type}\r\n\
         Transfer-Encoding: chunked\r\n\r\n",
        stage.target.key
    );
    stage.idle().await;
    let before = stage.cpu_time();
    let mut statuses = Vec::new();
    for _ in 0..TIMES {
        let mut raw = RawConnection::connect(stage.target.address).await;
        raw.send(&head).await;
        raw.send(&body).await;
        statuses.push(raw.response().await.status);
    }
    stage.idle().await;
    let time = stage.cpu_time().saturating_sub(before);
    (time / TIMES, statuses)
}

/// Encodes an image as a form.
fn form(image: &[u8]) -> Vec<u8> {
    let head = b"--b\r\nContent-Disposition: form-data; name=file; filename=a\r\n\r\n";
    [&head[..], image, b"\r\n--b--\r\n"].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn row_23_uploads_in_small_chunks_cost_at_most_three_times_the_cpu() {
    let mut row = Row::begin(23, "uploads in chunks of one byte").await;
    let stage = Stage::start(&[]).await;
    for size in short_or_full([50_000, 200_000], [200_000, 1_000_000]) {
        let image = large_jpeg(size);
        for (kind, media_type, body) in [
            ("an image", "image/jpeg", image.clone()),
            ("a form", "multipart/form-data; boundary=b", form(&image)),
        ] {
            // A pet has at most 100 images.
            let pet = stage.target.request(Method::POST, "/pet");
            let pet = pet.json(&json!({"name": "Rex"})).await.id();
            let (whole, statuses) = upload(&stage, pet, media_type, &body, size).await;
            row.none("refused", statuses.iter().filter(|status| **status != 200));
            for length in [10_000, 256, 16, 1] {
                // Chunks that are many and small are refused.
                let is_refused = body.len() / length > 1_024 + body.len() / 256;
                let expected = if is_refused { 400 } else { 200 };
                let (time, statuses) = upload(&stage, pet, media_type, &body, length).await;
                let what = format!("CPU time for {kind} of {size} bytes in chunks of {length}");
                row.within(&what, time, whole * 3);
                let others = statuses.iter().filter(|status| **status != expected);
                row.none("other statuses", others);
            }
        }
    }
    row.end();
}
