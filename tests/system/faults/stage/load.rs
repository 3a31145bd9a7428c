//! Load for fault tests: writers that log every response for the checker, and requests at a constant rate.
//!
//! To add an operation, add a function to [`OPERATIONS`], and a query to [`found`] if it writes to another resource.

use std::{fmt, sync::atomic::Ordering};

use futures_util::future::BoxFuture;
use test_support::*;

use super::{Stage, Target, until};
use crate::checker::{Entry, Found, Outcome, Write};

/// Operations that each writer repeats in this order.
const OPERATIONS: &[Operation] = &[add, replace, order, add, replace, upload];

/// Function that performs one write; the number makes its marker unique.
type Operation = for<'w> fn(&'w Writer, usize) -> BoxFuture<'w, (Entry, TimedResponse)>;

/// A response, or the failure to get one.
#[derive(Debug, Clone)]
pub struct TimedResponse {
    /// Time at which the request was sent.
    pub sent_at: Instant,
    /// Latency.
    pub latency: Duration,
    /// Status; `None` if the connection failed.
    pub status: Option<u16>,
    /// Set if the response has a `Retry-After` header.
    pub retry_after: bool,
    /// Error of a failed connection.
    pub error: String,
    /// Set if the response was replayed for its `Idempotency-Key`.
    pub replayed: bool,
    etag: Option<i64>,
    body: Value,
}

impl fmt::Display for TimedResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl TimedResponse {
    /// Sends a request and reads the response.
    pub async fn of(request: Call) -> Self {
        let sent_at = Instant::now();
        let exchange = async {
            let response = request.send().await?;
            let status = response.status().as_u16();
            let headers = response.headers().clone();
            Ok::<_, reqwest::Error>((status, headers, response.bytes().await?))
        };
        let mut response = Self {
            sent_at,
            latency: Duration::ZERO,
            status: None,
            retry_after: false,
            error: String::new(),
            replayed: false,
            etag: None,
            body: Value::Null,
        };
        match exchange.await {
            Ok((status, headers, body)) => {
                response.status = Some(status);
                response.replayed = headers.contains_key("idempotent-replayed");
                response.retry_after = headers.contains_key("retry-after");
                response.etag = headers
                    .get("etag")
                    .and_then(|etag| etag.to_str().ok()?.trim_matches('"').parse().ok());
                // To read a large list would delay the requests of other clients of the test.
                if body.len() < 1 << 20 {
                    response.body = serde_json::from_slice(&body).unwrap_or_default();
                }
            }
            Err(error) => response.error = format!("{error:?}"),
        }
        response.latency = sent_at.elapsed();
        response
    }

    pub fn is_success(&self) -> bool {
        self.status
            .is_some_and(|status| (200..300).contains(&status))
    }

    /// Returns true for a 503 with `Retry-After`.
    pub fn is_retryable(&self) -> bool {
        self.status == Some(503) && self.retry_after
    }

    /// Returns true for a 5xx other than a problem document of a 503 with `Retry-After`, and for a failed connection.
    pub fn is_failure(&self) -> bool {
        let is_problem = self.is_retryable() && self.body["status"] == 503;
        self.outcome() == Outcome::Unknown && !is_problem
    }

    pub const fn body(&self) -> &Value {
        &self.body
    }

    fn outcome(&self) -> Outcome {
        match self.status {
            Some(200..300) => Outcome::Acknowledged,
            Some(400..500) => Outcome::Refused,
            _ => Outcome::Unknown,
        }
    }
}

/// A writer, the only one that writes to its pet.
pub struct Writer {
    target: Arc<Target>,
    number: usize,
    pet: i64,
}

impl Writer {
    async fn new_pet(&self, marker: &str) -> TimedResponse {
        let request = self.target.request(Method::POST, "/pet");
        TimedResponse::of(request.json(&marked_pet(None, marker))).await
    }
}

/// POST of a pet with the marker in each of its parts.
fn add(writer: &Writer, number: usize) -> BoxFuture<'_, (Entry, TimedResponse)> {
    Box::pin(async move {
        let marker = format!("added-{}-{number}", writer.number);
        let request = writer
            .target
            .request(Method::POST, "/pet")
            .json(&marked_pet(None, &marker));
        let response = TimedResponse::of(request).await;
        let entry = Entry {
            resource: "pet",
            write: Write::Create,
            marker,
            outcome: response.outcome(),
            version: None,
        };
        (entry, response)
    })
}

/// PUT of a pet with a new marker in place of the writer's own.
fn replace(writer: &Writer, number: usize) -> BoxFuture<'_, (Entry, TimedResponse)> {
    Box::pin(async move {
        let marker = format!("replaced-{}-{number}", writer.number);
        let body = marked_pet(Some(writer.pet), &marker);
        let request = writer.target.request(Method::PUT, "/pet").json(&body);
        let response = TimedResponse::of(request).await;
        let entry = Entry {
            resource: "pet",
            write: Write::Replace(writer.pet),
            marker,
            outcome: response.outcome(),
            version: response.etag,
        };
        (entry, response)
    })
}

/// POST of an order for a new pet, which becomes pending.
fn order(writer: &Writer, number: usize) -> BoxFuture<'_, (Entry, TimedResponse)> {
    Box::pin(async move {
        let id = i64::try_from(1_000_000 * (writer.number + 1) + number).expect("a small number");
        let created = writer.new_pet(&format!("ordered-{id}")).await;
        let entry = |outcome| Entry {
            resource: "order",
            write: Write::Create,
            marker: id.to_string(),
            outcome,
            version: None,
        };
        let Some(pet) = created.body["id"].as_i64() else {
            return (entry(created.outcome()), created);
        };
        let body = json!({"id": id, "petId": pet});
        let request = writer.target.request(Method::POST, "/store/order");
        let response = TimedResponse::of(request.json(&body)).await;
        (entry(response.outcome()), response)
    })
}

/// POST of an image with a marker for a new pet.
fn upload(writer: &Writer, number: usize) -> BoxFuture<'_, (Entry, TimedResponse)> {
    Box::pin(async move {
        let marker = format!("uploaded-{}-{number}", writer.number);
        let created = writer.new_pet(&marker).await;
        let pet = created.body["id"].as_i64();
        let image = gif(&marker);
        let entry = |outcome| Entry {
            resource: "image",
            write: Write::Create,
            marker,
            outcome,
            version: None,
        };
        let Some(pet) = pet else {
            return (entry(created.outcome()), created);
        };
        let path = format!("/pet/{pet}/uploadImage");
        let request = writer.target.request(Method::POST, &path);
        let request = request.header("content-type", "image/gif").body(image);
        let response = TimedResponse::of(request).await;
        (entry(response.outcome()), response)
    })
}

/// Returns a GIF of one pixel with a comment.
fn gif(comment: &str) -> Vec<u8> {
    let length = u8::try_from(comment.len()).expect("a short comment");
    [
        b"GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff\x21\xfe",
        &[length][..],
        comment.as_bytes(),
        b"\x00\x2c\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02\x44\x01\x00\x3b",
    ]
    .concat()
}

/// Returns the stored records in the checker's form.
pub async fn found(connection: &mut PgConnection) -> Vec<Found> {
    let pets: Vec<(i64, String, i64, bool)> = sqlx::query_as(
        "select id, name, version,
                coalesce(details -> 'photoUrls' ->> 0 = '/' || name and details -> 'tags' -> 0 ->> 'name' = name, false)
         from pets, lateral (select details ->> 'name' as name) named",
    )
    .fetch_all(&mut *connection)
    .await
    .expect("the pets");
    let pets = pets.into_iter().map(|(id, marker, version, whole)| Found {
        resource: "pet",
        id,
        marker,
        version: Some(version),
        whole,
    });
    let orders: Vec<(i64, bool)> = sqlx::query_as(
        "select orders.id, held_pet is not null and pets.status = 'pending'
         from orders left join pets on pets.id = orders.pet_id",
    )
    .fetch_all(&mut *connection)
    .await
    .expect("the orders");
    let orders = orders.into_iter().map(|(id, whole)| Found {
        resource: "order",
        id,
        marker: id.to_string(),
        version: None,
        whole,
    });
    let images: Vec<(i64, String, bool)> = sqlx::query_as(
        "select pets.id, details ->> 'name',
                json_array_length(details -> 'photoUrls') = 2
                and details -> 'photoUrls' ->> 1 like '%/images/' || encode(images.id, 'hex')
         from images join pets on pets.id = images.pet_id",
    )
    .fetch_all(connection)
    .await
    .expect("the images");
    let images = images.into_iter().map(|(id, marker, whole)| Found {
        resource: "image",
        id,
        marker,
        version: None,
        whole,
    });
    pets.chain(orders).chain(images).collect()
}

/// Returns the stored records of the load's writers, without the pets of their orders and those that they had before.
pub async fn found_of_writers(connection: &mut PgConnection) -> Vec<Found> {
    let all = found(connection).await.into_iter();
    let by_a_writer = |record: &Found| {
        let mut marks = ["added-", "replaced-", "uploaded-"].iter();
        record.resource == "order" || marks.any(|mark| record.marker.starts_with(mark))
    };
    all.filter(by_a_writer).collect()
}

/// Returns the paths of the writers' images that differ from the bytes that were uploaded.
pub async fn broken_images(stage: &Stage) -> Vec<String> {
    let images: Vec<(i64, String, String)> = sqlx::query_as(
        "select pets.id, details ->> 'name', encode(images.id, 'hex')
         from images join pets on pets.id = images.pet_id where details ->> 'name' like 'uploaded-%'",
    )
    .fetch_all(&mut stage.cluster.connect().await)
    .await
    .expect("the images");
    let mut broken = Vec::new();
    for (pet, marker, image) in images {
        let path = format!("/pet/{pet}/images/{image}");
        let response = stage.target.request(Method::GET, &path).send().await;
        let bytes = match response {
            Ok(response) if response.status() == 200 => response.bytes().await.ok(),
            _ => None,
        };
        if bytes.is_none_or(|bytes| bytes != gif(&marker)) {
            broken.push(path);
        }
    }
    broken
}

pub struct Load {
    writers: JoinSet<Vec<Entry>>,
    responses: Arc<Mutex<Vec<TimedResponse>>>,
    stop: CancellationToken,
}

impl Load {
    /// Starts `writers` writers, each with a pet of its own. Retries for up to 30 s, since a loaded machine may answer 503.
    pub async fn start(target: &Arc<Target>, writers: usize) -> Self {
        Self::with_pause(target, writers, Duration::ZERO).await
    }

    /// Starts writers that pause after each operation.
    pub async fn with_pause(target: &Arc<Target>, writers: usize, pause: Duration) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let mut load = Self {
            writers: JoinSet::new(),
            responses: Arc::default(),
            stop: CancellationToken::new(),
        };
        for _ in 0..writers {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let body = marked_pet(None, &format!("before-{number}"));
            let started = Instant::now();
            let pet = loop {
                let created =
                    TimedResponse::of(target.request(Method::POST, "/pet").json(&body)).await;
                if let Some(id) = created.body["id"].as_i64() {
                    break id;
                }
                assert!(started.elapsed() < Duration::from_secs(30), "{created:?}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            };
            let writer = Writer {
                target: Arc::clone(target),
                number,
                pet,
            };
            let (stop, responses) = (load.stop.clone(), Arc::clone(&load.responses));
            load.writers.spawn(async move {
                let mut log = Vec::new();
                while !stop.is_cancelled() {
                    let operation = OPERATIONS[log.len() % OPERATIONS.len()];
                    let (entry, response) = operation(&writer, log.len()).await;
                    if response.outcome() == Outcome::Unknown {
                        // Clients retry after a failure, though rarely this soon.
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                    log.push(entry);
                    responses.lock().expect("never poisoned").push(response);
                    tokio::time::sleep(pause).await;
                }
                log
            });
        }
        load
    }

    pub fn responses(&self) -> Vec<TimedResponse> {
        self.responses.lock().expect("never poisoned").clone()
    }

    /// Waits for the first success that completes after `moment`; returns the time between the two.
    pub async fn success_after(&self, moment: Instant) -> Duration {
        loop {
            let responses = self.responses();
            let done = responses.iter().filter(|response| response.is_success());
            let done = done.map(|response| response.sent_at + response.latency);
            if let Some(first) = done.filter(|done| *done > moment).min() {
                return first - moment;
            }
            assert!(
                moment.elapsed() < Duration::from_secs(30),
                "nothing is done any more"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Stops the writers; returns their logs and all responses.
    pub async fn stop(mut self) -> (Vec<Entry>, Vec<TimedResponse>) {
        self.stop.cancel();
        let mut log = Vec::new();
        while let Some(entries) = self.writers.join_next().await {
            log.extend(entries.expect("a writer"));
        }
        (log, self.responses())
    }
}

/// Sends a request of each kind, all at the same time.
pub async fn send_each_kind(target: Arc<Target>) -> Vec<TimedResponse> {
    let request = |method, path: &str| target.request(method, path);
    // The writers of a load change their pets alone.
    let requests = requests_of_each_kind(request, UNKNOWN_PET);
    join_all(requests.map(TimedResponse::of)).await
}

/// Waits until a request of each kind is served, and the service is ready, for at most 30 s. Until then, requests get 503.
pub async fn until_each_kind_is_served(target: &Arc<Target>) {
    until(200, || target.bare(Method::GET, "/readyz")).await;
    let started = Instant::now();
    loop {
        let responses = send_each_kind(target.clone()).await;
        let failed = responses.iter().find(|response| response.is_failure());
        assert!(failed.is_none(), "{failed:?}");
        if !responses.iter().any(TimedResponse::is_retryable) {
            return;
        }
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "not back: {responses:?}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Sends `per_second` requests per second until stopped, without waiting for their responses.
pub async fn send_at_rate(
    per_second: u32,
    stop: CancellationToken,
    mut request: impl FnMut(usize) -> Call,
) -> Vec<TimedResponse> {
    let mut requests = JoinSet::new();
    let mut interval = tokio::time::interval(Duration::from_secs(1) / per_second);
    while !stop.is_cancelled() {
        interval.tick().await;
        requests.spawn(TimedResponse::of(request(requests.len())));
    }
    requests.join_all().await
}

/// Returns the number of responses per status.
pub fn by_status(responses: &[TimedResponse]) -> String {
    let mut counts = BTreeMap::<String, usize>::new();
    for response in responses {
        let status = response
            .status
            .map_or("none".into(), |status| status.to_string());
        *counts.entry(status).or_default() += 1;
    }
    let counts = counts
        .iter()
        .map(|(status, count)| format!("{count} × {status}"));
    counts.collect::<Vec<_>>().join(", ")
}
