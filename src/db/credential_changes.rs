//! Receives committed changes of credentials and callers (`LISTEN`).

use sqlx::postgres::{PgListener, PgPoolOptions};

use super::{codec::SecretHash, database::Database, deadline::with_timeout, error::Error};
use crate::config::Pooler;

/// Committed change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Change of one credential.
    Credential(SecretHash),
    /// Change of any number of credentials.
    Any,
}

const CHANNEL: &str = "credentials";
/// Payload of a notification that this program sends to test the connection.
const TEST_PAYLOAD: &str = "note";

/// Receiver of changes, on a connection of its own.
#[derive(Debug)]
pub struct Changes(PgListener);

impl Changes {
    /// Opens the connection and starts to listen. Always fails behind a pooler, where notifications do not arrive.
    pub async fn listen(database: &Database) -> Result<Self, Error> {
        if database.connector().pooler == Pooler::Transaction {
            return Err(sqlx::Error::PoolClosed.into());
        }
        database.breaker().admit()?;
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .connect_lazy_with(database.connector().options.current().await);
        let mut listener = with_timeout(PgListener::connect_with(&pool)).await?;
        listener.eager_reconnect(false);
        with_timeout(listener.listen(CHANNEL)).await?;
        Ok(Self(listener))
    }

    /// Sends a test notification to all receivers, to find out whether this one still gets any.
    pub async fn check(&self, database: &Database) -> Result<(), Error> {
        let query = sqlx::query("select pg_notify($1, $2)")
            .bind(CHANNEL)
            .bind(TEST_PAYLOAD);
        database
            .run(async |connection| with_timeout(query.execute(connection)).await.map(drop))
            .await
    }

    /// Waits for the next change, without a timeout. Returns `None` for a test notification.
    pub async fn next(&mut self) -> Result<Option<Change>, Error> {
        // `None` means that the connection was lost, and possibly notifications with it.
        let notification = self.0.try_recv().await?.ok_or(Error::TimedOut)?;
        Ok(match notification.payload() {
            TEST_PAYLOAD => None,
            hash => Some(parse_hash(hash).map_or(Change::Any, Change::Credential)),
        })
    }
}

fn parse_hash(hexadecimal: &str) -> Option<SecretHash> {
    let bytes = (0..hexadecimal.len()).step_by(2);
    let bytes = bytes.map(|at| u8::from_str_radix(hexadecimal.get(at..at + 2)?, 16).ok());
    bytes.collect::<Option<Vec<u8>>>()?.try_into().ok()
}
