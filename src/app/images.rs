//! Deletes the bytes of images that no row has, behind the requests that made them so.
//!
//! Two kinds: leftovers, whose key a transaction left behind when it took the last row that had it; and
//! orphans, written by an upload that ended between its bytes and its row. An orphan is known by its age:
//! by then every upload that was going on has its row or has failed. And only where the place belongs to our
//! database: in another's, everything would be an orphan.

use std::time::Duration;

use futures_util::TryStreamExt;
use tokio::time::{Instant, interval_at};

use crate::{
    api::{error::Error, state::Leftovers},
    blobs::Blobs,
    db::{self, Database},
};

/// How often leftovers of other replicas, and of failures, are looked for.
const EVERY: Duration = Duration::from_mins(1);
/// How often orphans are, which means listing everything.
const EVERY_ORPHANS: Duration = Duration::from_hours(1);
/// Far beyond the time between the bytes of an upload and its row.
const ORPHANED: Duration = Duration::from_hours(24);

/// Sweeps for ever. Not for orphans at once: who began it by mistake has time to notice.
pub async fn sweep(database: Database, blobs: Blobs, leftovers: Leftovers) {
    let mut orphans = interval_at(Instant::now() + EVERY_ORPHANS, EVERY_ORPHANS);
    loop {
        let done = tokio::select! {
            _ = orphans.tick() => sweep_orphans(&database, &blobs, ORPHANED).await,
            () = leftovers.wait() => sweep_leftovers(&database, &blobs).await,
            () = tokio::time::sleep(EVERY) => sweep_leftovers(&database, &blobs).await,
        };
        if let Err(error) = done {
            metrics::counter!("images_sweep_failures_total").increment(1);
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "could not delete bytes of images that are gone");
        }
    }
}

async fn sweep_leftovers(database: &Database, blobs: &Blobs) -> Result<(), Error> {
    let pool = database.pool();
    let mut after = String::new();
    loop {
        let keys = db::images::leftovers(pool, &after).await?;
        let Some(last) = keys.last() else {
            return Ok(());
        };
        after.clone_from(last);
        let deleted = delete(blobs, keys).await?;
        db::images::forget_leftovers(pool, &deleted).await?;
        metrics::counter!("images_swept_total", "kind" => "leftover")
            .increment(deleted.len() as u64);
    }
}

/// Deletes the orphans that are older than `age`.
///
/// # Errors
/// When the place or the database fails; the next sweep goes on.
pub async fn sweep_orphans(database: &Database, blobs: &Blobs, age: Duration) -> Result<(), Error> {
    let Some(owner) = blobs.owner().await? else {
        return Ok(());
    };
    let ours = db::images::database_name(database.pool()).await?;
    if owner != ours {
        tracing::warn!(
            owner,
            ours,
            "the place of images belongs to another database: bytes that no row has are left there"
        );
        return Ok(());
    }
    let mut old = std::pin::pin!(blobs.older_than(age).await?);
    while let Some(keys) = old.try_next().await? {
        let orphans = db::images::unknown_keys(database.pool(), &keys).await?;
        if !orphans.is_empty() {
            let deleted = delete(blobs, orphans).await?;
            let number = deleted.len() as u64;
            metrics::counter!("images_swept_total", "kind" => "orphan").increment(number);
            tracing::info!(number, "deleted bytes of uploads that were never finished");
        }
    }
    Ok(())
}

/// Deletes the bytes under some keys, and gives those keys. What cannot be deleted does not keep the others;
/// if nothing can, that is an error.
async fn delete(blobs: &Blobs, keys: Vec<String>) -> Result<Vec<String>, Error> {
    let Err(error) = blobs.delete(&keys).await else {
        return Ok(keys);
    };
    let mut deleted = Vec::new();
    for key in keys {
        match blobs.delete(std::slice::from_ref(&key)).await {
            Ok(()) => deleted.push(key),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, key, "could not delete the bytes of an image");
            }
        }
    }
    if deleted.is_empty() {
        return Err(error.into());
    }
    Ok(deleted)
}
