//! Works behind a transaction pooler, such as PgBouncer, and detects one.
//!
//! Behind a pooler, every statement runs in a transaction, because only a transaction stays on one server. It begins by
//! deallocating what other clients prepared there ([`BEGIN`]).

use std::time::{Duration, Instant};

use sqlx::{Connection as _, Executor as _, PgConnection, Row as _, postgres::PgConnectOptions};

use super::{deadline::with_timeout, error::Error};
use crate::config::Pooler;

/// Returns the planner settings of all connections that serve requests, each as a statement with this command: `set` or `set local`.
macro_rules! planner_settings {
    ($set:literal) => {
        concat!(
            $set,
            " plan_cache_mode = force_generic_plan; ",
            $set,
            " enable_seqscan = off; ",
            $set,
            " enable_bitmapscan = off; ",
            $set,
            " jit = off"
        )
    };
}
/// Planner settings of a session. With a generic plan, and without sequential and bitmap scans, the plan of a statement depends
/// neither on its values nor on the size of the tables when it was made. JIT is off, because reading a sequence counts as a
/// sequential scan, and its cost would cause a compilation.
pub const PLANNER_SETTINGS: &str = planner_settings!("set");

/// Statements that begin a transaction behind a pooler. Settings are local, because other clients use the server next.
pub(super) const BEGIN: &str = concat!(
    "begin; deallocate all; set local statement_timeout = '1900ms'; ",
    "set local idle_in_transaction_session_timeout = '10s'; ",
    planner_settings!("set local")
);

/// Corrections of the setting.
pub(super) const SET_TRANSACTION: &str = "found a connection pooler; set database.pooler = \"transaction\" (PET_INVENTORY__DATABASE__POOLER)";
const SET_NONE: &str =
    "found no connection pooler; set database.pooler = \"none\" (PET_INVENTORY__DATABASE__POOLER)";

/// Tolerated difference between the two clocks while a connection is opened.
const CLOCK_TOLERANCE: Duration = Duration::from_millis(100);

/// Removes options that a pooler does not support.
pub(super) fn compatible(options: PgConnectOptions, pooler: Pooler) -> PgConnectOptions {
    // PgBouncer refuses connections with this parameter, and PostgreSQL 12 and later do not need it.
    let options = options.extra_float_digits(None);
    match pooler {
        Pooler::None => options,
        // A server does not know statements that were prepared on another.
        Pooler::Transaction => options.statement_cache_capacity(0),
    }
}

/// Returns the correction of the setting `database.pooler` if it is wrong.
///
/// The sign of a pooler is a server process that is older than the connection to it.
pub(super) async fn check(
    options: &PgConnectOptions,
    pooler: Pooler,
) -> Result<Option<&'static str>, Error> {
    let is_detected = async {
        let began = Instant::now();
        let (first, first_start, first_now) = connect(options).await?;
        let took = began.elapsed() + CLOCK_TOLERANCE;
        // The pooler may have started a process for the first connection, and while others are busy, for each.
        let (second, second_start, _) = connect(options).await?;
        first.close().await?;
        second.close().await?;
        Ok(first_now - first_start > took.as_secs_f64() || second_start < first_now)
    };
    let is_detected = with_timeout(Box::pin(is_detected)).await?;
    Ok(match pooler {
        Pooler::None => is_detected.then_some(SET_TRANSACTION),
        Pooler::Transaction => (!is_detected).then_some(SET_NONE),
    })
}

/// Opens a connection. Returns it with the start of its server process, and the time, both by the clock of the server.
async fn connect(options: &PgConnectOptions) -> Result<(PgConnection, f64, f64), sqlx::Error> {
    // A plain-text query, so that nothing is prepared on a server that may be shared.
    const QUERY: &str = "
        select extract(epoch from backend_start)::float8::text,
            extract(epoch from clock_timestamp())::float8::text
        from pg_stat_activity where pid = pg_backend_pid()";
    let mut connection = PgConnection::connect_with(options).await?;
    let row = connection.fetch_one(QUERY).await?;
    let seconds = |index: usize| -> Result<f64, sqlx::Error> {
        let text: &str = row.try_get(index)?;
        Ok(text.parse().unwrap_or_default())
    };
    let (start, now) = (seconds(0)?, seconds(1)?);
    Ok((connection, start, now))
}
