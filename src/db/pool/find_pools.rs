//! Provides a few separate connections per worker for finds, so that slow finds delay only other finds.
//!
//! Each statement is planned for its actual values: a generic plan would scan all pets, because it assumes that a rare
//! name is as frequent as a common one. Statements are prepared, which saves the round trip for parsing.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future::join_all;
use tokio::sync::Semaphore;

use super::{Pool, Usage, configure};

/// Connections per worker. Finds of 20 pets among a million are as fast with four or with one, but with one, each find
/// waits for a slow one.
const MAX_CONNECTIONS: u32 = 2;
/// Maximum number of waiting finds; further finds are refused.
const MAX_QUEUED: usize = 1024;
/// Time after which an idle connection is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
const PLANNER_SETTINGS: &str = "set plan_cache_mode = force_custom_plan";

/// Pools for finds of all workers. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct FindPools(Arc<Mutex<Vec<Pool>>>);

impl FindPools {
    /// Creates a pool for another worker, to the same server as `pool`.
    pub fn add(&self, pool: &Pool) -> Pool {
        let options = pool.connections.options().clone();
        let queue_capacity = MAX_CONNECTIONS as usize + MAX_QUEUED;
        let find_pool = Pool {
            connections: options
                .max_connections(MAX_CONNECTIONS)
                .idle_timeout(IDLE_TIMEOUT)
                .after_connect(configure(pool.health.clone(), PLANNER_SETTINGS))
                .connect_lazy_with(pool.connect_options()),
            queue: Arc::new(Semaphore::new(queue_capacity)),
            queue_capacity,
            has_pooler_options: Arc::default(),
            ..pool.clone()
        };
        self.lock().push(find_pool.clone());
        find_pool
    }

    pub fn usage(&self) -> Usage {
        self.lock().iter().map(Pool::usage).sum()
    }

    pub async fn close(&self) {
        let pools = self.lock().clone();
        join_all(pools.iter().map(Pool::close)).await;
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Pool>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
