//! Applies the schema migrations.
//!
//! Invariants:
//! - Each migration is applied once, even if many replicas start at the same time.

use std::{sync::LazyLock, time::Duration};

use sqlx::{Connection as _, Executor as _, PgConnection, migrate::Migrate, migrate::Migrator};

use super::{connect::ConnectOptions, error::Error, pooler};

/// Migrations in `migrations/`, compiled in.
///
/// [`apply`] does the locking: sqlx's lock waits inside PostgreSQL, where a waiting replica's open snapshot and another
/// replica's `create index concurrently` wait for each other.
///
/// Unknown applied migrations are ignored, because a replica of the previous release may restart beside one of the
/// next.
static MIGRATOR: LazyLock<Migrator> = LazyLock::new(|| {
    let mut migrator = sqlx::migrate!();
    migrator.set_locking(false).set_ignore_missing(true);
    migrator
});

/// Key of the advisory lock: an arbitrary number that never changes and has no other use.
const LOCK_KEY: i64 = 0x7065_7473_6d69_6772;

/// First pause before another attempt to lock, doubled with each attempt.
const MIN_LOCK_PAUSE: Duration = Duration::from_millis(20);
const MAX_LOCK_PAUSE: Duration = Duration::from_millis(320);

/// Migration that has not been applied yet.
#[derive(Debug, Clone)]
pub struct PendingMigration {
    /// Number at the start of the file name.
    pub version: i64,
    /// Rest of the file name.
    pub description: String,
}

/// Timeout for opening a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Applies the pending migrations. Waits while another process does so.
///
/// # Errors
/// [`Error::Migrate`] if a migration fails, or if an applied one differs from the one compiled in.
pub async fn apply(options: &ConnectOptions) -> Result<(), Error> {
    let options = pooler::compatible(options.clone());
    if pooler::detect(&options).await? {
        return Box::pin(apply_in_one_transaction(&options)).await;
    }
    let mut connection = connect(&options).await?;
    let needs_lock = !pending_on(&mut connection).await?.is_empty();
    let mut pause = MIN_LOCK_PAUSE;
    while needs_lock && !try_lock(&mut connection, "select pg_try_advisory_lock($1)").await? {
        back_off(&mut pause).await;
    }
    MIGRATOR.run_direct(None, &mut connection, false).await?;
    if needs_lock {
        // The end of the session releases the lock too, but PostgreSQL may notice that late.
        sqlx::query("select pg_advisory_unlock($1)")
            .bind(LOCK_KEY)
            .execute(&mut connection)
            .await?;
    }
    connection.close().await?;
    Ok(())
}

/// Applies the pending migrations behind a pooler, where only a transaction stays on one server. A migration that
/// cannot run in a transaction fails here: it needs a database URL that bypasses the pooler.
async fn apply_in_one_transaction(options: &ConnectOptions) -> Result<(), Error> {
    let mut connection = connect(options).await?;
    let mut pause = MIN_LOCK_PAUSE;
    loop {
        let mut transaction = connection.begin_with(BEGIN).await?;
        if pending_on(&mut transaction).await?.is_empty() {
            break;
        }
        if try_lock(&mut transaction, "select pg_try_advisory_xact_lock($1)").await? {
            MIGRATOR.run_direct(None, &mut *transaction, false).await?;
            transaction.execute("deallocate all").await?;
            transaction.commit().await?;
            break;
        }
        transaction.rollback().await?;
        back_off(&mut pause).await;
    }
    connection.close().await?;
    Ok(())
}

/// Statements that begin a transaction on a server that may hold prepared statements of other clients.
const BEGIN: &str = "begin; deallocate all";

async fn connect(options: &ConnectOptions) -> Result<PgConnection, Error> {
    let connection = Box::pin(PgConnection::connect_with(options));
    let connection = tokio::time::timeout(CONNECT_TIMEOUT, connection).await;
    Ok(connection.map_err(|_| Error::TimedOut)??)
}

async fn back_off(pause: &mut Duration) {
    tokio::time::sleep(*pause).await;
    *pause = (*pause * 2).min(MAX_LOCK_PAUSE);
}

/// Returns the pending migrations, in order. Changes nothing.
///
/// # Errors
/// [`Error::Unavailable`] or [`Error::TimedOut`] if PostgreSQL cannot be reached.
pub async fn pending(options: &ConnectOptions) -> Result<Vec<PendingMigration>, Error> {
    let mut connection = connect(&pooler::compatible(options.clone())).await?;
    let mut transaction = connection.begin_with(BEGIN).await?;
    let pending = pending_on(&mut transaction).await?;
    transaction.rollback().await?;
    connection.close().await?;
    Ok(pending)
}

async fn pending_on(connection: &mut PgConnection) -> Result<Vec<PendingMigration>, Error> {
    let has_table: bool = sqlx::query_scalar("select to_regclass('_sqlx_migrations') is not null")
        .fetch_one(&mut *connection)
        .await?;
    let applied = if has_table {
        connection
            .list_applied_migrations(&MIGRATOR.table_name)
            .await?
    } else {
        Vec::new()
    };
    Ok(MIGRATOR
        .iter()
        .filter(|migration| {
            !applied
                .iter()
                .any(|applied| applied.version == migration.version)
        })
        .map(|migration| PendingMigration {
            version: migration.version,
            description: migration.description.to_string(),
        })
        .collect())
}

async fn try_lock(connection: &mut PgConnection, statement: &'static str) -> Result<bool, Error> {
    Ok(sqlx::query_scalar(statement)
        .bind(LOCK_KEY)
        .fetch_one(connection)
        .await?)
}
