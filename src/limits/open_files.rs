//! Divides the files that the process may open, so that no client takes those of the database.

use std::{num::NonZeroUsize, thread};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::{config::Config, db::Database, domain::webhook::MAX_WEBHOOKS};

/// Number of files of a runtime: its two `epoll` instances, the descriptor that wakes it, and the socket of signals.
const FILES_OF_WORKER: usize = 4;
/// Number of other files: the main runtime, standard streams, listening sockets, a certificate that is read.
const OTHER_FILES: usize = 20;
/// Files for each worker, if their number is not set: fewer workers leave more files for connections.
const FILES_FOR_WORKER: usize = 64;
/// Minimum number of files for clients and webhooks.
const MIN_REST: usize = 8;
/// Maximum number of images that are sent at once from files.
const MAX_SENT_IMAGES: usize = 1_024;
/// Maximum number of connections to the operations listener.
const MAX_OPERATIONS: usize = 256;

/// How many files each use may have open. Those of the database, which are the most it can need, come first.
#[derive(Debug, Clone, Copy)]
pub struct OpenFiles {
    limit: usize,
    wanted: usize,
    /// Number of workers.
    pub workers: usize,
    /// Connections of clients to the API.
    pub connections: usize,
    /// Connections to the operations listener.
    pub operations: usize,
    /// Images that are being sent.
    pub images: usize,
}

/// Error: nothing would be left for clients.
#[derive(Debug, thiserror::Error)]
#[error(
    "the limit of open files is {limit}, but at least {needed} are needed: raise it (ulimit -n, LimitNOFILE=), or lower \
     database.max_connections or server.workers"
)]
pub struct TooFew {
    limit: usize,
    needed: usize,
}

impl OpenFiles {
    /// Raises the soft limit of open files to the hard limit, and divides it.
    pub fn divide(config: &Config) -> Result<Self, TooFew> {
        let (server, limit) = (&config.server, raise_limit());
        let default_workers = || cores().min(limit / FILES_FOR_WORKER).max(1);
        let workers = server
            .workers
            .map_or_else(default_workers, NonZeroUsize::get);
        let database = Database::max_connections(&config.database, workers);
        let database = usize::try_from(database).unwrap_or(usize::MAX);
        let reserved = [FILES_OF_WORKER.saturating_mul(workers), OTHER_FILES];
        let reserved = reserved.into_iter().fold(database, usize::saturating_add);
        let Some(rest) = (limit.checked_sub(reserved)).filter(|rest| *rest >= MIN_REST) else {
            let needed = reserved.saturating_add(MIN_REST);
            return Err(TooFew { limit, needed });
        };
        let webhooks = MAX_WEBHOOKS.saturating_mul(config.webhooks.max_deliveries);
        let beside = [MAX_SENT_IMAGES, webhooks, MAX_OPERATIONS];
        let wanted = beside
            .into_iter()
            .fold(server.max_connections, usize::saturating_add);
        let (images, operations) = (MAX_SENT_IMAGES.min(rest / 4), MAX_OPERATIONS.min(rest / 4));
        let connections = rest - images - operations - webhooks.min(rest / 4);
        Ok(Self {
            limit,
            wanted: wanted.saturating_add(reserved),
            workers,
            connections: server.max_connections.min(connections),
            operations,
            images,
        })
    }

    /// Returns a warning if fewer files may be open than the settings ask for.
    pub fn warning(&self) -> Option<String> {
        let Self {
            limit,
            wanted,
            connections,
            ..
        } = self;
        (limit < wanted).then(|| {
            format!(
                "the limit of open files is {limit}, which leaves {connections} for connections of clients: for \
                 server.max_connections and webhooks.max_deliveries, raise it to {wanted} (ulimit -n, LimitNOFILE=), or \
                 lower them"
            )
        })
    }
}

/// Raises the soft limit to the hard limit, and returns it.
fn raise_limit() -> usize {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).map(|(soft, hard)| {
        let raised = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
        raised.map_or(soft, |()| hard)
    });
    raised.map_or(usize::MAX, |it| usize::try_from(it).unwrap_or(usize::MAX))
}

/// Number of cores.
fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZeroUsize::get)
}
