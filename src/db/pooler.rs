//! Works behind a transaction pooler, such as PgBouncer, and detects one.
//!
//! Behind a pooler, every statement runs in a transaction, because only a transaction stays on one server. It begins by
//! deallocating what other clients prepared there ([`BEGIN`]).

use std::time::Duration;

use sqlx::{Connection as _, Executor as _, PgConnection, Row as _, postgres::PgConnectOptions};
use tokio::time::timeout;

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

/// Settings of the transactions of a session, over those of the role and the database.
pub(super) const TRANSACTION_SETTINGS: &str = "set default_transaction_isolation = 'read committed'; \
    set default_transaction_read_only = off";

/// Statements that begin a transaction behind a pooler. Settings are local, because other clients use the server next.
pub(super) const BEGIN: &str = concat!(
    "begin isolation level read committed read write; deallocate all; set local statement_timeout = '1900ms'; ",
    "set local idle_in_transaction_session_timeout = '10s'; ",
    planner_settings!("set local")
);

/// Corrections of the setting.
pub(super) const SET_TRANSACTION: &str = "found a connection pooler in transaction mode; set database.pooler = \"transaction\" (PET_INVENTORY__DATABASE__POOLER)";
const SET_NONE: &str = "found no connection pooler in transaction mode; set database.pooler = \"none\" (PET_INVENTORY__DATABASE__POOLER)";

/// Transactions in which [`check`] looks for a pooler: one that takes servers in turn may give the same one a few times.
const ATTEMPTS: usize = 8;

/// Time for which a connection waits for a server if the other one has the only one. PostgreSQL itself responds sooner, also on a busy
/// machine.
const SERVER_TIMEOUT: Duration = Duration::from_secs(1);

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
pub(super) async fn check(
    options: &PgConnectOptions,
    pooler: Pooler,
) -> Result<Option<&'static str>, Error> {
    let is_detected = with_timeout(Box::pin(changes_servers(options))).await?;
    Ok(match pooler {
        Pooler::None => is_detected.then_some(SET_TRANSACTION),
        Pooler::Transaction => (!is_detected).then_some(SET_NONE),
    })
}

/// Returns true if two connections share servers: while the second has a transaction, the first gets another server than before, or
/// none in time. A pooler in session mode gives each connection a server of its own.
async fn changes_servers(options: &PgConnectOptions) -> Result<bool, sqlx::Error> {
    let mut first = PgConnection::connect_with(options).await?;
    let mut second = PgConnection::connect_with(options).await?;
    let server = server_of(&mut first).await?;
    let mut has_changed = false;
    for _ in 0..ATTEMPTS {
        second.execute("begin").await?;
        let other = server_of(&mut second).await?;
        let again = timeout(SERVER_TIMEOUT, server_of(&mut first)).await;
        has_changed = match again {
            Ok(again) => other == server || again? != server,
            // It is in the middle of a statement.
            Err(_) => return Ok(true),
        };
        second.execute("rollback").await?;
        if has_changed {
            break;
        }
    }
    first.close().await?;
    second.close().await?;
    Ok(has_changed)
}

/// Returns the process id of the server that executes the statement.
async fn server_of(connection: &mut PgConnection) -> Result<String, sqlx::Error> {
    // An unprepared query, since the server may be shared; its results are text.
    let row = connection
        .fetch_one("select pg_backend_pid()::text")
        .await?;
    row.try_get(0)
}
