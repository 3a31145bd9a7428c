//! Whether a pooler that deals out servers by the transaction (PgBouncer and its like) stands between
//! PostgreSQL and us.
//!
//! No switch says so: an operator who put one in between later would forget it. We see it by a server
//! process that is older than our connection to it, and, should that miss, by the first statement that a
//! server does not know or knows already. Behind a pooler every statement travels in a transaction, which
//! alone stays on one server, and that begins by clearing away what others prepared there ([`BEGIN`]).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use sqlx::{Connection as _, Executor as _, PgConnection, Row as _};

use super::{ConnectOptions, Error, bounded};

/// Begins a transaction behind a pooler. Nothing of it outlasts the transaction: the server is somebody
/// else's next. How statements are planned is said because the server may have been ours before we noticed.
pub(super) const BEGIN: &str = "begin; deallocate all; set local statement_timeout = '2s'; \
                                set local lock_timeout = '1s'; \
                                set local idle_in_transaction_session_timeout = '10s'; \
                                set local plan_cache_mode = force_custom_plan; \
                                set local enable_seqscan = on";

/// How far the two clocks may run apart while we connect.
const LEEWAY: Duration = Duration::from_millis(100);

/// Whether a pooler is in between, as far as is known. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Pooler(Arc<AtomicBool>);

impl Pooler {
    /// Whether there is one.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Notes that there is one; whether nobody knew.
    pub(super) fn found(&self) -> bool {
        let is_new = !self.0.swap(true, Ordering::Relaxed);
        if is_new {
            tracing::info!(
                "a pooler is between PostgreSQL and us: each statement gets a transaction, and \
                 changed credentials take effect within a second instead of at once"
            );
        }
        is_new
    }
}

/// Options that both a pooler and PostgreSQL take.
pub(super) fn options(options: ConnectOptions) -> ConnectOptions {
    // PgBouncer refuses a connection that asks for this, and since PostgreSQL 12 there is no need to.
    options.extra_float_digits(None)
}

/// Looks whether a pooler is in between: two connections, because it may open a server for the first.
pub(super) async fn is_between(options: &ConnectOptions) -> Result<bool, Error> {
    // Boxed: connecting is large, and whoever builds the service has that on its stack.
    bounded(Box::pin(look(options))).await
}

async fn look(options: &ConnectOptions) -> Result<bool, sqlx::Error> {
    let (first, one) = Server::behind(options).await?;
    let (second, other) = Server::behind(options).await?;
    first.close().await?;
    second.close().await?;
    // Two connections that are open at once have a server each.
    Ok(one.is_older || other.is_older || one.pid == other.pid)
}

/// The server process that a statement met.
struct Server {
    pid: i32,
    /// Whether it was there before we connected.
    is_older: bool,
}

impl Server {
    async fn behind(options: &ConnectOptions) -> Result<(PgConnection, Self), sqlx::Error> {
        // As plain text: nothing is prepared on a server that may not be ours.
        const QUESTION: &str = "
            select pid::text, extract(epoch from clock_timestamp() - backend_start)::float8::text
            from pg_stat_activity where pid = pg_backend_pid()";
        let began = Instant::now();
        let mut connection = PgConnection::connect_with(options).await?;
        let row = connection.fetch_one(QUESTION).await?;
        let age: f64 = row.try_get::<&str, _>(1)?.parse().unwrap_or_default();
        let server = Self {
            pid: row.try_get::<&str, _>(0)?.parse().unwrap_or_default(),
            is_older: age > (began.elapsed() + LEEWAY).as_secs_f64(),
        };
        Ok((connection, server))
    }
}
