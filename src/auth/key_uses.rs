//! Collects the API keys in use, so that the time of their last use is written once a minute, not once per request.

use std::{
    collections::HashSet,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::db::{self, Database};

/// Maximum number of keys of a statement.
const MAX_KEYS: usize = 5_000;

/// API keys that were used since the last write.
#[derive(Default)]
pub struct KeyUses {
    /// Number of writes so far.
    writes: AtomicU64,
    ids: Mutex<HashSet<i64>>,
}

/// Cached API key.
pub struct TrackedKey {
    id: i64,
    /// Number of writes at the time of its last recorded use.
    recorded_after: AtomicU64,
}

impl TrackedKey {
    /// Creates a key without a recorded use.
    pub const fn new(id: i64) -> Self {
        Self {
            id,
            recorded_after: AtomicU64::new(u64::MAX),
        }
    }
}

impl KeyUses {
    /// Records a use of a key. Takes the lock only for the first use after a write.
    pub fn record(&self, key: &TrackedKey) {
        if key.recorded_after.load(Ordering::Relaxed) != self.writes.load(Ordering::Relaxed) {
            let mut ids = self.ids();
            ids.insert(key.id);
            let writes = self.writes.load(Ordering::Relaxed);
            key.recorded_after.store(writes, Ordering::Relaxed);
        }
    }

    /// Writes the recorded uses. After a failure, the next write includes them.
    pub async fn write(&self, database: &Database) -> Result<(), db::Error> {
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
