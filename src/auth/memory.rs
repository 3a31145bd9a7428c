//! Caches the results of credential lookups, including unknown credentials.
//!
//! PostgreSQL announces changes at commit (`LISTEN`), and the affected entries are removed. Entries also expire: after
//! 10 minutes while notifications arrive, or after 1 second while they do not (connection lost, or a pooler drops them;
//! a test notification detects both). External issuers announce no changes, so their tokens expire after 1 minute.
//! While PostgreSQL is unreachable, entries of any age are used unless the credential has expired: requests cannot
//! change anything then.
//!
//! Invariants:
//! - A lookup that began before a change is not cached after it.
//! - The number of entries is bounded.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use moka::sync::Cache;

use crate::{
    db::{
        self, Database, SecretHash,
        credential_changes::{Change, Changes},
        credentials::Found,
    },
    domain::{
        caller::Caller,
        clock::{Clock, Moment},
    },
};

/// Lifetime of an entry while notifications arrive: callers with a request every minute or two cost no lookups.
const WHILE_LISTENING: Duration = Duration::from_mins(10);
/// Lifetime of an entry for an external issuer's token while notifications arrive.
pub const OF_AN_ISSUER: Duration = Duration::from_mins(1);
/// Lifetime of any entry while notifications do not arrive, and pause before listening again.
const WHILE_DEAF: Duration = Duration::from_secs(1);
/// Maximum number of entries. An entry takes about 700 bytes in total, so all take about 100 MB at most.
const CAPACITY: u64 = 150_000;
/// Interval between test notifications.
const CHECK_EVERY: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub struct Memory(Arc<Shared>);

struct Shared {
    known: Cache<SecretHash, Known>,
    /// Number of invalidations so far.
    changes: AtomicU64,
    listening: AtomicBool,
    clock: Clock,
}

#[derive(Clone)]
struct Known {
    caller: Option<Arc<Caller>>,
    looked_up: Moment,
    /// Lifetime while notifications arrive.
    longest: Duration,
    expires: Option<Moment>,
}

impl Memory {
    pub fn new(clock: Clock) -> Self {
        Self(Arc::new(Shared {
            known: Cache::new(CAPACITY),
            changes: AtomicU64::new(0),
            listening: AtomicBool::new(false),
            clock,
        }))
    }

    /// Returns the caller of a secret, from the cache or the database.
    pub async fn caller(
        &self,
        database: &Database,
        hash: &SecretHash,
    ) -> Result<Option<Arc<Caller>>, db::Error> {
        let look_up = db::credentials::find_caller(database, hash);
        self.caller_by(hash, WHILE_LISTENING, look_up).await
    }

    /// Returns the caller of a secret from the cache, or runs `look_up` and caches its result for at most `longest`.
    /// Errors are not cached.
    pub async fn caller_by<E>(
        &self,
        hash: &SecretHash,
        longest: Duration,
        look_up: impl Future<Output = Result<Option<Found>, E>>,
    ) -> Result<Option<Arc<Caller>>, E> {
        if let Some(known) = self.recall(hash, false) {
            return Ok(known);
        }
        let changes = self.0.changes.load(Ordering::SeqCst);
        let asked = self.0.clock.now();
        let found = look_up.await?;
        let known = Known {
            expires: found
                .as_ref()
                .and_then(|found| Some(asked + found.expires_in?)),
            caller: found.map(|found| Arc::new(found.caller)),
            looked_up: asked,
            longest,
        };
        Ok(self.remember(*hash, known, changes))
    }

    /// Returns the cached result for a secret: `None` if there is none, `Some(None)` if the secret is known to be
    /// invalid. If PostgreSQL is `away` (unreachable), entries of any age are used.
    #[expect(
        clippy::option_option,
        reason = "whether an entry exists, and whether the secret is valid"
    )]
    pub fn recall(&self, hash: &SecretHash, away: bool) -> Option<Option<Arc<Caller>>> {
        let known = self.0.known.get(hash)?;
        let now = self.0.clock.now();
        let longest = if self.0.listening.load(Ordering::SeqCst) {
            known.longest
        } else {
            WHILE_DEAF
        };
        let fresh = away || now < known.looked_up + longest;
        let expired = known.expires.is_some_and(|expires| now >= expires);
        (fresh && !expired).then_some(known.caller)
    }

    fn remember(&self, hash: SecretHash, known: Known, changes: u64) -> Option<Arc<Caller>> {
        let caller = known.caller.clone();
        self.0.known.insert(hash, known);
        // Checked after the insertion: a later change finds the entry and removes it.
        if self.0.changes.load(Ordering::SeqCst) != changes {
            self.0.known.invalidate(&hash);
        }
        caller
    }

    pub fn forget(&self, change: &Change) {
        self.0.changes.fetch_add(1, Ordering::SeqCst);
        match change {
            Change::Credential(hash) => self.0.known.invalidate(hash),
            Change::Any => self.0.known.invalidate_all(),
        }
    }

    fn set_listening(&self, listening: bool) {
        self.0.listening.store(listening, Ordering::SeqCst);
        if listening {
            // Changes made while not listening were missed.
            self.forget(&Change::Any);
        }
    }

    /// Listens for changes forever, and starts again after each failure.
    pub async fn follow(self, database: Database) {
        loop {
            if let Err(error) = self.listen(&database).await {
                tracing::debug!(%error, "failed to listen for credential changes; retrying in 1 s");
            }
            self.set_listening(false);
            tokio::time::sleep(WHILE_DEAF).await;
        }
    }

    async fn listen(&self, database: &Database) -> Result<(), db::Error> {
        let mut changes = Changes::listen(database).await?;
        loop {
            changes.check(database).await?;
            let mut heard = false;
            let round = async {
                loop {
                    match changes.next().await? {
                        // A test notification: notifications arrive.
                        None if !heard => {
                            heard = true;
                            if !self.0.listening.load(Ordering::SeqCst) {
                                self.set_listening(true);
                            }
                        }
                        None => {}
                        Some(change) => self.forget(&change),
                    }
                }
            };
            match tokio::time::timeout(CHECK_EVERY, round).await {
                Ok(Err(error)) => return Err(error),
                Err(_) if !heard => return Err(db::Error::TimedOut),
                Ok(Ok(())) | Err(_) => {}
            }
        }
    }
}
