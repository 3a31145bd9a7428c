//! Shutdown in two stages: graceful, in which nothing new begins and requests in progress complete, then forced, in
//! which the rest is cut off. Half a request can therefore not hold the process for ever.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Both stages. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    graceful: CancellationToken,
    forced: CancellationToken,
}

impl Shutdown {
    /// Begins the graceful stage at the first SIGTERM or SIGINT (Ctrl-C), the forced one at the second, or after `grace`.
    pub fn on_signals(grace: Duration) -> std::io::Result<Self> {
        let shutdown = Self::default();
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let stages = shutdown.clone();
        tokio::spawn(async move {
            let mut signalled = async || {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
            };
            signalled().await;
            tracing::info!(
                ?grace,
                "stopping: completing requests in progress; a second signal stops at once"
            );
            stages.begin();
            let _ = tokio::time::timeout(grace, signalled()).await;
            stages.force();
        });
        Ok(shutdown)
    }

    /// A shutdown with the forced stage of this one, and a graceful stage that begins with it or, before, with
    /// [`Shutdown::begin`].
    pub fn separate(&self) -> Self {
        Self {
            graceful: self.forced.child_token(),
            forced: self.forced.clone(),
        }
    }

    /// The same for one of many tasks that poll it often, so that they do not contend for one lock.
    pub fn child(&self) -> Self {
        Self {
            graceful: self.graceful.child_token(),
            forced: self.forced.child_token(),
        }
    }

    /// Begins the graceful stage.
    pub fn begin(&self) {
        self.graceful.cancel();
    }

    /// Begins the forced stage.
    pub fn force(&self) {
        self.graceful.cancel();
        self.forced.cancel();
    }

    /// Returns true after the begin of the graceful stage.
    pub fn is_graceful(&self) -> bool {
        self.graceful.is_cancelled()
    }

    /// Waits for the graceful stage.
    pub async fn graceful(&self) {
        self.graceful.cancelled().await;
    }

    /// Waits for the forced stage.
    pub async fn forced(&self) {
        self.forced.cancelled().await;
    }
}
