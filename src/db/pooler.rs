//! Detects a transaction pooler (such as PgBouncer) between this process and PostgreSQL.
//!
//! There is no setting for it, because an operator who adds a pooler later would forget to change it. Signs of a pooler
//! are a server process that is older than the connection to it, a server process that two connections share, and a
//! statement that the server does not know or knows already. Behind a pooler, every statement runs in a transaction,
//! because only a transaction stays on one server. It begins by deallocating what other clients prepared there
//! ([`BEGIN`]).

use std::time::{Duration, Instant};

use sqlx::{Connection as _, Executor as _, PgConnection, Row as _};

use super::{connect::ConnectOptions, deadline::with_timeout, error::Error};

/// Statements that begin a transaction behind a pooler. Settings are local, because other clients use the server next.
/// Planner settings are reset, because this process may have changed them before it detected the pooler.
pub(super) const BEGIN: &str = "begin; deallocate all; set local statement_timeout = '2s'; \
                                set local lock_timeout = '1s'; \
                                set local idle_in_transaction_session_timeout = '10s'; \
                                set local plan_cache_mode = force_custom_plan; \
                                set local enable_seqscan = on";

/// Tolerated difference between the two clocks while a connection is opened.
const CLOCK_TOLERANCE: Duration = Duration::from_millis(100);

/// Removes options that a pooler does not accept.
pub(super) fn compatible(options: ConnectOptions) -> ConnectOptions {
    // PgBouncer refuses connections with this parameter, and PostgreSQL 12 and later do not need it.
    options.extra_float_digits(None)
}

/// Checks for a pooler, with two connections because the pooler may open a new server for the first.
pub(super) async fn detect(options: &ConnectOptions) -> Result<bool, Error> {
    let compare = async {
        let first = Backend::connect(options).await?;
        let second = Backend::connect(options).await?;
        // Without a pooler, two open connections have different backends.
        let is_detected = first.is_older || second.is_older || first.pid == second.pid;
        first.connection.close().await?;
        second.connection.close().await?;
        Ok(is_detected)
    };
    with_timeout(Box::pin(compare)).await
}

/// Connection, and its server process, or behind a pooler, the one that executed its statement.
struct Backend {
    connection: PgConnection,
    pid: i32,
    /// True if the process started before the connection was opened.
    is_older: bool,
}

impl Backend {
    async fn connect(options: &ConnectOptions) -> Result<Self, sqlx::Error> {
        // A plain-text query, so that nothing is prepared on a server that may be shared.
        const QUERY: &str = "
            select pid::text, extract(epoch from clock_timestamp() - backend_start)::float8::text
            from pg_stat_activity where pid = pg_backend_pid()";
        let started = Instant::now();
        let mut connection = PgConnection::connect_with(options).await?;
        let row = connection.fetch_one(QUERY).await?;
        let age: f64 = row.try_get::<&str, _>(1)?.parse().unwrap_or_default();
        Ok(Self {
            connection,
            pid: row.try_get::<&str, _>(0)?.parse().unwrap_or_default(),
            is_older: age > (started.elapsed() + CLOCK_TOLERANCE).as_secs_f64(),
        })
    }
}
