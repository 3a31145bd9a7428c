//! Provides a few separate connections per worker for finds, so that slow finds delay only other finds.
//!
//! Each statement is planned for its actual values: a generic plan would scan all pets, because it assumes that a rare
//! name is as frequent as a common one. Statements are prepared, which saves the round trip for parsing.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::future::join_all;
use tokio::sync::Semaphore;

use super::{Pool, prepare};
use crate::db::Usage;

/// Connections per worker. Finds of 20 pets among a million are as fast with four or with one, but with one, each find
/// waits for a slow one.
const CONNECTIONS: u32 = 2;
/// Maximum number of waiting finds; further finds are refused.
const QUEUE: usize = 1024;
/// Time after which an idle connection is closed.
const KEPT: Duration = Duration::from_secs(30);
const PLANS: &str = "set plan_cache_mode = force_custom_plan";

/// Pools of all workers. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Finds(Arc<Mutex<Vec<Pool>>>);

impl Finds {
    /// Creates a pool for another worker, to the same server as `pool`.
    pub fn another(&self, pool: &Pool) -> Pool {
        let options = pool.connections.options().clone();
        let places = CONNECTIONS as usize + QUEUE;
        let finds = Pool {
            connections: options
                .max_connections(CONNECTIONS)
                .idle_timeout(KEPT)
                .after_connect(prepare(pool.pooler.clone(), PLANS))
                .connect_lazy_with(pool.connect_options()),
            queue: Arc::new(Semaphore::new(places)),
            places,
            adapted: Arc::default(),
            ..pool.clone()
        };
        self.all(|all| all.push(finds.clone()));
        finds
    }

    pub fn usage(&self) -> Usage {
        self.all(|all| all.iter().map(Pool::usage).sum())
    }

    pub async fn close(&self) {
        let all = self.all(|all| all.clone());
        join_all(all.iter().map(Pool::close)).await;
    }

    fn all<T>(&self, with: impl FnOnce(&mut Vec<Pool>) -> T) -> T {
        with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
