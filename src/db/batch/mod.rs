//! Batches requests that wait for the same kind of statement.
//!
//! A batcher is a queue, and a task with its own connection that executes all queued requests in one statement.
//! Requests that arrive meanwhile wait for the next one. There is no timer: a single request is sent at once, and each
//! request costs less the busier the service is.
//!
//! Invariants:
//! - A request joins only a statement that has not been sent yet, so that a result is never older than its request.
//! - A request gets its result within [`QUERY_TIMEOUT`].
//! - If a statement fails because of its values, each of its requests is retried separately.
//! - Queue and batch are bounded, and cancelled requests are skipped.

mod collect;

use std::{
    any::Any,
    cmp::Ordering,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
};

use metrics::Histogram;
use sqlx::Connection as _;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Duration, Instant, MissedTickBehavior, interval, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{Instrument, Span, field::Empty};

use self::collect::collect;
use super::{
    connect::{Connection, Connector},
    deadline::{self, QUERY_TIMEOUT, with_timeout},
    error::Error,
    pool::{Pool, Usage},
};
use crate::trace_context;

/// Number of kinds of batched statements: for each, a worker opens a connection with the first request.
pub(super) const KINDS: u32 = 9;
/// Maximum number of requests in one statement. With 32 a batcher is slower, with more than 128 it is no faster.
const MAX_BATCH_SIZE: usize = 128;
/// Number of bytes of requests after which a batch ends: a small one waits for the batch in progress.
const MAX_BATCH_BYTES: usize = 32 << 10;
/// Maximum number of queued requests, and of those taken from the queue that wait for a later batch; further requests are refused.
const MAX_QUEUED: usize = 4096;
/// Lock timeout of a batch that changes rows: the lock of one request delays all. They are then retried separately.
const LOCK_TIMEOUT_OF_CHANGES: Duration = Duration::from_millis(100);
/// Idle time after which a connection is closed, or up to twice that: one periodic timer costs less than one per statement.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Kind of statement that is executed in batches. The batcher limits its duration.
pub(super) trait BatchedStatement: Sized + 'static {
    type Input: Clone + Send + Sync + 'static;
    type Output: Send + 'static;

    /// Operation and table, for traces (`db.query.summary`).
    const SUMMARY: &'static str;
    /// True if no row is locked. Then only a lock of the whole table can delay a batch, and a retry would meet it too.
    const IS_READ_ONLY: bool = false;

    /// Returns the size of a request in bytes, for kinds of which some are large.
    fn size(_: &Self::Input) -> usize {
        0
    }

    /// Compares two requests by the order in which a statement is to process them; by default that in which they were chosen.
    fn compare(_: &Self::Input, _: &Self::Input) -> Ordering {
        Ordering::Equal
    }

    /// Returns true if these requests need a transaction, because they are executed with several statements.
    fn needs_transaction(_: &[Self::Input]) -> bool {
        false
    }

    /// Executes all requests together, and returns their results in order: for a single request, the final
    /// one, unless `execute_one` gives it. Drains `inputs`, unless the statement fails.
    fn execute_all(
        connection: &mut Connection,
        inputs: &mut Vec<Self::Input>,
    ) -> impl Future<Output = Result<Vec<BatchResult<Self>>, Error>> + Send;

    /// Executes a single request.
    fn execute_one(
        connection: &mut Connection,
        input: Self::Input,
    ) -> impl Future<Output = Result<Self::Output, Error>> + Send {
        async {
            let mut results = Self::execute_all(connection, &mut vec![input]).await?;
            match results.pop() {
                Some(BatchResult::Done(output)) => Ok(output),
                _ => Err(Error::Corrupt(format!("no result of {}", Self::SUMMARY))),
            }
        }
    }
}

/// Result of one request of a batch.
pub(super) enum BatchResult<B: BatchedStatement> {
    Done(B::Output),
    /// No result: the request must be executed separately, after the statement has been committed.
    ExecuteSeparately(B::Input),
}

/// Batchers of one worker, one per kind of statement.
#[derive(Debug)]
pub(super) struct Batchers {
    context: BatchContext,
    /// The [`Queue`] of each. Their types are erased, because the resources that define them import this module.
    queues: Mutex<Vec<Box<dyn Any + Send>>>,
}

/// State that the batchers of all workers share.
#[derive(Debug, Clone)]
struct BatchContext {
    pool: Pool,
    closing: CancellationToken,
    tasks: TaskTracker,
    /// State of all batchers, for metrics.
    states: Arc<Mutex<Vec<Weak<BatcherState>>>>,
}

/// State of a batcher, for metrics.
#[derive(Debug, Default)]
struct BatcherState {
    /// True while the connection is open and idle.
    is_idle: AtomicBool,
    is_busy: AtomicBool,
    queued: AtomicUsize,
}

/// Sending half of a batcher's queue.
struct Queue<B: BatchedStatement> {
    sender: mpsc::Sender<BatchItem<B>>,
    state: Arc<BatcherState>,
}

/// Queued request.
struct BatchItem<B: BatchedStatement> {
    input: B::Input,
    result_sender: ResultSender<B>,
    queued_at: Instant,
    span: Span,
}

/// Channel for the result of one request.
type ResultSender<B> = oneshot::Sender<Result<<B as BatchedStatement>::Output, Error>>;

impl Batchers {
    /// Creates the batchers of the first worker.
    pub fn new(pool: Pool) -> Self {
        Self {
            context: BatchContext {
                pool,
                closing: CancellationToken::new(),
                tasks: TaskTracker::new(),
                states: Arc::default(),
            },
            queues: Mutex::default(),
        }
    }

    /// Creates the batchers of another worker. Each task starts with the first request, on the runtime of that request.
    pub fn for_worker(&self) -> Self {
        Self {
            context: self.context.clone(),
            queues: Mutex::default(),
        }
    }

    /// Executes a request in a batch with others. Fails with [`Error::Overloaded`] if the queue is full.
    pub async fn execute<B: BatchedStatement>(&self, input: B::Input) -> Result<B::Output, Error> {
        self.context.pool.connector.breaker.admit()?;
        let (result_sender, result) = oneshot::channel();
        let span = span(B::SUMMARY);
        let item = BatchItem::<B> {
            input,
            result_sender,
            queued_at: Instant::now(),
            span: span.clone(),
        };
        self.enqueue(item)?;
        let result = deadline::wait_without_timer(QUERY_TIMEOUT, async { result.await? })
            .instrument(span.clone())
            .await;
        if result.is_err() {
            span.record("otel.status_code", "ERROR");
        }
        result
    }

    /// Queues a request. Starts the batcher at the first request, or if its task has panicked.
    fn enqueue<B: BatchedStatement>(&self, item: BatchItem<B>) -> Result<(), Error> {
        let mut queues = lock(&self.queues);
        let queue = queues.iter().find_map(|it| it.downcast_ref::<Queue<B>>());
        if let Some(queue) = queue
            && (!queue.sender.is_closed() || self.context.closing.is_cancelled())
        {
            return queue.send(item);
        }
        queues.retain(|queue| !queue.is::<Queue<B>>());
        let queue = self.context.start();
        let sent = queue.send(item);
        queues.push(Box::new(queue));
        sent
    }

    /// Returns the current use of the connections of all batchers, over all workers.
    pub fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        for state in lock(&self.context.states).iter().filter_map(Weak::upgrade) {
            usage.idle += u32::from(state.is_idle.load(Relaxed));
            usage.used += u32::from(state.is_busy.load(Relaxed));
            usage.waiting += state.queued.load(Relaxed);
        }
        usage
    }

    /// Stops the batchers of all workers once their current statements have ended.
    pub async fn close(&self) {
        self.context.closing.cancel();
        self.context.tasks.close();
        self.context.tasks.wait().await;
    }
}

impl BatchContext {
    fn start<B: BatchedStatement>(&self) -> Queue<B> {
        let (sender, receiver) = mpsc::channel(MAX_QUEUED);
        let state = Arc::<BatcherState>::default();
        lock(&self.states).push(Arc::downgrade(&state));
        let context = self.clone();
        self.tasks
            .spawn(serve::<B>(receiver, Arc::clone(&state), context));
        Queue { sender, state }
    }
}

impl<B: BatchedStatement> Queue<B> {
    fn send(&self, item: BatchItem<B>) -> Result<(), Error> {
        // Before the batcher can subtract it.
        self.state.queued.fetch_add(1, Relaxed);
        let sent = self.sender.try_send(item);
        if sent.is_err() {
            self.state.queued.fetch_sub(1, Relaxed);
        }
        Ok(sent?)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the trace span of a batched request: the wait for a statement, and the statement.
fn span(summary: &'static str) -> Span {
    tracing::debug_span!(
        target: trace_context::TARGET,
        "statement",
        otel.name = summary,
        otel.kind = "client",
        otel.status_code = Empty,
        db.system.name = "postgresql",
        db.query.summary = summary,
        db.operation.name = summary.split(' ').next(),
        db.collection.name = summary.split(' ').nth(1),
        db.operation.batch.size = Empty,
    )
}

/// Serves a queue until its senders are dropped or the database is closed.
async fn serve<B: BatchedStatement>(
    mut queue: mpsc::Receiver<BatchItem<B>>,
    state: Arc<BatcherState>,
    context: BatchContext,
) {
    let connector = context.pool.connector.clone();
    let mut connection = BatchConnection {
        connector,
        idle: None,
    };
    if !B::IS_READ_ONLY {
        connection.connector.lock_timeout = LOCK_TIMEOUT_OF_CHANGES;
    }
    // A child token, so that batchers do not contend for one lock.
    let mut closing = pin!(context.closing.child_token().cancelled_owned());
    let mut idle_checks = interval(IDLE_TIMEOUT);
    idle_checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut waiting = Vec::with_capacity(MAX_BATCH_SIZE);
    let batch_sizes =
        metrics::histogram!("db_client_operation_batch_size", "db_query_summary" => B::SUMMARY);
    // After a single request, the next single one is sent at once.
    let mut had_several = false;
    loop {
        state.is_busy.store(false, Relaxed);
        state.is_idle.store(connection.idle.is_some(), Relaxed);
        if waiting.is_empty() {
            let received = tokio::select! {
                biased;
                () = &mut closing => break,
                received = queue.recv_many(&mut waiting, MAX_BATCH_SIZE) => received,
                _ = idle_checks.tick() => {
                    connection.close_if_idle_for(IDLE_TIMEOUT).await;
                    continue;
                }
            };
            if received == 0 {
                break;
            }
            if had_several || received > 1 {
                collect(&mut queue, &mut waiting, MAX_BATCH_SIZE).await;
            }
        } else if !context.closing.is_cancelled() {
            // So that small requests overtake large ones.
            collect(&mut queue, &mut waiting, MAX_QUEUED).await;
        }
        had_several = waiting.len() > 1;
        let next = choose(&mut waiting);
        let batch = waiting.drain(..next).collect();
        state.queued.fetch_sub(next, Relaxed);
        state.is_idle.store(false, Relaxed);
        state.is_busy.store(true, Relaxed);
        execute_batch(batch, &mut connection, &context, &batch_sizes).await;
    }
    connection.close_if_idle_for(Duration::ZERO).await;
}

/// Returns the number of waiting requests that the next batch has. If these are not all, they are sorted: first the one that has
/// waited longest, so that each gets its turn, then the small ones, which do not wait for large ones before them.
fn choose<B: BatchedStatement>(waiting: &mut [BatchItem<B>]) -> usize {
    let size = |item: &BatchItem<B>| B::size(&item.input);
    let bytes: usize = waiting.iter().map(size).sum();
    if waiting.len() <= MAX_BATCH_SIZE && bytes <= MAX_BATCH_BYTES {
        return waiting.len();
    }
    let oldest = (0..waiting.len()).min_by_key(|index| waiting[*index].queued_at);
    waiting.swap(0, oldest.unwrap_or_default());
    waiting[1..].sort_by_key(|item| (size(item), item.queued_at));
    let mut bytes = 0;
    let within = waiting.iter().take(MAX_BATCH_SIZE).take_while(|item| {
        let has_room = bytes < MAX_BATCH_BYTES;
        bytes += size(item);
        has_room
    });
    within.count()
}

/// Connection of a batcher. It is opened on demand, and closed after a failure.
struct BatchConnection {
    connector: Connector,
    idle: Option<IdleConnection>,
}

struct IdleConnection {
    connection: Connection,
    opened_at: Instant,
    used_at: Instant,
}

impl BatchConnection {
    /// Runs `work`, in a transaction if it has several statements. If this future is dropped before its end, the
    /// connection is closed.
    async fn run<T>(
        &mut self,
        has_several_statements: bool,
        work: impl AsyncFnOnce(&mut Connection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.connector.breaker.admit()?;
        let (mut connection, opened_at) = match self.take_usable().await {
            Some(usable) => usable,
            None => (self.connector.open().await?, Instant::now()),
        };
        let connector = &self.connector;
        let lock_timeout = connector.lock_timeout;
        let running = connector.run(&mut connection, has_several_statements, lock_timeout, work);
        let (result, is_reusable) = running.await;
        self.idle = is_reusable.then(|| IdleConnection {
            connection,
            opened_at,
            used_at: Instant::now(),
        });
        result
    }

    /// Returns the idle connection and the time it was opened, unless it is known to be lost or does not respond.
    async fn take_usable(&mut self) -> Option<(Connection, Instant)> {
        let mut idle = self.idle.take()?;
        let (age, idle_for) = (idle.opened_at.elapsed(), idle.used_at.elapsed());
        let breaker = &self.connector.breaker;
        let is_usable = breaker.is_usable(&mut idle.connection, age, idle_for);
        is_usable.await.then_some((idle.connection, idle.opened_at))
    }

    /// Closes the connection if it has been idle for `timeout`.
    async fn close_if_idle_for(&mut self, timeout: Duration) {
        if let Some(idle) = self.idle.take_if(|idle| idle.used_at.elapsed() >= timeout) {
            let _ = with_timeout(idle.connection.close()).await;
        }
    }
}

/// Executes `items` in one statement on the batcher's connection.
async fn execute_batch<B: BatchedStatement>(
    mut items: Vec<BatchItem<B>>,
    connection: &mut BatchConnection,
    context: &BatchContext,
    batch_sizes: &Histogram,
) {
    items.retain(|item| !item.result_sender.is_closed());
    // Requests do not have timers of their own, so the expired ones are ended here.
    let now = Instant::now();
    for item in items.extract_if(.., |item| now - item.queued_at >= QUERY_TIMEOUT) {
        let _ = item.result_sender.send(Err(Error::TimedOut));
    }
    let Some(queued_at) = items.iter().map(|item| item.queued_at).min() else {
        return;
    };
    items.sort_by(|one, other| B::compare(&one.input, &other.input));
    let batch_size = u32::try_from(items.len()).unwrap_or(u32::MAX);
    batch_sizes.record(batch_size);
    let batch_size = i64::from(batch_size);
    for BatchItem { span, .. } in &items {
        span.record("db.operation.batch.size", batch_size);
    }
    let (mut inputs, result_senders): (Vec<_>, Vec<_>) = items
        .into_iter()
        .map(|item| (item.input, item.result_sender))
        .unzip();

    let result = {
        // Pinned in place: a move would copy some 10 kB, twice.
        let has_several_statements = B::needs_transaction(&inputs);
        let execute =
            async |connection: &mut Connection| B::execute_all(connection, &mut inputs).await;
        let statement = pin!(connection.run(has_several_statements, execute));
        timeout_at(queued_at + QUERY_TIMEOUT, statement).await
    };
    let result = result.unwrap_or_else(|_| {
        connection.connector.breaker.probe_soon();
        Err(Error::TimedOut)
    });
    let error = match result {
        Ok(results) => {
            if !B::IS_READ_ONLY {
                context.pool.committed.notify_one();
            }
            for (result_sender, result) in result_senders.into_iter().zip(results) {
                match result {
                    // Sending fails if the request was cancelled meanwhile.
                    BatchResult::Done(output) => drop(result_sender.send(Ok(output))),
                    BatchResult::ExecuteSeparately(input) => {
                        spawn_separately::<B>(context, input, result_sender, queued_at);
                    }
                }
            }
            return;
        }
        Err(error) => error,
    };
    let may_succeed_separately = match error {
        // A batch has a shorter lock timeout and no retries.
        Error::Locked(_) | Error::Contended(_) => !B::IS_READ_ONLY,
        Error::Corrupt(_) | Error::Query(_) => result_senders.len() > 1,
        _ => false,
    };
    // If the inputs are drained, the statement succeeded and the commit failed: a retry could execute them twice.
    if may_succeed_separately && inputs.len() == result_senders.len() {
        for (input, result_sender) in inputs.into_iter().zip(result_senders) {
            spawn_separately::<B>(context, input, result_sender, queued_at);
        }
    } else {
        // Which of them made the statement slow is not known: none is to blame.
        let error = match error {
            Error::StatementTimedOut if result_senders.len() > 1 => Error::TimedOut,
            error => error,
        };
        for result_sender in result_senders {
            let _ = result_sender.send(Err(error.clone()));
        }
    }
}

/// Executes one request in its own transaction, in the background.
fn spawn_separately<B: BatchedStatement>(
    context: &BatchContext,
    input: B::Input,
    result_sender: ResultSender<B>,
    queued_at: Instant,
) {
    let pool = context.pool.clone();
    context.tasks.spawn(async move {
        if result_sender.is_closed() {
            return;
        }
        let execute =
            async |transaction: &mut Connection| B::execute_one(transaction, input.clone()).await;
        let result = pool.transact(Some(queued_at), execute);
        let result = timeout_at(queued_at + QUERY_TIMEOUT, result).await;
        let _ = result_sender.send(result.unwrap_or(Err(Error::TimedOut)));
    });
}
