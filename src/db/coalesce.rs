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

use std::{
    future::Future,
    sync::{Mutex, PoisonError},
};

use sqlx::{AssertSqlSafe, Connection as _, Executor as _};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Duration, Instant, timeout, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{Instrument, Span, field::Empty};

use super::{
    Connection, Error, QUERY_TIMEOUT, RETRY_PAUSE, TRIES, bounded,
    breaker::Trust,
    patience,
    pool::{CHECK, Pool, SESSION_SETTINGS, is_fit_after},
    pooler,
};
use crate::trace;

/// Requests in one statement: with 32 a lane is slower, with more no faster.
const BATCH: usize = 128;
/// Requests that wait; one more is turned away.
const QUEUE: usize = 4096;
/// How long a statement may wait for a lock, which keeps all its requests waiting; after that each waits by
/// itself, as long as any statement may.
const LOCK_TIMEOUT: &str = "lock_timeout = '100ms'";
/// A connection that nobody needs for so long is closed.
const KEPT: Duration = Duration::from_secs(30);

/// What a statement says to one of those who asked.
pub(super) enum Verdict<B: Batch> {
    /// This.
    Answered(Result<B::Answer, Error>),
    /// Nothing: it has to be tried by itself, once what the statement did has been committed.
    Alone(B::Ask),
}

/// What travels together.
pub(super) trait Batch: Sized + 'static {
    /// What one request asks.
    type Ask: Clone + Send + Sync + 'static;
    /// What it is told.
    type Answer: Send + 'static;

    /// What it does to which table, as a trace names it.
    const SUMMARY: &'static str;

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
}

impl Shared {
    pub fn new(pool: Pool) -> Self {
        Self {
            pool,
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
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
                let result = patience::wait(QUERY_TIMEOUT, answered)
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
                let task = serve(receiver, Held::new(self.shared.clone()));
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
    let closing = connection.shared.closing.clone();
    let mut waiting = Vec::with_capacity(BATCH);
    loop {
        let taken = tokio::select! {
            biased;
            () = closing.cancelled() => break,
            taken = timeout(KEPT, queue.recv_many(&mut waiting, BATCH)) => taken,
        };
        match taken {
            Ok(0) => break,
            Ok(_) => answer(&mut waiting, &mut connection).await,
            Err(_) => connection.close().await,
        }
    }
    connection.close().await;
}

/// Answers all that waits, on the lane's own connection.
async fn answer<B: Batch>(waiting: &mut Vec<Waiting<B>>, connection: &mut Held) {
    // Whoever is gone is not asked for.
    waiting.retain(|waiting| !waiting.answer.is_closed());
    // The queue is in the order of coming.
    let Some(since) = waiting.first().map(|first| first.since) else {
        return;
    };
    let together = i64::try_from(waiting.len()).unwrap_or(i64::MAX);
    for Waiting { span, .. } in &*waiting {
        span.record("db.operation.batch.size", together);
    }
    let (mut asks, answers): (Vec<_>, Vec<_>) = waiting
        .drain(..)
        .map(|waiting| (waiting.ask, waiting.answer))
        .unzip();

    let statement = connection.run(async |connection| B::many(connection, &mut asks).await);
    let error = match timeout_at(since + QUERY_TIMEOUT, statement).await {
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
            let _ = answer.send(Err(error.again()));
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

/// The connection of a lane: opened when it is needed, closed when it has not been for long.
struct Held {
    shared: Shared,
    open: Option<Open>,
}

struct Open {
    connection: Connection,
    since: Instant,
    used: Instant,
    /// Behind a pooler alone.
    in_transaction: bool,
}

impl Held {
    const fn new(shared: Shared) -> Self {
        Self { shared, open: None }
    }

    /// Runs statements; behind a pooler in a transaction, which alone stays on one server.
    async fn run<T>(
        &mut self,
        statements: impl AsyncFnOnce(&mut Connection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let behind_pooler = self.shared.pool.pooler.is_there();
        let open = self.ready().await?;
        if behind_pooler {
            // Whatever of it fails, there may be one to undo.
            open.in_transaction = true;
            let begin = format!("{}; set local {LOCK_TIMEOUT}", pooler::BEGIN);
            let begin = sqlx::raw_sql(AssertSqlSafe(begin));
            bounded(open.connection.execute(begin)).await?;
        }
        let result = statements(&mut open.connection).await?;
        if open.in_transaction {
            bounded(open.connection.execute("commit")).await?;
            open.in_transaction = false;
        }
        Ok(result)
    }

    /// The connection, open, and not lost as far as one can tell.
    async fn ready(&mut self) -> Result<&mut Open, Error> {
        let pool = &self.shared.pool;
        pool.breaker.admit()?;
        if let Some(open) = &mut self.open {
            let is_fit = match pool
                .breaker
                .trust(open.since.elapsed(), open.used.elapsed())
            {
                Trust::Whole => true,
                Trust::Doubt => {
                    let ping = timeout(CHECK, open.connection.ping()).await;
                    matches!(ping, Ok(Ok(())))
                }
                Trust::None => false,
            };
            if !is_fit {
                self.open = None;
            }
        }
        let now = Instant::now();
        let mut open = match self.open.take() {
            Some(open) => open,
            None => {
                let options = pool.connect_options();
                let mut connection = bounded(Connection::connect_with(&options)).await?;
                if !pool.pooler.is_there() {
                    let settings = format!("{SESSION_SETTINGS}; set {LOCK_TIMEOUT}");
                    let settings = sqlx::raw_sql(AssertSqlSafe(settings));
                    bounded(connection.execute(settings)).await?;
                }
                Open {
                    connection,
                    since: now,
                    used: now,
                    in_transaction: false,
                }
            }
        };
        open.used = now;
        Ok(self.open.insert(open))
    }

    /// Draws the conclusions from a failure.
    async fn learn(&mut self, error: &Error) {
        let pool = &self.shared.pool;
        match error.by_postgres() {
            Some(error) => {
                pool.learn(error);
                if !is_fit_after(error) {
                    self.open = None;
                }
            }
            // Given up in the middle of a statement, most likely: there is no going on.
            None if matches!(error, Error::TimedOut) => {
                pool.breaker.suspect();
                self.open = None;
            }
            None => {}
        }
        if let Some(open) = &mut self.open
            && open.in_transaction
        {
            open.in_transaction = false;
            if bounded(open.connection.execute("rollback")).await.is_err() {
                self.open = None;
            }
        }
    }

    async fn close(&mut self) {
        if let Some(open) = self.open.take() {
            let _ = bounded(open.connection.close()).await;
        }
    }
}
