//! Requests that wait for the same kind of statement travel together.
//!
//! A [`Lane`] is a queue, and a task with a connection of its own that answers what waits there, all of it
//! with one statement; whatever comes meanwhile waits for the next one. There is no timer: alone, a request
//! is sent at once, and the busier the service the less each one costs.
//!
//! Invariants: a request joins only a statement that is not sent yet, so an answer is never older than its
//! question. It is answered within [`QUERY_TIMEOUT`]. Its answer is its own: where a statement fails for
//! what it says, each of its requests is tried by itself. Queue and batch are bounded, and whoever is gone
//! when its turn comes costs nothing.

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
use crate::{trace, turn::Turn};

/// Requests in one statement: with 32 a lane is slower, with more no faster.
const BATCH: usize = 128;
/// Requests that wait; one more is turned away.
const QUEUE: usize = 4096;
/// How long a statement may wait for a lock, which keeps all its requests waiting; after that each waits by
/// itself, as long as any statement may.
const LOCK_TIMEOUT: &str = "lock_timeout = '100ms'";
/// All that is asked here is asked by key: one plan is as good for two keys as for a hundred, so none is made anew;
/// nor is a table scanned because it was small when its plan was made. To read a sequence is such a scan too, and
/// looks then so costly that PostgreSQL would compile it.
const PLANS: &str =
    "set plan_cache_mode = force_generic_plan; set enable_seqscan = off; set jit = off";
/// A connection that nobody has needed for so long is closed, at the latest after as long again: one timer that goes
/// on costs a lane less than one for each statement.
const KEPT: Duration = Duration::from_secs(30);

/// What a statement says to one of those who asked.
pub(super) enum Verdict<B: Batch> {
    /// This.
    Answered(Result<B::Answer, Error>),
    /// Nothing: it has to be tried by itself, once what the statement did has been committed.
    Alone(B::Ask),
}

/// What travels together. Its lane bounds how long a statement may last.
pub(super) trait Batch: Sized + 'static {
    /// What one request asks.
    type Ask: Clone + Send + Sync + 'static;
    /// What it is told.
    type Answer: Send + 'static;

    /// What it does to which table, as a trace names it.
    const SUMMARY: &'static str;
    /// PostgreSQL's settings for its statements, beside those of all batches: `a = 1`, one each.
    const SETTINGS: &'static [&'static str] = &[];

    /// Answers all, in their order, with one statement. Takes them; when the statement fails, it leaves them.
    fn many(
        connection: &mut Connection,
        asks: &mut Vec<Self::Ask>,
    ) -> impl Future<Output = Result<Vec<Verdict<Self>>, Error>> + Send;

    /// Answers one by itself.
    fn one(
        connection: &mut Connection,
        ask: Self::Ask,
    ) -> impl Future<Output = Result<Self::Answer, Error>> + Send;
}

/// What all lanes of a database share: where to connect to, and when to stop.
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

/// A queue, and the task that serves it, on the runtime of whoever asks first.
#[derive(Debug)]
pub(super) struct Lane<B: Batch> {
    shared: Shared,
    queue: Mutex<Option<mpsc::Sender<Waiting<B>>>>,
}

/// Where the answer to one request goes.
type Answer<B> = oneshot::Sender<Result<<B as Batch>::Answer, Error>>;

struct Waiting<B: Batch> {
    ask: B::Ask,
    answer: Answer<B>,
    since: Instant,
    /// From the question to its answer.
    span: Span,
}

impl<B: Batch> Lane<B> {
    /// A lane that nobody has used; it costs nothing yet.
    pub const fn new(shared: Shared) -> Self {
        Self {
            shared,
            queue: Mutex::new(None),
        }
    }

    /// Asks, together with whoever else does.
    ///
    /// # Errors
    /// [`Error::Overloaded`] when too many wait; else what the statement fails with.
    pub async fn ask(&self, ask: B::Ask) -> Result<B::Answer, Error> {
        // While it is known to be out of reach nobody waits to find out.
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
            // Closed: the task has ended, or ends before it answers, because the database is closed.
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
            // The first request; or a panic has ended the task.
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

/// What a request asks for in company, as its trace has it: the wait for a statement, and that statement.
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

/// Serves a queue until its lane is gone or the database is closed.
async fn serve<B: Batch>(mut queue: mpsc::Receiver<Waiting<B>>, mut connection: Held) {
    // Of its own: lanes do not meet at one lock.
    let mut closing = pin!(connection.shared.closing.child_token().cancelled_owned());
    let mut looks = interval(KEPT);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut waiting = Vec::with_capacity(BATCH);
    let sizes = metrics::histogram!("database_batch_requests", "statement" => B::SUMMARY);
    // Whether many ask: one that comes alone, after another such, is sent at once.
    let mut busy = false;
    let mut turn = Turn::default();
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
            gather(&mut queue, &mut waiting, BATCH, &mut turn).await;
        }
        busy = waiting.len() > 1;
        answer(&mut waiting, &mut connection, &sizes).await;
    }
    connection.close().await;
}

/// Answers all that waits, on the lane's own connection.
async fn answer<B: Batch>(waiting: &mut Vec<Waiting<B>>, connection: &mut Held, sizes: &Histogram) {
    // Whoever is gone is not asked for.
    waiting.retain(|waiting| !waiting.answer.is_closed());
    // The queue is in the order of coming. Whoever could not be told in time has no timer of its own.
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
        // Pinned where it is: some ten kilobytes that would be copied twice.
        let many = async |connection: &mut Connection| B::many(connection, &mut asks).await;
        let statement = pin!(connection.run(many));
        timeout_at(since + QUERY_TIMEOUT, statement).await
    };
    let error = match result {
        Ok(Ok(verdicts)) => {
            for (answer, verdict) in answers.into_iter().zip(verdicts) {
                match verdict {
                    // Whoever has left meanwhile does not hear it.
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
        // In here nobody waits for long, and nothing is tried again.
        Error::Locked(_) | Error::Contended(_) => true,
        Error::Corrupt(_) | Error::Query(_) => answers.len() > 1,
        _ => false,
    };
    // Taken already, they are done as far as one can tell: then it was the commit that failed.
    if is_of_one && asks.len() == answers.len() {
        // Each finds out for itself, on the pool, where none waits for another.
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

/// Answers one by itself, anew where another transaction was given the preference.
async fn alone<B: Batch>(pool: &Pool, ask: B::Ask, since: Instant) -> Result<B::Answer, Error> {
    let mut tries = 1;
    loop {
        match once::<B>(pool, ask.clone(), since).await {
            Err(Error::Contended(_)) if tries < TRIES => {
                metrics::counter!("database_retries_total").increment(1);
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
