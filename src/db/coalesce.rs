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

use sqlx::{Connection as _, Executor as _, PgPool};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Duration, Instant, timeout, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Connection, Error, IDLE, QUERY_TIMEOUT, SESSION_SETTINGS, bounded};

/// Requests in one statement: with 32 a lane is slower, with more no faster.
const BATCH: usize = 128;
/// Requests that wait; one more is turned away.
const QUEUE: usize = 4096;
/// A connection that nobody needs for so long is closed.
const KEPT: Duration = Duration::from_secs(30);
/// No other try at connecting so soon after one that failed.
const PAUSE: Duration = Duration::from_millis(50);

/// An answer for each of those who asked.
pub(super) type Answers<B> = Vec<Result<<B as Batch>::Answer, Error>>;

/// What travels together.
pub(super) trait Batch: 'static {
    /// What one request asks.
    type Ask: Send + Sync + 'static;
    /// What it is told.
    type Answer: Send + 'static;

    /// Answers all, in their order, with one statement. Takes them; when the statement fails, it leaves them.
    fn many(
        connection: &mut Connection,
        asks: &mut Vec<Self::Ask>,
    ) -> impl Future<Output = Result<Answers<Self>, Error>> + Send;

    /// Answers one by itself.
    fn one(
        connection: &mut Connection,
        ask: Self::Ask,
    ) -> impl Future<Output = Result<Self::Answer, Error>> + Send;
}

/// What all lanes of a database share: where to connect to, and when to stop.
#[derive(Debug, Clone)]
pub(super) struct Shared {
    pub pool: PgPool,
    pub closing: CancellationToken,
    pub tasks: TaskTracker,
}

/// A queue, and the task that serves it, on the runtime of whoever asks first.
#[derive(Debug)]
pub(super) struct Lane<B: Batch> {
    shared: Shared,
    queue: Mutex<Option<mpsc::Sender<Waiting<B>>>>,
}

#[derive(Debug)]
struct Waiting<B: Batch> {
    ask: B::Ask,
    answer: oneshot::Sender<Result<B::Answer, Error>>,
    since: Instant,
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
        let (answer, answered) = oneshot::channel();
        let waiting = Waiting {
            ask,
            answer,
            since: Instant::now(),
        };
        let queued = self.queue().try_send(waiting);
        match queued {
            Err(mpsc::error::TrySendError::Full(_)) => Err(Error::Overloaded),
            // Closed: the task has ended, or ends before it answers, because the database is closed.
            Err(mpsc::error::TrySendError::Closed(_)) => Err(closed()),
            Ok(()) => answered.await.unwrap_or_else(|_| Err(closed())),
        }
    }

    fn queue(&self) -> mpsc::Sender<Waiting<B>> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue
            .get_or_insert_with(|| {
                let (sender, receiver) = mpsc::channel(QUEUE);
                let task = serve(receiver, Held::new(self.shared.clone()));
                self.shared.tasks.spawn(task);
                sender
            })
            .clone()
    }
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
    let Some(deadline) = waiting.first().map(|first| first.since + QUERY_TIMEOUT) else {
        return;
    };
    let (mut asks, answers): (Vec<_>, Vec<_>) = waiting
        .drain(..)
        .map(|waiting| (waiting.ask, waiting.answer))
        .unzip();

    let statement = async { B::many(connection.ready().await?, &mut asks).await };
    let error = match timeout_at(deadline, statement).await {
        Ok(Ok(found)) => {
            for (answer, found) in answers.into_iter().zip(found) {
                // Whoever has left meanwhile does not hear it.
                let _ = answer.send(found);
            }
            return;
        }
        Ok(Err(error)) => error,
        Err(_) => Error::TimedOut,
    };
    match error {
        // It is one of them: each finds out for itself, on the pool, where none waits for another.
        Error::Contended(_) | Error::Corrupt(_) | Error::Query(_) if answers.len() > 1 => {
            for (ask, answer) in asks.into_iter().zip(answers) {
                let pool = connection.shared.pool.clone();
                connection.shared.tasks.spawn(async move {
                    let alone = async { B::one(&mut *bounded(pool.acquire()).await?, ask).await };
                    let found = timeout_at(deadline, alone).await;
                    let _ = answer.send(found.unwrap_or(Err(Error::TimedOut)));
                });
            }
        }
        error => {
            if matches!(error, Error::Unavailable(_) | Error::TimedOut) {
                connection.lose();
            }
            for answer in answers {
                let _ = answer.send(Err(error.again()));
            }
        }
    }
}

/// The connection of a lane: opened when it is needed, closed when it has not been for long.
struct Held {
    shared: Shared,
    open: Option<Connection>,
    /// When it was used, or could not be opened.
    last: Instant,
    failed: bool,
}

impl Held {
    fn new(shared: Shared) -> Self {
        Self {
            shared,
            open: None,
            last: Instant::now(),
            failed: false,
        }
    }

    /// The connection, open, and not lost as far as one can tell.
    async fn ready(&mut self) -> Result<&mut Connection, Error> {
        let idle = self.last.elapsed();
        self.last = Instant::now();
        if let Some(connection) = &mut self.open
            && idle >= IDLE
            && bounded(connection.ping()).await.is_err()
        {
            self.lose();
        }
        let connection = match self.open.take() {
            Some(connection) => connection,
            None if self.failed && idle < PAUSE => return Err(closed()),
            None => {
                // Until proven otherwise, however this ends.
                self.failed = true;
                let options = self.shared.pool.connect_options();
                let mut fresh = bounded(Connection::connect_with(&options)).await?;
                bounded(fresh.execute(SESSION_SETTINGS)).await?;
                self.failed = false;
                fresh
            }
        };
        Ok(self.open.insert(connection))
    }

    /// Leaves a connection that is no good: PostgreSQL ends by itself what still runs on it.
    fn lose(&mut self) {
        self.open = None;
    }

    async fn close(&mut self) {
        if let Some(connection) = self.open.take() {
            let _ = bounded(connection.close()).await;
        }
    }
}
