//! Stopping in two stages: first nothing new is begun and what runs may finish (soft), then what still
//! runs is cut off (hard). A half-sent request must not be able to hold the process for ever.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Both stages; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    soft: CancellationToken,
    hard: CancellationToken,
}

impl Shutdown {
    /// Stops softly at the first SIGTERM or SIGINT (Ctrl-C); hard at the second, or after `grace`.
    ///
    /// # Errors
    /// When the operating system does not let signals be handled.
    pub fn on_signals(grace: Duration) -> std::io::Result<Self> {
        let shutdown = Self::default();
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let stages = shutdown.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            tracing::info!(
                ?grace,
                "stopping: requests in flight may finish; once more stops at once"
            );
            stages.soft.cancel();
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                () = tokio::time::sleep(grace) => {}
            }
            stages.hard.cancel();
        });
        Ok(shutdown)
    }

    /// A shutdown whose soft stage begins when its [`stop`](Self::stop) is called, and whose hard one is ours.
    #[must_use]
    pub fn to_be_stopped(&self) -> Self {
        Self {
            soft: CancellationToken::new(),
            hard: self.hard.clone(),
        }
    }

    /// A later shutdown of its own that is cut off together with this one.
    #[must_use]
    pub fn later(&self) -> Self {
        Self {
            soft: self.hard.child_token(),
            hard: self.hard.clone(),
        }
    }

    /// The same for one of many who ask often: they do not meet at one lock.
    #[must_use]
    pub fn for_one(&self) -> Self {
        Self {
            soft: self.soft.child_token(),
            hard: self.hard.child_token(),
        }
    }

    /// Begins to stop softly.
    pub fn stop(&self) {
        self.soft.cancel();
    }

    /// Cuts off what still runs.
    pub fn cut_off(&self) {
        self.soft.cancel();
        self.hard.cancel();
    }

    /// Whether nothing new is to be begun.
    #[must_use]
    pub fn is_soft(&self) -> bool {
        self.soft.is_cancelled()
    }

    /// Waits until nothing new is to be begun.
    pub async fn soft(&self) {
        self.soft.cancelled().await;
    }

    /// Waits until what still runs is to be cut off.
    pub async fn hard(&self) {
        self.hard.cancelled().await;
    }
}
