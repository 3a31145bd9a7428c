//! The connections that a worker keeps for finds.
//!
//! They are few: what is slow to find keeps those waiting who find, nobody else. Each statement on them is planned
//! for the values at hand, since for "some names" PostgreSQL would scan all pets, a rare name being as likely as a
//! frequent one; and prepared, which saves the round trip in which another would be parsed.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::future::join_all;
use tokio::sync::Semaphore;

use super::{Pool, prepare};
use crate::db::Usage;

/// Connections of one worker. With four finds of 20 pets among a million are as quick, with one as well; but then
/// each waits for a slow one.
const CONNECTIONS: u32 = 2;
/// Finds that wait for them; one more is turned away.
const QUEUE: usize = 1024;
/// A connection that no find needs for so long is closed.
const KEPT: Duration = Duration::from_secs(30);
const PLANS: &str = "set plan_cache_mode = force_custom_plan";

/// The pools of all workers. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Finds(Arc<Mutex<Vec<Pool>>>);

impl Finds {
    /// A pool for another worker, which leads to where `pool` does.
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

    /// What of them all is used at the moment.
    pub fn usage(&self) -> Usage {
        self.all(|all| all.iter().map(Pool::usage).sum())
    }

    /// Closes their connections, once nobody uses them.
    pub async fn close(&self) {
        let all = self.all(|all| all.clone());
        join_all(all.iter().map(Pool::close)).await;
    }

    fn all<T>(&self, with: impl FnOnce(&mut Vec<Pool>) -> T) -> T {
        with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
