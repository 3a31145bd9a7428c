//! Deletes the bytes of images that no row has, behind the requests that made them so.
//!
//! Two kinds: leftovers, whose key a transaction left behind when it took the last row that had it; and
//! orphans, written by an upload that ended between its bytes and its row. An orphan is known by its age:
//! by then every upload that was going on has its row or has failed.

use std::time::Duration;

use futures_util::TryStreamExt;

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
const ORPHANED: Duration = Duration::from_hours(1);

/// Sweeps for ever.
pub async fn sweep(database: Database, blobs: Blobs, leftovers: Leftovers) {
    let mut orphans = tokio::time::interval(EVERY_ORPHANS);
    loop {
        let done = tokio::select! {
            _ = orphans.tick() => sweep_orphans(&database, &blobs, ORPHANED).await,
            () = leftovers.wait() => sweep_leftovers(&database, &blobs).await,
            () = tokio::time::sleep(EVERY) => sweep_leftovers(&database, &blobs).await,
        };
        if let Err(error) = done {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "could not delete bytes of images that are gone");
        }
    }
}

async fn sweep_leftovers(database: &Database, blobs: &Blobs) -> Result<(), Error> {
    let pool = database.pool();
    loop {
        let keys = db::images::leftovers(pool).await?;
        if keys.is_empty() {
            return Ok(());
        }
        blobs.delete(&keys).await?;
        db::images::forget_leftovers(pool, &keys).await?;
    }
}

async fn sweep_orphans(database: &Database, blobs: &Blobs, age: Duration) -> Result<(), Error> {
    let mut old = std::pin::pin!(blobs.older_than(age).await?);
    while let Some(keys) = old.try_next().await? {
        let orphans = db::images::unknown_keys(database.pool(), &keys).await?;
        if !orphans.is_empty() {
            tracing::info!(
                number = orphans.len(),
                "deleting bytes of uploads that were never finished"
            );
            blobs.delete(&orphans).await?;
        }
    }
    Ok(())
}
