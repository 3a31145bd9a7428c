//! What is remembered of credentials, so that a request with a known one costs no look-up.
//!
//! Changes in the database are heard of at their commit (`LISTEN`); what they concern is forgotten. The
//! fallback is forgetting by time: ten minutes after a look-up while changes are heard, a second after it
//! while they are not (the connection is lost, or a pooler in between swallows them, which a note to
//! ourselves finds out). What an outside issuer said nobody tells us changes of: a minute. Unknown credentials
//! are remembered too, so that each costs one look-up. While PostgreSQL is out of reach what was looked up last
//! is good: nothing can be done with it then but to be told what is wrong with a request.
//!
//! Invariants: a look-up that began before a change is never remembered after it; memory is bounded
//! whatever is asked.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use moka::sync::Cache;

use crate::{
    db::{
        self, Database, SecretHash,
        credential_changes::{Change, Changes},
        credentials::Found,
    },
    domain::{
        caller::Caller,
        clock::{Clock, Moment},
    },
};

/// How long a credential of ours is remembered while changes are heard of: many callers that ask once in a
/// minute or two cost no look-ups.
const WHILE_LISTENING: Duration = Duration::from_mins(10);
/// How long an outside issuer's is, then.
pub const OF_AN_ISSUER: Duration = Duration::from_mins(1);
/// How long otherwise.
const WHILE_DEAF: Duration = Duration::from_secs(1);
/// How many credentials are remembered: some 700 bytes each, all told, so 100 MB at most.
const CAPACITY: u64 = 150_000;
/// How often we make sure that we still hear.
const CHECK_EVERY: Duration = Duration::from_secs(10);

/// What is remembered. Cheap to clone.
#[derive(Clone)]
pub struct Memory(Arc<Shared>);

struct Shared {
    known: Cache<SecretHash, Known>,
    /// Counts the changes heard of.
    changes: AtomicU64,
    listening: AtomicBool,
    clock: Clock,
}

#[derive(Clone)]
struct Known {
    caller: Option<Arc<Caller>>,
    looked_up: Moment,
    /// For so long, while changes are heard of.
    longest: Duration,
    expires: Option<Moment>,
}

impl Memory {
    /// A memory that knows nothing.
    pub fn new(clock: Clock) -> Self {
        Self(Arc::new(Shared {
            known: Cache::new(CAPACITY),
            changes: AtomicU64::new(0),
            listening: AtomicBool::new(false),
            clock,
        }))
    }

    /// Whom a secret stands for, looked up unless it is remembered.
    pub async fn caller(
        &self,
        database: &Database,
        hash: &SecretHash,
    ) -> Result<Option<Arc<Caller>>, db::Error> {
        let look_up = db::credentials::find_caller(database, hash);
        self.caller_by(hash, WHILE_LISTENING, look_up).await
    }

    /// Whom a secret stands for, by this look-up unless it is remembered; from then on it is, for so long at
    /// most. A failure is not remembered.
    pub async fn caller_by<E>(
        &self,
        hash: &SecretHash,
        longest: Duration,
        look_up: impl Future<Output = Result<Option<Found>, E>>,
    ) -> Result<Option<Arc<Caller>>, E> {
        if let Some(known) = self.recall(hash, false) {
            return Ok(known);
        }
        let changes = self.0.changes.load(Ordering::SeqCst);
        let asked = self.0.clock.now();
        let found = look_up.await?;
        let known = Known {
            expires: found
                .as_ref()
                .and_then(|found| Some(asked + found.expires_in?)),
            caller: found.map(|found| Arc::new(found.caller)),
            looked_up: asked,
            longest,
        };
        Ok(self.remember(*hash, known, changes))
    }

    /// What is remembered of a secret: whom it stands for, or that it is nobody; `None`: nothing. While
    /// PostgreSQL is `away`, however long ago that was looked up.
    #[expect(clippy::option_option, reason = "two questions, each with its own no")]
    pub fn recall(&self, hash: &SecretHash, away: bool) -> Option<Option<Arc<Caller>>> {
        let known = self.0.known.get(hash)?;
        let now = self.0.clock.now();
        let longest = if self.0.listening.load(Ordering::SeqCst) {
            known.longest
        } else {
            WHILE_DEAF
        };
        let fresh = away || now < known.looked_up + longest;
        let expired = known.expires.is_some_and(|expires| now >= expires);
        (fresh && !expired).then_some(known.caller)
    }

    fn remember(&self, hash: SecretHash, known: Known, changes: u64) -> Option<Arc<Caller>> {
        let caller = known.caller.clone();
        self.0.known.insert(hash, known);
        // Only now: a change that is heard of from here on finds the entry and takes it out again.
        if self.0.changes.load(Ordering::SeqCst) != changes {
            self.0.known.invalidate(&hash);
        }
        caller
    }

    /// Forgets what a change concerns.
    pub fn forget(&self, change: &Change) {
        self.0.changes.fetch_add(1, Ordering::SeqCst);
        match change {
            Change::Credential(hash) => self.0.known.invalidate(hash),
            Change::Any => self.0.known.invalidate_all(),
        }
    }

    fn set_listening(&self, listening: bool) {
        self.0.listening.store(listening, Ordering::SeqCst);
        if listening {
            // Of what changed meanwhile nothing was heard.
            self.forget(&Change::Any);
        }
    }

    /// Hears of changes for ever; whenever that fails, begins anew.
    pub async fn follow(self, database: Database) {
        loop {
            if let Err(error) = self.listen(&database).await {
                tracing::debug!(%error, "not hearing of changed credentials");
            }
            self.set_listening(false);
            tokio::time::sleep(WHILE_DEAF).await;
        }
    }

    async fn listen(&self, database: &Database) -> Result<(), db::Error> {
        let mut changes = Changes::listen(database).await?;
        loop {
            changes.check(database).await?;
            let mut heard = false;
            let round = async {
                loop {
                    match changes.next().await? {
                        // Our own note: what is said reaches us.
                        None if !heard => {
                            heard = true;
                            if !self.0.listening.load(Ordering::SeqCst) {
                                self.set_listening(true);
                            }
                        }
                        None => {}
                        Some(change) => self.forget(&change),
                    }
                }
            };
            match tokio::time::timeout(CHECK_EVERY, round).await {
                Ok(Err(error)) => return Err(error),
                Err(_) if !heard => return Err(db::Error::TimedOut),
                Ok(Ok(())) | Err(_) => {}
            }
        }
    }
}
