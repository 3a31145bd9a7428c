//! Queues of the renderings of each client.
//!
//! Invariant: of each client, one rendering waits for a core, and its others wait before it. The next one of a client
//! therefore begins after at most two renderings of each other client that has some waiting.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex as SyncMutex, PoisonError, Weak},
};

use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::domain::address::AddressKey;

/// Position at the head of a client's queue, to be dropped when the rendering has a core.
pub type Head = OwnedMutexGuard<()>;

/// Queues of the clients that have renderings waiting. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct ClientQueues(Arc<SyncMutex<Queues>>);

/// A fair lock for each client. Its holder may wait for a core.
type Queues = HashMap<Option<AddressKey>, Weak<Mutex<()>>>;

impl ClientQueues {
    /// Waits until a rendering is at the head of its client's queue. All unknown addresses are one
    /// client.
    pub async fn head(&self, client: Option<AddressKey>) -> Head {
        let queue = {
            let mut queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            queues.retain(|_, queue| queue.strong_count() > 0);
            let queue = queues.get(&client).and_then(Weak::upgrade);
            let queue = queue.unwrap_or_default();
            queues.insert(client, Arc::downgrade(&queue));
            queue
        };
        queue.lock_owned().await
    }
}
