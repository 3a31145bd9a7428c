//! Applies the schema migrations.
//!
//! Invariant: each migration is applied once, even if many replicas start at the same time.

use std::time::Duration;

use sqlx::{
    AssertSqlSafe, Connection as _, Executor as _, PgConnection, SqlSafeStr as _,
    migrate::{Migrate as _, Migration},
};

use super::{
    conditions::Conditions,
    deadline,
    error::Error,
    options::ConnectOptions,
    pooler,
    schema::{MIGRATOR, pending_on},
};
use crate::config::Pooler;

/// Key of the advisory lock: an arbitrary number that never changes and has no other use.
const LOCK_KEY: i64 = 0x7065_7473_6d69_6772;

/// Pause before another attempt to lock.
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// Timeout for opening a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Applies the pending migrations, which needs a role that may change the schema. Waits while another process does so. Fails with
/// [`Error::Unmet`] if the program cannot use the database.
pub async fn apply(options: &ConnectOptions, mut pooler: Pooler) -> Result<(), Error> {
    if pending(options, pooler).await?.is_empty() {
        return Ok(());
    }
    // Behind a pooler that is not declared, locks and statements of a session would stay on its servers.
    if pooler == Pooler::None
        && pooler::check(&pooler::compatible(options.clone(), pooler), pooler)
            .await?
            .is_some()
    {
        pooler = Pooler::Transaction;
    }
    let mut connection = connect(options, pooler).await?;
    if pooler == Pooler::Transaction {
        return Box::pin(apply_in_one_transaction(connection)).await;
    }
    while !try_lock(&mut connection, "select pg_try_advisory_lock($1)").await? {
        tokio::time::sleep(LOCK_PAUSE).await;
    }
    apply_pending(&mut connection, Pooler::None).await?;
    // The end of the session releases the lock too, but PostgreSQL may notice that late.
    let unlock = sqlx::query("select pg_advisory_unlock($1)").bind(LOCK_KEY);
    unlock.execute(&mut connection).await?;
    connection.close().await?;
    Ok(())
}

/// Applies the pending migrations, and logs each with its time, unless the database is new. The caller has the lock. (That of sqlx
/// would wait inside PostgreSQL, where a waiting replica's open snapshot and an index that another replica builds concurrently wait for
/// each other.)
async fn apply_pending(connection: &mut PgConnection, pooler: Pooler) -> Result<(), Error> {
    let table = &MIGRATOR.table_name;
    connection.ensure_migrations_table(table).await?;
    let pending = pending_on(connection).await?;
    let is_new = pending.len() == MIGRATOR.iter().count();
    for migration in pending {
        let mut migration = migration.clone();
        match pooler {
            // In a transaction, PostgreSQL builds an index only while changes wait.
            Pooler::Transaction if migration.no_tx => {
                let sql = migration.sql.as_str().replace(" concurrently", "");
                migration.sql = AssertSqlSafe(sql).into_sql_str();
            }
            Pooler::None if migration.no_tx => {
                drop_incomplete_index(connection, migration.sql.as_str()).await?;
            }
            Pooler::Transaction | Pooler::None => {}
        }
        let time = connection.apply(table, &migration).await?;
        if !is_new {
            let Migration {
                version,
                description,
                ..
            } = migration;
            tracing::info!(version, %description, ?time, "applied a migration");
        }
    }
    Ok(())
}

/// Drops the index that `migration` builds, if its concurrent build was interrupted: the migration would take it for complete.
async fn drop_incomplete_index(
    connection: &mut PgConnection,
    migration: &str,
) -> Result<(), Error> {
    let query = sqlx::query_scalar(
        "select indexrelid::regclass::text from pg_index join pg_class on pg_class.oid = indexrelid
         where not indisvalid and $1 like '% ' || relname || ' on %'",
    );
    let query = query.bind(migration);
    let index: Option<String> = query.fetch_optional(&mut *connection).await?;
    if let Some(index) = index {
        let drop = AssertSqlSafe(format!("drop index concurrently {index}"));
        connection.execute(drop).await?;
    }
    Ok(())
}

/// Applies the pending migrations behind a pooler, where only a transaction stays on one server.
async fn apply_in_one_transaction(mut connection: PgConnection) -> Result<(), Error> {
    loop {
        let mut transaction = connection.begin_with(BEGIN).await?;
        if pending_on(&mut transaction).await?.is_empty() {
            break;
        }
        if try_lock(&mut transaction, "select pg_try_advisory_xact_lock($1)").await? {
            apply_pending(&mut transaction, Pooler::Transaction).await?;
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
const BEGIN: &str = "begin isolation level read committed read write; deallocate all";

async fn connect(options: &ConnectOptions, pooler: Pooler) -> Result<PgConnection, Error> {
    let options = pooler::compatible(options.clone(), pooler);
    let connecting = async {
        let mut connection = PgConnection::connect_with(&options).await?;
        if pooler == Pooler::None {
            connection.execute(pooler::TRANSACTION_SETTINGS).await?;
        }
        Ok::<_, sqlx::Error>(connection)
    };
    deadline::wait(CONNECT_TIMEOUT, Box::pin(connecting)).await
}

/// Returns the pending migrations, in order. Fails if the program cannot use the database. Changes nothing.
pub async fn pending(
    options: &ConnectOptions,
    pooler: Pooler,
) -> Result<Vec<&'static Migration>, Error> {
    conditions(options, pooler).await?.met()
}

/// Returns the state of the database, with the pending migrations. Changes nothing.
pub async fn conditions(options: &ConnectOptions, pooler: Pooler) -> Result<Conditions, Error> {
    let mut connection = connect(options, pooler).await?;
    let mut transaction = connection.begin_with(BEGIN).await?;
    let state = Conditions::read(&mut transaction).await?;
    transaction.rollback().await?;
    connection.close().await?;
    Ok(state)
}

async fn try_lock(connection: &mut PgConnection, statement: &'static str) -> Result<bool, Error> {
    let lock = sqlx::query_scalar(statement).bind(LOCK_KEY);
    Ok(lock.fetch_one(connection).await?)
}
