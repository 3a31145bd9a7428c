//! What is to be done from time to time, whether or not anybody asks, for as long as the service runs.

use std::time::Duration;

use crate::{
    db::{self, Database},
    limits::{Limiter, address::WrongCredentials},
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

/// Forgets what limits no longer need to know.
pub async fn of_limits(limiter: Limiter, wrong_credentials: WrongCredentials) {
    const EVERY: Duration = Duration::from_secs(30);
    loop {
        tokio::time::sleep(EVERY).await;
        limiter.sweep().await;
        wrong_credentials.sweep();
    }
}

/// Forgets kept answers after their day, access tokens that have expired, and counts that are over.
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
    while db::usage::sweep_minutes(pool).await? > 0 {}
    while db::usage::sweep_days(pool).await? > 0 {}
    Ok(())
}
