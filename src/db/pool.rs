//! The connections that requests share, and the transactions on them.
//!
//! Invariants: nobody waits here while PostgreSQL is known to be out of reach ([`Breaker`]), nor in a queue
//! without end; what a request waited for a connection it no longer waits for a lock; a connection that
//! something was given up on, or that failed, is closed and never used again.

use std::{
    borrow::Cow,
    ops::{Deref, DerefMut},
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{
    StreamExt as _, TryStreamExt as _,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use sqlx::{
    AssertSqlSafe, Connection as _, Describe, Either, Execute, Executor, PgConnection, PgPool,
    Postgres, SqlStr,
    pool::PoolConnection,
    postgres::{PgPoolOptions, PgQueryResult, PgRow, PgStatement, PgTypeInfo},
};
use tokio::sync::Semaphore;

use super::{
    ConnectOptions, Error, bounded,
    breaker::{Breaker, Trust},
    error::{is_of_a_pooler, is_of_the_connection, is_read_only},
    pooler::{self, Pooler},
};

/// How many may wait for each connection; the next is refused at once.
const QUEUE: usize = 32;
/// How long a request waits for a connection and a lock together, as far as it had to wait for the former.
const WAIT: Duration = Duration::from_secs(1);
/// Who waited less for a connection did not have to wait.
const NO_WAIT: Duration = Duration::from_millis(50);
/// How long a connection may take to show that it is fit to be used (again).
const CHECK: Duration = Duration::from_millis(500);

/// PostgreSQL's own bounds, for the case that we are gone: what this process gave up, or left behind
/// when it or its machine died, ends there too. And where we may, a deadlock is found before a wait for a
/// lock ends: then the one that gives way is done anew.
const SESSION_SETTINGS: &str = "set statement_timeout = '2s'; set lock_timeout = '1s'; \
                                set idle_in_transaction_session_timeout = '10s'; \
                                set tcp_keepalives_idle = 30; set tcp_keepalives_interval = 10; \
                                set tcp_keepalives_count = 3; \
                                select set_config('deadlock_timeout', '200ms', false) \
                                from pg_roles where rolname = current_user and rolsuper";

/// Connections to one PostgreSQL; a single statement runs on a reference to it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Pool {
    connections: PgPool,
    queue: Arc<Semaphore>,
    /// Whether a statement that had to wait for a connection waits the less for a lock. It costs round trips,
    /// in which it holds its own.
    bounds_locks: bool,
    pub(super) breaker: Breaker,
    pub(super) pooler: Pooler,
}

impl Pool {
    /// Connections that are opened as they are needed.
    pub(super) fn new(
        options: ConnectOptions,
        max_connections: u32,
        acquire_timeout: Duration,
        breaker: Breaker,
        pooler: Pooler,
    ) -> Self {
        let (trusted, behind) = (breaker.clone(), pooler.clone());
        let connections = PgPoolOptions::new()
            .max_connections(max_connections)
            .acquire_timeout(acquire_timeout)
            // A lost connection shows itself at the next statement, and costs one 503 there; asking
            // first would cost every request a round trip.
            .test_before_acquire(false)
            .after_connect(move |connection, _| {
                let pooler = behind.clone();
                Box::pin(async move {
                    if !pooler.is_there() {
                        connection.execute(SESSION_SETTINGS).await?;
                    }
                    Ok(())
                })
            })
            .before_acquire(move |connection, it| {
                let trust = trusted.trust(it.age, it.idle_for);
                Box::pin(async move {
                    Ok(match trust {
                        Trust::Whole => true,
                        Trust::None => false,
                        Trust::Doubt => {
                            let ping = tokio::time::timeout(CHECK, connection.ping()).await;
                            matches!(ping, Ok(Ok(())))
                        }
                    })
                })
            })
            .connect_lazy_with(options);
        let places = (max_connections as usize).saturating_mul(1 + QUEUE);
        Self {
            connections,
            queue: Arc::new(Semaphore::new(places)),
            bounds_locks: true,
            breaker,
            pooler,
        }
    }

    /// The same, for statements that are given up long before a wait for a lock would end.
    pub(super) fn without_bounds_on_locks(self) -> Self {
        Self {
            bounds_locks: false,
            ..self
        }
    }

    /// Begins a transaction.
    pub(super) async fn begin(&self) -> Result<Transaction, Error> {
        bounded(async {
            let mut lease = self.lease().await?;
            let begin = self.beginning(lease.waited).unwrap_or("begin".into());
            lease.begin(begin).await?;
            Ok(Transaction(lease))
        })
        .await
    }

    /// How to reach PostgreSQL.
    pub(super) fn connect_options(&self) -> ConnectOptions {
        self.connections.connect_options().as_ref().clone()
    }

    /// Connections that are open, and how many of them are idle.
    pub(super) fn size(&self) -> (u32, u32) {
        let idle = u32::try_from(self.connections.num_idle()).unwrap_or(u32::MAX);
        (self.connections.size(), idle)
    }

    /// Closes the connections, once nobody uses them.
    pub(super) async fn close(&self) {
        self.connections.close().await;
    }

    /// Goes on as a pooler needs it; those connections that there are cannot.
    pub(super) fn go_behind_pooler(&self) {
        self.pooler.found();
        // Behind a pooler no server knows what another prepared.
        let options = self.connect_options().statement_cache_capacity(0);
        self.connections.set_connect_options(options);
        self.breaker.outdate();
    }

    async fn lease(&self) -> Result<Lease, sqlx::Error> {
        self.breaker.admit()?;
        let began = Instant::now();
        let connection = {
            let place = self.queue.try_acquire();
            let _place = place.map_err(|_| sqlx::Error::PoolTimedOut)?;
            tokio::select! {
                connection = self.connections.acquire() => connection,
                () = self.breaker.opened() => return Err(away(&self.breaker)),
            }
        };
        Ok(Lease {
            connection: connection.inspect_err(|error| self.breaker.failed(error))?,
            pool: self.clone(),
            waited: began.elapsed(),
            in_transaction: false,
            is_given_back: false,
        })
    }

    /// A connection for a single statement, in a transaction where it needs one.
    async fn lease_for_one(&self) -> Result<Lease, sqlx::Error> {
        let mut lease = self.lease().await?;
        if let Some(begin) = self.beginning(lease.waited) {
            lease.begin(begin).await?;
        }
        Ok(lease)
    }

    /// How a transaction has to begin, if it has to at all.
    fn beginning(&self, waited: Duration) -> Option<Cow<'static, str>> {
        let behind_pooler = self.pooler.is_there();
        let begin = if behind_pooler {
            pooler::BEGIN
        } else {
            "begin"
        };
        if waited < NO_WAIT || !self.bounds_locks {
            return behind_pooler.then_some(begin.into());
        }
        // Zero would mean for ever.
        let left = WAIT.saturating_sub(waited).as_millis().max(10);
        Some(format!("{begin}; set local lock_timeout = '{left}ms'").into())
    }
}

fn away(breaker: &Breaker) -> sqlx::Error {
    breaker.admit().err().unwrap_or(sqlx::Error::PoolTimedOut)
}

/// A connection on loan. Dropped before it was given back, it is closed: nobody knows what state it is in.
#[derive(Debug)]
struct Lease {
    connection: PoolConnection<Postgres>,
    pool: Pool,
    /// How long it took to get it.
    waited: Duration,
    in_transaction: bool,
    is_given_back: bool,
}

impl Lease {
    async fn begin(&mut self, statements: Cow<'static, str>) -> Result<(), sqlx::Error> {
        let statements = sqlx::raw_sql(AssertSqlSafe(statements.into_owned()));
        let begun = self.connection.execute(statements).await;
        begun.inspect_err(|error| self.learn(error))?;
        self.in_transaction = true;
        Ok(())
    }

    /// Ends the transaction, if there is one, as its statements came out, and gives the connection back if
    /// it is fit to be used again.
    async fn end<T>(mut self, result: Result<T, sqlx::Error>) -> Result<T, sqlx::Error> {
        if let Err(error) = &result {
            self.learn(error);
            if !is_fit_after(error) {
                return result;
            }
        }
        if self.in_transaction {
            let end = if result.is_ok() { "commit" } else { "rollback" };
            let ended = self.connection.execute(end).await;
            if let Err(error) = ended {
                self.learn(&error);
                return result.and(Err(error));
            }
        }
        self.give_back();
        result
    }

    async fn undo(mut self) -> Result<(), sqlx::Error> {
        self.connection.execute("rollback").await?;
        self.give_back();
        Ok(())
    }

    /// Draws the conclusions from a failure.
    fn learn(&self, error: &sqlx::Error) {
        self.pool.breaker.failed(error);
        if is_of_a_pooler(error) {
            self.pool.go_behind_pooler();
        } else if is_read_only(error) {
            // A primary that was demoted, which the other connections lead to as well.
            self.pool.breaker.outdate();
        }
    }

    /// Not left to the connection's own drop, which waits without end for a sign of life.
    fn give_back(mut self) {
        self.is_given_back = true;
        let returned = self.connection.return_to_pool();
        tokio::spawn(async move {
            let _ = tokio::time::timeout(CHECK, returned).await;
        });
    }
}

/// Whether a connection can be used again after that.
fn is_fit_after(error: &sqlx::Error) -> bool {
    !is_of_the_connection(error) && !is_read_only(error) && !is_of_a_pooler(error)
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.is_given_back {
            self.pool.breaker.suspect();
            self.connection.close_on_drop();
        }
    }
}

/// A transaction; undone when dropped.
#[derive(Debug)]
pub struct Transaction(Lease);

impl Transaction {
    /// Makes it last.
    pub(super) async fn commit(self) -> Result<(), Error> {
        bounded(self.0.end(Ok(()))).await
    }

    /// Undoes it, for that reason. Not left to the drop, which is done with at some later time: the next
    /// request for the same thing may come at once. Should it fail, PostgreSQL undoes it by itself.
    pub(super) async fn undo(self, reason: Option<&Error>) {
        if let Some(error) = reason.and_then(Error::by_postgres) {
            self.0.learn(error);
            if !is_fit_after(error) {
                return;
            }
        }
        // Given up in the middle of a statement: there is no going on.
        if !matches!(reason, Some(Error::TimedOut)) {
            let undone = self.0.undo();
            let _ = bounded(undone).await;
        }
    }
}

impl Deref for Transaction {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.0.connection
    }
}

impl DerefMut for Transaction {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.0.connection
    }
}

type Step = Either<PgQueryResult, PgRow>;

/// A single statement; what it gives is collected, so that its connection is free again when this ends.
impl<'p> Executor<'p> for &'p Pool {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, Result<Step, sqlx::Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let steps = async move {
            let mut lease = self.lease_for_one().await?;
            let steps = lease.connection.fetch_many(query);
            let steps: Result<Vec<Step>, _> = steps.try_collect().await;
            lease.end(steps).await
        };
        stream::once(steps)
            .map_ok(|steps| stream::iter(steps.into_iter().map(Ok)))
            .try_flatten()
            .boxed()
    }

    fn fetch_optional<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxFuture<'e, Result<Option<PgRow>, sqlx::Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        Box::pin(async move {
            let mut lease = self.lease_for_one().await?;
            let row = lease.connection.fetch_optional(query).await;
            lease.end(row).await
        })
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [PgTypeInfo],
    ) -> BoxFuture<'e, Result<PgStatement, sqlx::Error>>
    where
        'p: 'e,
    {
        Box::pin(async move {
            let mut lease = self.lease_for_one().await?;
            let statement = lease.connection.prepare_with(sql, parameters).await;
            lease.end(statement).await
        })
    }

    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, Result<Describe<Postgres>, sqlx::Error>>
    where
        'p: 'e,
    {
        Box::pin(async move {
            let mut lease = self.lease_for_one().await?;
            let described = lease.connection.describe(sql).await;
            lease.end(described).await
        })
    }
}
