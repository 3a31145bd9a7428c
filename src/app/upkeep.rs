//! What is done again and again beside the requests: forgetting what is over, and folding what can be.
//!
//! Invariant: none of it is needed for a right answer, only for a small and quick one.

use std::time::Duration;

use crate::{
    db::{self, Database},
    limits::{Limiter, token_buckets::Logins, wrong_credentials::WrongCredentials},
    telemetry::Metrics,
};

/// Keeps the memory that metrics take small.
pub async fn of_metrics(metrics: Metrics) {
    const EVERY: Duration = Duration::from_secs(1);
    loop {
        tokio::time::sleep(EVERY).await;
        metrics.upkeep();
    }
}

/// Returns unused requests to the limits of callers.
pub async fn flush_limits(limiter: Limiter) {
    const PERIOD: Duration = Duration::from_millis(500);
    loop {
        tokio::time::sleep(PERIOD).await;
        limiter.flush().await;
    }
}

/// Forgets full token buckets.
pub async fn sweep_limits(limiter: Limiter, wrong_credentials: WrongCredentials, logins: Logins) {
    const PERIOD: Duration = Duration::from_secs(30);
    loop {
        tokio::time::sleep(PERIOD).await;
        limiter.sweep();
        wrong_credentials.sweep();
        logins.sweep();
    }
}

/// Folds the changes of the inventory together, so that few are left to be added up.
pub async fn of_inventory(database: Database) {
    const EVERY: Duration = Duration::from_secs(5);
    loop {
        tokio::time::sleep(EVERY).await;
        if let Err(error) = fold_once(&database).await {
            tracing::warn!(%error, "could not fold the inventory");
        }
    }
}

async fn fold_once(database: &Database) -> Result<(), db::Error> {
    while db::inventory::fold(database.pool()).await? > 0 {}
    Ok(())
}

/// Forgets kept answers after their day, access tokens and sessions that have expired, and counts that are over.
pub async fn of_database(database: Database) {
    const EVERY: Duration = Duration::from_mins(1);
    loop {
        tokio::time::sleep(EVERY).await;
        if let Err(error) = sweep_once(&database).await {
            tracing::warn!(%error, "could not forget what is over");
        }
    }
}

async fn sweep_once(database: &Database) -> Result<(), db::Error> {
    let pool = database.pool();
    // A thousand at a time, so that nobody waits for a lock for long.
    while db::idempotency::sweep(pool).await? > 0 {}
    while db::oauth::sweep(pool).await? > 0 {}
    while db::sessions::sweep(pool).await? > 0 {}
    while db::limits::purge(pool).await? > 0 {}
    Ok(())
}
