//! Shared check that PostgreSQL responds.

use std::sync::Arc;

use tokio::{
    sync::Mutex,
    time::{Duration, Instant, sleep_until},
};

use super::{
    database::Database,
    error::{Error, is_full},
};

/// Minimum time between the starts of two checks.
const INTERVAL: Duration = Duration::from_millis(250);
/// Time within which PostgreSQL must respond to one of two attempts.
const TIMEOUT: Duration = Duration::from_millis(450);

/// Last check of the database, over all workers. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct HealthCheck(Arc<Mutex<Option<LastCheck>>>);

#[derive(Debug)]
struct LastCheck {
    started: Instant,
    /// `None` while it runs, and if the client for which it ran has gone.
    result: Option<Result<(), Error>>,
}

impl HealthCheck {
    /// Checks that PostgreSQL responds within 900 ms, unless that was checked in the last 250 ms. At most four checks
    /// start per second.
    pub async fn run(&self, database: &Database) -> Result<(), Error> {
        database.breaker().admit()?;
        let asked = Instant::now();
        let mut last = self.0.lock().await;
        if let Some(last) = &*last {
            let next = last.started + INTERVAL;
            match &last.result {
                // Also of a slow check, for all who waited for it.
                Some(result) if asked < next => return result.clone(),
                _ => sleep_until(next).await,
            }
        }
        let last = last.insert(LastCheck {
            started: Instant::now(),
            result: None,
        });
        let result = match database.breaker().ask(TIMEOUT).await {
            // The connections that this process has are in use, or serve requests.
            Err(error) if is_full(&error) => Ok(()),
            Err(error) => {
                database.breaker().probe_soon();
                Err(Error::from(error))
            }
            Ok(()) => Ok(()),
        };
        last.result = Some(result.clone());
        result
    }
}
