//! Application state of the handlers and the layers. `app` builds it.

use std::{
    num::NonZeroU32,
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::extract::FromRef;
use ipnet::IpNet;
use tokio_util::task::TaskTracker;
use url::Url;

use super::idempotency::StoredBytes;
use crate::{
    auth::{Authenticator, password::Passwords},
    blob_store::{BlobStore, OrphanedBlobs},
    config::{CorsOrigins, Plans},
    db::{Database, HealthCheck},
    domain::{caller::Scopes, plan::Plan},
    feed::Feed,
    images::renderings::Renderer,
    limits::{
        failed_authentication::FailedAuthenticationLimit,
        logins::Logins,
        requests::RateLimits,
        resources::{BodyLimits, ConcurrencyLimits, Uploads},
    },
    webhooks,
};

/// Application state. A handler extracts the parts it uses (`State<Database>`). Behind one pointer, since axum clones
/// it several times per request.
#[derive(Clone)]
pub struct AppState(Arc<Parts>);

/// Parts of the application state.
#[derive(Clone)]
pub struct Parts {
    /// PostgreSQL.
    pub database: Database,
    /// Demo keys that are accepted, with their plans.
    pub demo_keys: &'static [(&'static str, Plan)],
    /// Resolves credentials to callers.
    pub authenticator: Authenticator,
    /// Limits of requests.
    pub limits: Arc<RateLimits>,
    /// Limits of the plans.
    pub plans: Plans,
    /// Failed-authentication limit by client address.
    pub failed_authentication: FailedAuthenticationLimit,
    /// Proxies that are trusted to set `X-Forwarded-For`.
    pub trusted_proxies: Arc<[IpNet]>,
    /// Origins of web pages that may use the API.
    pub cors_origins: CorsOrigins,
    /// Limits of concurrent requests.
    pub concurrency: ConcurrencyLimits,
    /// Scopes of anonymous callers.
    pub anonymous_scopes: Scopes,
    /// Plan of anonymous callers.
    pub anonymous_plan: Plan,
    /// True if access lines have the path, the client address and the size of the response.
    pub access_details: bool,
    /// Limits of JSON and form bodies.
    pub body_limits: BodyLimits,
    /// Limit of the stored responses of a caller.
    pub stored_bytes: StoredBytes,
    /// Time for which the record of changes is kept.
    pub change_retention: Duration,
    /// True if webhooks may have `http` URLs and private addresses.
    pub allow_private_webhooks: bool,
    /// Sends requests to webhooks.
    pub webhook_sender: webhooks::Sender,
    /// Live feed of the record of changes.
    pub feed: Feed,
    /// Image store.
    pub blobs: BlobStore,
    /// Limits of uploads.
    pub uploads: Uploads,
    /// Creates smaller renderings of images.
    pub renderer: Renderer,
    /// Signals that there may be orphaned blobs.
    pub orphaned_blobs: OrphanedBlobs,
    /// Builds the URLs in responses.
    pub links: Links,
    /// Lifetime of a new API key; `None` for never.
    pub key_lifetime: Option<Duration>,
    /// Lifetime of an access token.
    pub token_lifetime: TokenLifetime,
    /// Hashes passwords.
    pub passwords: Passwords,
    /// Limits of login attempts.
    pub logins: Logins,
    /// True if unauthenticated clients may create accounts.
    pub sign_up: bool,
    /// Lifetime of a session.
    pub session_lifetime: Duration,
    /// Maximum number of sessions of a user.
    pub max_sessions: NonZeroU32,
    /// Time limit until a response begins.
    pub request_timeout: Duration,
    /// Readiness of the process.
    pub readiness: Readiness,
    /// Requests whose clients have disconnected, until their statements have ended.
    pub cancelled_requests: TaskTracker,
}

impl AppState {
    /// Creates the state from its parts.
    pub fn new(parts: Parts) -> Self {
        Self(Arc::new(parts))
    }

    /// Returns the state for one worker: its database statements are batched apart from those of other workers.
    pub fn for_worker(&self) -> Self {
        let database = self.database.for_worker();
        Self::new(Parts {
            authenticator: self.authenticator.with_database(database.clone()),
            limits: Arc::new(self.limits.for_worker(database.clone())),
            database,
            ..Parts::clone(self)
        })
    }
}

impl Deref for AppState {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

macro_rules! impl_from_ref {
    ($($part:ident: $Part:ty),+ $(,)?) => {
        $(impl FromRef<AppState> for $Part {
            fn from_ref(state: &AppState) -> Self {
                state.$part.clone()
            }
        })+
    };
}

impl_from_ref! {
    database: Database,
    authenticator: Authenticator,
    orphaned_blobs: OrphanedBlobs,
    links: Links,
    token_lifetime: TokenLifetime,
    passwords: Passwords,
    readiness: Readiness,
    limits: Arc<RateLimits>,
}

/// Lifetime of an access token.
#[derive(Debug, Clone, Copy)]
pub struct TokenLifetime(pub Duration);

/// Builds the URLs in responses: below `server.public_url` if it is configured, else relative to the requested host
/// (RFC 3986 §4.2).
#[derive(Debug, Clone)]
pub struct Links(Arc<str>);

impl Links {
    /// Creates links below `public_url`.
    pub fn new(public_url: Option<&Url>) -> Self {
        let base = public_url.map_or("", Url::as_str).trim_end_matches('/');
        Self(base.into())
    }

    /// Returns an absolute URL, on `host` if no public URL is configured.
    pub fn absolute_url(&self, path: &str, host: &str) -> String {
        if self.0.is_empty() {
            format!("http://{host}{path}")
        } else {
            self.url(path)
        }
    }

    /// Returns the URL of a path of this service, which begins with `/`.
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.0)
    }
}

/// Readiness of the process for new requests. It ends before the process stops responding.
#[derive(Debug, Clone, Default)]
pub struct Readiness {
    /// Checks the database.
    pub database: HealthCheck,
    is_stopping: Arc<AtomicBool>,
}

impl Readiness {
    /// Makes `/readyz` fail, since the process is about to stop.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
    }

    /// Returns true if the process is about to stop.
    pub fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }
}
