//! What handlers need, declared below them; `app` builds it.

use std::{
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::extract::FromRef;
use ipnet::IpNet;
use tokio::sync::{Notify, Semaphore};
use url::Url;

use super::access::AccessRules;
use crate::{
    auth::{Authenticator, password::Passwords},
    blobs::Blobs,
    config::{self, Plans},
    db::Database,
    domain::caller::Scopes,
    limits::{Limiter, token_buckets::Logins, wrong_credentials::WrongCredentials},
    renderings::Renderer,
};

/// All of it. A handler asks for the parts it uses (`State<Database>`). Behind one pointer: axum clones it
/// several times a request.
#[derive(Clone)]
pub struct AppState(Arc<Parts>);

/// The parts.
#[derive(Clone)]
pub struct Parts {
    /// PostgreSQL.
    pub database: Database,
    /// Who a credential stands for.
    pub authenticator: Authenticator,
    /// What each operation needs.
    pub access: Arc<AccessRules>,
    /// What each caller's plan admits.
    pub limiter: Limiter,
    /// What those are.
    pub plans: Plans,
    /// How many wrong credentials an address may show.
    pub wrong_credentials: WrongCredentials,
    /// Whose word on the client's address is taken.
    pub trusted_proxies: TrustedProxies,
    /// How many requests are answered at once.
    pub places: Places,
    /// What a request without a credential may do.
    pub anonymous: AnonymousScopes,
    /// How much body is read, and for how long.
    pub body_limits: BodyLimits,
    /// Where the bytes of images are.
    pub blobs: Blobs,
    /// How images come in.
    pub uploads: Uploads,
    /// What makes images smaller.
    pub renderer: Renderer,
    /// Whom to tell that bytes of images are to be deleted.
    pub leftovers: Leftovers,
    /// The URLs that are handed out.
    pub links: Links,
    /// How long an access token lasts.
    pub token_lifetime: TokenLifetime,
    /// Hashes passwords.
    pub passwords: Passwords,
    /// How often anybody may try to log in to an account.
    pub logins: Logins,
    /// Whether strangers may make accounts.
    pub sign_up: SignUp,
    /// How long a session lasts.
    pub session_lifetime: SessionLifetime,
    /// How long a request may take in all.
    pub request_timeout: RequestTimeout,
    /// Whether new requests are welcome.
    pub readiness: Readiness,
}

impl AppState {
    /// All of these.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        Self(Arc::new(parts))
    }

    /// The same for one worker: what its requests ask the database for at once travels together, and
    /// apart from what those of other workers do; so do its finds.
    #[must_use]
    pub fn of_a_worker(&self) -> Self {
        let database = self.database.of_a_worker();
        Self::new(Parts {
            authenticator: self.authenticator.on(database.clone()),
            limiter: self.limiter.for_worker(database.clone()),
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

macro_rules! handed_out {
    ($($part:ident: $Part:ty),+ $(,)?) => {
        $(impl FromRef<AppState> for $Part {
            fn from_ref(state: &AppState) -> Self {
                state.$part.clone()
            }
        })+
    };
}

handed_out! {
    database: Database,
    authenticator: Authenticator,
    access: Arc<AccessRules>,
    limiter: Limiter,
    plans: Plans,
    wrong_credentials: WrongCredentials,
    trusted_proxies: TrustedProxies,
    places: Places,
    anonymous: AnonymousScopes,
    body_limits: BodyLimits,
    blobs: Blobs,
    uploads: Uploads,
    renderer: Renderer,
    leftovers: Leftovers,
    links: Links,
    token_lifetime: TokenLifetime,
    passwords: Passwords,
    logins: Logins,
    sign_up: SignUp,
    session_lifetime: SessionLifetime,
    request_timeout: RequestTimeout,
    readiness: Readiness,
}

/// Proxies whose `X-Forwarded-For` is believed.
#[derive(Debug, Clone)]
pub struct TrustedProxies(pub Arc<[IpNet]>);

/// A place for each request that is being answered, and fewer for those whose answers are still being sent
/// because they are of no known length: who takes long to read one keeps nobody from being answered.
#[derive(Debug, Clone)]
pub struct Places {
    /// Until the answer's head.
    pub requests: Arc<Semaphore>,
    /// From there to the end of a streamed body.
    pub streams: Arc<Semaphore>,
    max_requests: usize,
}

/// How many are done at once, of how many that may be.
#[derive(Debug, Clone, Copy)]
pub struct InFlight {
    /// At the moment.
    pub now: usize,
    /// At most.
    pub max: usize,
}

impl InFlight {
    fn of(places: &Semaphore, max: usize) -> Self {
        let now = max.saturating_sub(places.available_permits());
        Self { now, max }
    }
}

impl Places {
    /// So many places, and half as many for streams.
    #[must_use]
    pub fn new(requests: usize) -> Self {
        Self {
            requests: Arc::new(Semaphore::new(requests)),
            streams: Arc::new(Semaphore::new(requests.div_ceil(2))),
            max_requests: requests,
        }
    }

    /// How many requests are being answered.
    #[must_use]
    pub fn in_flight(&self) -> InFlight {
        InFlight::of(&self.requests, self.max_requests)
    }
}

/// The scopes of a request without a credential.
#[derive(Debug, Clone, Copy)]
pub struct AnonymousScopes(pub Scopes);

/// How long a request may take until its answer begins.
#[derive(Debug, Clone, Copy)]
pub struct RequestTimeout(pub Duration);

/// How long an access token lasts.
#[derive(Debug, Clone, Copy)]
pub struct TokenLifetime(pub Duration);

/// Whether strangers may make accounts.
#[derive(Debug, Clone, Copy)]
pub struct SignUp(pub bool);

/// How long a session lasts.
#[derive(Debug, Clone, Copy)]
pub struct SessionLifetime(pub Duration);

/// Bounds of a JSON or form body.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    /// In bytes.
    pub max_size: u64,
    /// Until all of it has arrived.
    pub timeout: Duration,
}

/// How much of an upload is read, for how long, and how many at once.
#[derive(Debug, Clone)]
pub struct Uploads {
    /// A place for each.
    pub places: Arc<Semaphore>,
    max: usize,
    /// Size of an image, in bytes.
    pub max_size: u64,
    /// Until all of it has arrived.
    pub timeout: Duration,
    /// Until more of it has.
    pub pause: Duration,
}

impl Uploads {
    /// Those that are configured; `pause` is how long any body may pause.
    #[must_use]
    pub fn new(config: &config::Images, pause: Duration) -> Self {
        Self {
            places: Arc::new(Semaphore::new(config.max_uploads)),
            max: config.max_uploads,
            max_size: config.max_size.as_u64(),
            timeout: config.upload_timeout,
            pause,
        }
    }

    /// How many are being taken.
    #[must_use]
    pub fn in_flight(&self) -> InFlight {
        InFlight::of(&self.places, self.max)
    }
}

/// Bytes of images that no row has any more, which are deleted behind the request that made them so.
#[derive(Debug, Clone, Default)]
pub struct Leftovers(Arc<Notify>);

impl Leftovers {
    /// Says that there may be some.
    pub fn are_there(&self) {
        self.0.notify_one();
    }

    /// Waits until there may be some.
    pub async fn wait(&self) {
        self.0.notified().await;
    }
}

/// Makes the URLs that the service hands out: below `server.public_url` where it is configured, else
/// relative to the host that was asked (RFC 3986 §4.2).
#[derive(Debug, Clone)]
pub struct Links(Arc<str>);

impl Links {
    /// Links below `public_url`.
    #[must_use]
    pub fn new(public_url: Option<&Url>) -> Self {
        let base = public_url.map_or("", Url::as_str).trim_end_matches('/');
        Self(base.into())
    }

    /// The same, always absolute: on the host that was asked, where none is configured.
    #[must_use]
    pub fn absolute_url(&self, path: &str, host: &str) -> String {
        if self.0.is_empty() {
            format!("http://{host}{path}")
        } else {
            self.url(path)
        }
    }

    /// The URL of a path of ours that begins with `/`.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.0)
    }
}

/// Whether this process takes new requests; it stops to before it stops answering.
#[derive(Debug, Clone, Default)]
pub struct Readiness(Arc<AtomicBool>);

impl Readiness {
    /// Says that the process is about to stop, to whoever asks `/readyz`.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it is about to stop.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
