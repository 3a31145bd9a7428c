//! Deletes blobs in the image store that no row refers to, in the background.
//!
//! - Deleted: the transaction that deleted the last row of a blob recorded its key.
//! - Orphans: the upload wrote the blob and ended before it stored the row. Only blobs older than any upload in
//!   progress count.
//!
//! Invariant: blobs are deleted only from an image store that belongs to this database. In that of another one every
//! blob would be an orphan, and the rows of a restored dump name blobs that the first database still refers to.

use std::time::Duration;

use futures_util::TryStreamExt;
use tokio::time::{Instant, interval_at};

use crate::{
    api::{error::Error, state::OrphanedBlobs},
    blob_store::BlobStore,
    db::{self, Database},
};

/// Interval of sweeps for blobs that other replicas deleted, and that failed sweeps left.
const EVERY: Duration = Duration::from_mins(1);
/// Interval of sweeps for orphans, which list the whole image store.
const EVERY_ORPHANS: Duration = Duration::from_hours(1);
/// Minimum age of an orphan, far longer than an upload takes.
const ORPHANED: Duration = Duration::from_hours(24);

/// Sweeps forever. Orphans are first swept after an hour, so that an operator has time to notice a wrong configuration.
pub async fn sweep(database: Database, blobs: BlobStore, orphaned: OrphanedBlobs) {
    let mut orphans = interval_at(Instant::now() + EVERY_ORPHANS, EVERY_ORPHANS);
    loop {
        let done = tokio::select! {
            _ = orphans.tick() => sweep_orphans(&database, &blobs, ORPHANED).await,
            () = orphaned.notified() => sweep_deleted(&database, &blobs).await,
            () = tokio::time::sleep(EVERY) => sweep_deleted(&database, &blobs).await,
        };
        if let Err(error) = done {
            metrics::counter!("images_sweep_failures_total").increment(1);
            let error = &error as &dyn std::error::Error;
            tracing::warn!(
                error,
                "failed to delete orphaned blobs; the next sweep retries"
            );
        }
    }
}

async fn sweep_deleted(database: &Database, blobs: &BlobStore) -> Result<(), Error> {
    let mut after = String::new();
    loop {
        let keys = database
            .run(async |connection| db::images::orphaned_keys(connection, &after).await)
            .await?;
        let Some(last) = keys.last() else {
            return Ok(());
        };
        if !is_ours(database, blobs).await? {
            return Ok(());
        }
        after.clone_from(last);
        let deleted = delete(blobs, keys, "deleted").await?;
        database
            .run(async |connection| db::images::delete_orphaned_keys(connection, &deleted).await)
            .await?;
    }
}

/// Deletes the orphans that are older than `age`. After a failure, the next sweep continues.
pub async fn sweep_orphans(
    database: &Database,
    blobs: &BlobStore,
    age: Duration,
) -> Result<(), Error> {
    if !is_ours(database, blobs).await? {
        return Ok(());
    }
    let mut old = std::pin::pin!(blobs.older_than(age).await?);
    while let Some(keys) = old.try_next().await? {
        let orphans = database
            .run(async |connection| db::images::keys_without_rows(connection, &keys).await)
            .await?;
        if !orphans.is_empty() {
            let number = delete(blobs, orphans, "orphan").await?.len();
            tracing::info!(number, "deleted orphaned blobs of unfinished uploads");
        }
    }
    Ok(())
}

/// Returns true if the image store belongs to this database, which the first upload marks.
async fn is_ours(database: &Database, blobs: &BlobStore) -> Result<bool, Error> {
    let Some(owner) = blobs.owner().await? else {
        return Ok(false);
    };
    let ours = database.run(db::images::database_name).await?;
    if owner != ours {
        tracing::warn!(
            owner,
            ours,
            "skipped orphaned blobs: the image store belongs to another database; set images.url to a store of its own or, if this database has replaced the other, delete the object .database in the store"
        );
    }
    Ok(owner == ours)
}

/// Deletes blobs of a kind, and returns the keys of those that were deleted. Fails only if none could be deleted.
async fn delete(
    blobs: &BlobStore,
    mut keys: Vec<String>,
    kind: &'static str,
) -> Result<Vec<String>, Error> {
    if let Err(error) = blobs.delete(&keys).await {
        let mut deleted = Vec::new();
        for key in keys {
            match blobs.delete(std::slice::from_ref(&key)).await {
                Ok(()) => deleted.push(key),
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(
                        error,
                        key,
                        "failed to delete a blob; the next sweep retries"
                    );
                }
            }
        }
        if deleted.is_empty() {
            return Err(error.into());
        }
        keys = deleted;
    }
    metrics::counter!("images_swept_total", "kind" => kind).increment(keys.len() as u64);
    Ok(keys)
}
