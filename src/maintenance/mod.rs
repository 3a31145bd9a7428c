//! Periodic maintenance: purges expired data, folds inventory changes and names of pets, keeps the tags that are suggested,
//! publishes the record of changes, returns unused requests to limits, writes the last uses of API keys and the usage of callers,
//! and shows the time of the last backup.
//!
//! Invariant: without it, only memory, storage and latency grow, limits count requests that were not used, operators do not
//! see the last uses, and searches by name and tag do not find what plain SQL or a restore has written.

pub mod orphaned_blobs;

use std::{sync::Arc, time::Duration};

use tokio::{task::JoinSet, time::sleep};

use crate::{
    auth::Authenticator,
    blob_store::{BlobStore, OrphanedBlobs},
    db::{self, Database},
    feed::Feed,
    limits::{
        failed_authentication::FailedAuthenticationLimit,
        logins::Logins,
        requests::{RateLimits, Usage},
    },
};

/// Parts that the tasks maintain.
pub struct Maintained {
    /// PostgreSQL.
    pub database: Database,
    /// Limits of requests.
    pub limits: Arc<RateLimits>,
    /// Failed-authentication limit by client address.
    pub failed_authentication: FailedAuthenticationLimit,
    /// Limits of login attempts.
    pub logins: Logins,
    /// Live feed of the record of changes.
    pub feed: Feed,
    /// Time for which the record is kept.
    pub change_retention: Duration,
    /// Collects the uses of API keys.
    pub authenticator: Authenticator,
    /// Image store.
    pub blobs: BlobStore,
    /// Signals that there may be orphaned blobs.
    pub orphaned_blobs: OrphanedBlobs,
}

/// Starts the periodic tasks. They end when the set is dropped.
#[must_use]
pub fn start(maintained: Maintained) -> JoinSet<()> {
    let Maintained {
        database, limits, ..
    } = maintained;
    let mut tasks = JoinSet::new();
    tasks.spawn(flush_limits(Arc::clone(&limits)));
    tasks.spawn(write_usage(database.clone(), limits.usage.clone()));
    tasks.spawn(sweep_limits(
        Arc::clone(&limits),
        maintained.failed_authentication,
        maintained.logins,
    ));
    tasks.spawn(fold_inventory(database.clone()));
    tasks.spawn(fold_names(database.clone()));
    tasks.spawn(compare_tag_names(database.clone()));
    tasks.spawn(maintained.feed.run(database.clone()));
    tasks.spawn(purge_expired_rows(
        database.clone(),
        maintained.change_retention,
    ));
    tasks.spawn(write_key_uses(maintained.authenticator));
    tasks.spawn(show_last_backup(database.clone()));
    tasks.spawn(orphaned_blobs::sweep(
        database,
        maintained.blobs,
        maintained.orphaned_blobs,
    ));
    tasks
}

/// Returns unused requests to the limits of callers.
async fn flush_limits(limits: Arc<RateLimits>) {
    loop {
        sleep(Duration::from_millis(500)).await;
        limits.limiter.flush();
    }
}

/// Writes the requests of callers to their history.
async fn write_usage(database: Database, usage: Usage) {
    loop {
        sleep(Duration::from_secs(1)).await;
        match usage.write(&database).await {
            // Logged each second already.
            Ok(()) | Err(db::Error::Unavailable(_)) => {}
            Err(error) => {
                tracing::warn!(%error, "failed to write the usage of callers; retrying in 1 s");
            }
        }
    }
}

/// Removes full token buckets and expired blocks of client addresses.
async fn sweep_limits(
    limits: Arc<RateLimits>,
    failed_authentication: FailedAuthenticationLimit,
    logins: Logins,
) {
    loop {
        sleep(Duration::from_secs(30)).await;
        limits.sweep();
        failed_authentication.sweep();
        logins.sweep();
    }
}

/// Folds inventory changes, so that a read has few of them to add up.
async fn fold_inventory(database: Database) {
    loop {
        sleep(Duration::from_secs(5)).await;
        let folded = async {
            while database.run(db::inventory::fold).await? > 0 {}
            Ok::<_, db::Error>(())
        };
        if let Err(error) = folded.await {
            tracing::warn!(%error, "failed to fold inventory changes; retrying in 5 s");
        }
    }
}

/// Folds names of pets that were written without their folded names, by plain SQL or a restore.
async fn fold_names(database: Database) {
    loop {
        let folded = async {
            while database.transact(db::pets::fold_names).await? > 0 {}
            Ok::<_, db::Error>(())
        };
        match folded.await {
            Ok(()) | Err(db::Error::Unavailable(_)) => {}
            Err(error) => {
                tracing::warn!(%error, "failed to fold names of pets; retrying in 5 s");
            }
        }
        sleep(Duration::from_secs(5)).await;
    }
}

/// Adds the names of tags in use to those that are suggested, and removes the others: a thousand of each every second. Names that no
/// tag has any more, however many, do not delay a new one.
async fn compare_tag_names(database: Database) {
    let (mut last_used, mut last_known) = (String::new(), String::new());
    loop {
        let compared = async {
            let added = database
                .run(async |connection| db::pets::add_used_tag_names(connection, &last_used).await);
            last_used = added.await?.unwrap_or_default();
            let removed = database.run(async |connection| {
                db::pets::remove_unused_tag_names(connection, &last_known).await
            });
            last_known = removed.await?.unwrap_or_default();
            Ok::<_, db::Error>(())
        };
        match compared.await {
            Ok(()) | Err(db::Error::Unavailable(_)) => {}
            Err(error) => {
                tracing::warn!(%error, "failed to compare the names of tags; retrying in 1 s");
            }
        }
        sleep(Duration::from_secs(1)).await;
    }
}

/// Writes the times at which API keys were last used.
async fn write_key_uses(authenticator: Authenticator) {
    loop {
        sleep(Duration::from_mins(1)).await;
        if let Err(error) = authenticator.write_key_uses().await {
            tracing::warn!(%error, "failed to write the last uses of API keys; retrying in 60 s");
        }
    }
}

/// Shows the time of the last backup in the metrics.
async fn show_last_backup(database: Database) {
    loop {
        match database.run(db::backups::last).await {
            Ok(last) => metrics::gauge!("backup_last_success_timestamp_seconds").set(last),
            Err(error) => {
                tracing::warn!(%error, "failed to read the time of the last backup; retrying in 60 s");
            }
        }
        sleep(Duration::from_mins(1)).await;
    }
}

async fn purge_changes(database: &Database, retention: Duration) -> Result<u64, db::Error> {
    let purged = database
        .run(async |connection| db::changes::purge_expired(connection, retention).await)
        .await?;
    metrics::counter!("changes_purged_total").increment(purged);
    Ok(purged)
}

/// Deletes idempotency keys after a day, expired access tokens and sessions, limit usage of past days, old
/// changes, and deliveries that were given up long ago.
async fn purge_expired_rows(database: Database, change_retention: Duration) {
    loop {
        let purged = async {
            // Each call deletes at most 1,000 rows, so that locks are short.
            while database.run(db::idempotency::purge_expired).await? > 0 {}
            while database.run(db::oauth::purge_expired).await? > 0 {}
            while database.run(db::sessions::purge_expired).await? > 0 {}
            while purge_changes(&database, change_retention).await? > 0 {}
            while database
                .run(async |connection| {
                    db::deliveries::purge_expired(connection, change_retention).await
                })
                .await?
                > 0
            {}
            while database.run(db::limits::purge_expired).await? > 0 {}
            while database.run(db::usage::purge_expired).await? > 0 {}
            Ok::<_, db::Error>(())
        };
        if let Err(error) = purged.await {
            tracing::warn!(%error, "failed to purge expired rows; retrying in 60 s");
        }
        sleep(Duration::from_mins(1)).await;
    }
}
