//! Caches an issuer's keys: fetches them on first use, for unknown key identifiers, and in the background when old.
//!
//! Invariants:
//! - At most one fetch runs at a time, and at most one starts per [`FETCH_INTERVAL`].
//! - Cached keys are kept while the issuer is unreachable.
//! - At most [`MAX_WAITING`] requests wait for the issuer.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use reqwest::Client;
use tokio::sync::{Semaphore, watch};
use tracing::Instrument;

use super::{
    fetch,
    keys::KeySet,
    token::{Token, refused},
};
use crate::{
    auth::error::Error,
    config,
    domain::clock::{Clock, Moment},
    http_client::with_causes,
    trace_context,
};

/// Minimum time between the starts of two fetches, even under a flood of invented key identifiers.
const FETCH_INTERVAL: Duration = Duration::from_secs(30);
/// Age at which keys are fetched again. It bounds the use of a withdrawn key while the issuer responds, since nothing
/// else reports a withdrawal. Issuers announce new keys hours before they use them.
const REFRESH_AFTER: Duration = Duration::from_hours(1);
/// Maximum number of requests that wait for an issuer; others fail at once. A slow issuer must not take all permits of
/// requests.
const MAX_WAITING: usize = 128;

/// Cached keys of one issuer.
pub struct Source {
    pub issuer: config::Issuer,
    /// Index of the issuer in the configuration, as a metric label.
    label: String,
    client: Client,
    clock: Clock,
    waiting: Semaphore,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    keys: Option<Arc<KeySet>>,
    /// Time of the last successful fetch.
    fetched_at: Moment,
    /// Start of the last fetch.
    attempted_at: Option<Moment>,
    /// Fetch in progress. Nothing is sent on the channel; it closes when the fetch ends.
    in_progress: Option<watch::Receiver<()>>,
}

impl Source {
    pub fn new(issuer: config::Issuer, index: usize, client: Client, clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            issuer,
            label: index.to_string(),
            client,
            clock,
            waiting: Semaphore::new(MAX_WAITING),
            state: Mutex::default(),
        })
    }

    /// Verifies the signature, `iss` and `aud` of a token. Fails with [`Error::IssuerUnavailable`] if there are no keys
    /// and none can be fetched, or too many requests wait for a fetch.
    pub async fn verify(self: &Arc<Self>, token: &Token<'_>) -> Result<(), Error> {
        if let Some(keys) = self.cached_keys()
            && let Some(result) = keys.verify(token)
        {
            return result;
        }
        if let Some(mut fetch) = self.fetch() {
            let permit = self.waiting.try_acquire();
            let _permit = permit.map_err(|_| Error::IssuerUnavailable)?;
            // The channel closes when the fetch ends.
            while fetch.changed().await.is_ok() {}
        }
        let keys = self.cached_keys().ok_or(Error::IssuerUnavailable)?;
        let verified = keys.verify(token);
        verified.unwrap_or_else(|| Err(refused("its key is not in the set of the issuer")))
    }

    /// Returns the cached keys. If they are old, starts a fetch and does not wait for it.
    fn cached_keys(self: &Arc<Self>) -> Option<Arc<KeySet>> {
        let (keys, fetched_at) = {
            let state = self.state();
            (state.keys.clone()?, state.fetched_at)
        };
        if self.clock.now() > fetched_at + REFRESH_AFTER {
            self.fetch();
        }
        Some(keys)
    }

    /// Returns the fetch in progress, or starts one. Returns `None` if the last one started less than
    /// [`FETCH_INTERVAL`] ago.
    fn fetch(self: &Arc<Self>) -> Option<watch::Receiver<()>> {
        let mut state = self.state();
        if let Some(fetch) = &state.in_progress
            && fetch.has_changed().is_ok()
        {
            return Some(fetch.clone());
        }
        let now = self.clock.now();
        let attempted_at = state.attempted_at;
        if attempted_at.is_some_and(|last| now < last + FETCH_INTERVAL) {
            return None;
        }
        let (end, fetch) = watch::channel(());
        state.attempted_at = Some(now);
        state.in_progress = Some(fetch.clone());
        drop(state);
        let source = Arc::clone(self);
        // A separate task, because other requests wait for it even if this one is cancelled.
        let span = tracing::debug_span!(
            target: trace_context::TARGET,
            "fetch an issuer's keys",
            issuer = self.issuer.issuer,
        );
        let fetching = async move {
            source.refresh().await;
            drop(end);
        };
        tokio::spawn(fetching.instrument(span));
        Some(fetch)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fetches the keys and replaces the cached ones. Keeps those if the fetch fails.
    async fn refresh(&self) {
        let fetched = fetch::keys(&self.client, &self.issuer).await;
        let result = if fetched.is_ok() { "ok" } else { "failed" };
        let label = self.label.clone();
        metrics::counter!("jwks_fetches_total", "issuer" => label, "result" => result).increment(1);
        let issuer = &self.issuer.issuer;
        match fetched {
            Ok(keys) => {
                match keys.len() {
                    // An empty set is accepted: an issuer may withdraw all of its keys.
                    0 => tracing::warn!(
                        issuer,
                        "fetched no usable keys; refusing the issuer's tokens"
                    ),
                    keys => tracing::debug!(issuer, keys, "fetched the issuer's keys"),
                }
                let mut state = self.state();
                state.keys = Some(Arc::new(keys));
                state.fetched_at = self.clock.now();
            }
            Err(error) => {
                let error = with_causes(&*error);
                tracing::warn!(issuer, %error, "failed to fetch the issuer's keys; retrying after 30 s");
            }
        }
    }
}
