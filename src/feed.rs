//! Live feed of the record of changes: publishes what was recorded, and passes the changes of all replicas to the streams of
//! this one.
//!
//! Invariants:
//! - One task publishes and reads, for any number of streams.
//! - A subscription gets every change behind the last one that was published when it began, in the order of positions,
//!   unless it lags.

use std::{
    mem,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    sync::{
        Notify,
        broadcast::{self, error::RecvError},
        watch,
    },
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    db::{self, Database, changes::Page},
    domain::change::{Change, Position},
};

/// Interval without streams and webhooks.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);
/// Interval with streams or webhooks; with streams, unless this replica has committed a change.
const INTERVAL: Duration = Duration::from_millis(100);
/// Minimum interval, and what each stream adds to it: some 6,600 streams are woken per second.
const MIN_INTERVAL: Duration = Duration::from_millis(20);
const INTERVAL_PER_STREAM: Duration = Duration::from_micros(150);
/// Maximum number of changes that are read at once, and size in bytes of their facts after which no more are read.
const MAX_READ: usize = 2_500;
const MAX_READ_BYTES: usize = 1 << 20;
/// Maximum number of changes of a batch, and size in bytes of their facts after which it gets no more.
const MAX_BATCH: usize = 250;
const MAX_BATCH_BYTES: usize = 256 << 10;
/// Number of batches after which a subscription that takes none lags: 16 MiB of facts.
const MAX_LAG: usize = 64;

/// Changes that were read together. All streams share them.
pub type Batch = Arc<[Event]>;

/// Change, with its text, which the first stream that needs it writes.
#[derive(Debug)]
pub struct Event {
    /// Change.
    pub change: Change,
    /// Text.
    pub text: OnceLock<Bytes>,
    /// Text for those who must not see the actor.
    pub text_without_actor: OnceLock<Bytes>,
}

impl From<Change> for Event {
    fn from(change: Change) -> Self {
        Self {
            change,
            text: OnceLock::new(),
            text_without_actor: OnceLock::new(),
        }
    }
}

/// The feed. Clones share it.
#[derive(Debug, Clone)]
pub struct Feed(Arc<Inner>);

impl Default for Feed {
    fn default() -> Self {
        Self(Arc::new(Inner {
            batches: broadcast::Sender::new(MAX_LAG),
            sent: watch::Sender::new(None),
            subscribed: Notify::new(),
            has_webhooks: watch::Sender::new(false),
            end: CancellationToken::new(),
        }))
    }
}

#[derive(Debug)]
struct Inner {
    batches: broadcast::Sender<Batch>,
    /// Position up to which batches were sent, `None` without a subscription. A subscription begins under its lock.
    sent: watch::Sender<Option<Position>>,
    subscribed: Notify,
    has_webhooks: watch::Sender<bool>,
    end: CancellationToken,
}

impl Feed {
    /// Ends all streams.
    pub fn end(&self) {
        self.0.end.cancel();
    }

    /// Begins a subscription. Fails if PostgreSQL does not respond.
    pub async fn subscribe(&self) -> Result<Subscription, db::Error> {
        let mut sent = self.0.sent.subscribe();
        let batches = {
            let _lock = self.0.sent.borrow();
            self.0.batches.subscribe()
        };
        self.0.subscribed.notify_one();
        let begun = timeout(db::QUERY_TIMEOUT, sent.wait_for(Option::is_some)).await;
        begun
            .map_err(|_| db::Error::TimedOut)?
            .map_err(|_| db::Error::TimedOut)?;
        Ok(Subscription {
            batches,
            end: self.0.end.child_token(),
        })
    }

    /// Waits until any webhook is enabled.
    pub async fn has_webhooks(&self) {
        // The sender lives as long as this.
        let _ = self.0.has_webhooks.subscribe().wait_for(|it| *it).await;
    }

    /// Publishes changes and passes them on, for ever.
    pub async fn run(self, database: Database) {
        let lag = metrics::gauge!("changes_lag_seconds");
        let mut published_at = Instant::now();
        loop {
            let passed_on = self.pass_on(&database).await;
            if let Err(error) = passed_on {
                lag.set(published_at.elapsed());
                tracing::warn!(%error, "failed to publish changes; retrying in 1 s");
                sleep(IDLE_INTERVAL).await;
                continue;
            }
            published_at = Instant::now();
            let streams = self.0.batches.receiver_count();
            if streams == 0 {
                let interval = if *self.0.has_webhooks.borrow() {
                    INTERVAL
                } else {
                    IDLE_INTERVAL
                };
                let _ = timeout(interval, self.0.subscribed.notified()).await;
                continue;
            }
            let streams = u32::try_from(streams).unwrap_or(u32::MAX);
            let pause = MIN_INTERVAL + INTERVAL_PER_STREAM * streams;
            sleep(pause).await;
            let _ = timeout(INTERVAL.saturating_sub(pause), database.committed()).await;
        }
    }

    async fn pass_on(&self, database: &Database) -> Result<(), db::Error> {
        let publication = database.run(db::changes::publish).await?;
        let unpublished = u32::try_from(publication.published).unwrap_or(u32::MAX);
        self.0.has_webhooks.send_if_modified(|it| {
            mem::replace(it, publication.has_webhooks) != publication.has_webhooks
        });
        metrics::gauge!("changes_lag_seconds").set(publication.lag);
        metrics::gauge!("changes_unpublished").set(unpublished);
        let mut sent = None;
        self.0.sent.send_if_modified(|last| {
            if self.0.batches.receiver_count() == 0 {
                *last = None;
            }
            sent = *last;
            false
        });
        let Some(mut after) = sent else {
            if self.0.batches.receiver_count() > 0 {
                let newest = database.run(db::changes::newest).await?;
                self.0.sent.send_replace(Some(newest));
            }
            return Ok(());
        };
        loop {
            let end = Position::MAX;
            let read = database.run(async |connection| {
                let range = (after, end);
                db::changes::between(connection, range, &[], MAX_READ, MAX_READ_BYTES).await
            });
            let Page { changes, next } = read.await?;
            after = changes.last().map_or(after, |last| last.position);
            for batch in batches(changes) {
                // Without a subscription, the next one begins behind it.
                let _ = self.0.batches.send(batch);
            }
            self.0.sent.send_if_modified(|sent| {
                *sent = Some(after);
                false
            });
            if next == end {
                return Ok(());
            }
        }
    }
}

/// Divides changes into batches, in their order.
fn batches(changes: Vec<Change>) -> Vec<Batch> {
    let (mut batches, mut batch, mut bytes) = (Vec::new(), Vec::new(), 0);
    for change in changes {
        if batch.len() == MAX_BATCH || bytes >= MAX_BATCH_BYTES {
            batches.push(mem::take(&mut batch).into());
            bytes = 0;
        }
        bytes += change.data.as_ref().map_or(0, |data| data.get().len());
        batch.push(Event::from(change));
    }
    if !batch.is_empty() {
        batches.push(batch.into());
    }
    batches
}

/// Receiver of the changes behind a position.
#[derive(Debug)]
pub struct Subscription {
    batches: broadcast::Receiver<Batch>,
    end: CancellationToken,
}

/// Reason why a subscription has no further batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Batches were dropped, because this subscription did not take them.
    Lagged,
    /// The service stops.
    Stopped,
}

impl Subscription {
    /// Waits for the next batch. Can be cancelled.
    pub async fn next(&mut self) -> Result<Batch, End> {
        tokio::select! {
            biased;
            () = self.end.cancelled() => Err(End::Stopped),
            batch = self.batches.recv() => batch.map_err(|error| match error {
                RecvError::Lagged(_) => End::Lagged,
                RecvError::Closed => End::Stopped,
            }),
        }
    }
}
