//! The composition root: builds every part, in order, and runs them until they are to stop.
//!
//! Building is apart from running, so that whoever builds knows the real addresses before the first
//! request: tests bind port 0.

mod activity;
mod demo;
mod framing;
mod listener;
mod server;
mod stall;
mod wire;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use secrecy::ExposeSecret;
use tokio::net::TcpListener;

use self::server::Bounds;
pub use self::{demo::DEMO_KEYS, listener::raise_file_limit};
use crate::{
    api::{
        self,
        state::{
            AnonymousScopes, AppState, BodyLimits, Links, Places, Readiness, RequestTimeout,
            TokenLifetime, TrustedProxies,
        },
    },
    auth::{Authenticator, jwks::Issuers, secret::Secret},
    config::{self, Config, LimitsScope},
    db::{self, Database},
    domain::{Invalid, caller::Scopes, clock::Clock, plan::Plan},
    limits::{Limiter, Scope, address::WrongCredentials},
    local_postgres::{self, Durability, LocalPostgres, SearchPath},
    shutdown::Shutdown,
    telemetry,
};

/// Why the service did not start, or did not stop well. Each says what to do next.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An address could not be bound.
    #[error(
        "cannot listen on {address} ({key}): {source}. Name another address, or port 0 for any free \
         port: {variable}=127.0.0.1:0"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Its key in the configuration.
        key: &'static str,
        /// The variable that overrides it.
        variable: &'static str,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] config::Error),
    /// The database cannot be reached or brought up to date.
    #[error(
        "{0}. Check database.url (DATABASE_URL), or leave it out to run a PostgreSQL of our own"
    )]
    Database(#[from] db::Error),
    /// Our own PostgreSQL cannot run.
    #[error(transparent)]
    LocalPostgres(#[from] local_postgres::Error),
    /// The bootstrap key is no good.
    #[error("BOOTSTRAP_API_KEY {0}")]
    BootstrapKey(Invalid),
    /// Metrics cannot be kept.
    #[error(transparent)]
    Telemetry(#[from] telemetry::Error),
    /// There is no asking the issuers of tokens for their keys.
    #[error("cannot make an HTTP client for auth.issuers: {0}")]
    HttpClient(String),
    /// The API contradicts itself; a test rules it out.
    #[error("the API is built wrongly: {0}")]
    Api(String),
}

/// The service, built and bound, not yet serving.
pub struct App {
    api: (TcpListener, SocketAddr, Router),
    operations: (TcpListener, SocketAddr, Router),
    bounds: Bounds,
    state: AppState,
    local_postgres: Option<LocalPostgres>,
    demo_keys: bool,
}

impl App {
    /// Builds everything: starts our own PostgreSQL if no other is named, brings the schema up to date,
    /// binds both listeners.
    ///
    /// # Errors
    /// [`Error`], saying what to do next.
    pub async fn build(config: Config) -> Result<Self, Error> {
        Self::build_with(config, Clock::system()).await
    }

    /// Like [`App::build`], with the clock that limits and the memory of credentials go by.
    ///
    /// # Errors
    /// As [`App::build`].
    pub async fn build_with(config: Config, clock: Clock) -> Result<Self, Error> {
        let (local_postgres, options) = match &config.database.url {
            Some(url) => (None, db::parse_url(url)?),
            None => {
                let local = Box::pin(start_local_postgres(&config)).await?;
                let options = local.connect_options();
                (Some(local), options)
            }
        };
        let own = local_postgres.is_some();
        // Boxed: its place on the stack is large, and needed only here.
        Box::pin(db::migrations::apply(&options)).await?;
        let database = Database::new(options, &config.database);
        database.look_for_pooler().await?;
        let counters = counters(&config, own, &database);

        let api = listen(&config, Listener::Api, own)?;
        let operations = listen(&config, Listener::Operations, own)?;
        let mut admitted = Vec::new();
        if let Some(key) = &config.environment.bootstrap_api_key {
            admitted.push(Box::pin(bootstrap(&database, key.expose_secret())).await?);
        }
        // Everybody knows these keys: they are for this machine alone.
        let demo_keys = own && api.1.ip().is_loopback();
        if demo_keys {
            admitted.extend(Box::pin(demo::store_keys(&database)).await?);
        }

        let limiter = Limiter::new(
            config.plans.clone(),
            counters.map_or_else(|| Scope::Replica(database.clone()), Scope::Cluster),
            clock.clone(),
        );
        let issuers =
            Issuers::new(config.auth.issuers, clock.clone()).map_err(Error::HttpClient)?;
        let links = Links::new(config.server.public_url.as_ref());
        let document = api::document(&links);
        let state = AppState {
            authenticator: Authenticator::new(database.clone(), admitted, issuers, clock.clone()),
            access: api::access_rules(&document).map_err(Error::Api)?,
            limiter,
            wrong_credentials: WrongCredentials::new(
                config.limits.wrong_credentials_per_minute,
                clock,
            ),
            trusted_proxies: TrustedProxies(config.limits.trusted_proxies.into()),
            places: Places::new(config.server.max_requests),
            anonymous: AnonymousScopes(config.auth.anonymous_scopes),
            body_limits: BodyLimits {
                max_size: config.server.max_body_size.as_u64(),
                timeout: config.server.body_timeout,
            },
            links,
            token_lifetime: TokenLifetime(config.auth.access_token_lifetime),
            request_timeout: RequestTimeout(config.server.request_timeout),
            readiness: Readiness::default(),
            database,
        };
        let router =
            api::router(state.clone(), &document).map_err(|e| Error::Api(e.to_string()))?;
        let operations_router = api::operations_router(state.clone(), metrics(&state.database)?);
        Ok(Self {
            api: (api.0, api.1, router),
            operations: (operations.0, operations.1, operations_router),
            bounds: Bounds {
                header_timeout: config.server.header_timeout,
                idle_timeout: config.server.idle_timeout,
                max_header_size: usize::try_from(config.server.max_header_size.as_u64())
                    .unwrap_or(usize::MAX),
                max_connections: config.server.max_connections,
            },
            state,
            local_postgres,
            demo_keys,
        })
    }

    /// Where the API listens.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.api.1
    }

    /// Where metrics and health listen.
    #[must_use]
    pub const fn operations_addr(&self) -> SocketAddr {
        self.operations.1
    }

    /// Whether [`DEMO_KEYS`] are good.
    #[must_use]
    pub const fn has_demo_keys(&self) -> bool {
        self.demo_keys
    }

    /// Serves until `shutdown`: readiness fails first, then no connection is accepted, then requests in
    /// flight end or are cut off, then everything else stops.
    ///
    /// # Errors
    /// [`Error::LocalPostgres`] when our own PostgreSQL did not stop well.
    pub async fn run(self, shutdown: Shutdown) -> Result<(), Error> {
        let database = self.state.database;
        let readiness = self.state.readiness;
        let limiter = self.state.limiter;
        let upkeep = [
            tokio::spawn(self.state.authenticator.follow_changes()),
            tokio::spawn(sweep(database.clone())),
            tokio::spawn(sweep_limits(limiter.clone(), self.state.wrong_credentials)),
        ];
        let serving = shutdown.to_be_stopped();
        let (stopping, stop) = (shutdown.clone(), serving.clone());
        tokio::spawn(async move {
            stopping.soft().await;
            // First, so that whoever finds the door shut is told why.
            readiness.stop();
            stop.stop();
        });

        // Whoever asks the operator's listener is told how it goes to the end.
        let last = shutdown.later();
        let (listener, _, router) = self.operations;
        let operations = server::serve(listener, router, self.bounds, "operations", last.clone());
        let operations = tokio::spawn(operations);
        let (listener, _, router) = self.api;
        server::serve(listener, router, self.bounds, "api", serving).await;
        last.cut_off();
        let _ = operations.await;
        for task in upkeep {
            task.abort();
        }
        let _ = tokio::time::timeout(db::QUERY_TIMEOUT, limiter.close()).await;

        // A statement that never ends must not keep us: PostgreSQL undoes what is not committed.
        let _ = tokio::time::timeout(db::QUERY_TIMEOUT, database.close()).await;
        if let Some(local_postgres) = self.local_postgres {
            local_postgres.stop().await?;
        }
        Ok(())
    }
}

/// Starts the PostgreSQL of our own that the configuration describes.
async fn start_local_postgres(config: &Config) -> Result<LocalPostgres, Error> {
    let directory = &config.local_postgres.directory;
    Ok(LocalPostgres::start(directory, &search_path(config), Durability::Durable).await?)
}

/// Where PostgreSQL's programs are looked for.
#[must_use]
pub fn search_path(config: &Config) -> SearchPath {
    SearchPath {
        bin_dir: config.environment.postgres_bin_dir.clone(),
        path: config.environment.path.clone(),
    }
}

#[derive(Clone, Copy)]
enum Listener {
    Api,
    Operations,
}

/// Binds one of the listeners. On our own PostgreSQL, so for a first look, a default port that is taken
/// is no reason not to start: another one does.
fn listen(
    config: &Config,
    listener: Listener,
    own: bool,
) -> Result<(TcpListener, SocketAddr), Error> {
    let of = |config: &Config| match listener {
        Listener::Api => config.server.listen,
        Listener::Operations => config.operations.listen,
    };
    let (key, variable) = match listener {
        Listener::Api => ("server.listen", "PET_INVENTORY__SERVER__LISTEN"),
        Listener::Operations => ("operations.listen", "PET_INVENTORY__OPERATIONS__LISTEN"),
    };
    let address = of(config);
    let failed = |source| Error::Listen {
        address,
        key,
        variable,
        source,
    };
    let reuse_port = config.server.reuse_port;
    let bound = match listener::bind(address, reuse_port) {
        Err(error)
            if own
                && error.kind() == io::ErrorKind::AddrInUse
                && address == of(&Config::defaults()?) =>
        {
            tracing::warn!(%address, key, "taken by another program: listening on a free port instead");
            listener::bind(SocketAddr::new(address.ip(), 0), reuse_port)
        }
        bound => bound,
    };
    let bound = bound.map_err(failed)?;
    let address = bound.local_addr().map_err(failed)?;
    Ok((bound, address))
}

/// Stores the first key of a database that has none, for a caller `bootstrap` who may do everything.
async fn bootstrap(database: &Database, key: &str) -> Result<Secret, Error> {
    const REASON: Invalid = Invalid::because("must be 16 to 256 visible ASCII characters");
    if !(16..=256).contains(&key.len()) || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Error::BootstrapKey(REASON));
    }
    let key = Secret::admit(key);
    let name = "bootstrap".parse().map_err(Error::BootstrapKey)?;
    let mut transaction = database.begin().await?;
    if !db::credentials::any(&mut *transaction).await?
        && let Some(caller) =
            db::callers::insert(&mut *transaction, &name, Plan::Enterprise, Scopes::all()).await?
    {
        demo::store(&mut transaction, caller, &key).await?;
        tracing::info!("stored BOOTSTRAP_API_KEY as the first key, of caller bootstrap");
    }
    Database::commit(transaction).await?;
    Ok(key)
}

/// Renders the metrics, those that are read off the pool included.
fn metrics(database: &Database) -> Result<impl Fn() -> String + Clone + use<>, Error> {
    let handle = Arc::new(telemetry::metrics()?);
    let database = database.clone();
    Ok(move || {
        let (open, idle) = database.connections();
        metrics::gauge!("database_connections", "state" => "idle").set(f64::from(idle));
        metrics::gauge!("database_connections", "state" => "used")
            .set(f64::from(open.saturating_sub(idle)));
        handle.run_upkeep();
        handle.render()
    })
}

/// Connections for the counters that all replicas share, where they do: few, their own, so that neither
/// requests nor counters wait for the other, and without waiting for the disk at each commit: after a crash
/// of PostgreSQL a count may lack its last moments, which no client was promised.
fn counters(config: &Config, own: bool, database: &Database) -> Option<Database> {
    let shared = match config.limits.scope {
        LimitsScope::Auto => !own,
        LimitsScope::Replica => false,
        LimitsScope::Cluster => true,
    };
    shared.then(|| database.for_counters())
}

/// Forgets what limits no longer need to know.
async fn sweep_limits(limiter: Limiter, wrong_credentials: WrongCredentials) {
    const EVERY: Duration = Duration::from_secs(30);
    loop {
        tokio::time::sleep(EVERY).await;
        limiter.sweep().await;
        wrong_credentials.sweep();
    }
}

/// Forgets kept answers after their day, access tokens that have expired, and counts that are over.
async fn sweep(database: Database) {
    const EVERY: Duration = Duration::from_mins(1);
    loop {
        tokio::time::sleep(EVERY).await;
        if let Err(error) = sweep_once(&database).await {
            tracing::warn!(%error, "could not forget what is over");
        }
    }
}

async fn sweep_once(database: &Database) -> Result<(), db::Error> {
    let pool = database.pool();
    // A thousand at a time, so that nobody waits for a lock for long.
    while db::idempotency::sweep(pool).await? > 0 {}
    while db::oauth::sweep(pool).await? > 0 {}
    while db::usage::sweep_minutes(pool).await? > 0 {}
    while db::usage::sweep_days(pool).await? > 0 {}
    Ok(())
}
