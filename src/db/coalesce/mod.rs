//! Batches requests that wait for the same kind of statement.
//!
//! A batcher ([`Lane`]) is a queue, and a task with its own connection that executes all waiting requests in one
//! statement. Requests that arrive meanwhile wait for the next one. There is no timer: a single request is sent at
//! once, and each request costs less the busier the service is.
//!
//! Invariants:
//! - A request joins only a statement that has not been sent yet, so that a result is never older than its request.
//! - A request gets its result within [`QUERY_TIMEOUT`].
//! - If a statement fails because of its values, each of its requests is retried separately.
//! - Queue and batch are bounded, and cancelled requests are skipped.

mod gather;
mod held;
mod usage;

use std::{
    future::Future,
    pin::pin,
    sync::{Mutex, PoisonError},
};

use metrics::Histogram;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Duration, Instant, MissedTickBehavior, interval, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{Instrument, Span, field::Empty};

use self::{gather::gather, held::Held, usage::Usage};
use super::{Connection, Error, QUERY_TIMEOUT, RETRY_PAUSE, TRIES, patience, pool::Pool};
use crate::trace;

/// Maximum number of requests in one statement. With 32 a batcher is slower, with more than 128 it is no faster.
const BATCH: usize = 128;
/// Maximum number of waiting requests; further requests are refused.
const QUEUE: usize = 4096;
/// Lock timeout of a batched statement, which delays all its requests. They are then retried separately, with the usual
/// timeout.
const LOCK_TIMEOUT: &str = "lock_timeout = '100ms'";
/// Planner settings. Batched statements look up rows by key, so one generic plan fits any number of keys. Sequential
/// scans are disabled, because a plan may be made while the table is small. JIT is disabled, because reading a sequence
/// counts as a sequential scan, which now looks costly enough to be compiled.
const PLANS: &str =
    "set plan_cache_mode = force_generic_plan; set enable_seqscan = off; set jit = off";
/// Idle time after which a connection is closed. It may take twice as long, because one periodic timer costs a batcher
/// less than one timer per statement.
const KEPT: Duration = Duration::from_secs(30);

pub(super) enum Verdict<B: Batch> {
    /// Final result.
    Answered(Result<B::Answer, Error>),
    /// No result: the request must be executed separately, after the statement has been committed.
    Alone(B::Ask),
}

/// Kind of statement that is executed in batches. The batcher limits its duration.
pub(super) trait Batch: Sized + 'static {
    type Ask: Clone + Send + Sync + 'static;
    type Answer: Send + 'static;

    /// Operation and table, for traces (`db.query.summary`).
    const SUMMARY: &'static str;
    /// PostgreSQL settings in addition to those of all batches, each in the form `a = 1`.
    const SETTINGS: &'static [&'static str] = &[];

    /// Executes all requests with one statement, and returns their results in order. Drains `asks`, unless the
    /// statement fails.
    fn many(
        connection: &mut Connection,
        asks: &mut Vec<Self::Ask>,
    ) -> impl Future<Output = Result<Vec<Verdict<Self>>, Error>> + Send;

    /// Executes one request separately.
    fn one(
        connection: &mut Connection,
        ask: Self::Ask,
    ) -> impl Future<Output = Result<Self::Answer, Error>> + Send;
}

/// State that all batchers of a database share.
#[derive(Debug, Clone)]
pub(super) struct Shared {
    pub pool: Pool,
    pub closing: CancellationToken,
    pub tasks: TaskTracker,
    pub usage: Usage,
}

impl Shared {
    pub fn new(pool: Pool) -> Self {
        Self {
            pool,
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
            usage: Usage::default(),
        }
    }
}

/// Batcher: a queue, and the task that serves it. The task runs on the runtime of the first request.
#[derive(Debug)]
pub(super) struct Lane<B: Batch> {
    shared: Shared,
    queue: Mutex<Option<mpsc::Sender<Waiting<B>>>>,
}

/// Channel for the result of one request.
type Answer<B> = oneshot::Sender<Result<<B as Batch>::Answer, Error>>;

struct Waiting<B: Batch> {
    ask: B::Ask,
    answer: Answer<B>,
    since: Instant,
    span: Span,
}

impl<B: Batch> Lane<B> {
    /// Creates a batcher. Its task starts with the first request.
    pub const fn new(shared: Shared) -> Self {
        Self {
            shared,
            queue: Mutex::new(None),
        }
    }

    /// Executes a request in a batch with others.
    ///
    /// # Errors
    /// [`Error::Overloaded`] if the queue is full, otherwise the error of the statement.
    pub async fn ask(&self, ask: B::Ask) -> Result<B::Answer, Error> {
        self.shared.pool.breaker.admit()?;
        let (answer, answered) = oneshot::channel();
        let span = span(B::SUMMARY);
        let waiting = Waiting {
            ask,
            answer,
            since: Instant::now(),
            span: span.clone(),
        };
        let queued = self.queue().try_send(waiting);
        match queued {
            Err(mpsc::error::TrySendError::Full(_)) => Err(Error::Overloaded),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(closed()),
            Ok(()) => {
                let answered = async { answered.await.unwrap_or_else(|_| Err(closed())) };
                let result = patience::wait_for_bounded(QUERY_TIMEOUT, answered)
                    .instrument(span.clone())
                    .await;
                if result.is_err() {
                    span.record("otel.status_code", "ERROR");
                }
                result
            }
        }
    }

    fn queue(&self) -> mpsc::Sender<Waiting<B>> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        match &*queue {
            Some(sender) if !sender.is_closed() || self.shared.closing.is_cancelled() => {
                sender.clone()
            }
            // This is the first request, or the task has panicked.
            _ => {
                let (sender, receiver) = mpsc::channel(QUEUE);
                self.shared.usage.watch(&sender);
                let task = serve(receiver, Held::new(self.shared.clone(), B::SETTINGS));
                self.shared.tasks.spawn(task);
                queue.insert(sender).clone()
            }
        }
    }
}

/// Returns the trace span of a batched request: the wait for a statement, and the statement.
fn span(summary: &'static str) -> Span {
    tracing::debug_span!(
        target: trace::TARGET,
        "statement",
        otel.name = summary,
        otel.kind = "client",
        otel.status_code = Empty,
        db.system.name = "postgresql",
        db.query.summary = summary,
        db.operation.name = summary.split(' ').next(),
        db.collection.name = summary.split(' ').next_back(),
        db.operation.batch.size = Empty,
    )
}

fn closed() -> Error {
    Error::Unavailable(sqlx::Error::PoolClosed)
}

/// Serves a queue until its batcher is dropped or the database is closed.
async fn serve<B: Batch>(mut queue: mpsc::Receiver<Waiting<B>>, mut connection: Held) {
    // A child token, so that batchers do not contend for one lock.
    let mut closing = pin!(connection.shared.closing.child_token().cancelled_owned());
    let mut looks = interval(KEPT);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut waiting = Vec::with_capacity(BATCH);
    let sizes =
        metrics::histogram!("db_client_operation_batch_size", "db_query_summary" => B::SUMMARY);
    // Set if the last batch had several requests. After a single one, the next single one is sent at once.
    let mut busy = false;
    loop {
        let taken = tokio::select! {
            biased;
            () = &mut closing => break,
            taken = queue.recv_many(&mut waiting, BATCH) => taken,
            _ = looks.tick() => {
                connection.close_unused(KEPT).await;
                continue;
            }
        };
        if taken == 0 {
            break;
        }
        if busy || taken > 1 {
            gather(&mut queue, &mut waiting, BATCH).await;
        }
        busy = waiting.len() > 1;
        answer(&mut waiting, &mut connection, &sizes).await;
    }
    connection.close().await;
}

/// Executes all waiting requests on the batcher's connection.
async fn answer<B: Batch>(waiting: &mut Vec<Waiting<B>>, connection: &mut Held, sizes: &Histogram) {
    waiting.retain(|waiting| !waiting.answer.is_closed());
    // The queue is in order of arrival. Requests do not have timers of their own, so the late ones are ended here.
    let late = waiting.partition_point(|waiting| waiting.since.elapsed() >= QUERY_TIMEOUT);
    let late = waiting.drain(..late);
    late.for_each(|late| drop(late.answer.send(Err(Error::TimedOut))));
    let Some(since) = waiting.first().map(|first| first.since) else {
        return;
    };
    let _busy = connection.shared.usage.work();
    let together = u32::try_from(waiting.len()).unwrap_or(u32::MAX);
    sizes.record(together);
    let together = i64::from(together);
    for Waiting { span, .. } in &*waiting {
        span.record("db.operation.batch.size", together);
    }
    let (mut asks, answers): (Vec<_>, Vec<_>) = waiting
        .drain(..)
        .map(|waiting| (waiting.ask, waiting.answer))
        .unzip();

    let result = {
        // Pinned in place: a move would copy some 10 kB, twice.
        let many = async |connection: &mut Connection| B::many(connection, &mut asks).await;
        let statement = pin!(connection.run(many));
        timeout_at(since + QUERY_TIMEOUT, statement).await
    };
    let error = match result {
        Ok(Ok(verdicts)) => {
            for (answer, verdict) in answers.into_iter().zip(verdicts) {
                match verdict {
                    // Sending fails if the request was cancelled meanwhile.
                    Verdict::Answered(found) => drop(answer.send(found)),
                    Verdict::Alone(ask) => spawn_alone::<B>(&connection.shared, ask, answer, since),
                }
            }
            return;
        }
        Ok(Err(error)) => error,
        Err(_) => Error::TimedOut,
    };
    connection.learn(&error).await;
    let is_of_one = match error {
        // A batch has a shorter lock timeout and no retries, so a separate attempt may succeed.
        Error::Locked(_) | Error::Contended(_) => true,
        Error::Corrupt(_) | Error::Query(_) => answers.len() > 1,
        _ => false,
    };
    // If the requests are drained, the statement succeeded and the commit failed: a retry could execute them twice.
    if is_of_one && asks.len() == answers.len() {
        // On the pool, requests do not wait for each other.
        for (ask, answer) in asks.into_iter().zip(answers) {
            spawn_alone::<B>(&connection.shared, ask, answer, since);
        }
    } else {
        for answer in answers {
            let _ = answer.send(Err(error.duplicate()));
        }
    }
}

fn spawn_alone<B: Batch>(shared: &Shared, ask: B::Ask, answer: Answer<B>, since: Instant) {
    let pool = shared.pool.clone();
    shared.tasks.spawn(async move {
        let found = timeout_at(since + QUERY_TIMEOUT, alone::<B>(&pool, ask, since)).await;
        let _ = answer.send(found.unwrap_or(Err(Error::TimedOut)));
    });
}

/// Executes one request in its own transaction, and retries it after conflicts with other transactions.
async fn alone<B: Batch>(pool: &Pool, ask: B::Ask, since: Instant) -> Result<B::Answer, Error> {
    let mut tries = 1;
    loop {
        match once::<B>(pool, ask.clone(), since).await {
            Err(Error::Contended(_)) if tries < TRIES => {
                metrics::counter!("db_client_transaction_retries_total").increment(1);
                tokio::time::sleep(RETRY_PAUSE * 2_u32.pow(tries)).await;
                tries += 1;
            }
            result => return result,
        }
    }
}

async fn once<B: Batch>(pool: &Pool, ask: B::Ask, since: Instant) -> Result<B::Answer, Error> {
    let mut transaction = pool.begin_after(since.elapsed()).await?;
    match B::one(&mut transaction, ask).await {
        Ok(answer) => {
            transaction.commit().await?;
            Ok(answer)
        }
        Err(error) => {
            transaction.undo(Some(&error)).await;
            Err(error)
        }
    }
}
