//! The keys of one issuer, kept: asked for when they are first needed, again when a token names one that
//! we do not know, and behind the scenes when they are old.
//!
//! Invariants: at most one fetch at a time and at most one in [`PAUSE`], whoever asks for what; keys once
//! had are kept while the issuer does not answer; few requests wait for it.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use reqwest::Client;
use tokio::sync::{Semaphore, watch};
use tracing::Instrument;

use super::{
    fetch,
    keys::{KeySet, Lookup},
    token::Token,
};
use crate::{
    auth::Error,
    config,
    domain::clock::{Clock, Moment},
    trace,
};

/// Between the beginnings of two fetches. A flood of made-up key identifiers costs the issuer no more.
const PAUSE: Duration = Duration::from_secs(30);
/// When keys are old. A key that the issuer has withdrawn is good for so long at most while the issuer
/// answers: nothing else tells us of that. Issuers announce new keys hours before they use them.
const OLD: Duration = Duration::from_hours(1);
/// How many requests may wait for an issuer; others are told to come again. An issuer that answers
/// slowly must not take every place that requests have.
const WAITING: usize = 128;

/// Where the keys of one issuer come from.
pub struct Source {
    pub issuer: config::Issuer,
    /// The issuer's place in the configuration, as metrics name it.
    label: String,
    client: Client,
    clock: Clock,
    waiting: Semaphore,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    keys: Option<Arc<KeySet>>,
    /// When they were had.
    fetched: Moment,
    /// When the last fetch began.
    attempted: Option<Moment>,
    /// The fetch that goes on: nothing is ever sent, it ends with the other side.
    flight: Option<watch::Receiver<()>>,
}

impl Source {
    /// Keys that nobody has asked for yet.
    pub fn new(issuer: config::Issuer, place: usize, client: Client, clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            issuer,
            label: place.to_string(),
            client,
            clock,
            waiting: Semaphore::new(WAITING),
            state: Mutex::default(),
        })
    }

    /// Checks the signature of a token.
    ///
    /// # Errors
    /// [`Error::Invalid`] when none of the issuer's keys made it, [`Error::IssuerUnavailable`] when we
    /// have none and cannot get any.
    pub async fn check(self: &Arc<Self>, token: &Token<'_>) -> Result<(), Error> {
        if let Some(keys) = self.known()
            && let Some(verdict) = judge(&keys, token)
        {
            return verdict;
        }
        if let Some(mut flight) = self.fetch() {
            let _waiting = self
                .waiting
                .try_acquire()
                .map_err(|_| Error::IssuerUnavailable)?;
            // An error is how it ends.
            while flight.changed().await.is_ok() {}
        }
        let keys = self.known().ok_or(Error::IssuerUnavailable)?;
        judge(&keys, token).unwrap_or(Err(Error::Invalid))
    }

    /// The keys as they are now. Begins to replace them when they are old, without waiting for it.
    fn known(self: &Arc<Self>) -> Option<Arc<KeySet>> {
        let (keys, fetched) = {
            let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            (state.keys.clone()?, state.fetched)
        };
        if self.clock.now() > fetched + OLD {
            self.fetch();
        }
        Some(keys)
    }

    /// The fetch that goes on, or a new one; `None` so soon after the last.
    fn fetch(self: &Arc<Self>) -> Option<watch::Receiver<()>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(flight) = &state.flight
            && flight.has_changed().is_ok()
        {
            return Some(flight.clone());
        }
        let now = self.clock.now();
        if state.attempted.is_some_and(|last| now < last + PAUSE) {
            return None;
        }
        let (landing, flight) = watch::channel(());
        state.attempted = Some(now);
        state.flight = Some(flight.clone());
        drop(state);
        let source = Arc::clone(self);
        // A task of its own: the request that began it may be given up, others wait for it.
        let span = tracing::debug_span!(
            target: trace::TARGET,
            "fetch an issuer's keys",
            issuer = self.issuer.issuer,
        );
        let fetching = async move {
            source.replace().await;
            drop(landing);
        };
        tokio::spawn(fetching.instrument(span));
        Some(flight)
    }

    async fn replace(&self) {
        let fetched = fetch::keys(&self.client, &self.issuer).await;
        let result = if fetched.is_ok() { "ok" } else { "failed" };
        let label = self.label.clone();
        metrics::counter!("jwks_fetches_total", "issuer" => label, "result" => result).increment(1);
        let issuer = &self.issuer.issuer;
        match fetched {
            Ok(keys) => {
                match keys.len() {
                    // Taken at its word: an issuer may withdraw all that it has.
                    0 => tracing::warn!(issuer, "has no key that fits its algorithms"),
                    keys => tracing::debug!(issuer, keys, "fetched its keys"),
                }
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                state.keys = Some(Arc::new(keys));
                state.fetched = self.clock.now();
            }
            Err(error) => tracing::warn!(issuer, %error, "could not fetch its keys"),
        }
    }
}

/// `None`: there is no such key, in these.
fn judge(keys: &KeySet, token: &Token<'_>) -> Option<Result<(), Error>> {
    match keys.find(token) {
        Lookup::Found(key) if key.signed(token) => Some(Ok(())),
        Lookup::Found(_) | Lookup::Wrong => Some(Err(Error::Invalid)),
        Lookup::Unknown => None,
    }
}
