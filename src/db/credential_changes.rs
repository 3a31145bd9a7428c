//! Changes of credentials and callers, heard of at their commit (`LISTEN`).

use sqlx::postgres::{PgListener, PgPoolOptions};

use super::{Database, Error, SecretHash, bounded};

/// A change that somebody committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Of one credential.
    Credential(SecretHash),
    /// Of any number of them.
    Any,
}

const CHANNEL: &str = "credentials";
/// A note to ourselves on that channel: nothing changed.
const NOTE: &str = "note";

/// Changes of credentials and callers, heard of at their commit.
#[derive(Debug)]
pub struct Changes(PgListener);

impl Changes {
    /// Begins to listen, on a connection of its own.
    ///
    /// # Errors
    /// [`Error::Unavailable`] while PostgreSQL is out of reach, and behind a pooler always: what is said to
    /// one of its servers reaches nobody.
    pub async fn listen(database: &Database) -> Result<Self, Error> {
        if database.is_behind_pooler() {
            return Err(sqlx::Error::PoolClosed.into());
        }
        database.breaker().admit()?;
        let own = PgPoolOptions::new()
            .max_connections(1)
            .connect_lazy_with(database.pool().connect_options());
        let mut listener = bounded(PgListener::connect_with(&own)).await?;
        listener.eager_reconnect(false);
        bounded(listener.listen(CHANNEL)).await?;
        Ok(Self(listener))
    }

    /// Sends a note to all that listen, to find out whether we are among them.
    pub async fn check(&self, database: &Database) -> Result<(), Error> {
        bounded(
            sqlx::query("select pg_notify($1, $2)")
                .bind(CHANNEL)
                .bind(NOTE)
                .execute(database.pool()),
        )
        .await?;
        Ok(())
    }

    /// The next change; `None`: a note. Waits as long as it takes.
    pub async fn next(&mut self) -> Result<Option<Change>, Error> {
        // `None` is a connection lost, and with it what was said meanwhile.
        let notification = self.0.try_recv().await?.ok_or(Error::TimedOut)?;
        Ok(match notification.payload() {
            NOTE => None,
            hash => Some(read_hash(hash).map_or(Change::Any, Change::Credential)),
        })
    }
}

fn read_hash(hexadecimal: &str) -> Option<SecretHash> {
    let mut hash = SecretHash::default();
    if hexadecimal.len() != 2 * hash.len() {
        return None;
    }
    for (index, byte) in hash.iter_mut().enumerate() {
        let digits = hexadecimal.get(2 * index..2 * index + 2)?;
        *byte = u8::from_str_radix(digits, 16).ok()?;
    }
    Some(hash)
}
