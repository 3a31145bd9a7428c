//! Periodic maintenance: purges expired data, folds inventory changes and returns unused requests to limits.
//!
//! Invariant: without it, only memory, storage and latency grow, and limits count requests that were not used.

pub mod orphaned_blobs;

use std::{sync::Arc, time::Duration};

use crate::{
    api::rate_limits::RateLimits,
    db::{self, Database},
    limits::{Limiter, failed_authentication::FailedAuthenticationLimit, token_buckets::Logins},
};

/// Returns unused requests to the limits of callers.
pub async fn flush_limits(limiter: Limiter) {
    const PERIOD: Duration = Duration::from_millis(500);
    loop {
        tokio::time::sleep(PERIOD).await;
        limiter.flush();
    }
}

/// Removes full token buckets and expired blocks of client addresses.
pub async fn sweep_limits(
    limits: Arc<RateLimits>,
    failed_authentication: FailedAuthenticationLimit,
    logins: Logins,
) {
    const PERIOD: Duration = Duration::from_secs(30);
    loop {
        tokio::time::sleep(PERIOD).await;
        limits.sweep();
        failed_authentication.sweep();
        logins.sweep();
    }
}

/// Folds inventory changes, so that a read has few of them to add up.
pub async fn fold_inventory(database: Database) {
    const EVERY: Duration = Duration::from_secs(5);
    loop {
        tokio::time::sleep(EVERY).await;
        if let Err(error) = fold_once(&database).await {
            tracing::warn!(%error, "failed to fold inventory changes; retrying in 5 s");
        }
    }
}

async fn fold_once(database: &Database) -> Result<(), db::Error> {
    while db::inventory::fold(database.pool()).await? > 0 {}
    Ok(())
}

/// Deletes idempotency keys after a day, expired access tokens and sessions, and limit usage of past days.
pub async fn purge_expired_rows(database: Database) {
    const EVERY: Duration = Duration::from_mins(1);
    loop {
        tokio::time::sleep(EVERY).await;
        if let Err(error) = sweep_once(&database).await {
            tracing::warn!(%error, "failed to purge expired rows; retrying in 60 s");
        }
    }
}

async fn sweep_once(database: &Database) -> Result<(), db::Error> {
    let pool = database.pool();
    // Each call deletes up to 1,000 rows, so that locks are short.
    while db::idempotency::purge_expired(pool).await? > 0 {}
    while db::oauth::purge_expired(pool).await? > 0 {}
    while db::sessions::purge_expired(pool).await? > 0 {}
    while db::limits::purge_expired(pool).await? > 0 {}
    Ok(())
}
