//! Caches the results of credential lookups, including unknown credentials, and records the uses of API keys.
//!
//! PostgreSQL announces changes at commit (`LISTEN`), and the affected entries are removed. Entries also expire: after
//! 10 minutes while notifications arrive, or after 1 second while they do not (connection lost, which a test
//! notification detects, or `database.pooler = "transaction"`). External issuers announce no changes, so their tokens
//! expire after 1 minute.
//!
//! Invariants:
//! - A lookup that began before a change is not cached after it.
//! - The number of entries is bounded.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
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
pub const TTL_WITH_NOTIFICATIONS: Duration = Duration::from_mins(10);
/// Lifetime of an entry for an external issuer's token while notifications arrive.
pub const TTL_OF_ISSUER_TOKENS: Duration = Duration::from_mins(1);
/// Lifetime of any entry while notifications do not arrive, and pause before listening again.
const TTL_WITHOUT_NOTIFICATIONS: Duration = Duration::from_secs(1);
/// Maximum number of entries. An entry takes about 700 bytes in total, so all take about 100 MB at most.
const CAPACITY: u64 = 150_000;
/// Interval between test notifications.
const TEST_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of keys of which one statement writes the last use.
const MAX_KEYS: usize = 5_000;

/// Cache of credential lookups. Cheap to clone.
#[derive(Clone)]
pub struct CredentialCache(Arc<Inner>);

struct Inner {
    entries: Cache<SecretHash, Arc<Entry>>,
    uses: KeyUses,
    /// Number of invalidations so far.
    invalidations: AtomicU64,
    /// True while notifications arrive.
    listening: AtomicBool,
    clock: Clock,
}

struct Entry {
    /// Caller, or `None` if the credential is not valid.
    caller: Option<Arc<Caller>>,
    /// Key, if the credential is an API key.
    key: Option<TrackedKey>,
    /// Start of the lookup.
    looked_up_at: Moment,
    /// Lifetime while notifications arrive.
    ttl: Duration,
    /// Expiry of the credential itself.
    expires_at: Option<Moment>,
}

impl CredentialCache {
    pub fn new(clock: Clock) -> Self {
        Self(Arc::new(Inner {
            entries: Cache::new(CAPACITY),
            uses: KeyUses::default(),
            invalidations: AtomicU64::new(0),
            listening: AtomicBool::new(false),
            clock,
        }))
    }

    /// Returns the caller of a secret from the cache, or runs `look_up` and caches its result for at most `ttl`. Errors
    /// are not cached.
    pub async fn get_or_insert_with<E>(
        &self,
        hash: &SecretHash,
        ttl: Duration,
        look_up: impl Future<Output = Result<Option<Found>, E>>,
    ) -> Result<Option<Arc<Caller>>, E> {
        if let Some(cached) = self.get(hash) {
            return Ok(cached);
        }
        let invalidations = self.0.invalidations.load(Ordering::SeqCst);
        let looked_up_at = self.0.clock.now();
        let found = look_up.await?;
        let expires_in = found.as_ref().and_then(|found| found.expires_in);
        let key = found.as_ref().and_then(|found| found.api_key);
        let key = key.map(TrackedKey::new);
        let caller = found.map(|found| Arc::new(found.caller));
        let entry = Entry {
            caller: caller.clone(),
            key,
            looked_up_at,
            ttl,
            expires_at: expires_in.map(|duration| looked_up_at.saturating_add(duration)),
        };
        self.record_use(&entry);
        self.0.entries.insert(*hash, Arc::new(entry));
        // Checked after the insertion: a later change finds the entry and removes it.
        if self.0.invalidations.load(Ordering::SeqCst) != invalidations {
            self.0.entries.invalidate(hash);
        }
        Ok(caller)
    }

    /// Returns the cached result for a secret: `None` if there is none, `Some(None)` if the secret is known to be
    /// invalid.
    #[expect(
        clippy::option_option,
        reason = "the outer level is the cache entry, the inner one the validity of the secret"
    )]
    pub fn get(&self, hash: &SecretHash) -> Option<Option<Arc<Caller>>> {
        let entry = self.0.entries.get(hash)?;
        let now = self.0.clock.now();
        let ttl = if self.0.listening.load(Ordering::SeqCst) {
            entry.ttl
        } else {
            TTL_WITHOUT_NOTIFICATIONS
        };
        let fresh = now < entry.looked_up_at + ttl;
        let expired = entry.expires_at.is_some_and(|at| now >= at);
        if !fresh || expired {
            return None;
        }
        self.record_use(&entry);
        Some(entry.caller.clone())
    }

    fn record_use(&self, entry: &Entry) {
        if let Some(key) = &entry.key {
            self.0.uses.record(key);
        }
    }

    /// Writes the uses of API keys since the last write.
    pub async fn write_key_uses(&self, database: &Database) -> Result<(), db::Error> {
        self.0.uses.write(database).await
    }

    /// Removes the entries that a change affects.
    pub fn invalidate(&self, change: &Change) {
        self.0.invalidations.fetch_add(1, Ordering::SeqCst);
        match change {
            Change::Credential(hash) => self.0.entries.invalidate(hash),
            Change::Any => self.0.entries.invalidate_all(),
        }
    }

    fn set_listening(&self, listening: bool) {
        self.0.listening.store(listening, Ordering::SeqCst);
        if listening {
            // Changes made while not listening were missed.
            self.invalidate(&Change::Any);
        }
    }

    /// Listens for changes forever, and starts again after each failure.
    pub async fn follow_changes(self, database: Database) {
        loop {
            if let Err(error) = self.listen(&database).await {
                tracing::debug!(%error, "failed to listen for credential changes; retrying in 1 s");
            }
            self.set_listening(false);
            tokio::time::sleep(TTL_WITHOUT_NOTIFICATIONS).await;
        }
    }

    /// Invalidates entries until the connection fails or a test notification does not arrive.
    async fn listen(&self, database: &Database) -> Result<(), db::Error> {
        let mut changes = Changes::listen(database).await?;
        loop {
            changes.check(database).await?;
            let mut notified = false;
            let receive = async {
                loop {
                    match changes.next().await? {
                        // A test notification: notifications arrive.
                        None => {
                            notified = true;
                            if !self.0.listening.load(Ordering::SeqCst) {
                                self.set_listening(true);
                            }
                        }
                        Some(change) => self.invalidate(&change),
                    }
                }
            };
            match tokio::time::timeout(TEST_INTERVAL, receive).await {
                Ok(Err(error)) => return Err(error),
                Err(_) if !notified => return Err(db::Error::TimedOut),
                Ok(Ok(())) | Err(_) => {}
            }
        }
    }
}

/// API keys that were used since the last write, which is once a minute: one for each request would cost more than the request.
#[derive(Default)]
struct KeyUses {
    /// Number of writes so far.
    writes: AtomicU64,
    ids: Mutex<HashSet<i64>>,
}

/// Cached API key.
struct TrackedKey {
    id: i64,
    /// Number of writes at the time of its last recorded use.
    recorded_after: AtomicU64,
}

impl TrackedKey {
    /// Creates a key without a recorded use.
    const fn new(id: i64) -> Self {
        Self {
            id,
            recorded_after: AtomicU64::new(u64::MAX),
        }
    }
}

impl KeyUses {
    /// Records a use of a key. Takes the lock only for the first use after a write.
    fn record(&self, key: &TrackedKey) {
        if key.recorded_after.load(Ordering::Relaxed) != self.writes.load(Ordering::Relaxed) {
            let mut ids = self.ids();
            ids.insert(key.id);
            let writes = self.writes.load(Ordering::Relaxed);
            key.recorded_after.store(writes, Ordering::Relaxed);
        }
    }

    /// Writes the recorded uses. After a failure, the next write includes them.
    async fn write(&self, database: &Database) -> Result<(), db::Error> {
        let used: Vec<i64> = {
            let mut ids = self.ids();
            self.writes.fetch_add(1, Ordering::Relaxed);
            ids.drain().collect()
        };
        for (index, ids) in used.chunks(MAX_KEYS).enumerate() {
            if let Err(error) = database
                .run(async |connection| db::credentials::record_uses(connection, ids).await)
                .await
            {
                self.ids().extend(&used[index * MAX_KEYS..]);
                return Err(error);
            }
        }
        Ok(())
    }

    fn ids(&self) -> MutexGuard<'_, HashSet<i64>> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
