//! Turn of a webhook: reads what is due and the next changes, sends them, and stores what is left.

use std::{
    collections::HashSet,
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::future::join_all;
use tokio::{
    sync::{Mutex, Semaphore},
    time::{Instant, sleep, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::send::{Message, Sender, Sent};
use crate::{
    db::{
        self, Database,
        deliveries::{Claimed, Outcome, Undelivered, Waiting},
    },
    domain::{
        change::Change,
        webhook::{GIVE_UP_AFTER, Receiver, delay},
    },
};

/// Duration of a lease. After a crash, a webhook waits for it.
pub const LEASE: Duration = Duration::from_secs(30);
/// Maximum number of deliveries of a turn.
const MAX_PAGE: usize = 100;
/// Size in bytes of the facts of changes after which a turn reads no more of those that are due, and of new ones: all webhooks may
/// have turns at once.
const MAX_BYTES: usize = 128 << 10;
/// Maximum number of resources that fail while changes are read.
const MAX_BLOCKED: usize = 100;
/// Maximum number of deliveries that wait while changes are read.
const MAX_WAITING: usize = 900;
/// Time within a turn in which repetitions begin. Receivers that are up again take many of them, and of those that hang one: others
/// would make the turn long for the resources that do not fail.
const REPETITION_TIME: Duration = Duration::from_secs(2);
/// Time between the turns of a webhook that is read no further, and between attempts to store an outcome.
const PAUSE: Duration = Duration::from_secs(1);
/// Time after the end for requests in progress. What is not finished is sent again.
const GRACE: Duration = Duration::from_secs(1);
/// Time after which the receiver is read again, with its secrets: one that was replaced twice signs no request a second later.
const MAX_AGE: Duration = Duration::from_millis(500);

/// Turn of a webhook.
pub struct Turn {
    database: Database,
    sender: Sender,
    end: CancellationToken,
    webhook: Claimed,
    /// Receiver, and when it was read.
    receiver: Mutex<(Receiver, Instant)>,
    /// URL of the receiver, once it wants no further messages.
    gone: OnceLock<String>,
}

/// Deliveries of a resource, in their order.
type Group = Vec<Delivery>;

/// Change to be delivered.
struct Delivery {
    change: Change,
    /// Number of failed attempts; `None` if there is no row.
    attempts: Option<u32>,
    /// True if it is given up when it fails once more.
    is_last_attempt: bool,
}

impl Delivery {
    fn resource(&self) -> (&str, &str) {
        (&self.change.kind, &self.change.resource)
    }

    /// Returns what is stored of a change that was not tried.
    fn untried(self) -> Undelivered {
        Undelivered {
            position: self.change.position.0,
            kind: self.change.kind,
            resource: self.change.resource,
            attempts: self.attempts.unwrap_or_default(),
            wait: 0.0,
            error: None,
            is_parked: false,
        }
    }

    /// Returns what is stored after a failure.
    fn failed(self, sent: Sent) -> Undelivered {
        let attempts = self.attempts.unwrap_or_default() + 1;
        let [random, ..] = getrandom::u32().unwrap_or_default().to_ne_bytes();
        let wait = delay(attempts, random).max(sent.retry_after.unwrap_or_default());
        Undelivered {
            attempts,
            wait: wait.as_secs_f64(),
            error: sent.attempt.error,
            is_parked: self.is_last_attempt,
            ..self.untried()
        }
    }
}

/// Bound of the requests in progress: one until the receiver has accepted a message, so that one that hangs has no more.
struct Lanes {
    permits: Semaphore,
    more: AtomicUsize,
}

impl Lanes {
    fn new(max: usize) -> Self {
        Self {
            permits: Semaphore::new(1),
            more: AtomicUsize::new(max - 1),
        }
    }

    /// Admits the others, after the first message that is accepted.
    fn open(&self) {
        self.permits.add_permits(self.more.swap(0, Relaxed));
    }
}

impl Turn {
    /// Creates the turn of a webhook that is leased.
    pub fn new(
        database: Database,
        sender: Sender,
        end: CancellationToken,
        webhook: Claimed,
    ) -> Self {
        Self {
            database,
            sender,
            end,
            receiver: Mutex::new((webhook.receiver.clone(), Instant::now())),
            gone: OnceLock::new(),
            webhook,
        }
    }

    /// Takes the turn.
    pub async fn run(self) {
        let webhook = self.webhook.receiver.id;
        if let Err(error) = self.deliver().await {
            tracing::warn!(%webhook, %error, "failed to read or to store deliveries; trying them again after the lease");
        }
    }

    async fn deliver(&self) -> Result<(), db::Error> {
        let began = Instant::now();
        let webhook = self.webhook.receiver.id;
        let waiting = self.database.run(async |connection| {
            db::deliveries::waiting(connection, webhook, GIVE_UP_AFTER, MAX_WAITING).await
        });
        let waiting = waiting.await?;
        let mut outcome = Outcome::default();
        let mut deliveries = self.due(&waiting, &mut outcome).await?;
        let failing = waiting
            .chunk_by(Waiting::is_of_same_resource)
            .filter(|rows| rows[0].attempts > 0)
            .count();
        if failing >= MAX_BLOCKED || waiting.len() >= MAX_WAITING {
            outcome.pause = PAUSE;
        } else if deliveries.len() < MAX_PAGE {
            let limit = MAX_PAGE - deliveries.len();
            deliveries.extend(self.next(&waiting, limit, &mut outcome).await?);
        }
        let (repeated, first): (Vec<Group>, Vec<Group>) = grouped(deliveries)
            .into_iter()
            .partition(|group| group.iter().any(|delivery| delivery.attempts > Some(0)));
        let until = began + LEASE / 2;
        let max = self.sender.max_deliveries;
        let lanes = [1, max.saturating_sub(failing).max(1)].map(Lanes::new);
        let repeat = self.send(repeated, &lanes[0], began + REPETITION_TIME);
        let send = self.send(first, &lanes[1], until);
        let (repeated, first) = if max == 1 {
            (repeat.await, send.await)
        } else {
            tokio::join!(repeat, send)
        };
        for group in repeated.into_iter().chain(first) {
            outcome.done.extend(group.done);
            outcome.undelivered.extend(group.undelivered);
            outcome.attempts.extend(group.attempts);
        }
        outcome.gone = self.gone.get().cloned();
        self.settle(&outcome, began + LEASE - db::QUERY_TIMEOUT)
            .await
    }

    /// Reads the changes of the deliveries that are due, those that have waited longest. Ones that are no longer recorded or wanted are
    /// done.
    async fn due(
        &self,
        waiting: &[Waiting],
        outcome: &mut Outcome,
    ) -> Result<Vec<Delivery>, db::Error> {
        let resources = waiting.chunk_by(Waiting::is_of_same_resource);
        let due = resources.filter(|rows| rows[0].is_due).flatten();
        let due: Vec<_> = due.take(MAX_PAGE).collect();
        if due.is_empty() {
            return Ok(Vec::new());
        }
        let positions: Vec<_> = due.iter().map(|row| row.position).collect();
        let changes = self
            .database
            .run(async |connection| db::changes::at(connection, &positions, MAX_BYTES).await);
        let (kinds, mut deliveries) = (&self.webhook.kinds, Vec::new());
        for (row, change) in due.into_iter().zip(changes.await?) {
            match change {
                Some(change) if kinds.is_empty() || kinds.contains(&change.kind) => {
                    deliveries.push(Delivery {
                        change,
                        attempts: Some(row.attempts),
                        is_last_attempt: row.is_old,
                    });
                }
                _ => outcome.done.push(row.position.0),
            }
        }
        Ok(deliveries)
    }

    /// Reads the next changes, and moves the position behind them. Those of resources that wait are not sent yet.
    async fn next(
        &self,
        waiting: &[Waiting],
        limit: usize,
        outcome: &mut Outcome,
    ) -> Result<Vec<Delivery>, db::Error> {
        let Claimed {
            position,
            head,
            kinds,
            ..
        } = &self.webhook;
        let page = self.database.run(async |connection| {
            db::changes::between(connection, (*position, *head), kinds, limit, MAX_BYTES).await
        });
        let page = page.await?;
        outcome.position = page.next;
        let blocked: HashSet<_> = waiting.iter().map(Waiting::resource).collect();
        let (behind, next): (Vec<_>, Vec<_>) = page
            .changes
            .into_iter()
            .map(|change| Delivery {
                change,
                attempts: None,
                is_last_attempt: false,
            })
            .partition(|delivery| blocked.contains(&delivery.resource()));
        outcome
            .undelivered
            .extend(behind.into_iter().map(Delivery::untried));
        Ok(next)
    }

    /// Sends the deliveries of resources, as many at once as there are lanes. Returns the outcome of each resource.
    async fn send(&self, groups: Vec<Group>, lanes: &Lanes, until: Instant) -> Vec<Outcome> {
        let groups = groups.into_iter();
        join_all(groups.map(|group| self.send_group(group, lanes, until))).await
    }

    /// Sends the deliveries of a resource in their order, until one fails. Those behind it wait.
    async fn send_group(&self, group: Group, lanes: &Lanes, until: Instant) -> Outcome {
        let mut outcome = Outcome::default();
        let mut is_stopped = false;
        for mut delivery in group {
            let sent = if is_stopped {
                None
            } else {
                self.send_one(&mut delivery, lanes, until).await
            };
            is_stopped = !sent.as_ref().is_some_and(Sent::is_accepted);
            match sent {
                Some(sent) => {
                    outcome.attempts.push(sent.attempt.clone());
                    if is_stopped {
                        outcome.undelivered.push(delivery.failed(sent));
                    } else {
                        outcome.done.push(delivery.change.position.0);
                    }
                }
                None if delivery.attempts.is_none() => outcome.undelivered.push(delivery.untried()),
                // Its row stays as it is.
                None => {}
            }
        }
        outcome
    }

    /// Sends a delivery. Returns `None` if that is not possible in this turn, or is not finished soon after the end.
    async fn send_one(
        &self,
        delivery: &mut Delivery,
        lanes: &Lanes,
        until: Instant,
    ) -> Option<Sent> {
        let _lane = tokio::select! {
            lane = timeout_at(until, lanes.permits.acquire()) => lane.ok()?.ok()?,
            () = self.end.cancelled() => return None,
        };
        let receiver = self.receiver().await?;
        if Instant::now() >= until || self.end.is_cancelled() || self.gone.get().is_some() {
            return None;
        }
        let message = Message::of(&delivery.change, &receiver);
        // It is in the message, and not needed while that is sent.
        delivery.change.data = None;
        let sent = tokio::select! {
            sent = self.sender.send(&receiver, message) => sent,
            () = async {
                self.end.cancelled().await;
                sleep(GRACE).await;
            } => return None,
        };
        if sent.is_gone() {
            let _ = self.gone.set(receiver.url);
        }
        self.note(&sent, delivery, lanes);
        Some(sent)
    }

    /// Returns the receiver as it was at most [`MAX_AGE`] ago. Returns `None` if it wants nothing meanwhile, or cannot be read.
    async fn receiver(&self) -> Option<Receiver> {
        let mut receiver = self.receiver.lock().await;
        if receiver.1.elapsed() >= MAX_AGE {
            let (id, now) = (receiver.0.id, Instant::now());
            let read = self.database.run(async |connection| {
                db::deliveries::receiver(connection, id, self.webhook.lease).await
            });
            *receiver = (read.await.ok().flatten()?, now);
        }
        Some(receiver.0.clone())
    }

    /// Draws the conclusions from an attempt for those that follow, and counts it.
    fn note(&self, sent: &Sent, delivery: &Delivery, lanes: &Lanes) {
        let webhook = self.webhook.receiver.id;
        if sent.is_accepted() {
            lanes.open();
        }
        let result = match &sent.attempt.error {
            None => "delivered",
            Some(_) if delivery.is_last_attempt => "parked",
            Some(_) => "failed",
        };
        let label = webhook.to_string();
        metrics::counter!("webhooks_deliveries_total", "webhook" => label, "result" => result)
            .increment(1);
        if let Some(error) = &sent.attempt.error {
            let position = delivery.change.position.0;
            tracing::debug!(%webhook, position, error, result, "failed to deliver a change");
        }
    }

    /// Stores the outcome, and tries that again until shortly before the lease ends: otherwise everything is sent again.
    async fn settle(&self, outcome: &Outcome, until: Instant) -> Result<(), db::Error> {
        let webhook = self.webhook.receiver.id;
        loop {
            let settle = async |connection: &mut db::Connection| {
                db::deliveries::settle(connection, webhook, self.webhook.lease, outcome).await
            };
            match self.database.transact(settle).await {
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

/// Returns the deliveries by resource, each in its order, and those with the oldest first.
fn grouped(mut deliveries: Vec<Delivery>) -> Vec<Group> {
    deliveries.sort_by_key(|delivery| delivery.change.position);
    let mut groups: Vec<Group> = Vec::new();
    for delivery in deliveries {
        match (groups.iter_mut()).find(|group| group[0].resource() == delivery.resource()) {
            Some(group) => group.push(delivery),
            None => groups.push(vec![delivery]),
        }
    }
    groups
}
