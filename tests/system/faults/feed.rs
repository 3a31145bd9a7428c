//! Row 30: streams of changes while the service and PostgreSQL are killed.

use std::sync::atomic::Ordering;

use test_support::*;
use tokio::time::{sleep, timeout};

use crate::{checker::Outcome, stage::*};

const WRITERS: usize = 8;

/// Number of changes after which a reader leaves a stream.
const PER_STREAM: usize = 50;

/// Reader of the stream, which goes on with `Last-Event-ID` at the next replica whenever its stream ends, and now and then.
pub struct Reader {
    replicas: Vec<Arc<Target>>,
    /// Position up to which it is to read; 0 until it is known.
    until: Arc<AtomicI64>,
    streams: AtomicUsize,
    refused: AtomicUsize,
}

impl Reader {
    /// Creates a reader that begins at the first of these replicas.
    pub fn new(replicas: Vec<Arc<Target>>, until: Arc<AtomicI64>) -> Self {
        Self {
            replicas,
            until,
            streams: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
        }
    }

    /// Returns the number of streams that were refused with another status than 503.
    pub fn refused(&self) -> usize {
        self.refused.load(Ordering::Relaxed)
    }

    /// Returns the changes after `start`.
    pub async fn read(&self, start: i64) -> Vec<Value> {
        let (mut seen, mut last) = (Vec::new(), start.to_string());
        for target in self.replicas.iter().cycle() {
            let request = target.request(Method::GET, "/changes");
            let request = request.header("accept", "text/event-stream");
            let response = request.header("last-event-id", &last).send().await;
            match response.map(|response| (response.status().as_u16(), response)) {
                Ok((200, response)) => {
                    self.streams.fetch_add(1, Ordering::Relaxed);
                    let mut events = Events::of(response);
                    // A stream of a killed process ends at once. One that waits is left when everything is read.
                    while let Ok(next) = timeout(Duration::from_millis(500), events.next()).await {
                        let Some(change) = next else { break };
                        last = change["position"].to_string();
                        seen.push(change);
                        if seen.len() % PER_STREAM == 0 {
                            break;
                        }
                    }
                }
                Ok((503, _)) | Err(_) => {}
                Ok(_) => drop(self.refused.fetch_add(1, Ordering::Relaxed)),
            }
            let until = self.until.load(Ordering::Relaxed);
            if until > 0 && last.parse::<i64>().expect("a position") >= until {
                break;
            }
            sleep(Duration::from_millis(5)).await;
        }
        seen
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn row_30_streams_miss_nothing_while_processes_are_killed() {
    let what = "kill -9 of the service and PostgreSQL under writers and readers of streams";
    let mut row = Row::begin_beside_others(30, what).await;
    let mut stage = Stage::start(&[]).await;
    let second = stage.serve_beside().await;
    let beside = stage.target.at(second.address);
    let newest = "select position from changes_clock";
    let start = stage.cluster.number(newest).await;
    let until = Arc::new(AtomicI64::new(0));
    let readers: Vec<_> = [[&stage.target, &beside], [&beside, &stage.target]]
        .map(|replicas| {
            let replicas = replicas.map(Arc::clone).to_vec();
            Arc::new(Reader::new(replicas, Arc::clone(&until)))
        })
        .into();
    let reading: Vec<_> = readers
        .iter()
        .map(|reader| {
            let reader = Arc::clone(reader);
            tokio::spawn(async move { reader.read(start).await })
        })
        .collect();
    let loads = [
        Load::start(&stage.target, WRITERS).await,
        Load::start(&beside, WRITERS).await,
    ];
    let (services, databases) = (short_or_full(5, 50), short_or_full(1, 10));
    for round in 0..services {
        loads[0].success_after(Instant::now()).await;
        sleep(Duration::from_millis(200)).await;
        stage.service.signal(Signal::SIGKILL);
        stage.service.wait_for_exit().await;
        stage.service = stage.serve().await;
        if round % (services / databases) == 0 {
            stage.cluster.kill();
            sleep(Duration::from_millis(300)).await;
            stage.cluster.resume().await;
            loads[1].success_after(Instant::now()).await;
        }
    }
    let (mut log, mut count) = (Vec::new(), 0);
    for load in loads {
        let (of_load, responses) = load.stop().await;
        log.extend(of_load);
        count += responses.len();
    }
    // The last change of all has a known position.
    let last = stage
        .target
        .request(Method::POST, "/pet")
        .json(&json!({"name": "last"}));
    assert_eq!(last.send().await.expect("a response").status(), 201);
    let page = stage.target.request(Method::GET, "/changes?limit=1");
    page.send().await.expect("a response");
    until.store(stage.cluster.number(newest).await, Ordering::Relaxed);
    let table = changes(&mut stage.cluster.connect().await, start).await;
    row.note(format!(
        "{services} and {databases} kills, {count} writes, {} changes",
        table.len()
    ));
    for (reader, reading) in readers.iter().zip(reading) {
        let seen = reading.await.expect("no panic of a reader");
        row.note(format!(
            "{} streams",
            reader.streams.load(Ordering::Relaxed)
        ));
        row.at_most("refused streams", reader.refused(), 0);
        let seen: Vec<_> = seen.iter().map(identity).collect();
        row.none("not as in the table", differences(&table, &seen));
    }
    check_table(&mut row, &stage, &log).await;
    row.end();
}

/// Returns what identifies a change.
pub fn identity(change: &Value) -> String {
    let text = |name: &str| change[name].as_str().unwrap_or_default().to_owned();
    let (kind, resource, action) = (text("kind"), text("resource"), text("action"));
    format!(
        "{} {kind} {resource} {action} {}",
        change["position"], change["version"]
    )
}

/// Returns what identifies each change after `start`, as it is stored.
pub async fn changes(connection: &mut PgConnection, start: i64) -> Vec<String> {
    let rows = sqlx::query_scalar(
        "select to_jsonb(change) from changes change where position > $1 order by position",
    );
    let rows = rows.bind(start).fetch_all(connection).await;
    let rows: Vec<Value> = rows.expect("the changes");
    rows.iter().map(identity).collect()
}

/// Returns the first changes that are in only one of the lists, or in another place.
pub fn differences(table: &[String], seen: &[String]) -> Vec<String> {
    let pairs = table.iter().zip(seen).filter(|(one, other)| one != other);
    let first = pairs.map(|(one, other)| format!("{one} in the table, {other} in the stream"));
    let lengths = (table.len() != seen.len())
        .then(|| format!("{} in the table, {} in the stream", table.len(), seen.len()));
    first.chain(lengths).collect()
}

/// Checks that the record has each acknowledged change, and only changes that were made.
async fn check_table(row: &mut Row, stage: &Stage, log: &[crate::checker::Entry]) {
    let mut database = stage.cluster.connect().await;
    let acknowledged = log
        .iter()
        .filter(|entry| entry.outcome == Outcome::Acknowledged);
    let versions: Vec<i64> = acknowledged.filter_map(|entry| entry.version).collect();
    row.note(format!("{} acknowledged replacements", versions.len()));
    let missing = "select version from unnest($1) version
                   where (select count(*) from changes where kind = 'pet' and changes.version = version.version) <> 1";
    let missing: Vec<i64> = sqlx::query_scalar(missing)
        .bind(&versions)
        .fetch_all(&mut database)
        .await
        .expect("the changes");
    row.none(
        "acknowledged replacements that are not recorded once",
        missing,
    );
    let made = [
        ("pets", "pet", "pets.id::text"),
        ("orders", "order", "orders.id::text"),
        ("images", "image", "encode(images.id, 'hex')"),
    ];
    for (name, kind, id) in made {
        let different = format!(
            "select count(*) from (select resource from changes where kind = '{kind}' and action = 'created') changed
             full join {name} on resource = {id} where resource is null or {name}.id is null"
        );
        row.at_most(
            &format!("{name} created and not recorded, or the reverse"),
            stage.cluster.number(&different).await,
            0,
        );
    }
    let latest = "select count(*) from pets where version is distinct from
                  (select version from changes where kind = 'pet' and resource = pets.id::text order by position desc limit 1)";
    row.at_most(
        "pets whose last change is not the latest in the record",
        stage.cluster.number(latest).await,
        0,
    );
    let disordered = "select count(*) from (
                          select version, lag(version) over (partition by resource order by position) as before
                          from changes where kind = 'pet') change where version <= before";
    row.at_most(
        "changes out of order",
        stage.cluster.number(disordered).await,
        0,
    );
}
