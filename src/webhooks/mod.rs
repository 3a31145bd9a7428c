//! Delivery of changes to webhooks. `.github/decisions/0023-webhooks.md` states the design.
//!
//! Invariants:
//! - The first deliveries of the changes of a resource are in their order.
//! - A webhook is read no further while [`MAX_BLOCKED`] of its resources fail, or [`MAX_WAITING`] deliveries wait.
//! - At most [`MAX_LANES`] requests to a webhook are in progress, one less for each resource that fails, and one repetition.
//! - A turn begins no request in the second half of its lease: the last one ends before another replica begins.

mod send;

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::Duration,
};

use chrono::Utc;
use futures_util::{StreamExt, stream};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout_at},
};
use tokio_util::sync::CancellationToken;

use self::send::{Message, Sender};
use crate::{
    config,
    db::{
        self, Database,
        changes::Page,
        deliveries::{Claimed, Outcome, TEST, Undelivered, Waiting},
    },
    domain::{
        change::{Change, Position},
        webhook::{GIVE_UP_AFTER, delay},
    },
    feed::Feed,
};

/// Interval of the search for webhooks with something to deliver.
const INTERVAL: Duration = Duration::from_millis(200);
/// Duration of a lease. After a crash, a webhook waits for it.
const LEASE: Duration = Duration::from_secs(30);
/// Maximum number of deliveries of a turn.
const MAX_PAGE: usize = 100;
/// Maximum number of resources that fail while changes are read.
const MAX_BLOCKED: usize = 100;
/// Maximum number of deliveries that wait while changes are read.
const MAX_WAITING: usize = 900;
/// Time between the turns of a webhook that is read no further, and between attempts to store an outcome.
const PAUSE: Duration = Duration::from_secs(1);
/// Time after the end for requests in progress. What is not finished is sent again.
const GRACE: Duration = Duration::from_secs(1);
/// Interval of the gauges.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of requests in progress to a webhook.
const MAX_LANES: usize = 8;

/// Delivery task of a replica.
pub struct Deliveries {
    database: Database,
    feed: Feed,
    sender: Arc<Sender>,
    max_turns: usize,
    /// Lease of the next turn. Those of another replica begin elsewhere.
    lease: AtomicI64,
}

impl Deliveries {
    /// Creates the task. Fails with the reason.
    pub fn new(database: Database, feed: Feed, config: &config::Webhooks) -> Result<Self, String> {
        let lease = getrandom::u64().map_err(|error| error.to_string())?;
        Ok(Self {
            database,
            feed,
            sender: Arc::new(Sender::new(config)?),
            max_turns: config.max_deliveries.get(),
            lease: AtomicI64::new(lease.cast_signed()),
        })
    }

    /// Delivers until `end` is cancelled, and the turns in progress have ended, some 2 s later.
    pub async fn run(self, end: CancellationToken) {
        let mut turns = JoinSet::new();
        loop {
            tokio::select! {
                () = end.cancelled() => break,
                Some(_) = turns.join_next() => {}
                () = async {
                    sleep(INTERVAL).await;
                    self.feed.has_webhooks().await;
                } => {}
            }
            while turns.len() < self.max_turns && !end.is_cancelled() {
                match self.claim().await {
                    Ok(Some((lease, webhook))) => {
                        let turn = Turn {
                            database: self.database.clone(),
                            sender: Arc::clone(&self.sender),
                            end: end.clone(),
                            webhook,
                            lease,
                        };
                        turns.spawn(turn.run());
                    }
                    Ok(None) | Err(db::Error::Unavailable(_)) => break,
                    Err(error) => {
                        tracing::warn!(%error, "failed to search for webhooks with changes; retrying in 200 ms");
                        break;
                    }
                }
            }
        }
        while turns.join_next().await.is_some() {}
    }

    async fn claim(&self) -> Result<Option<(i64, Claimed)>, db::Error> {
        let lease = self.lease.fetch_add(1, Relaxed);
        let claimed = self
            .database
            .run(async |connection| db::deliveries::claim(connection, lease, LEASE).await);
        Ok(claimed.await?.map(|webhook| (lease, webhook)))
    }
}

/// Updates the gauges of webhooks, for ever.
pub async fn report(database: Database, feed: Feed) {
    let mut known = HashSet::new();
    loop {
        let webhooks =
            database.run(async |connection| db::webhooks::list(connection, None, usize::MAX).await);
        // A failure is logged by the search for webhooks.
        if let Ok(webhooks) = webhooks.await {
            let mut gone = std::mem::take(&mut known);
            for webhook in webhooks {
                let lag = if webhook.is_enabled { webhook.lag } else { 0.0 };
                let [waiting, parked] = [webhook.waiting, webhook.parked]
                    .map(|number| u32::try_from(number).unwrap_or(u32::MAX));
                set_gauges(&webhook.id.to_string(), lag, waiting, parked);
                gone.remove(&webhook.id);
                known.insert(webhook.id);
            }
            for deleted in gone {
                set_gauges(&deleted.to_string(), 0.0, 0, 0);
            }
        }
        if known.is_empty() {
            sleep(INTERVAL).await;
            feed.has_webhooks().await;
        } else {
            sleep(REPORT_INTERVAL).await;
        }
    }
}

fn set_gauges(webhook: &str, lag: f64, waiting: u32, parked: u32) {
    let gauge = |name: &'static str| metrics::gauge!(name, "webhook" => webhook.to_owned());
    gauge("webhooks_lag_seconds").set(lag);
    gauge("webhooks_waiting").set(waiting);
    gauge("webhooks_parked").set(parked);
}

/// Change or test to be delivered.
struct Delivery {
    position: Position,
    kind: String,
    resource: String,
    /// `None` for a test.
    change: Option<Change>,
    /// Number of failed attempts; `None` if there is no row.
    attempts: Option<u32>,
    /// True if it is given up when it fails once more.
    is_last_attempt: bool,
}

impl Delivery {
    /// Returns what is stored if it is not delivered: untried, or after a failure.
    fn undelivered(self, error: Option<String>) -> Undelivered {
        let failed = error.is_some();
        let attempts = self.attempts.unwrap_or_default() + u32::from(failed);
        let [random, ..] = getrandom::u32().unwrap_or_default().to_ne_bytes();
        Undelivered {
            position: self.position.0,
            kind: self.kind,
            resource: self.resource,
            attempts,
            wait: if failed {
                delay(attempts, random).as_secs_f64()
            } else {
                0.0
            },
            error,
            is_parked: failed && self.is_last_attempt,
        }
    }

    fn resource(&self) -> (String, String) {
        (self.kind.clone(), self.resource.clone())
    }
}

impl From<Change> for Delivery {
    fn from(change: Change) -> Self {
        Self {
            position: change.position,
            kind: change.kind.clone(),
            resource: change.resource.clone(),
            change: Some(change),
            attempts: None,
            is_last_attempt: false,
        }
    }
}

/// One turn of a webhook: reads a page, sends it, and stores what is left.
struct Turn {
    database: Database,
    sender: Arc<Sender>,
    end: CancellationToken,
    webhook: Claimed,
    lease: i64,
}

impl Turn {
    async fn run(self) {
        let webhook = self.webhook.id;
        if let Err(error) = self.deliver().await {
            tracing::warn!(%webhook, %error, "failed to read or to store deliveries; trying them again after the lease");
        }
    }

    async fn deliver(&self) -> Result<(), db::Error> {
        let began = Instant::now();
        let waiting = self.database.run(async |connection| {
            db::deliveries::waiting(connection, self.webhook.id, GIVE_UP_AFTER).await
        });
        let waiting = waiting.await?;
        let resources = waiting.chunk_by(|one, other| one.resource() == other.resource());
        let blocked: HashSet<_> = resources.clone().map(|rows| rows[0].resource()).collect();
        let failing = resources
            .clone()
            .filter(|rows| rows[0].attempts > 0)
            .count();
        let mut due: Vec<_> = resources.filter(|rows| rows[0].is_due).collect();
        // What a person waits for, then what has waited longest.
        due.sort_by_key(|rows| (rows[0].kind != TEST, rows[0].next_at));
        let due: Vec<_> = due.into_iter().flatten().take(MAX_PAGE).collect();
        let mut outcome = Outcome {
            position: self.webhook.position,
            ..Outcome::default()
        };
        let room = MAX_PAGE - due.len();
        let (mut repeated, mut first): (Vec<_>, Vec<_>) = self
            .read(&due, &mut outcome)
            .await?
            .into_iter()
            .partition(|delivery| delivery.attempts > Some(0));
        if failing >= MAX_BLOCKED || waiting.len() >= MAX_WAITING {
            outcome.pause = PAUSE;
        } else if room > 0 {
            let page = self.page(room).await?;
            outcome.position = page.next;
            for change in page.changes {
                let delivery = Delivery::from(change);
                if blocked.contains(&(&*delivery.kind, &*delivery.resource)) {
                    outcome.undelivered.push(delivery.undelivered(None));
                } else {
                    first.push(delivery);
                }
            }
        }
        // Those behind one that is repeated follow it.
        let repeated_resources: HashSet<_> = repeated.iter().map(Delivery::resource).collect();
        let (behind, first): (Vec<_>, Vec<_>) = first
            .into_iter()
            .partition(|delivery| repeated_resources.contains(&delivery.resource()));
        repeated.extend(behind);
        let until = began + LEASE / 2;
        let lanes = MAX_LANES.saturating_sub(failing).max(1);
        let sent = tokio::join!(
            self.send(repeated, 1, until),
            self.send(first, lanes, until)
        );
        for (done, undelivered) in [sent.0, sent.1].into_iter().flatten() {
            outcome.done.extend(done);
            outcome.undelivered.extend(undelivered);
        }
        self.settle(&outcome, began + LEASE - db::QUERY_TIMEOUT)
            .await
    }

    /// Reads the changes of deliveries that are due. Those that are no longer recorded or wanted are done.
    async fn read(
        &self,
        due: &[&Waiting],
        outcome: &mut Outcome,
    ) -> Result<Vec<Delivery>, db::Error> {
        if due.is_empty() {
            return Ok(Vec::new());
        }
        let positions: Vec<_> = due.iter().map(|it| it.position).collect();
        let changes = self
            .database
            .run(async |connection| db::changes::at(connection, &positions).await);
        let changes = changes.await?.into_iter();
        let mut changes: HashMap<_, _> = changes.map(|it| (it.position.0, it)).collect();
        let kinds = &self.webhook.kinds;
        let mut deliveries = Vec::new();
        for waiting in due {
            let is_test = waiting.kind == TEST;
            let is_wanted = is_test || kinds.is_empty() || kinds.contains(&waiting.kind);
            let change = changes.remove(&waiting.position.0).filter(|_| !is_test);
            if !is_wanted || change.is_none() && !is_test {
                outcome.done.push(waiting.position.0);
                continue;
            }
            deliveries.push(Delivery {
                position: waiting.position,
                kind: waiting.kind.clone(),
                resource: waiting.resource.clone(),
                change,
                attempts: Some(waiting.attempts),
                is_last_attempt: waiting.is_old || is_test,
            });
        }
        Ok(deliveries)
    }

    /// Reads the next changes.
    async fn page(&self, limit: usize) -> Result<Page, db::Error> {
        let Claimed {
            position,
            head,
            kinds,
            ..
        } = &self.webhook;
        let page = self.database.run(async |connection| {
            db::changes::between(connection, (*position, *head), kinds, limit).await
        });
        page.await
    }

    /// Sends deliveries, those of `lanes` resources at once. Returns the results of each resource.
    async fn send(
        &self,
        deliveries: Vec<Delivery>,
        lanes: usize,
        until: Instant,
    ) -> Vec<(Vec<i64>, Vec<Undelivered>)> {
        stream::iter(grouped(deliveries))
            .map(|group| self.send_group(group, until))
            .buffer_unordered(lanes)
            .collect()
            .await
    }

    /// Sends the deliveries of a resource in their order, until one fails. Returns the positions of those that are delivered, and
    /// what is stored of the others.
    async fn send_group(
        &self,
        group: Vec<Delivery>,
        until: Instant,
    ) -> (Vec<i64>, Vec<Undelivered>) {
        let (mut done, mut undelivered) = (Vec::new(), Vec::new());
        let mut is_stopped = false;
        for delivery in group {
            let sent = if is_stopped {
                None
            } else {
                self.send_one(&delivery, until).await
            };
            is_stopped = sent != Some(Ok(()));
            match sent {
                Some(Ok(())) => done.push(delivery.position.0),
                Some(Err(error)) => undelivered.push(delivery.undelivered(Some(error))),
                None if delivery.attempts.is_none() => undelivered.push(delivery.undelivered(None)),
                // Its row stays as it is.
                None => {}
            }
        }
        (done, undelivered)
    }

    /// Sends a delivery. Returns `None` if that is not possible in this turn, or is not finished soon after the end.
    #[expect(
        clippy::disallowed_methods,
        reason = "the signature has the time of the attempt"
    )]
    async fn send_one(&self, delivery: &Delivery, until: Instant) -> Option<Result<(), String>> {
        let is_repetition = delivery.attempts > Some(0);
        let _permit = tokio::select! {
            permit = timeout_at(until, self.sender.permit(is_repetition)) => permit.ok()??,
            () = self.end.cancelled() => return None,
        };
        if Instant::now() >= until || self.end.is_cancelled() {
            return None;
        }
        let webhook = self.webhook.id;
        let change = delivery.change.as_ref();
        let message = Message::new(webhook, delivery.position, change, Utc::now());
        let sent = tokio::select! {
            sent = self.sender.send(&self.webhook, message) => sent,
            () = async {
                self.end.cancelled().await;
                sleep(GRACE).await;
            } => return None,
        };
        let result = match &sent {
            Ok(()) => "delivered",
            Err(_) if delivery.is_last_attempt => "parked",
            Err(_) => "failed",
        };
        let label = webhook.to_string();
        metrics::counter!("webhooks_deliveries_total", "webhook" => label, "result" => result)
            .increment(1);
        if let Err(error) = &sent {
            let position = delivery.position.0;
            tracing::debug!(%webhook, position, error, result, "failed to deliver a change");
        }
        Some(sent)
    }

    /// Stores the outcome, and tries that again until shortly before the lease ends: otherwise everything is sent again.
    async fn settle(&self, outcome: &Outcome, until: Instant) -> Result<(), db::Error> {
        let webhook = self.webhook.id;
        loop {
            let settled = self.database.run(async |connection| {
                db::deliveries::settle(connection, webhook, self.lease, outcome).await
            });
            match settled.await {
                Err(_) if Instant::now() < until && !self.end.is_cancelled() => sleep(PAUSE).await,
                Ok(false) => {
                    tracing::warn!(%webhook, "the lease of the webhook has expired; its changes may be sent again");
                    return Ok(());
                }
                settled => return settled.map(drop),
            }
        }
    }
}

/// Returns the deliveries by resource, each in its order.
fn grouped(deliveries: Vec<Delivery>) -> Vec<Vec<Delivery>> {
    let mut indexes = HashMap::new();
    let mut groups: Vec<Vec<Delivery>> = Vec::new();
    for delivery in deliveries {
        let index = *indexes.entry(delivery.resource()).or_insert(groups.len());
        if index == groups.len() {
            groups.push(Vec::new());
        }
        groups[index].push(delivery);
    }
    for group in &mut groups {
        group.sort_by_key(|it| it.position);
    }
    groups
}
