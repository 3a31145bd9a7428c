//! Turn of a webhook: reads what is due and the next changes, sends them, and stores what is left.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::future::join_all;
use tokio::{
    sync::Semaphore,
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
        webhook::{Attempt, GIVE_UP_AFTER, MAX_ATTEMPTS, delay},
    },
};

/// Duration of a lease. After a crash, a webhook waits for it.
pub const LEASE: Duration = Duration::from_secs(30);
/// Maximum number of deliveries of a turn.
const MAX_PAGE: usize = 100;
/// Maximum number of resources that fail while changes are read.
const MAX_BLOCKED: usize = 100;
/// Maximum number of deliveries that wait while changes are read.
const MAX_WAITING: usize = 900;
/// Maximum number of requests to a webhook that are in progress, without the one that repeats what has failed: one less for each
/// resource that fails, and half of them if the receiver is slow.
const MAX_LANES: usize = 8;
/// Time within a turn in which repetitions begin. Receivers that are up again take many of them, and of those that hang one: others
/// would make the turn long for the resources that do not fail.
const REPETITION_TIME: Duration = Duration::from_secs(2);
/// Time between the turns of a webhook that is read no further, and between attempts to store an outcome.
const PAUSE: Duration = Duration::from_secs(1);
/// Time after the end for requests in progress. What is not finished is sent again.
const GRACE: Duration = Duration::from_secs(1);

/// Turn of a webhook.
pub struct Turn {
    database: Database,
    sender: Sender,
    end: CancellationToken,
    webhook: Claimed,
    lease: i64,
    /// True if the last answer was slow or a failure.
    is_slow: AtomicBool,
    /// True once the receiver wants no further messages.
    is_gone: AtomicBool,
    attempts: Mutex<Vec<Attempt>>,
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
    const fn new(change: Change) -> Self {
        Self {
            change,
            attempts: None,
            is_last_attempt: false,
        }
    }

    fn is_repetition(&self) -> bool {
        self.attempts > Some(0)
    }

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

/// Bound of the requests in progress: one until the receiver has accepted a message, then more.
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
    fn open(&self, is_slow: bool) {
        let more = self.more.swap(0, Relaxed);
        self.permits
            .add_permits(if is_slow { more / 2 } else { more });
    }
}

impl Turn {
    /// Creates the turn of a webhook that is leased.
    pub fn new(
        database: Database,
        sender: Sender,
        end: CancellationToken,
        webhook: Claimed,
        lease: i64,
    ) -> Self {
        Self {
            database,
            sender,
            end,
            is_slow: AtomicBool::new(webhook.is_slow),
            is_gone: AtomicBool::new(false),
            attempts: Mutex::default(),
            webhook,
            lease,
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
        let mut outcome = Outcome {
            position: self.webhook.position,
            ..Outcome::default()
        };
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
            .partition(|group| group.iter().any(Delivery::is_repetition));
        let until = began + LEASE / 2;
        let lanes = Lanes::new(MAX_LANES.saturating_sub(failing).max(1));
        let sent = tokio::join!(
            self.send(repeated, Lanes::new(1), began + REPETITION_TIME),
            self.send(first, lanes, until)
        );
        for (done, undelivered) in sent.0.into_iter().chain(sent.1) {
            outcome.done.extend(done);
            outcome.undelivered.extend(undelivered);
        }
        outcome.is_slow = self.is_slow.load(Relaxed);
        let is_gone = self.is_gone.load(Relaxed);
        outcome.gone = is_gone.then(|| self.webhook.receiver.url.clone());
        outcome.attempts = self.last_attempts();
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
            .run(async |connection| db::changes::at(connection, &positions).await);
        let changes = changes.await?.into_iter();
        let mut changes: HashMap<_, _> = changes.map(|it| (it.position.0, it)).collect();
        let kinds = &self.webhook.kinds;
        let mut deliveries = Vec::new();
        for row in due {
            match changes.remove(&row.position.0) {
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
            db::changes::between(connection, (*position, *head), kinds, limit).await
        });
        let page = page.await?;
        outcome.position = page.next;
        let blocked: HashSet<_> = waiting.iter().map(Waiting::resource).collect();
        let (behind, next): (Vec<_>, Vec<_>) = page
            .changes
            .into_iter()
            .map(Delivery::new)
            .partition(|delivery| blocked.contains(&delivery.resource()));
        outcome
            .undelivered
            .extend(behind.into_iter().map(Delivery::untried));
        Ok(next)
    }

    /// Sends the deliveries of resources, as many at once as there are lanes. Returns the results of each resource.
    async fn send(
        &self,
        groups: Vec<Group>,
        lanes: Lanes,
        until: Instant,
    ) -> Vec<(Vec<i64>, Vec<Undelivered>)> {
        let groups = groups.into_iter();
        join_all(groups.map(|group| self.send_group(group, &lanes, until))).await
    }

    /// Sends the deliveries of a resource in their order, until one fails. Returns the positions of those that are delivered, and
    /// what is stored of the others.
    async fn send_group(
        &self,
        group: Group,
        lanes: &Lanes,
        until: Instant,
    ) -> (Vec<i64>, Vec<Undelivered>) {
        let (mut done, mut undelivered) = (Vec::new(), Vec::new());
        let mut is_stopped = false;
        for delivery in group {
            let sent = if is_stopped {
                None
            } else {
                self.send_one(&delivery, lanes, until).await
            };
            match sent {
                Some(sent) if sent.is_accepted() => {
                    done.push(delivery.change.position.0);
                    continue;
                }
                Some(sent) if !sent.is_cancelled => undelivered.push(delivery.failed(sent)),
                _ if delivery.attempts.is_none() => undelivered.push(delivery.untried()),
                // Its row stays as it is.
                _ => {}
            }
            is_stopped = true;
        }
        (done, undelivered)
    }

    /// Sends a delivery. Returns `None` if that is not possible in this turn, or is not finished soon after the end.
    async fn send_one(&self, delivery: &Delivery, lanes: &Lanes, until: Instant) -> Option<Sent> {
        let permits = async {
            let lane = lanes.permits.acquire().await.ok()?;
            let expects_failure = || delivery.is_repetition() || self.is_slow.load(Relaxed);
            Some((lane, self.sender.permit(expects_failure).await?))
        };
        let (_lane, permit) = tokio::select! {
            permits = timeout_at(until, permits) => permits.ok()??,
            () = self.end.cancelled() => return None,
        };
        if Instant::now() >= until || self.end.is_cancelled() || self.is_gone.load(Relaxed) {
            return None;
        }
        let receiver = &self.webhook.receiver;
        let message = Message::of(&delivery.change, receiver);
        // A resource that fails again and again does not slow the others down.
        let unused = AtomicBool::new(true);
        let is_slow = if delivery.is_repetition() {
            &unused
        } else {
            &self.is_slow
        };
        let sent = tokio::select! {
            sent = self.sender.send(receiver, &message, permit, is_slow) => sent,
            () = async {
                self.end.cancelled().await;
                sleep(GRACE).await;
            } => return None,
        };
        self.note(&sent, delivery, lanes);
        Some(sent)
    }

    /// Draws the conclusions from an attempt for those that follow, and keeps it.
    fn note(&self, sent: &Sent, delivery: &Delivery, lanes: &Lanes) {
        let webhook = self.webhook.receiver.id;
        if sent.is_gone() {
            self.is_gone.store(true, Relaxed);
        }
        if sent.is_accepted() {
            self.is_slow.store(sent.is_slow, Relaxed);
            lanes.open(sent.is_slow);
        } else if !delivery.is_repetition() {
            self.is_slow.store(true, Relaxed);
        }
        let result = match &sent.attempt.error {
            None => "delivered",
            Some(_) if delivery.is_last_attempt => "parked",
            Some(_) => "failed",
        };
        if !sent.is_cancelled {
            let label = webhook.to_string();
            metrics::counter!("webhooks_deliveries_total", "webhook" => label, "result" => result)
                .increment(1);
        }
        if let Some(error) = &sent.attempt.error {
            let position = delivery.change.position.0;
            tracing::debug!(%webhook, position, error, result, "failed to deliver a change");
        }
        let mut attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        attempts.push(sent.attempt.clone());
    }

    /// Returns the last attempts, the newest first.
    fn last_attempts(&self) -> Vec<Attempt> {
        let mut attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        let mut attempts = std::mem::take(&mut *attempts);
        attempts.sort_by_key(|attempt| Reverse(attempt.at));
        attempts.truncate(MAX_ATTEMPTS);
        attempts
    }

    /// Stores the outcome, and tries that again until shortly before the lease ends: otherwise everything is sent again.
    async fn settle(&self, outcome: &Outcome, until: Instant) -> Result<(), db::Error> {
        let webhook = self.webhook.receiver.id;
        loop {
            let settle = async |connection: &mut db::Connection| {
                db::deliveries::settle(connection, webhook, self.lease, outcome).await
            };
            let settled = if outcome.gone.is_some() {
                self.database.transact(settle).await
            } else {
                self.database.run(settle).await
            };
            match settled {
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
fn grouped(deliveries: Vec<Delivery>) -> Vec<Group> {
    let mut indexes = HashMap::new();
    let mut groups: Vec<Group> = Vec::new();
    for delivery in deliveries {
        let (kind, resource) = delivery.resource();
        let index = *indexes
            .entry((kind.to_owned(), resource.to_owned()))
            .or_insert(groups.len());
        if index == groups.len() {
            groups.push(Vec::new());
        }
        groups[index].push(delivery);
    }
    for group in &mut groups {
        group.sort_by_key(|delivery| delivery.change.position);
    }
    groups
}
