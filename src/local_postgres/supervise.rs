//! Keeps PostgreSQL running until its handle is stopped or dropped.
//!
//! Invariants:
//! - One thread owns the postmaster, the socket directory and the lock, and releases the lock last.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::cluster::Cluster;
use super::launch::Postmaster;
use super::lock::Lock;
use super::{Error, SocketDirectory};

/// Interval of the checks that PostgreSQL is alive. A request to stop is noticed at once.
const LOOK: Duration = Duration::from_millis(100);
/// First pause before a restart. Each attempt doubles it.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Uptime after which the pause starts from [`PAUSE`] again.
const HEALTHY: Duration = Duration::from_mins(1);

/// Runs until PostgreSQL has been stopped.
pub(super) fn supervise(
    cluster: &Cluster,
    postmaster: Postmaster,
    socket: &SocketDirectory,
    running: &Receiver<()>,
    _held: &Lock,
) -> Result<(), Error> {
    let mut postmaster = Some(postmaster);
    let mut started = Instant::now();
    let mut pause = PAUSE;
    loop {
        let wait = if postmaster.is_some() { LOOK } else { pause };
        if running.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
            postmaster.map_or(Ok(()), |postmaster| cluster.stop(postmaster))?;
            // Other processes of a PostgreSQL that just died may still run.
            return cluster.settle();
        }
        match &mut postmaster {
            Some(running) => {
                if let Some(outcome) = running.ended() {
                    let log = cluster.log();
                    tracing::error!(%outcome, log = %log.display(), "PostgreSQL ended unexpectedly; restarting it");
                    if started.elapsed() > HEALTHY {
                        pause = PAUSE;
                    }
                    postmaster = None;
                }
            }
            // The start is not awaited: recovery may take long, and a request to stop must be noticed meanwhile.
            None => match cluster
                .settle()
                .and_then(|()| cluster.launch_postgres(&socket.0))
            {
                Ok(again) => {
                    started = Instant::now();
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    postmaster = Some(again);
                }
                Err(error) => {
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    tracing::error!(%error, "failed to restart PostgreSQL; retrying in {pause:?}");
                }
            },
        }
    }
}
