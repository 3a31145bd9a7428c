//! The schema, brought up to date. Invariant: whatever number of replicas start together, each
//! migration is applied once.

use std::{sync::LazyLock, time::Duration};

use sqlx::{Connection as _, Executor as _, PgConnection, migrate::Migrate, migrate::Migrator};

use super::{ConnectOptions, Error, pooler};

/// The files of `migrations/`, compiled in.
///
/// Locking is ours ([`apply`]): sqlx's waits inside PostgreSQL, where a waiting replica's open
/// snapshot and another's `create index concurrently` wait for each other.
///
/// Migrations that this binary does not know are none of its business: a replica of the release before
/// may restart beside one of the next.
static MIGRATOR: LazyLock<Migrator> = LazyLock::new(|| {
    let mut migrator = sqlx::migrate!();
    migrator.set_locking(false).set_ignore_missing(true);
    migrator
});

/// Any number, as long as it is always the same and nobody else's.
const LOCK: i64 = 0x7065_7473_6d69_6772;

/// How soon a replica asks again whether another has finished; doubled with each time.
const LOCK_RETRY: Duration = Duration::from_millis(20);
const LONGEST_LOCK_RETRY: Duration = Duration::from_millis(320);

/// A migration, for a person to read.
#[derive(Debug, Clone)]
pub struct Pending {
    /// The number its file begins with.
    pub version: i64,
    /// The rest of the file's name.
    pub description: String,
}

/// How long PostgreSQL may take to let us connect.
const CONNECT: Duration = Duration::from_secs(5);

/// Applies what is missing. Waits while another process does the same.
///
/// # Errors
/// [`Error::Migrate`] when a migration fails, or one that was applied is not the one compiled in.
pub async fn apply(options: &ConnectOptions) -> Result<(), Error> {
    let options = pooler::options(options.clone());
    if pooler::is_between(&options).await? {
        return Box::pin(apply_in_one_transaction(&options)).await;
    }
    let mut connection = connect(&options).await?;
    let locks = !pending_on(&mut connection).await?.is_empty();
    let mut retry = LOCK_RETRY;
    while locks && !try_lock(&mut connection, "select pg_try_advisory_lock($1)").await? {
        pause(&mut retry).await;
    }
    MIGRATOR.run_direct(None, &mut connection, false).await?;
    if locks {
        // The lock is the session's, so dying frees it too; but PostgreSQL is in no hurry then.
        sqlx::query("select pg_advisory_unlock($1)")
            .bind(LOCK)
            .execute(&mut connection)
            .await?;
    }
    connection.close().await?;
    Ok(())
}

/// The same behind a pooler, where nothing but a transaction has a server to itself. A migration that cannot
/// run in one fails here: it needs a database URL that leads past the pooler.
async fn apply_in_one_transaction(options: &ConnectOptions) -> Result<(), Error> {
    let mut connection = connect(options).await?;
    let mut retry = LOCK_RETRY;
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
        pause(&mut retry).await;
    }
    connection.close().await?;
    Ok(())
}

/// Begins a transaction behind a pooler, where a server may remember what others prepared.
const BEGIN: &str = "begin; deallocate all";

async fn connect(options: &ConnectOptions) -> Result<PgConnection, Error> {
    let connection = Box::pin(PgConnection::connect_with(options));
    let connection = tokio::time::timeout(CONNECT, connection).await;
    Ok(connection.map_err(|_| Error::TimedOut)??)
}

/// Waits before the lock is asked for again, each time longer.
async fn pause(pause: &mut Duration) {
    tokio::time::sleep(*pause).await;
    *pause = (*pause * 2).min(LONGEST_LOCK_RETRY);
}

/// What is missing, in order; changes nothing.
///
/// # Errors
/// [`Error::Unavailable`] when PostgreSQL is.
pub async fn pending(options: &ConnectOptions) -> Result<Vec<Pending>, Error> {
    let mut connection = connect(&pooler::options(options.clone())).await?;
    let mut transaction = connection.begin_with(BEGIN).await?;
    let pending = pending_on(&mut transaction).await?;
    transaction.rollback().await?;
    connection.close().await?;
    Ok(pending)
}

async fn pending_on(connection: &mut PgConnection) -> Result<Vec<Pending>, Error> {
    let any: bool = sqlx::query_scalar("select to_regclass('_sqlx_migrations') is not null")
        .fetch_one(&mut *connection)
        .await?;
    let applied = if any {
        connection
            .list_applied_migrations(&MIGRATOR.table_name)
            .await?
    } else {
        Vec::new()
    };
    Ok(MIGRATOR
        .iter()
        .filter(|migration| !applied.iter().any(|done| done.version == migration.version))
        .map(|migration| Pending {
            version: migration.version,
            description: migration.description.to_string(),
        })
        .collect())
}

async fn try_lock(connection: &mut PgConnection, ask: &'static str) -> Result<bool, Error> {
    Ok(sqlx::query_scalar(ask)
        .bind(LOCK)
        .fetch_one(connection)
        .await?)
}
