//! Delivery of changes to webhooks. `.github/decisions/0023-webhooks.md` states the design.
//!
//! Invariants:
//! - The first deliveries of the changes of a resource are in their order.
//! - A webhook is read no further while [`MAX_BLOCKED`] of its resources, or [`MAX_WAITING`] changes, wait for another attempt.
//! - At most [`MAX_LANES`] requests to a webhook are in progress, and one if it is read no further.
//! - A turn sends nothing in the second half of its lease: the last request ends before another replica begins.

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
    sync::SemaphorePermit,
    task::JoinSet,
    time::{Instant, sleep, timeout_at},
};
use tokio_util::sync::CancellationToken;

use self::send::{Message, Sender};
use crate::{
    config,
    db::{
        self, Database,
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
/// Maximum number of changes of a turn, and of deliveries that are tried again.
const MAX_PAGE: usize = 100;
/// Maximum number of resources that wait for another attempt while changes are read.
const MAX_BLOCKED: usize = 100;
/// Maximum number of deliveries that wait while changes are read.
const MAX_WAITING: usize = 900;
/// Time between the turns of a webhook that is read no further.
const PAUSE: Duration = Duration::from_secs(1);
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

    /// Delivers until `end` is cancelled, and the requests in progress have ended.
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
        if known.is_empty() {
            feed.has_webhooks().await;
        }
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
        sleep(REPORT_INTERVAL).await;
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
        let until = Instant::now() + LEASE / 2;
        let waiting = self.database.run(async |connection| {
            db::deliveries::waiting(connection, self.webhook.id, GIVE_UP_AFTER).await
        });
        let waiting = waiting.await?;
        let blocked: HashSet<_> = waiting
            .iter()
            .map(|it| (it.kind.clone(), it.resource.clone()))
            .collect();
        let mut outcome = Outcome {
            position: self.webhook.position,
            ..Outcome::default()
        };
        let is_open = blocked.len() < MAX_BLOCKED && waiting.len() < MAX_WAITING;
        let mut groups = self.due(waiting, &mut outcome).await?;
        if is_open {
            let page = self.page().await?;
            outcome.position = match page.last() {
                Some(last) if page.len() == MAX_PAGE => last.position,
                _ => self.webhook.head,
            };
            let (behind, free): (Vec<_>, Vec<_>) = page
                .into_iter()
                .map(Delivery::from)
                .partition(|it| blocked.contains(&(it.kind.clone(), it.resource.clone())));
            outcome
                .undelivered
                .extend(behind.into_iter().map(|it| it.undelivered(None)));
            groups.extend(grouped(free));
        } else {
            outcome.pause = PAUSE;
        }
        let lanes = if is_open { MAX_LANES } else { 1 };
        let sent: Vec<_> = stream::iter(groups)
            .map(|group| self.send_group(group, until))
            .buffer_unordered(lanes)
            .collect()
            .await;
        for (done, undelivered) in sent {
            outcome.done.extend(done);
            outcome.undelivered.extend(undelivered);
        }
        let settled = self.database.run(async |connection| {
            db::deliveries::settle(connection, self.webhook.id, self.lease, &outcome).await
        });
        if !settled.await? {
            let webhook = self.webhook.id;
            tracing::warn!(%webhook, "the lease of the webhook has expired, or it is deleted; its changes may be sent again");
        }
        Ok(())
    }

    /// Returns the waiting deliveries of the resources with a first one that is due. Those of changes that are no longer recorded
    /// are done.
    async fn due(
        &self,
        waiting: Vec<Waiting>,
        outcome: &mut Outcome,
    ) -> Result<Vec<Vec<Delivery>>, db::Error> {
        let mut due: Vec<Waiting> = Vec::new();
        let mut last = None;
        for delivery in waiting {
            let resource = Some((delivery.kind.clone(), delivery.resource.clone()));
            let follows = last == resource
                && due.last().is_some_and(|it| {
                    (&it.kind, &it.resource) == (&delivery.kind, &delivery.resource)
                });
            if follows || last != resource && delivery.is_due {
                due.push(delivery);
            }
            last = resource;
        }
        due.truncate(MAX_PAGE);
        if due.is_empty() {
            return Ok(Vec::new());
        }
        let positions: Vec<_> = due.iter().map(|it| it.position).collect();
        let changes = self
            .database
            .run(async |connection| db::changes::at(connection, &positions).await);
        let changes = changes
            .await?
            .into_iter()
            .map(|change| (change.position.0, change));
        let mut changes: HashMap<_, _> = changes.collect();
        let mut deliveries = Vec::new();
        for waiting in due {
            let is_test = waiting.kind == TEST;
            let change = if is_test {
                None
            } else {
                changes.remove(&waiting.position.0)
            };
            if change.is_none() && !is_test {
                outcome.done.push(waiting.position.0);
                continue;
            }
            deliveries.push(Delivery {
                position: waiting.position,
                kind: waiting.kind,
                resource: waiting.resource,
                change,
                attempts: Some(waiting.attempts),
                is_last_attempt: waiting.is_old || is_test,
            });
        }
        Ok(grouped(deliveries))
    }

    /// Reads the next changes.
    async fn page(&self) -> Result<Vec<Change>, db::Error> {
        let Claimed {
            position,
            head,
            kinds,
            ..
        } = &self.webhook;
        let page = self.database.run(async |connection| {
            db::changes::between(connection, (*position, *head), kinds, MAX_PAGE).await
        });
        page.await
    }

    /// Sends the deliveries of a resource in their order, until one fails. Returns the positions of those that are delivered, and
    /// the others.
    async fn send_group(
        &self,
        group: Vec<Delivery>,
        until: Instant,
    ) -> (Vec<i64>, Vec<Undelivered>) {
        let (mut done, mut undelivered) = (Vec::new(), Vec::new());
        for delivery in group {
            let permit = if undelivered.is_empty() {
                self.permit(until).await
            } else {
                None
            };
            match permit {
                Some(_permit) => match self.send(&delivery).await {
                    Ok(()) => done.push(delivery.position.0),
                    Err(error) => undelivered.push(delivery.undelivered(Some(error))),
                },
                None if delivery.attempts.is_none() => undelivered.push(delivery.undelivered(None)),
                // Its row stays as it is.
                None => {}
            }
        }
        (done, undelivered)
    }

    /// Waits until a request may be sent. Returns `None` if none may be sent in this turn.
    async fn permit(&self, until: Instant) -> Option<SemaphorePermit<'_>> {
        let permit = timeout_at(until, self.sender.permit()).await.ok()??;
        (Instant::now() < until && !self.end.is_cancelled()).then_some(permit)
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the signature has the time of the attempt"
    )]
    async fn send(&self, delivery: &Delivery) -> Result<(), String> {
        let webhook = self.webhook.id;
        let message = Message::new(
            webhook,
            delivery.position,
            delivery.change.as_ref(),
            Utc::now(),
        );
        let sent = self.sender.send(&self.webhook, message).await;
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
        sent
    }
}

/// Returns the deliveries by resource, each in its order.
fn grouped(deliveries: Vec<Delivery>) -> Vec<Vec<Delivery>> {
    let mut indexes = HashMap::new();
    let mut groups: Vec<Vec<Delivery>> = Vec::new();
    for delivery in deliveries {
        let resource = (delivery.kind.clone(), delivery.resource.clone());
        let index = *indexes.entry(resource).or_insert(groups.len());
        if index == groups.len() {
            groups.push(Vec::new());
        }
        groups[index].push(delivery);
    }
    groups
}
