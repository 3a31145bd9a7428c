//! Deletes blobs in the image store that no row refers to, in the background.
//!
//! - Deleted: the transaction that deleted the last row of a blob recorded its key.
//! - Orphans: the upload wrote the blob and ended before it stored the row. Only blobs older than any upload in
//!   progress count.
//!
//! Invariants:
//! - Blobs are deleted only from an image store that belongs to this database. In that of another one every blob would be
//!   an orphan, and the rows of a restored dump name blobs that the first database still refers to.
//! - A physical copy of the cluster has the same name, so each sweep claims the store: it advances a nonce in the database
//!   and in the marker of the store. A database that finds another nonce than its own deletes nothing, and marks the store
//!   as shared, so that the copy that wrote the nonce deletes nothing from then on either.
//! - While a backup is in progress, no blob is deleted.

use std::time::Duration;

use futures_util::TryStreamExt;
use tokio::time::{Instant, interval_at, timeout};

use crate::{
    blob_store::{self, BlobStore, Marker, OrphanedBlobs},
    db::{self, Database},
    domain::image_store::{Claim, StoreOwner},
};

/// Interval of sweeps for blobs that other replicas deleted, and that failed sweeps left. A copy of the cluster that starts
/// later than this after the copy was made finds another nonce.
const EVERY: Duration = Duration::from_mins(1);
/// Interval of sweeps for orphans, which list the whole image store.
const EVERY_ORPHANS: Duration = Duration::from_hours(1);
/// Minimum age of an orphan, far longer than an upload takes.
const ORPHANED: Duration = Duration::from_hours(24);
/// Maximum number of attempts of a claim. One fails if another replica claims the store at the same time.
const MAX_ATTEMPTS: u32 = 10;
/// Metric: 1 if the last claim failed because of another owner.
const CONFLICT_METRIC: &str = "images_store_conflict";
/// State of a store that belongs to another owner, and the remedy.
pub const CONFLICT: &str = "the image store belongs to another database or is shared with a copy of this one (a clone, a \
    restored backup), so the bytes of deleted images are kept; set images.url to a store of its own or, if no other \
    database uses this one any more, run: pet-inventory claim-images";
/// State of a store without images, and the remedy.
pub const LOST: &str = "the image store has neither its marker (.database) nor the images of this database: mount its \
    folder, correct images.url, or copy the files back from a backup; if they are lost, go on without them: \
    pet-inventory claim-images";
/// Maximum time for which the start waits for the image store.
const PATIENCE: Duration = Duration::from_secs(5);

/// Failure of a sweep.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The image store failed.
    #[error(transparent)]
    BlobStore(#[from] blob_store::Error),
    /// The database failed.
    #[error(transparent)]
    Database(#[from] db::Error),
}

/// Sweeps forever. Orphans are first swept after an hour, so that an operator has time to notice a wrong configuration.
pub async fn sweep(database: Database, blobs: BlobStore, orphaned: OrphanedBlobs) {
    metrics::gauge!(CONFLICT_METRIC).set(0);
    let mut orphans = interval_at(Instant::now() + EVERY_ORPHANS, EVERY_ORPHANS);
    let mut deleted = interval_at(Instant::now() + EVERY, EVERY);
    loop {
        let done = tokio::select! {
            _ = orphans.tick() => sweep_orphans(&database, &blobs, ORPHANED).await,
            () = orphaned.notified() => sweep_deleted(&database, &blobs).await,
            _ = deleted.tick() => match claim(&database, &blobs).await {
                Ok(true) => sweep_deleted(&database, &blobs).await,
                other => other.map(drop),
            },
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
        if !may_delete(database, blobs).await? {
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
    if !claim(database, blobs).await? {
        return Ok(());
    }
    let mut old = std::pin::pin!(blobs.older_than(age).await?);
    while let Some(keys) = old.try_next().await? {
        let orphans = database
            .run(async |connection| db::images::keys_without_rows(connection, &keys).await)
            .await?;
        if !orphans.is_empty() {
            if !may_delete(database, blobs).await? {
                return Ok(());
            }
            let number = delete(blobs, orphans, "orphan").await?.len();
            tracing::info!(number, "deleted orphaned blobs of unfinished uploads");
        }
    }
    Ok(())
}

/// Returns true if blobs whose keys have been read already may be deleted: if the store belongs to this database, and no
/// backup is in progress.
async fn may_delete(database: &Database, blobs: &BlobStore) -> Result<bool, Error> {
    let is_backed_up = database.run(db::backups::is_in_progress).await?;
    Ok(!is_backed_up && claim(database, blobs).await?)
}

/// Claims the image store by advancing the nonce to one generated after this call. Returns false if the store has no
/// marker or another owner.
async fn claim(database: &Database, blobs: &BlobStore) -> Result<bool, Error> {
    let mut first: Option<StoreOwner> = None;
    for _ in 0..MAX_ATTEMPTS {
        let Some((marker, owner)) = find_owner(database, blobs).await? else {
            metrics::gauge!(CONFLICT_METRIC).set(0);
            return Ok(false);
        };
        let claim = owner.claim(first.get_or_insert_with(|| owner.clone()), &marker.owner);
        let is_conflict = matches!(claim, Claim::Refused(_));
        metrics::gauge!(CONFLICT_METRIC).set(u8::from(is_conflict));
        match claim {
            Claim::Refused(shared) => {
                let (owner, ours) = (&marker.owner, &owner.database);
                tracing::warn!(owner, ours, "skipped orphaned blobs: {CONFLICT}");
                if let Some(shared) = shared {
                    blobs.replace_marker(marker, shared).await?;
                }
                return Ok(false);
            }
            Claim::Held => return Ok(true),
            Claim::Advance {
                marker: next,
                is_written,
                is_last,
            } => {
                if is_written || blobs.replace_marker(marker, next).await? {
                    database
                        .run(async |connection| {
                            db::images::complete_sweep(connection, &owner).await
                        })
                        .await?;
                    if is_last {
                        return Ok(true);
                    }
                }
            }
        }
    }
    Err(changing())
}

fn changing() -> Error {
    let reason = format!("the object .database has changed during {MAX_ATTEMPTS} claims");
    blob_store::Error::Unavailable(reason.into()).into()
}

/// Makes the store that of this database, whatever its marker is.
pub async fn take_over(database: &Database, blobs: &BlobStore) -> Result<(), Error> {
    for _ in 0..MAX_ATTEMPTS {
        let found = blobs.marker().await?;
        let owner = database.run(db::images::begin_sweep).await?;
        let Some(marker) = found else {
            return blobs.mark(async { Ok(owner.database) }).await;
        };
        if owner.matches(&marker.owner) || blobs.replace_marker(marker, owner.database).await? {
            return Ok(());
        }
    }
    Err(changing())
}

/// Returns true if the database has images, and the store has no marker and none of the first images: it is not mounted, is another
/// one, or was lost. False for a store that does not respond.
pub async fn is_lost(database: &Database, blobs: &BlobStore) -> Result<bool, db::Error> {
    let keys = database.run(db::images::first_keys).await?;
    let has_nothing = async {
        if keys.is_empty() || blobs.marker().await?.is_some() {
            return Ok(false);
        }
        for key in &keys {
            match blobs.read(key, 0..1).await.map(drop) {
                Err(blob_store::Error::Missing(_)) => {}
                found => return found.map(|()| false),
            }
        }
        Ok(true)
    };
    Ok(matches!(timeout(PATIENCE, has_nothing).await, Ok(Ok(true))))
}

/// Returns the marker of the store, and what it has to match at the same time; `None` if there is no marker.
pub async fn find_owner(
    database: &Database,
    blobs: &BlobStore,
) -> Result<Option<(Marker, StoreOwner)>, Error> {
    let mut found = blobs.marker().await?;
    while let Some(marker) = found {
        let owner = database.run(db::images::begin_sweep).await?;
        if owner.matches(&marker.owner) {
            return Ok(Some((marker, owner)));
        }
        // Another replica may have advanced the nonce before `owner` was read.
        found = blobs.marker().await?;
        if let Some(again) = found.take_if(|again| again.owner == marker.owner) {
            return Ok(Some((again, owner)));
        }
    }
    Ok(None)
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
