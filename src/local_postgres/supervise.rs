//! Keeps Postgres running until its handle is stopped or dropped: one thread, which owns the
//! postmaster, the socket directory and the folder's lock, and gives up the lock last.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::cluster::Cluster;
use super::launch::Postmaster;
use super::lock::Lock;
use super::{Error, SocketDirectory};

/// How soon a death is noticed. Being told to stop is noticed at once.
const LOOK: Duration = Duration::from_millis(100);
/// The pause before another try, doubled with each that fails.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// After this long a death is a new trouble, not the same one again.
const HEALTHY: Duration = Duration::from_mins(1);

/// Returns when Postgres has stopped because it was asked to.
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
            // Of a Postgres that died this moment something may still be at work.
            return cluster.settle();
        }
        match &mut postmaster {
            Some(running) => {
                if let Some(outcome) = running.ended() {
                    let log = cluster.log();
                    tracing::error!(%outcome, log = %log.display(), "PostgreSQL died; starting it again");
                    if started.elapsed() > HEALTHY {
                        pause = PAUSE;
                    }
                    postmaster = None;
                }
            }
            // Only started, not waited for: recovery may take long, and must not keep us from
            // hearing that we stop.
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
                    tracing::error!(%error, "PostgreSQL does not start again; trying on");
                }
            },
        }
    }
}
