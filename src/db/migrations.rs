//! Applies the schema migrations.
//!
//! Invariant: each migration is applied once, even if many replicas start at the same time.

use std::{sync::LazyLock, time::Duration};

use sqlx::{
    Connection as _, Executor as _, PgConnection,
    migrate::{Migrate as _, Migration, Migrator},
};

use super::{deadline, error::Error, options::ConnectOptions, pooler};
use crate::config::Pooler;

/// Migrations in `migrations/`, compiled in.
static MIGRATOR: LazyLock<Migrator> = LazyLock::new(migrator);

/// Returns a migrator that does not lock, and ignores applied migrations that it does not know.
///
/// [`apply`] does the locking: sqlx's lock waits inside PostgreSQL, where a waiting replica's open snapshot and an index
/// that another replica builds concurrently wait for each other. Of unknown migrations there are some if a replica of the
/// previous release restarts beside one of the next.
fn migrator() -> Migrator {
    let mut migrator = sqlx::migrate!();
    migrator.set_locking(false).set_ignore_missing(true);
    migrator
}

/// First migration. The earlier ones, of builds before 0.1.0, had the same tables, but cannot be continued.
const FIRST: i64 = 201;

/// Key of the advisory lock: an arbitrary number that never changes and has no other use.
const LOCK_KEY: i64 = 0x7065_7473_6d69_6772;

/// Pause before another attempt to lock.
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// Timeout for opening a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Applies the pending migrations. Waits while another process does so. Fails if an applied migration differs from the
/// one compiled in, and with [`Error::EarlierSchema`] if the database has migrations from before the first one.
pub async fn apply(options: &ConnectOptions, mut pooler: Pooler) -> Result<(), Error> {
    // Behind a pooler that is not declared, locks and statements of a session would stay on its servers.
    if pooler == Pooler::None
        && !pending(options, pooler).await?.is_empty()
        && pooler::check(&pooler::compatible(options.clone(), pooler), pooler)
            .await?
            .is_some()
    {
        pooler = Pooler::Transaction;
    }
    let options = pooler::compatible(options.clone(), pooler);
    if pooler == Pooler::Transaction {
        return Box::pin(apply_in_one_transaction(&options)).await;
    }
    let mut connection = connect(&options).await?;
    let needs_lock = !pending_on(&mut connection).await?.is_empty();
    while needs_lock && !try_lock(&mut connection, "select pg_try_advisory_lock($1)").await? {
        tokio::time::sleep(LOCK_PAUSE).await;
    }
    MIGRATOR.run_direct(None, &mut connection, false).await?;
    if needs_lock {
        // The end of the session releases the lock too, but PostgreSQL may notice that late.
        let unlock = sqlx::query("select pg_advisory_unlock($1)").bind(LOCK_KEY);
        unlock.execute(&mut connection).await?;
    }
    connection.close().await?;
    Ok(())
}

/// Applies the pending migrations behind a pooler, where only a transaction stays on one server.
async fn apply_in_one_transaction(options: &ConnectOptions) -> Result<(), Error> {
    let mut connection = connect(options).await?;
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
        tokio::time::sleep(LOCK_PAUSE).await;
    }
    connection.close().await?;
    Ok(())
}

/// Statements that begin a transaction on a server that may hold prepared statements of other clients.
const BEGIN: &str = "begin; deallocate all";

async fn connect(options: &ConnectOptions) -> Result<PgConnection, Error> {
    let connection = Box::pin(PgConnection::connect_with(options));
    deadline::wait(CONNECT_TIMEOUT, connection).await
}

/// Returns the pending migrations, in order. Changes nothing.
pub async fn pending(
    options: &ConnectOptions,
    pooler: Pooler,
) -> Result<Vec<&'static Migration>, Error> {
    let mut connection = connect(&pooler::compatible(options.clone(), pooler)).await?;
    let mut transaction = connection.begin_with(BEGIN).await?;
    let pending = pending_on(&mut transaction).await?;
    transaction.rollback().await?;
    connection.close().await?;
    Ok(pending)
}

/// Returns the version of the schema after all migrations.
pub fn latest() -> i64 {
    let versions = MIGRATOR.iter().map(|migration| migration.version);
    versions.max().unwrap_or_default()
}

async fn pending_on(connection: &mut PgConnection) -> Result<Vec<&'static Migration>, Error> {
    let has_table = sqlx::query_scalar("select to_regclass('_sqlx_migrations') is not null");
    let applied = if has_table.fetch_one(&mut *connection).await? {
        let table = &MIGRATOR.table_name;
        connection.list_applied_migrations(table).await?
    } else {
        Vec::new()
    };
    let earlier = applied.iter().map(|applied| applied.version);
    if let Some(version) = earlier.filter(|version| *version < FIRST).max() {
        return Err(Error::EarlierSchema(version));
    }
    let pending = MIGRATOR.iter().filter(|migration| {
        let mut applied = applied.iter();
        applied.all(|applied| applied.version != migration.version)
    });
    Ok(pending.collect())
}

async fn try_lock(connection: &mut PgConnection, statement: &'static str) -> Result<bool, Error> {
    let lock = sqlx::query_scalar(statement).bind(LOCK_KEY);
    Ok(lock.fetch_one(connection).await?)
}
