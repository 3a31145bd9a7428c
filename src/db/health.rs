//! Shared check that PostgreSQL responds.

use std::sync::Arc;

use tokio::{
    sync::Mutex,
    time::{Duration, Instant, sleep_until},
};

use super::{
    batch::{BatchResult, BatchedStatement},
    connect::Connection,
    database::Database,
    deadline::{self, with_timeout},
    error::Error,
};

/// Minimum time between the starts of two checks.
const INTERVAL: Duration = Duration::from_millis(250);
/// Time within which PostgreSQL must respond.
const TIMEOUT: Duration = Duration::from_millis(900);

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
    /// start per second, on connections that do nothing else.
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
        let ping = database.batchers().execute::<Ping>(());
        let result = deadline::wait(TIMEOUT, ping).await;
        last.result = Some(result.clone());
        result
    }
}

/// Statement that does nothing.
struct Ping;

impl BatchedStatement for Ping {
    type Input = ();
    type Output = ();

    const SUMMARY: &'static str = "SELECT";
    const IS_READ_ONLY: bool = true;

    async fn execute_all(
        connection: &mut Connection,
        inputs: &mut Vec<()>,
    ) -> Result<Vec<BatchResult<Self>>, Error> {
        with_timeout(sqlx::query("select 1").execute(connection)).await?;
        Ok(inputs.drain(..).map(BatchResult::Done).collect())
    }
}
