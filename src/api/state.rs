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
use tokio::sync::Notify;
use url::Url;

use super::{idempotency::StoredBytes, rate_limits::RateLimits};
use crate::{
    auth::{Authenticator, password::Passwords},
    blob_store::BlobStore,
    config::{self, CorsOrigins, Plans},
    db::{Database, HealthCheck},
    domain::{address::AddressKey, caller::Scopes, plan::Plan},
    feed::Feed,
    images::renderings::Renderer,
    limits::{
        failed_authentication::FailedAuthenticationLimit,
        logins::Logins,
        shares::{Exhausted, Share, Shares},
    },
};

/// Maximum number of bytes counted for a response with an image: two pieces of 128 KiB, of which one is being sent. Those
/// of S3 have the size of a TLS record, 16 KiB.
const MAX_COUNTED_OF_IMAGE: usize = 256 << 10;

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
    /// Maximum size of a page of a list in bytes.
    pub max_page_size: usize,
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
}

/// Maximum number of requests that wait for a rendering.
const MAX_RENDERINGS: usize = 256;
/// Maximum number of requests that wait for a password hash: about one second of work.
const MAX_WAITING_HASHES: usize = 50;

/// Limits of what requests use at the same time, in total and by client address.
#[derive(Debug, Clone)]
pub struct ConcurrencyLimits {
    /// Number of requests in progress, until the response head.
    pub requests: Shares,
    /// Number of those without credentials.
    pub without_credentials: Shares,
    /// Number of requests with an unread body.
    pub arriving: Shares,
    /// Number of requests that wait for a rendering. The work goes on if the client disconnects.
    pub renderings: Shares,
    /// Number of passwords that are being hashed or wait for it, except those of lists of accounts.
    pub password_hashes: Shares,
    /// Bytes of responses that are being sent.
    pub responses: Shares,
    /// The same for images, so that clients that read them slowly do not hold up other responses.
    pub images: Shares,
    /// Number of streams of changes.
    pub change_streams: Shares,
}

impl ConcurrencyLimits {
    /// Allows `max_requests` concurrent requests, of which half may be of one address and half without credentials,
    /// `max_response_memory` bytes of responses, of which images have a quarter, a queue of `hashes_at_once` passwords, and
    /// `max_streams` streams of changes, of which an eighth may be of one address, on half of the connections.
    pub fn new(server: &config::Server, changes: &config::Changes, hashes_at_once: usize) -> Self {
        let (max_requests, half) = (server.max_requests, server.max_requests.div_ceil(2));
        let max_response_memory = server.max_response_memory.as_u64();
        let max_response_memory = usize::try_from(max_response_memory).unwrap_or(usize::MAX);
        let max_streams = changes.max_streams.min(server.max_connections / 2);
        let hashes = hashes_at_once + MAX_WAITING_HASHES;
        let images = max_response_memory / 4;
        let responses = max_response_memory - images;
        Self {
            requests: Shares::new(max_requests, half),
            without_credentials: Shares::new(half, half.div_ceil(4)),
            arriving: Shares::new(half + half / 2, half.div_ceil(4)),
            // A page of an image gallery may need many at once.
            renderings: Shares::new(MAX_RENDERINGS, MAX_RENDERINGS / 4),
            password_hashes: Shares::new(hashes, hashes / 4),
            responses: Shares::new(responses, responses / 8),
            images: Shares::new(images, images / 8),
            change_streams: Shares::new(max_streams, max_streams.div_ceil(8)),
        }
    }

    /// Takes memory for a response with `length` bytes of an image, which are read in pieces.
    pub fn take_for_image(
        &self,
        address: Option<AddressKey>,
        length: u64,
    ) -> Result<Share, Exhausted> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let amount = length.min(MAX_COUNTED_OF_IMAGE);
        self.images.take(address, amount)
    }
}

/// Lifetime of an access token.
#[derive(Debug, Clone, Copy)]
pub struct TokenLifetime(pub Duration);

/// Limits of a body.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    /// Maximum size in bytes.
    pub max_size: u64,
    /// Time limit until the whole body has arrived.
    pub timeout: Duration,
    /// Time limit until more of the body has arrived.
    pub pause: Duration,
    /// Minimum average size in bytes of chunks, if there are many.
    pub min_chunk: u64,
}

impl BodyLimits {
    /// Limits of a JSON or form body. Some clients write it value by value.
    pub const fn new(max_size: u64, timeout: Duration) -> Self {
        Self {
            max_size,
            timeout,
            pause: timeout,
            min_chunk: 8,
        }
    }
}

/// Limits of uploads.
#[derive(Debug, Clone)]
pub struct Uploads {
    /// Number of uploads in progress.
    pub in_progress: Shares,
    /// Limits of the body; the maximum size is that of an image.
    pub body: BodyLimits,
}

impl Uploads {
    /// Creates the configured limits. `pause` is the maximum pause within any body.
    pub fn new(config: &config::Images, pause: Duration) -> Self {
        Self {
            in_progress: Shares::new(config.max_uploads, config.max_uploads.div_ceil(8)),
            body: BodyLimits {
                max_size: config.max_size.as_u64(),
                timeout: config.upload_timeout,
                pause,
                min_chunk: 256,
            },
        }
    }
}

/// Signal that there may be orphaned blobs, which a background task deletes.
#[derive(Debug, Clone, Default)]
pub struct OrphanedBlobs(Arc<Notify>);

impl OrphanedBlobs {
    /// Sends the signal.
    pub fn notify(&self) {
        self.0.notify_one();
    }

    /// Waits for the signal.
    pub async fn notified(&self) {
        self.0.notified().await;
    }
}

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
